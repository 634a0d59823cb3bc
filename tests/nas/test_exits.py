"""Thresholds of early exits: what they come to, and which are listed."""

import numpy as np
import pytest

from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import Quantity
from hwnas.nas import early_exits
from hwnas.nas.early_exits import EarlyExits, ExitNetworkResults
from hwnas.tasks.predictions import NEVER, Predictions, exit_indices

N = 3000
LATENCIES = (1.0, 2.0, 4.0)


def network(
    name: str = "a", n: int = N, skills: tuple[float, ...] = (0.7, 0.85, 0.95)
) -> ExitNetworkResults:
    """Return a network whose outputs are right, and sure, where images are easy enough."""
    predictions: dict[str, list[Predictions]] = {"validation": [], "test": []}
    for split, seed in (("validation", 0), ("test", 1)):
        hardness = np.random.default_rng(seed).uniform(0, 1, n)
        for i, skill in enumerate(skills):
            noise = np.random.default_rng([i, seed]).normal(0, 0.1, n)
            margin = skill - hardness + noise
            confidence = 1 / (1 + np.exp(-8 * np.abs(margin)))
            predictions[split].append(Predictions(margin > 0, confidence))
    figures = [
        {
            "latency_ms": Quantity(ms, "compiler-estimate"),
            "energy_mj": Quantity(2 * ms, "modelled", ms, 3 * ms),
        }
        for ms in LATENCIES[: len(skills)]
    ]
    total = sum(LATENCIES[: len(skills)])
    whole = {"latency_ms": Quantity(total, "compiler-estimate")}
    return ExitNetworkResults(name, whole, figures, predictions)


def test_an_image_leaves_at_the_first_exit_that_is_sure() -> None:
    confidence = np.array([[0.9, 0.2, 0.9, 0.5], [0.9, 0.8, 0.1, 0.4]])
    assert exit_indices(confidence, [0.5, 0.5]).tolist() == [0, 1, 0, 0]
    assert exit_indices(confidence, [0.95, 0.4]).tolist() == [1, 1, 2, 1]
    assert exit_indices(confidence, [NEVER, NEVER]).tolist() == [2, 2, 2, 2]


def test_figures_are_those_of_images_counted_one_by_one() -> None:
    one = network()
    found = early_exits.swept(one)
    assert len(found) > 20
    for each in found[:: len(found) // 5]:
        right, spent, left = 0, 0.0, [0, 0, 0]
        for i in range(N):
            k = 0
            while k < 2 and one.predictions["test"][k].confidence[i] < each.thresholds[k]:
                k += 1
            left[k] += 1
            right += int(one.predictions["test"][k].correct[i])
            spent += sum(LATENCIES[: k + 1])
        seen = each.verified
        assert seen.accuracy.value == pytest.approx(right / N)
        assert [share.value for share in seen.left] == pytest.approx([left[0] / N, left[1] / N])
        latency, energy = (seen.costs[f"expected_{n}"] for n in ("latency_ms", "energy_mj"))
        assert latency.value == pytest.approx(spent / N)
        assert energy.value == pytest.approx(2 * spent / N)
        assert latency.source == "compiler-estimate"
        assert latency.low is not None
        assert latency.high is not None
        assert latency.low <= latency.value <= latency.high
        assert each.share_of_worst == pytest.approx(spent / N / 7)
        at_end = one.predictions["test"][-1].correct.mean()
        assert each.lost == pytest.approx(100 * (at_end - right / N))
        row = each.row("accuracy")
        assert row["verified_expected_latency_ms"] == latency.value
        assert row["verified_left_0"] == left[0] / N


def test_what_is_foreseen_comes_true() -> None:
    """The half that chose no threshold foresees the test split without a bias."""
    off = np.array([each.deviation for each in early_exits.swept(network())])
    assert np.abs(off).max() < 0.06
    assert abs(off.mean()) < 0.02


@pytest.mark.parametrize(("n", "n_test"), [(300, 360), (300, 5000), (2000, 200)])
def test_what_a_proof_may_find_holds_for_most(n: int, n_test: int) -> None:
    """The upper end of other images stays below in 97.5 % of draws, and not in nearly all."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        predictions = {
            split: [Predictions(np.ones(size, bool), rng.uniform(0, 1, size)) for _ in range(2)]
            for split, size in (("validation", n), ("test", n_test))
        }
        segments = [{"latency_ms": Quantity(ms, "compiler-estimate")} for ms in LATENCIES[:2]]
        each = EarlyExits(ExitNetworkResults("a", {}, segments, predictions), (0.4,))
        found = each.verified.costs["expected_latency_ms"].upper
        held += found <= each.at_proof(n_test)["expected_latency_ms"].upper
    assert 0.955 <= held / 400 <= 0.995


def test_the_other_half_chooses() -> None:
    one = network()
    before = [each.thresholds for each in early_exits.swept(one)]
    # predictions and the test split do not change the choice
    for validation, test in zip(*one.predictions.values(), strict=True):
        validation.correct[1::2] = False
        test.correct[:] = False
    after = early_exits.swept(one)
    assert [each.thresholds for each in after] == before
    assert {each.predicted.accuracy.value for each in after} == {0.0}


def test_fastest_that_loses_no_more_is_chosen() -> None:
    found = early_exits.swept(network())
    end = found[0].network.predictions["validation"][-1].correct[::2].mean()
    for points in (0.0, 0.3, 2.0, 100.0):
        chosen = early_exits.within(found, points)
        assert chosen is not None
        assert 100 * (end - chosen.chosen.accuracy.value) <= points
        fitting = [e for e in found if 100 * (end - e.chosen.accuracy.value) <= points]
        costs = [e.chosen.costs["expected_latency_ms"].value for e in fitting]
        assert chosen.chosen.costs["expected_latency_ms"].value == min(costs)


def test_exits_that_know_nothing_are_never_taken() -> None:
    """The way to the end is there, whatever the exits are worth."""
    blind = network(skills=(-1.0, -1.0, 0.95))
    chosen = early_exits.within(early_exits.swept(blind), 0.0)
    assert chosen is not None
    assert chosen.verified.accuracy.value >= blind.accuracy("test") - 0.01


def test_front_is_of_all_networks_at_their_end_too() -> None:
    slow = network("slow", skills=(0.5, 0.6, 0.62))
    found = early_exits.judged([*early_exits.swept(network("good")), *early_exits.swept(slow)])
    seen = [each.verified for each in found]
    points = [(s.accuracy.value, s.costs["expected_latency_ms"].value) for s in seen]
    ends = [(each.accuracy("test"), 7.0) for each in (found[0].network, slow)]
    mask = non_dominated(np.array([*ends, *points]), [True, False])
    assert [each.on_front for each in found] == mask[2:].tolist()
    assert {each.network.id for each in found if each.on_front} >= {"good"}
    assert early_exits.judged([]) == []


def test_too_few_images_say_nothing() -> None:
    assert early_exits.swept(network(n=99)) == []
    assert EarlyExits(network(n=99), (0.5, 0.5)).verified.accuracy.value > 0


def test_one_exit_is_enough() -> None:
    found = early_exits.swept(network(skills=(0.7, 0.95)))
    assert found
    assert all(len(each.thresholds) == 1 for each in found)
