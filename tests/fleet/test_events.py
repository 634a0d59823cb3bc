"""Simulator: agreement with queueing theory, and effects of failures."""

import csv
from pathlib import Path

import numpy as np
import pytest

from experiments.fleet.simulator import HERE, erlang_c, mean
from hwnas.core.progress import NullProgress
from hwnas.fleet import events, placements
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.deployment import validation
from hwnas.fleet.placements import curve_arguments, placements_of, pool_limits
from hwnas.fleet.problem import read_problem
from hwnas.fleet.simulation import ClassStatistics, HourStatistics
from hwnas.fleet.summary import describe_failures
from tests.conftest import few_of
from tests.fleet import examples

N = 1_500_000
POOLS, ROUTES = events.single_pool(np.ones(1), 0.0, 1, np.ones(1))


def _exponential_quantiles() -> events.Floats:
    """Return quantiles of the exponential distribution, free of sampling noise."""
    n = 1 << 18
    quantiles: events.Floats = -np.log1p(-(np.arange(n) + 0.5) / n)
    quantiles /= quantiles.mean()
    return quantiles


@pytest.mark.parametrize("load", few_of([0.8, 0.5], 1))
def test_mean_latencies_match_queueing_theory(load: float) -> None:
    memoryless = _exponential_quantiles()
    assert mean(load, 1, memoryless, 1) == pytest.approx(1 / (1 - load), rel=0.02)  # M/M/1
    constant = 1 + load / 2 / (1 - load)  # M/D/1, Pollaczek and Khinchine
    assert mean(load, 1, np.ones(1), 1) == pytest.approx(constant, rel=0.02)
    for servers in (4, 16):
        assert mean(load, servers, memoryless, 1) == pytest.approx(
            erlang_c(load, servers), rel=0.02
        )


def test_wake_up_delay_matches_queueing_theory() -> None:
    """Welch, "On a generalized M/G/1 queuing process in which the first customer of each busy
    period receives exceptional service", Operations Research 12(5), 1964."""
    load, waking, n = 0.6, 0.5, N
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / load, n))
    pools, routes = events.single_pool(np.ones(1), 0.0, 1, np.ones(1), waking)
    latencies = events.simulate(arrivals, np.zeros(n, np.int32), pools, routes).latency_s
    first = 1 + waking
    idle = (1 - load) / (1 - load + load * first)
    waits = load / 2 / (1 - load) + load * (first**2 - 1) / 2 / (1 - load + load * first)
    assert latencies.mean() == pytest.approx(waits + 1 + idle * waking, rel=0.01)


def _two_pools() -> tuple[events.PoolArrays, events.RouteArrays]:
    """Return two pools of two replicas; the first escalates a part to the second."""
    service = np.array([[0.010, 0.015], [0.030, 0.040]])
    ints = np.full(2, 2, np.int32)
    pools = events.PoolArrays(
        service, ints, np.array([0.004, 0.0]), ints, events.lognormal_noise(0.1), np.zeros(2)
    )
    zero = np.zeros(2, np.int32)
    routes = events.RouteArrays(
        zero, np.array([0.8, 0.2]), np.ones(2), np.array([0, 1], np.int32),
        np.array([1, -1], np.int32), np.array([0.3, 0.0]), np.full(2, 0.005), np.full(2, 0.002),
    )  # fmt: skip
    return pools, routes


def _simulate(
    incidents: events.IncidentArrays | None = None, seed: int = 3
) -> events.RequestOutcomes:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / 60, 20_000))
    route = (rng.random(arrivals.size) < 0.2).astype(np.int32)
    return events.simulate(arrivals, route, *_two_pools(), incidents, seed)


def test_latencies_depend_only_on_seed() -> None:
    assert _simulate().latency_s.tobytes() == _simulate().latency_s.tobytes()
    assert _simulate().latency_s.tobytes() != _simulate(seed=4).latency_s.tobytes()


def test_latency_exceeds_network_and_service_time() -> None:
    latencies = _simulate().latency_s
    assert np.isfinite(latencies).all()
    assert latencies.min() > 0.005 + 0.010 * 0.6


def _incidents(*replicas: int, recover: bool = False) -> events.IncidentArrays:
    times = [100.0] * len(replicas) + [130.0] * len(replicas) * recover
    kinds = [events.FAIL] * len(replicas) + [events.RETURN] * len(replicas) * recover
    replica_ids = np.array([*replicas] * (1 + recover), np.int32)
    return events.IncidentArrays(
        np.array(times), replica_ids, np.array(kinds, np.int32), np.ones(len(times))
    )


