"""Slowdown of a server under load against its profile."""

import numpy as np
import pytest

from experiments.fleet.compare_triton import pool
from hwnas.fleet.deployment import load as holding
from hwnas.fleet.deployment import validation
from hwnas.fleet.deployment.load import LatencySamples
from hwnas.workflows import replan

TIMES_MS = {1: 14.0, 2: 26.0, 4: 50.0, 8: 100.0}


def _samples(reading: holding.BatchTimes, load: float, seed: int) -> LatencySamples:
    due = validation._poisson_times(load * reading.capacity, 60.0, [7, seed])
    latencies_s = holding._simulate_latencies(pool("tiny", 0.0), reading, due, seed + 100) / 1e3
    return LatencySamples(due, due, due + latencies_s)


@pytest.mark.parametrize("slowdown", [0.9, 1.0, 1.15])
def test_slowdown_is_estimated_from_latencies(slowdown: float) -> None:
    alone_ms = np.random.default_rng(0).lognormal(0.0, 0.05, 400) * 14.0
    reading = holding.BatchTimes(TIMES_MS, 0.5, 2.0, alone_ms)
    deployed_pool = pool("tiny", 0.0)
    slowdowns = [
        holding.compare(
            deployed_pool, reading, _samples(reading.slower(slowdown), load, seed), {}, seed
        ).slowdown
        for load in (0.3, 0.6, 0.8)
        for seed in range(3)
    ]
    assert np.mean(slowdowns) == pytest.approx(slowdown, rel=0.02)


def test_batch_slowdown_explains_simulation_error() -> None:
    """Batch durations of the server are compared with those of the profile."""
    alone_ms = np.full(400, 14.0)
    reading = holding.BatchTimes(
        TIMES_MS, 0.5, 0.0, alone_ms, {n: ms - 1 for n, ms in TIMES_MS.items()}
    )
    deployed_pool = pool("tiny", 0.0)
    samples = _samples(reading.slower(1.25), 0.7, 0)
    # Three images: half way between two and four.
    computed = {1: (10, 10 * 13 * 1.25), 3: (4, 4 * 37 * 1.25), 8: (1, 99 * 1.25)}
    comparison = holding.compare(deployed_pool, reading, samples, computed, 0)
    assert comparison.batch_slowdown == pytest.approx(1.25)
    row = holding.comparison_row(deployed_pool, "triton", 0.7, 50.0, [comparison])
    assert row["error_p99"] < -0.2
    assert abs(row["error_explained_p99"]) < 0.1
    assert "batch_slowdown" not in holding.comparison_row(
        deployed_pool, "ray", 0.7, 50.0, [holding.compare(deployed_pool, reading, samples, {}, 0)]
    )


def test_unanswered_requests_give_no_slowdown() -> None:
    reading = holding.BatchTimes(TIMES_MS, 0.5, 2.0, np.full(50, 14.0))
    samples = _samples(reading, 0.6, 0)
    lost = LatencySamples(
        samples.due_s,
        samples.sent_s,
        np.where(np.arange(len(samples.due_s)) % 10, samples.done_s, np.nan),
    )
    assert np.isnan(holding.compare(pool("tiny", 0.0), reading, lost, {}, 0).slowdown)


def test_only_significant_slowdowns_are_reported() -> None:
    row = {"pool": "a", "load": 0.8, "slowdown": 1.25, "slowdown_low": 1.1, "slowdown_high": 1.4}
    (sentence,) = replan._slowdown_warning([row, {**row, "load": 0.6, "slowdown_low": 0.9}])
    assert "p99 of a at 80% is that of batches that take 25% longer (95 % 10% to 40%)" in sentence
    assert "derate in the fleet file by 0.80" in sentence
    server_slowdown = {"batch_slowdown": 1.5, "batch_slowdown_low": 1.3, "batch_slowdown_high": 1.7}
    (sentence,) = replan._slowdown_warning(
        [{**row, **server_slowdown, "error_explained_p99": -0.04}]
    )
    assert (
        "by its own measurement batches of a at 80% take 50% longer (95 % 30% to 70%)" in sentence
    )
    assert "the error of the simulated p99 is -4.0%" in sentence
    assert "derate in the fleet file by 0.67" in sentence
    assert (
        replan._slowdown_warning([{**row, "slowdown_low": low} for low in (0.9, 1.0, None, np.nan)])
        == []
    )
