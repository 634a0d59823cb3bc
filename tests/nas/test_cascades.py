"""Cascades of verified networks: their figures and the choice of thresholds."""

from dataclasses import replace

import numpy as np
import pytest

from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import NORMAL_95, Quantity, QuantitySource
from hwnas.hardware.costs.cost_model import combine_quantities
from hwnas.nas import cascades
from hwnas.nas.cascades import Array, Cascade, CascadeLink, CascadeStage, expected_cost
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.metrics.metric import divide
from hwnas.tasks.predictions import Predictions

N = 2000


def stage(name: str, latency_ms: float, skill: float, seed: int, **more: float) -> CascadeStage:
    """Return a network that is correct and confident on images easier than its skill."""
    predictions = {}
    for split, offset in (("validation", 0), ("test", 1)):
        rng = np.random.default_rng(offset)  # the same images for all networks
        difficulty = rng.uniform(0, 1, N)
        noise = np.random.default_rng([seed, offset]).normal(0, 0.1, N)
        margin = skill - difficulty + noise
        predictions[split] = Predictions(margin > 0, 1 / (1 + np.exp(-8 * np.abs(margin))))
    costs = {"latency_ms": latency_ms, "energy_mj": 2 * latency_ms, **more}
    return CascadeStage(
        name, {n: Quantity(v, "compiler-estimate") for n, v in costs.items()}, predictions
    )


@pytest.fixture
def three() -> list[CascadeStage]:
    return [
        stage("small", 1.0, 0.7, 1, sram_kib=9, flash_kib=10),
        stage("middle", 3.0, 0.8, 2, sram_kib=5, flash_kib=30),
        stage("large", 10.0, 0.95, 3, sram_kib=20, flash_kib=100),
    ]


def test_figures_match_image_by_image_count(three: list[CascadeStage]) -> None:
    results = cascades.find_cascades(three, Budget())
    assert len(results) > 5
    for cascade in results:
        first, second = cascade.first.predictions["test"], cascade.second.predictions["test"]
        n_correct, total_ms, n_on = 0, 0.0, 0
        for i in range(N):
            goes_on = first.confidence[i] < cascade.threshold
            n_correct += int((second if goes_on else first).correct[i])
            total_ms += cascade.first.latency_ms + goes_on * cascade.second.latency_ms
            n_on += int(goes_on)
        verified = cascade.verified
        assert verified.accuracy.value == pytest.approx(n_correct / N)
        assert verified.share.value == pytest.approx(n_on / N)
        expected = verified.costs["expected_latency_ms"]
        assert expected.value == pytest.approx(total_ms / N)
        assert expected.low is not None
        assert expected.high is not None
        assert expected.low < expected.value < expected.high
        assert verified.costs["expected_energy_mj"].value == pytest.approx(2 * total_ms / N)


def test_predicted_latency_matches_verified_latency(three: list[CascadeStage]) -> None:
    """The half of the split that chose no threshold predicts without a bias."""
    results = cascades.find_cascades(three, Budget())
    predicted = np.array([c.predicted.costs["expected_latency_ms"].value for c in results])
    verified = np.array([c.verified.costs["expected_latency_ms"].value for c in results])
    assert np.abs(predicted / verified - 1).max() < 0.15
    assert abs((predicted / verified).mean() - 1) < 0.04


def test_prediction_half_does_not_choose_thresholds(three: list[CascadeStage]) -> None:
    before = [
        (c.first.id, c.second.id, c.threshold) for c in cascades.find_cascades(three, Budget())
    ]
    for network in three:  # neither the prediction half nor the test split
        network.predictions["validation"].correct[1::2] = False
        network.predictions["test"].correct[:] = False
    after = cascades.find_cascades(three, Budget())
    assert {(c.first.id, c.second.id, c.threshold) for c in after} == {*before}
    assert {c.predicted.accuracy.value for c in after} == {0.0}


