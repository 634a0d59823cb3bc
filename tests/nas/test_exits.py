"""Thresholds of early exits: their figures and their choice."""

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
    """Return a network whose exits are correct and confident on easy images."""
    predictions: dict[str, list[Predictions]] = {"validation": [], "test": []}
    for split, seed in (("validation", 0), ("test", 1)):
        difficulty = np.random.default_rng(seed).uniform(0, 1, n)
        for i, skill in enumerate(skills):
            noise = np.random.default_rng([i, seed]).normal(0, 0.1, n)
            margin = skill - difficulty + noise
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
    costs = {"latency_ms": Quantity(total, "compiler-estimate")}
    return ExitNetworkResults(name, costs, figures, predictions)


def test_image_leaves_at_first_confident_exit() -> None:
    confidence = np.array([[0.9, 0.2, 0.9, 0.5], [0.9, 0.8, 0.1, 0.4]])
    assert exit_indices(confidence, [0.5, 0.5]).tolist() == [0, 1, 0, 0]
    assert exit_indices(confidence, [0.95, 0.4]).tolist() == [1, 1, 2, 1]
    assert exit_indices(confidence, [NEVER, NEVER]).tolist() == [2, 2, 2, 2]


def test_figures_match_image_by_image_count() -> None:
    results = network()
    settings = early_exits.swept(results)
    assert len(settings) > 20
    for setting in settings[:: len(settings) // 5]:
        n_correct, total_ms, n_left = 0, 0.0, [0, 0, 0]
        for i in range(N):
            k = 0
            while k < 2 and results.predictions["test"][k].confidence[i] < setting.thresholds[k]:
                k += 1
            n_left[k] += 1
            n_correct += int(results.predictions["test"][k].correct[i])
            total_ms += sum(LATENCIES[: k + 1])
        verified = setting.verified
        assert verified.accuracy.value == pytest.approx(n_correct / N)
        assert [share.value for share in verified.left] == pytest.approx(
            [n_left[0] / N, n_left[1] / N]
        )
        latency, energy = (verified.costs[f"expected_{n}"] for n in ("latency_ms", "energy_mj"))
        assert latency.value == pytest.approx(total_ms / N)
        assert energy.value == pytest.approx(2 * total_ms / N)
        assert latency.source == "compiler-estimate"
        assert latency.low is not None
        assert latency.high is not None
        assert latency.low <= latency.value <= latency.high
        assert setting.share_of_worst == pytest.approx(total_ms / N / 7)
        at_end = results.predictions["test"][-1].correct.mean()
        assert setting.lost == pytest.approx(100 * (at_end - n_correct / N))
        row = setting.row("accuracy")
        assert row["verified_expected_latency_ms"] == latency.value
        assert row["verified_left_0"] == n_left[0] / N


def test_predicted_latency_matches_verified_latency() -> None:
    """The half of the split that chose no threshold predicts without a bias."""
    deviations = np.array([setting.deviation for setting in early_exits.swept(network())])
    assert np.abs(deviations).max() < 0.06
    assert abs(deviations.mean()) < 0.02


@pytest.mark.parametrize(("n", "n_test"), [(300, 360), (300, 5000), (2000, 200)])
def test_proof_bound_covers_test_splits(n: int, n_test: int) -> None:
    """The upper end for other images stays below the bound in about 97.5 % of draws."""
    rng, n_covered = np.random.default_rng(0), 0
    for _ in range(400):
        predictions = {
            split: [Predictions(np.ones(size, bool), rng.uniform(0, 1, size)) for _ in range(2)]
            for split, size in (("validation", n), ("test", n_test))
        }
        segments = [{"latency_ms": Quantity(ms, "compiler-estimate")} for ms in LATENCIES[:2]]
        setting = EarlyExits(ExitNetworkResults("a", {}, segments, predictions), (0.4,))
        upper = setting.verified.costs["expected_latency_ms"].upper
        n_covered += upper <= setting.at_proof(n_test)["expected_latency_ms"].upper
    assert 0.955 <= n_covered / 400 <= 0.995


def test_prediction_half_does_not_choose_thresholds() -> None:
    results = network()
    before = [setting.thresholds for setting in early_exits.swept(results)]
    # neither the prediction half nor the test split
    for validation, test in zip(*results.predictions.values(), strict=True):
        validation.correct[1::2] = False
        test.correct[:] = False
    after = early_exits.swept(results)
    assert [setting.thresholds for setting in after] == before
    assert {setting.predicted.accuracy.value for setting in after} == {0.0}


def test_fastest_within_allowed_loss_is_chosen() -> None:
    settings = early_exits.swept(network())
    end = settings[0].network.predictions["validation"][-1].correct[::2].mean()
    for points in (0.0, 0.3, 2.0, 100.0):
        chosen = early_exits.within(settings, points)
        assert chosen is not None
        assert 100 * (end - chosen.chosen.accuracy.value) <= points
        fitting = [e for e in settings if 100 * (end - e.chosen.accuracy.value) <= points]
        costs = [e.chosen.costs["expected_latency_ms"].value for e in fitting]
        assert chosen.chosen.costs["expected_latency_ms"].value == min(costs)


def test_useless_exits_are_not_used() -> None:
    """All images may run to the end of the network."""
    blind = network(skills=(-1.0, -1.0, 0.95))
    chosen = early_exits.within(early_exits.swept(blind), 0.0)
    assert chosen is not None
    assert chosen.verified.accuracy.value >= blind.accuracy("test") - 0.01


def test_front_includes_networks_without_exits() -> None:
    slow = network("slow", skills=(0.5, 0.6, 0.62))
    settings = early_exits.with_on_front(
        [*early_exits.swept(network("good")), *early_exits.swept(slow)]
    )
    verified = [setting.verified for setting in settings]
    points = [(s.accuracy.value, s.costs["expected_latency_ms"].value) for s in verified]
    ends = [(results.accuracy("test"), 7.0) for results in (settings[0].network, slow)]
    mask = non_dominated(np.array([*ends, *points]), [True, False])
    assert [setting.on_front for setting in settings] == mask[2:].tolist()
    assert {setting.network.id for setting in settings if setting.on_front} >= {"good"}
    assert early_exits.with_on_front([]) == []


def test_too_few_images_have_no_thresholds() -> None:
    assert early_exits.swept(network(n=99)) == []
    assert EarlyExits(network(n=99), (0.5, 0.5)).verified.accuracy.value > 0


def test_single_exit_is_supported() -> None:
    settings = early_exits.swept(network(skills=(0.7, 0.95)))
    assert settings
    assert all(len(setting.thresholds) == 1 for setting in settings)
