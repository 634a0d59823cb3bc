"""The simulator against queueing theory, and what failures do in it."""

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
from tests.fleet import made

N = 1_500_000
POOLS, ROUTES = events.single_pool(np.ones(1), 0.0, 1, np.ones(1))


def _exponential() -> events.Floats:
    """Return quantiles of the exponential distribution, which have no noise of draws."""
    n = 1 << 18
    found: events.Floats = -np.log1p(-(np.arange(n) + 0.5) / n)
    found /= found.mean()
    return found


@pytest.mark.parametrize("load", few_of([0.8, 0.5], 1))
def test_means_are_those_of_queueing_theory(load: float) -> None:
    memoryless = _exponential()
    assert mean(load, 1, memoryless, 1) == pytest.approx(1 / (1 - load), rel=0.02)  # M/M/1
    constant = 1 + load / 2 / (1 - load)  # M/D/1, Pollaczek and Khinchine
    assert mean(load, 1, np.ones(1), 1) == pytest.approx(constant, rel=0.02)
    for servers in (4, 16):
        assert mean(load, servers, memoryless, 1) == pytest.approx(
            erlang_c(load, servers), rel=0.02
        )


def test_whoever_wakes_a_replica_is_answered_later() -> None:
    """Welch, "On a generalized M/G/1 queuing process in which the first customer of each busy
    period receives exceptional service", Operations Research 12(5), 1964."""
    load, waking, n = 0.6, 0.5, N
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / load, n))
    pools, routes = events.single_pool(np.ones(1), 0.0, 1, np.ones(1), waking)
    found = events.simulate(arrivals, np.zeros(n, np.int32), pools, routes).latency_s
    first = 1 + waking
    idle = (1 - load) / (1 - load + load * first)
    waits = load / 2 / (1 - load) + load * (first**2 - 1) / 2 / (1 - load + load * first)
    assert found.mean() == pytest.approx(waits + 1 + idle * waking, rel=0.01)


def _fleet() -> tuple[events.PoolArrays, events.RouteArrays]:
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


def _run(incidents: events.IncidentArrays | None = None, seed: int = 3) -> events.RequestOutcomes:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / 60, 20_000))
    route = (rng.random(arrivals.size) < 0.2).astype(np.int32)
    return events.simulate(arrivals, route, *_fleet(), incidents, seed)


def test_the_same_seed_gives_the_same_bytes_and_another_others() -> None:
    assert _run().latency_s.tobytes() == _run().latency_s.tobytes()
    assert _run().latency_s.tobytes() != _run(seed=4).latency_s.tobytes()


def test_nothing_is_faster_than_its_way_and_its_service() -> None:
    found = _run().latency_s
    assert np.isfinite(found).all()
    assert found.min() > 0.005 + 0.010 * 0.6


def _fails(*replicas: int, back: bool = False) -> events.IncidentArrays:
    at = [100.0] * len(replicas) + [130.0] * len(replicas) * back
    kind = [events.FAIL] * len(replicas) + [events.RETURN] * len(replicas) * back
    who = np.array([*replicas] * (1 + back), np.int32)
    return events.IncidentArrays(np.array(at), who, np.array(kind, np.int32), np.ones(len(at)))


def test_what_a_dead_replica_held_is_answered_by_another() -> None:
    at = np.arange(10.0, 300.0, 5.0)  # it fails and returns in turn
    kinds = np.resize(np.array([events.FAIL, events.RETURN], np.int32), at.size)
    often = events.IncidentArrays(at, np.zeros(at.size, np.int32), kinds, np.ones(at.size))
    found = _run(often)
    assert found.retried > 0
    assert np.isfinite(found.latency_s).all()
    assert found.busy_s[0] < 0.8 * _run().busy_s[0]


def test_a_dead_pool_is_avoided_and_without_another_requests_are_lost() -> None:
    """Without the first pool its requests take the route by the second; without both, none."""
    assert np.isfinite(_run(_fails(0, 1)).latency_s).all()
    lost = np.isnan(_run(_fails(0, 1, 2, 3)).latency_s)
    assert 0 < lost.sum() < lost.size
    again = np.isnan(_run(_fails(0, 1, 2, 3, back=True)).latency_s)
    assert 0 < again.sum() < lost.sum()
    assert not again[-1000:].any()


def test_what_finds_its_pool_gone_goes_where_there_is_room_and_travels_there() -> None:
    """The first pool fails before anything comes; 3 in 4 go to the second, 1 in 4 to the third."""
    one, ints = np.ones(3, np.int32), np.arange(3, dtype=np.int32)
    pools = events.PoolArrays(
        np.full((3, 1), 0.001), one, np.zeros(3), one, np.ones(1), np.zeros(3)
    )
    reach = np.array([0.002, 0.010, 0.030])
    routes = events.RouteArrays(
        np.zeros(3, np.int32), np.array([1.0, 0, 0]), np.array([1e-9, 3.0, 1.0]), ints,
        np.full(3, -1, np.int32), np.zeros(3), reach, np.zeros(3),
    )  # fmt: skip
    fails = events.IncidentArrays(
        np.zeros(1), np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1)
    )
    arrivals = np.arange(1.0, 4001.0)
    found = events.simulate(arrivals, np.zeros(4000, np.int32), pools, routes, fails)
    assert found.busy_s[0] == 0
    assert found.busy_s[1] / found.busy_s.sum() == pytest.approx(0.75, abs=0.02)
    np.testing.assert_allclose(np.unique(found.latency_s.round(6)), reach[1:] + 0.001)