def test_front_includes_single_networks(three: list[CascadeStage]) -> None:
    results = cascades.find_cascades(three, Budget())
    points = [(s.predictions["test"].correct.mean(), s.latency_ms) for s in three]
    verified = [c.verified for c in results]
    points += [(s.accuracy.value, s.costs["expected_latency_ms"].value) for s in verified]
    mask = non_dominated(np.array(points), [True, False])
    assert [c.on_front for c in results] == mask[3:].tolist()
    ratios = cascades.speedups(three, results)
    assert ratios
    assert min(ratios) >= 1  # single networks of that accuracy are slower
    costs = [c.predicted.costs["expected_latency_ms"].value for c in results]
    assert costs == sorted(costs)


def test_worst_case_of_both_networks_is_limited(three: list[CascadeStage]) -> None:
    worst = Cascade(three[0], three[2], 0.5).worst
    assert {name: figure.value for name, figure in worst.items()} == {
        "latency_ms": 11.0, "energy_mj": 22.0, "sram_kib": 20, "flash_kib": 110,
    }  # fmt: skip
    for limits, allowed in (
        ({"latency_ms": 5.0}, {("small", "middle")}),
        ({"flash_kib": 120.0}, {("small", "middle"), ("small", "large")}),
        ({"latency_ms": 3.5}, set()),
    ):
        results = cascades.find_cascades(three, Budget(limits))
        pairs = {(c.first.id, c.second.id) for c in results}
        assert pairs <= allowed
        assert bool(pairs) == bool(allowed)


def test_networks_with_same_errors_make_no_cascade() -> None:
    """The slow network is wrong on the same images as the fast one."""
    fast = stage("fast", 1.0, 0.8, 1)
    slow = CascadeStage(
        "slow", {**fast.costs, "latency_ms": Quantity(2.0, "measured")}, fast.predictions
    )
    assert cascades.find_cascades([fast, slow], Budget()) == []


def test_too_few_images_make_no_cascade(three: list[CascadeStage]) -> None:
    few = [
        CascadeStage(
            s.id,
            s.costs,
            {n: Predictions(h.correct[:99], h.confidence[:99]) for n, h in s.predictions.items()},
        )
        for s in three
    ]
    assert cascades.find_cascades(few, Budget()) == []
    assert cascades.find_cascades([], Budget()) == []
    mixed = [few[0], three[1]]  # different numbers of images
    assert cascades.find_cascades(mixed, Budget()) == []


def test_local_and_linked_cascades_share_a_front(three: list[CascadeStage]) -> None:
    small, middle, large = three
    link = CascadeLink("server", latency_ms=0.0, usd_per_m=0.0)
    fast = CascadeStage(
        "fast", {**large.costs, "latency_ms": Quantity(0.1, "measured")}, large.predictions
    )
    results = cascades.find_cascades([small, middle], Budget(), [fast], link)
    assert {c.second.id for c in results} == {"fast"}  # local cascades are dominated


def test_second_network_on_another_target(three: list[CascadeStage]) -> None:
    small, _, large = three
    small = replace(small, costs={**small.costs, "balanced_accuracy": Quantity(0.7, "measured")})
    link = CascadeLink("server", latency_ms=20.0, usd_per_m=3.0)
    budget = Budget({"flash_kib": 12.0, "latency_ms": 31.0})
    results = cascades.find_cascades([small], budget, [large], link)
    assert results  # the second network needs no local flash
    for cascade in results:
        assert cascade.worst["latency_ms"].value == 31.0
        assert cascade.worst["flash_kib"].value == 10
        share, costs = cascade.verified.share.value, cascade.verified.costs
        assert costs["expected_latency_ms"].value == pytest.approx(1 + 30 * share)
        assert costs["expected_usd_per_m"].value == pytest.approx(3 * share)
        assert "expected_energy_mj" not in costs  # the energy of the link is unknown
        assert cascade.row("accuracy")["second_target"] == "server"
        assert "balanced_accuracy" not in cascade.worst, "it is of the first network alone"
    assert cascades.find_cascades([small], Budget({"latency_ms": 30.9}), [large], link) == []
    # A limit of a metric that one network lacks is not met; p99 latencies add up.
    assert cascades.find_cascades([small], Budget({"latency_p99_ms": 1e9}), [large], link) == []
    slow = Quantity(40.0, "measured")
    late = [
        CascadeStage(s.id, {**s.costs, "latency_p99_ms": slow}, s.predictions)
        for s in (small, large)
    ]
    assert cascades.find_cascades(late[:1], Budget({"latency_p99_ms": 99.0}), late[1:], link) == []
    assert cascades.find_cascades(late[:1], Budget({"latency_p99_ms": 100.0}), late[1:], link)
    priced = CascadeStage(
        "large", {**large.costs, "cost_usd_per_m": Quantity(2.0, "modelled")}, large.predictions
    )
    (first, *_) = cascades.find_cascades([small], budget, [priced], link)
    verified = first.verified
    assert verified.costs["expected_usd_per_m"].value == pytest.approx(5 * verified.share.value)


