import random
import statistics
from collections.abc import Callable

import pytest

from hwnas.hardware.costs.table_cost import (
    Calibration,
    LatencyFeatures,
    calibrate,
    latency_features,
)
from hwnas.models.graph import INPUT, Graph, Node, OpSpec

TRUE = Calibration(1.2, 0.004, 0.0003, 0.0, 0, 0)
Noise = Callable[[random.Random], float]  #: of a relative error
Pairs = list[tuple[LatencyFeatures, float]]

NOISES: dict[str, Noise] = {
    "normal": lambda rng: rng.gauss(0.0, 0.03),
    "one-sided": lambda rng: min(0.5, rng.expovariate(1 / 0.02)),
    "heavy-tailed": lambda rng: max(-0.5, min(2.0, 0.01 * rng.gauss(0, 1) / (rng.random() + 0.02))),
}


def _networks(rng: random.Random, n: int, noise: Noise, true: Calibration = TRUE) -> Pairs:
    pairs = []
    for _ in range(n):
        n_operators = rng.randint(12, 60)
        known = LatencyFeatures(
            rng.uniform(0.005, 0.05) * n_operators, n_operators, rng.uniform(50, 900)
        )
        pairs.append((known, true.predict(known)[0] * (1 + noise(rng))))
    return pairs


def _quiet(rng: random.Random) -> float:
    return 0.0


@pytest.mark.parametrize("seed", range(10))
def test_exact_latencies_give_exact_coefficients(seed: int) -> None:
    rng = random.Random(seed)
    true = Calibration(
        rng.uniform(0.5, 2), rng.choice((0.0, 0.003)), rng.choice((0, 1e-4)), 0, 0, 0
    )
    calibration = calibrate(_networks(rng, 24, _quiet, true), _networks(rng, 19, _quiet, true))
    assert calibration.scale == pytest.approx(true.scale, rel=1e-6)
    assert calibration.operator_ms == pytest.approx(true.operator_ms, abs=1e-8)
    assert calibration.weights_ms_per_kib == pytest.approx(true.weights_ms_per_kib, abs=1e-9)
    assert calibration.interval == pytest.approx(0.0, abs=1e-6)
    assert (calibration.n_fitted, calibration.n_interval) == (24, 19)


def _error(calibration: Calibration, rng: random.Random) -> float:
    """Return the mean relative error on new networks without noise."""
    new = _networks(rng, 200, _quiet)
    return statistics.fmean(abs(calibration.predict(known)[0] / ms - 1) for known, ms in new)


def test_noise_is_averaged() -> None:
    errors = []
    for seed in range(40):
        rng = random.Random(seed)
        noisy = NOISES["normal"]
        errors.append(_error(calibrate(_networks(rng, 24, noisy), _networks(rng, 59, noisy)), rng))
    assert statistics.fmean(errors) < 0.015  # half of the noise of one measurement
    assert max(errors) < 0.03


@pytest.mark.parametrize("factor", [1.3, 3.0, 20.0, 0.5])
def test_fit_is_robust_to_disturbed_networks(factor: float) -> None:
    errors = []
    for seed in range(30):
        rng = random.Random(seed)
        fitted = _networks(rng, 24, lambda r: r.gauss(0.0, 0.01))
        for index in rng.sample(range(24), 2):
            fitted[index] = (fitted[index][0], fitted[index][1] * factor)
        errors.append(_error(calibrate(fitted, _networks(rng, 19, _quiet)), rng))
    assert statistics.fmean(errors) < 0.015


@pytest.mark.parametrize("n_interval", [19, 59])
@pytest.mark.parametrize("name", NOISES)
def test_interval_has_nominal_coverage(name: str, n_interval: int) -> None:
    noise, covered, halves = NOISES[name], [], []
    for seed in range(250):
        rng = random.Random(seed)
        fitted, others = _networks(rng, 24, noise), _networks(rng, n_interval, noise)
        calibration = calibrate(fitted, others)
        halves.append(calibration.interval)
        for known, ms in _networks(rng, 40, noise):
            _, low, high = calibration.predict(known)
            covered.append(low <= ms <= high)
    assert 0.93 < statistics.fmean(covered) < 0.975
    rng = random.Random(-1)
    errors = sorted(abs(noise(rng)) for _ in range(20_000))
    assert statistics.median(halves) < 2 * errors[19_000]  # the intervals are not too wide


def test_too_few_networks_for_interval_are_refused() -> None:
    rng = random.Random(0)
    fitted = _networks(rng, 24, _quiet)
    with pytest.raises(ValueError, match="got 18 networks for the interval"):
        calibrate(fitted, _networks(rng, 18, _quiet))
    assert calibrate(fitted, _networks(rng, 19, _quiet)).n_interval == 19


def test_interval_networks_do_not_affect_prediction() -> None:
    rng = random.Random(0)
    fitted = _networks(rng, 24, NOISES["normal"])
    narrow = calibrate(fitted, _networks(rng, 30, _quiet))
    wide = calibrate(fitted, [(known, 1.4 * ms) for known, ms in _networks(rng, 30, _quiet)])
    assert narrow.scale == wide.scale
    assert narrow.operator_ms == wide.operator_ms
    assert wide.interval > 0.3 > narrow.interval


@pytest.mark.parametrize("seed", range(20))
def test_prediction_is_monotonic(seed: int) -> None:
    rng = random.Random(seed)
    noise = NOISES[rng.choice(list(NOISES))]
    calibration = calibrate(_networks(rng, 24, noise), _networks(rng, 19, noise))
    assert min(calibration.scale, calibration.operator_ms, calibration.weights_ms_per_kib) >= 0
    for _ in range(50):
        a = LatencyFeatures(rng.random(), rng.randint(1, 50), 500 * rng.random())
        b = LatencyFeatures(
            a.operators_ms + rng.random(),
            a.n_operators + rng.randint(0, 9),
            a.weights_kib + rng.random(),
        )
        value, low, high = calibration.predict(a)
        assert 0 <= low <= value <= high
        assert value <= calibration.predict(b)[0]


def test_interval_is_bounded_by_zero() -> None:
    value, low, high = Calibration(1.0, 0.0, 0.0, 1.5, 6, 19).predict(LatencyFeatures(2.0, 3, 4.0))
    assert (value, low, high) == (2.0, 0.0, 5.0)


def test_features_are_sums_over_nodes() -> None:
    conv = OpSpec("conv2d+bn", (8, 4, 4), (16, 4, 4), dtype="float32")
    mean = OpSpec("mean", (16, 4, 4), (16, 1, 1), dtype="float32")
    lowered = (Node("a", conv, (INPUT,)), Node("b", conv, ("a",)), Node("c", mean, ("b",)))
    assert latency_features(Graph.of(lowered), {conv: 0.5, mean: 0.25}) == LatencyFeatures(
        1.25, 3, 2 * 4 * (8 * 16 + 16) / 1024
    )


def test_calibration_round_trips_through_json() -> None:
    calibration = Calibration(1.1, 0.002, 0.0, 0.05, 24, 59)
    assert Calibration(**calibration.to_json()) == calibration
