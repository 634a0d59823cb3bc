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
    found = []
    for _ in range(n):
        n_operators = rng.randint(12, 60)
        known = LatencyFeatures(
            rng.uniform(0.005, 0.05) * n_operators, n_operators, rng.uniform(50, 900)
        )
        found.append((known, true.predict(known)[0] * (1 + noise(rng))))
    return found


def _quiet(rng: random.Random) -> float:
    return 0.0


@pytest.mark.parametrize("seed", range(10))
def test_exact_networks_give_the_exact_coefficients(seed: int) -> None:
    rng = random.Random(seed)
    true = Calibration(
        rng.uniform(0.5, 2), rng.choice((0.0, 0.003)), rng.choice((0, 1e-4)), 0, 0, 0
    )
    found = calibrate(_networks(rng, 24, _quiet, true), _networks(rng, 19, _quiet, true))
    assert found.scale == pytest.approx(true.scale, rel=1e-6)
    assert found.operator_ms == pytest.approx(true.operator_ms, abs=1e-8)
    assert found.weights_ms_per_kib == pytest.approx(true.weights_ms_per_kib, abs=1e-9)
    assert found.interval == pytest.approx(0.0, abs=1e-6)
    assert (found.n_fitted, found.n_interval) == (24, 19)


def _error(found: Calibration, rng: random.Random) -> float:
    """Return the mean relative error on new networks without noise."""
    new = _networks(rng, 200, _quiet)
    return statistics.fmean(abs(found.predict(known)[0] / ms - 1) for known, ms in new)


def test_noise_averages_out() -> None:
    errors = []
    for seed in range(40):
        rng = random.Random(seed)
        noisy = NOISES["normal"]
        errors.append(_error(calibrate(_networks(rng, 24, noisy), _networks(rng, 59, noisy)), rng))
    assert statistics.fmean(errors) < 0.015  # half of the noise of one measurement
    assert max(errors) < 0.03


@pytest.mark.parametrize("factor", [1.3, 3.0, 20.0, 0.5])
def test_disturbed_networks_hardly_bend_the_fit(factor: float) -> None:
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
def test_interval_holds_new_networks_as_often_as_promised(name: str, n_interval: int) -> None:
    noise, held, halves = NOISES[name], [], []
    for seed in range(250):
        rng = random.Random(seed)
        fitted, others = _networks(rng, 24, noise), _networks(rng, n_interval, noise)
        found = calibrate(fitted, others)
        halves.append(found.interval)
        for known, ms in _networks(rng, 40, noise):
            _, low, high = found.predict(known)
            held.append(low <= ms <= high)
    assert 0.93 < statistics.fmean(held) < 0.975
    rng = random.Random(-1)
    errors = sorted(abs(noise(rng)) for _ in range(20_000))
    assert statistics.median(halves) < 2 * errors[19_000]  # not won by being wide


def test_too_few_networks_for_an_interval_are_refused() -> None:
    rng = random.Random(0)
    fitted = _networks(rng, 24, _quiet)
    with pytest.raises(ValueError, match="got 18 networks for the interval"):
        calibrate(fitted, _networks(rng, 18, _quiet))
    assert calibrate(fitted, _networks(rng, 19, _quiet)).n_interval == 19


def test_networks_of_the_interval_do_not_move_the_prediction() -> None:
    rng = random.Random(0)
    fitted = _networks(rng, 24, NOISES["normal"])
    narrow = calibrate(fitted, _networks(rng, 30, _quiet))
    wide = calibrate(fitted, [(known, 1.4 * ms) for known, ms in _networks(rng, 30, _quiet)])
    assert narrow.scale == wide.scale
    assert narrow.operator_ms == wide.operator_ms
    assert wide.interval > 0.3 > narrow.interval


@pytest.mark.parametrize("seed", range(20))
def test_more_of_anything_never_takes_less_time(seed: int) -> None:
    rng = random.Random(seed)
    noise = NOISES[rng.choice(list(NOISES))]
    found = calibrate(_networks(rng, 24, noise), _networks(rng, 19, noise))
    assert min(found.scale, found.operator_ms, found.weights_ms_per_kib) >= 0
    for _ in range(50):
        a = LatencyFeatures(rng.random(), rng.randint(1, 50), 500 * rng.random())
        b = LatencyFeatures(
            a.operators_ms + rng.random(),
            a.n_operators + rng.randint(0, 9),
            a.weights_kib + rng.random(),
        )
        value, low, high = found.predict(a)
        assert 0 <= low <= value <= high
        assert value <= found.predict(b)[0]


def test_interval_wider_than_the_prediction_ends_at_zero() -> None:
    value, low, high = Calibration(1.0, 0.0, 0.0, 1.5, 6, 19).predict(LatencyFeatures(2.0, 3, 4.0))
    assert (value, low, high) == (2.0, 0.0, 5.0)


def test_features_of_a_network_are_sums_over_its_nodes() -> None:
    conv = OpSpec("conv2d+bn", (8, 4, 4), (16, 4, 4), dtype="float32")
    mean = OpSpec("mean", (16, 4, 4), (16, 1, 1), dtype="float32")
    lowered = (Node("a", conv, (INPUT,)), Node("b", conv, ("a",)), Node("c", mean, ("b",)))
    assert latency_features(Graph.of(lowered), {conv: 0.5, mean: 0.25}) == LatencyFeatures(
        1.25, 3, 2 * 4 * (8 * 16 + 16) / 1024
    )


def test_calibration_survives_json() -> None:
    found = Calibration(1.1, 0.002, 0.0, 0.05, 24, 59)
    assert Calibration(**found.to_json()) == found