N_DRAWS = 2000


def _draw(quantity: Quantity, normal: Array) -> Array:
    below, above = quantity.value - quantity.lower, quantity.upper - quantity.value
    width = np.where(normal < 0, below, above) / NORMAL_95
    return np.asarray(quantity.value + width * normal)


def _check_interval(quantity: Quantity, draws: Array) -> None:
    """Check that an interval covers 95 % of draws and is at most 10 % wider than theirs."""
    inside = np.mean((quantity.lower <= draws) & (draws <= quantity.upper))
    assert 0.93 <= inside <= 0.97
    low, high = np.quantile(draws, [0.025, 0.975])
    assert quantity.upper - quantity.lower <= 1.1 * (high - low)


def _costs(source: QuantitySource) -> tuple[list[Quantity], list[Array]]:
    """Return costs of three parts with draws: equal errors if modelled, else independent."""
    rng = np.random.default_rng(0)
    costs = [Quantity(v, source, 0.9 * v, 1.15 * v) for v in (1.0, 1.2, 0.8)]
    errors = rng.normal(size=(3, N_DRAWS))
    if source != "measured":
        errors[:] = errors[0]
    return costs, [_draw(cost, error) for cost, error in zip(costs, errors, strict=True)]


@pytest.mark.parametrize("source", ["measured", "modelled", "table"])
def test_intervals_of_sums_cover_95_percent_of_draws(source: QuantitySource) -> None:
    """Sums over segments and over the networks of a cascade; also throughput."""
    costs, draws = _costs(source)
    _check_interval(combine_quantities("latency_ms", costs), sum(draws, np.zeros(N_DRAWS)))
    stages = [
        CascadeStage(str(i), {"latency_ms": cost, "throughput_ips": divide(1e3, cost)}, {})
        for i, cost in enumerate(costs)
    ]
    worst = Cascade(stages[0], stages[1], 0.5).worst
    _check_interval(worst["latency_ms"], draws[0] + draws[1])
    _check_interval(worst["throughput_ips"], 1e3 / (draws[0] + draws[1]))


@pytest.mark.parametrize("n_images", [500, 100_000])
@pytest.mark.parametrize("source", ["measured", "modelled"])
def test_intervals_of_expected_costs_cover_95_percent(
    source: QuantitySource, n_images: int
) -> None:
    """Expected costs of cascades and of networks with two early exits."""
    costs, draws = _costs(source)
    rng = np.random.default_rng(1)
    reached = np.array([1.0, 0.6, 0.3])
    exit_shares = rng.multinomial(n_images, [0.4, 0.3, 0.3], size=N_DRAWS) / n_images
    shares = np.stack([np.ones(N_DRAWS), 1 - exit_shares[:, 0], exit_shares[:, 2]])
    half = NORMAL_95 * np.sqrt(reached * (1 - reached) / n_images)
    fractions = [
        Quantity(p, "measured", p - w, p + w) for p, w in zip(reached.tolist(), half, strict=True)
    ]
    for n in (2, 3):
        expected = expected_cost(costs[:n], fractions[:n])
        _check_interval(expected, np.asarray(sum(draws[i] * shares[i] for i in range(n))))