def test_requests_of_failed_replica_are_retried() -> None:
    times = np.arange(10.0, 300.0, 5.0)  # failures and recoveries alternate
    kinds = np.resize(np.array([events.FAIL, events.RETURN], np.int32), times.size)
    incidents = events.IncidentArrays(
        times, np.zeros(times.size, np.int32), kinds, np.ones(times.size)
    )
    outcomes = _simulate(incidents)
    assert outcomes.retried > 0
    assert np.isfinite(outcomes.latency_s).all()
    assert outcomes.busy_s[0] < 0.8 * _simulate().busy_s[0]


def test_requests_are_lost_only_without_live_pools() -> None:
    """Requests of a failed pool take the route through the second; without both they are lost."""
    assert np.isfinite(_simulate(_incidents(0, 1)).latency_s).all()
    lost = np.isnan(_simulate(_incidents(0, 1, 2, 3)).latency_s)
    assert 0 < lost.sum() < lost.size
    lost_after_recovery = np.isnan(_simulate(_incidents(0, 1, 2, 3, recover=True)).latency_s)
    assert 0 < lost_after_recovery.sum() < lost.sum()
    assert not lost_after_recovery[-1000:].any()


def test_requests_of_failed_pool_are_split_by_spare_capacity() -> None:
    """The first pool fails before any request; 3 in 4 go to the second, 1 in 4 to the third."""
    ones, ints = np.ones(3, np.int32), np.arange(3, dtype=np.int32)
    pools = events.PoolArrays(
        np.full((3, 1), 0.001), ones, np.zeros(3), ones, np.ones(1), np.zeros(3)
    )
    network_s = np.array([0.002, 0.010, 0.030])
    routes = events.RouteArrays(
        np.zeros(3, np.int32), np.array([1.0, 0, 0]), np.array([1e-9, 3.0, 1.0]), ints,
        np.full(3, -1, np.int32), np.zeros(3), network_s, np.zeros(3),
    )  # fmt: skip
    fails = events.IncidentArrays(
        np.zeros(1), np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1)
    )
    arrivals = np.arange(1.0, 4001.0)
    outcomes = events.simulate(arrivals, np.zeros(4000, np.int32), pools, routes, fails)
    assert outcomes.busy_s[0] == 0
    assert outcomes.busy_s[1] / outcomes.busy_s.sum() == pytest.approx(0.75, abs=0.02)
    np.testing.assert_allclose(np.unique(outcomes.latency_s.round(6)), network_s[1:] + 0.001)


def test_batch_wait_starts_with_oldest_request() -> None:
    """Two requests within the wait share a batch; a third runs alone after its wait."""
    pools, routes = events.single_pool(np.array([1.0, 1.0]), 0.5, 1, np.ones(1))
    arrivals = np.array([0.0, 0.3, 10.0])
    outcomes = events.simulate(arrivals, np.zeros(3, np.int32), pools, routes)
    np.testing.assert_allclose(outcomes.latency_s, [1.3, 1.0, 1.5])


def test_waited_batch_closes_while_another_runs() -> None:
    """The second request waits in a batch while the first runs; the third gets its own batch."""
    pools, routes = events.single_pool(np.ones(4), 0.5, 1, np.ones(1))
    outcomes = events.simulate(np.array([0.0, 0.6, 1.3]), np.zeros(3, np.int32), pools, routes)
    np.testing.assert_allclose(outcomes.latency_s, [1.5, 1.9, 2.2])


def test_queued_batch_accepts_one_more_request() -> None:
    """Two requests wait while the first runs, then one joins their batch; the last does not."""
    pools, routes = events.single_pool(np.ones(8), 0.1, 1, np.ones(1))
    arrivals = np.array([0.0, 0.2, 0.4, 0.5, 1.3, 1.5])
    outcomes = events.simulate(arrivals, np.zeros(6, np.int32), pools, routes)
    ends = arrivals + outcomes.latency_s
    np.testing.assert_allclose(ends, [1.1, 2.1, 3.1, 3.1, 3.1, 4.1])


