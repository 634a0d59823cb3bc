"""How much slower than its profile a server is under load."""

import numpy as np
import pytest

from experiments.fleet.served import pool
from hwnas.fleet.deployment import load as holding
from hwnas.fleet.deployment import validation
from hwnas.fleet.deployment.load import LatencySamples
from hwnas.workflows import replan

TIMES_MS = {1: 14.0, 2: 26.0, 4: 50.0, 8: 100.0}


def _seen(reading: holding.BatchTimes, load: float, seed: int) -> LatencySamples:
    due = validation._poisson_times(load * reading.capacity, 60.0, [7, seed])
    took = holding._simulate_latencies(pool("tiny", 0.0), reading, due, seed + 100) / 1e3
    return LatencySamples(due, due, due + took)


@pytest.mark.parametrize("slowdown", [0.9, 1.0, 1.15])
def test_a_server_is_as_much_slower_as_its_latencies_say(slowdown: float) -> None:
    alone = np.random.default_rng(0).lognormal(0.0, 0.05, 400) * 14.0
    reading = holding.BatchTimes(TIMES_MS, 0.5, 2.0, alone)
    of = pool("tiny", 0.0)
    found = [
        holding.compare(of, reading, _seen(reading.slower(slowdown), load, seed), {}, seed).slowdown
        for load in (0.3, 0.6, 0.8)
        for seed in range(3)
    ]
    assert np.mean(found) == pytest.approx(slowdown, rel=0.02)


def test_batches_that_take_longer_explain_what_was_simulated_too_fast() -> None:
    """The server's own count of batches of all sizes, held against those of the profile."""
    alone = np.full(400, 14.0)
    reading = holding.BatchTimes(
        TIMES_MS, 0.5, 0.0, alone, {n: ms - 1 for n, ms in TIMES_MS.items()}
    )
    of = pool("tiny", 0.0)
    seen = _seen(reading.slower(1.25), 0.7, 0)
    # Of three, half way between two and four.
    computed = {1: (10, 10 * 13 * 1.25), 3: (4, 4 * 37 * 1.25), 8: (1, 99 * 1.25)}
    found = holding.compare(of, reading, seen, computed, 0)
    assert found.batch_slowdown == pytest.approx(1.25)
    row = holding.comparison_row(of, "triton", 0.7, 50.0, [found])
    assert row["error_p99"] < -0.2
    assert abs(row["error_explained_p99"]) < 0.1
    assert "batch_slowdown" not in holding.comparison_row(
        of, "ray", 0.7, 50.0, [holding.compare(of, reading, seen, {}, 0)]
    )


def test_where_requests_are_not_answered_no_slowdown_is_told() -> None:
    reading = holding.BatchTimes(TIMES_MS, 0.5, 2.0, np.full(50, 14.0))
    seen = _seen(reading, 0.6, 0)
    lost = LatencySamples(
        seen.due_s, seen.sent_s, np.where(np.arange(len(seen.due_s)) % 10, seen.done_s, np.nan)
    )
    assert np.isnan(holding.compare(pool("tiny", 0.0), reading, lost, {}, 0).slowdown)


def test_what_is_told_is_more_than_repeats_differ_by() -> None:
    row = {"pool": "a", "load": 0.8, "slowdown": 1.25, "slowdown_low": 1.1, "slowdown_high": 1.4}
    (said,) = replan._slower([row, {**row, "load": 0.6, "slowdown_low": 0.9}])
    assert "p99 of a at 80% is that of batches that take 25% longer (95 % 10% to 40%)" in said
    assert "derate: 0.80" in said
    own = {"batch_slowdown": 1.5, "batch_slowdown_low": 1.3, "batch_slowdown_high": 1.7}
    (said,) = replan._slower([{**row, **own, "error_explained_p99": -0.04}])
    assert "by its own measurement batches of a at 80% take 50% longer (95 % 30% to 70%)" in said
    assert "the error of the simulated p99 is -4.0%" in said
    assert "derate: 0.67" in said
    assert replan._slower([{**row, "slowdown_low": low} for low in (0.9, 1.0, None, np.nan)]) == []