def test_a_batch_waits_for_its_oldest_request_alone() -> None:
    """Two requests within the wait go together, a third alone when its time is over."""
    pools, routes = events.single_pool(np.array([1.0, 1.0]), 0.5, 1, np.ones(1))
    arrivals = np.array([0.0, 0.3, 10.0])
    found = events.simulate(arrivals, np.zeros(3, np.int32), pools, routes)
    np.testing.assert_allclose(found.latency_s, [1.3, 1.0, 1.5])


def test_a_batch_that_waited_is_closed_though_another_still_runs() -> None:
    """The second lines up alone while the first runs; the third comes then, and goes by itself."""
    pools, routes = events.single_pool(np.ones(4), 0.5, 1, np.ones(1))
    found = events.simulate(np.array([0.0, 0.6, 1.3]), np.zeros(3, np.int32), pools, routes)
    np.testing.assert_allclose(found.latency_s, [1.5, 1.9, 2.2])


def test_what_lines_up_of_requests_that_waited_takes_one_more() -> None:
    """While the first runs two wait for a place in line, then one joins them; the last does not."""
    pools, routes = events.single_pool(np.ones(8), 0.1, 1, np.ones(1))
    arrivals = np.array([0.0, 0.2, 0.4, 0.5, 1.3, 1.5])
    found = events.simulate(arrivals, np.zeros(6, np.int32), pools, routes)
    ends = arrivals + found.latency_s
    np.testing.assert_allclose(ends, [1.1, 2.1, 3.1, 3.1, 3.1, 4.1])


@pytest.mark.parametrize("wait", ["", "_5ms", "_40ms"])
def test_what_a_triton_did_is_simulated(wait: str) -> None:
    """Its p99 was within a tenth of that of the same requests, of batches of 40 + 10 n ms."""
    with (HERE / f"served_sleep{wait}.csv").open() as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        service, late = 0.0404 + 0.0101 * np.arange(1.0, 9.0), []
        pools, routes = events.single_pool(service, float(row["wait_ms"]) / 1e3, 1, np.ones(1))
        for repeat in range(3):
            seed = [0, repeat, round(1e3 * float(row["load"]))]
            due = validation._poisson_times(float(row["rate_per_s"]), 45.0, seed)
            seen = events.simulate(due, np.zeros(due.size, np.int32), pools, routes).latency_s
            late.append(np.quantile(seen[due >= 0.1 * due[-1]], 0.99, method="higher"))
        assert 1e3 * np.mean(late) == pytest.approx(float(row["measured_p99_ms"]), rel=0.1)


def test_goodputs_of_pools_that_wait_are_of_batches_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 60 % of what it can take a pool answers a third later, not only by the wait."""
    monkeypatch.setattr(placements, "_REQUESTS", 4000)
    service, found, poisson = (
        0.04 + 0.01 * np.arange(1.0, 9.0),
        placements.Goodputs(0.05),
        Arrivals(),
    )
    at = 0.6 * service.size / service[-1]
    without, waiting = (
        float(np.interp(at, found.rates(service), found.curve(poisson, service, 1, wait_s)))
        for wait_s in (0.0, 0.005)
    )
    assert waiting > 1.2 * without + 0.005


def test_latencies_of_waits_between_those_that_are_simulated_are_read_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """36 ms are between a half and all of a batch of one: by the nearest it was a sixth too low."""
    monkeypatch.setattr(placements, "_REQUESTS", 4000)
    service, found, poisson = (
        0.04 + 0.01 * np.arange(1.0, 9.0),
        placements.Goodputs(0.05),
        Arrivals(),
    )
    curve = found.curve(poisson, service, 1, 0.036)
    loads = [0.24, 0.6]
    noise = events.lognormal_noise(0.05)
    seen = [placements.latency_quantile(poisson, service, 1, load, noise, 0.036)
            for load in loads]  # fmt: skip
    np.testing.assert_allclose(np.interp(loads, placements._LOADS, curve), seen, rtol=0.12)


def test_all_that_stations_ask_for_was_simulated_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placements, "_REQUESTS", 100)
    made.write(tmp_path, made.service(wait_ms=[0.0, 5.0]), made.fleet())
    problem = read_problem(tmp_path / "service.yaml", tmp_path / "fleet.yaml")
    found = placements.Goodputs(0.05)
    found.prepare(curve_arguments(problem), NullProgress())
    simulated = {*found._known}
    assert {wait > 0 for *_, wait in simulated} == {False, True}
    assert [*placements_of(problem, found, pool_limits(problem))]
    assert {*found._known} == simulated


def test_hours_in_which_nothing_failed_are_said() -> None:
    def seen(hour: int, late_after: float, *failed: int) -> HourStatistics:
        classes = {"web": ClassStatistics(100, 0.0, late_after, 0, 1.0, 2.0)}
        return HourStatistics(hour, 0, 60.0, classes, 0, 0.0, 0.0, 0.0, failed=failed)

    runs = [seen(0, 0.5, 0, 0), seen(1, 0.25, 3, 0), seen(2, 0.125, 4, 2)]
    assert describe_failures(runs, ["cpu", "cpu"]) == [
        "cpu and cpu failed (3 to 6 replicas): in the minute after it no class has more than "
        "25.00% late (class web, hour 1; allowed 1%).",
        "kill=cpu had no effect in hour 0: no replica runs on cpu.",
        "kill=cpu had no effect in hours 0-1: no replica runs on other cpu.",
    ]
    assert describe_failures([seen(0, 0.5)], []) == []


def test_heat_slows_what_begins_after_it() -> None:
    slow = events.IncidentArrays(
        np.array([5.0]), np.zeros(1, np.int32), np.full(1, events.SLOW, np.int32), np.array([2.0])
    )
    arrivals = np.array([0.0, 10.0])
    found = events.simulate(arrivals, np.zeros(2, np.int32), POOLS, ROUTES, slow)
    np.testing.assert_allclose(found.latency_s, [1.0, 2.0])