@pytest.mark.parametrize("wait", ["", "_5ms", "_40ms"])
def test_simulation_matches_triton_measurements(wait: str) -> None:
    """The p99 latencies are within 10 % for batches that take 40 + 10 n ms."""
    with (HERE / f"served_sleep{wait}.csv").open() as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        service, p99_s = 0.0404 + 0.0101 * np.arange(1.0, 9.0), []
        pools, routes = events.single_pool(service, float(row["wait_ms"]) / 1e3, 1, np.ones(1))
        for repeat in range(3):
            seed = [0, repeat, round(1e3 * float(row["load"]))]
            due = validation._poisson_times(float(row["rate_per_s"]), 45.0, seed)
            latencies = events.simulate(due, np.zeros(due.size, np.int32), pools, routes).latency_s
            p99_s.append(np.quantile(latencies[due >= 0.1 * due[-1]], 0.99, method="higher"))
        assert 1e3 * np.mean(p99_s) == pytest.approx(float(row["measured_p99_ms"]), rel=0.1)


def test_goodputs_include_batch_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 60 % of its capacity the latency of a pool rises by more than the wait alone."""
    monkeypatch.setattr(placements, "_REQUESTS", 4000)
    service, goodputs, poisson = (
        0.04 + 0.01 * np.arange(1.0, 9.0),
        placements.Goodputs(0.05),
        Arrivals(),
    )
    load = 0.6 * service.size / service[-1]
    without, waiting = (
        float(np.interp(load, goodputs.rates(service), goodputs.curve(poisson, service, 1, wait_s)))
        for wait_s in (0.0, 0.005)
    )
    assert waiting > 1.2 * without + 0.005


def test_latencies_are_interpolated_between_simulated_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """36 ms lie between two simulated waits; the nearest one alone gave a sixth too little."""
    monkeypatch.setattr(placements, "_REQUESTS", 4000)
    service, goodputs, poisson = (
        0.04 + 0.01 * np.arange(1.0, 9.0),
        placements.Goodputs(0.05),
        Arrivals(),
    )
    curve = goodputs.curve(poisson, service, 1, 0.036)
    loads = [0.24, 0.6]
    noise = events.lognormal_noise(0.05)
    simulated = [placements.latency_quantile(poisson, service, 1, load, noise, 0.036)
            for load in loads]  # fmt: skip
    np.testing.assert_allclose(np.interp(loads, placements._LOADS, curve), simulated, rtol=0.12)


def test_placements_use_only_prepared_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placements, "_REQUESTS", 100)
    examples.write(tmp_path, examples.service(wait_ms=[0.0, 5.0]), examples.fleet())
    problem = read_problem(tmp_path / "service.yaml", tmp_path / "fleet.yaml")
    goodputs = placements.Goodputs(0.05)
    goodputs.prepare(curve_arguments(problem), NullProgress())
    simulated = {*goodputs._known}
    assert {wait > 0 for *_, wait in simulated} == {False, True}
    assert [*placements_of(problem, goodputs, pool_limits(problem))]
    assert {*goodputs._known} == simulated


def test_failure_summary_names_hours_without_effect() -> None:
    def statistics(hour: int, late_after: float, *failed: int) -> HourStatistics:
        classes = {"web": ClassStatistics(100, 0.0, late_after, 0, 1.0, 2.0)}
        return HourStatistics(hour, 0, 60.0, classes, 0, 0.0, 0.0, 0.0, failed=failed)

    runs = [statistics(0, 0.5, 0, 0), statistics(1, 0.25, 3, 0), statistics(2, 0.125, 4, 2)]
    assert describe_failures(runs, ["cpu", "cpu"]) == [
        "cpu and cpu failed (3 to 6 replicas): in the minute after it no class has more than "
        "25.00% late (class web, hour 1; allowed 1%).",
        "kill=cpu had no effect in hour 0: no replica runs on cpu.",
        "kill=cpu had no effect in hours 0-1: no replica runs on other cpu.",
    ]
    assert describe_failures([statistics(0, 0.5)], []) == []


def test_slowdown_affects_only_later_requests() -> None:
    incidents = events.IncidentArrays(
        np.array([5.0]), np.zeros(1, np.int32), np.full(1, events.SLOW, np.int32), np.array([2.0])
    )
    arrivals = np.array([0.0, 10.0])
    outcomes = events.simulate(arrivals, np.zeros(2, np.int32), POOLS, ROUTES, incidents)
    np.testing.assert_allclose(outcomes.latency_s, [1.0, 2.0])
