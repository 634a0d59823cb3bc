"""The simulator: requests, batches, failures and retries as discrete events.

A pool is a queue from which its replicas take batches, first come, first served. A batch begins
when a replica is free, with what is there; where batches wait, Triton's way (``compiled``). What a
replica holds when it fails comes back after ``detect`` seconds, to its own pool or, where that has
no replica left, to another route of its class, drawn by what each has to spare; a request is lost
where there is none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.fleet import simulator_core

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

FAIL, RETURN, SLOW = simulator_core.FAIL, simulator_core.RETURN, simulator_core.SLOW


@dataclass(frozen=True)
class PoolArrays:
    """Pools by what their replicas do."""

    service_s: Floats  #: ``(pools, largest batch)``: mean seconds of a batch of n + 1
    max_batch: Ints  #: ``(pools,)``
    wait_s: Floats  #: ``(pools,)``: that a batch waits to become full, as Triton has it; 0: not
    replicas: Ints  #: ``(pools,)``
    noise: Floats  #: factors of mean 1 that service times are multiplied by, drawn at random
    waking_s: Floats  #: ``(pools,)``: more seconds of a batch whose replica had nothing to do


@dataclass(frozen=True)
class RouteArrays:
    """Ways through the pools; those of a class have chances that add up to 1."""

    klass: Ints  #: ``(routes,)``
    chance: Floats  #: that a request of the class takes it
    spare: Floats  #: weight among those of the class that take in what finds its pool gone, above 0
    first: Ints  #: the pool
    second: Ints  #: the pool of what is escalated; -1: none
    share: Floats  #: of requests that are escalated
    reach_s: Floats  #: from the origin to the first pool, there and back
    pass_s: Floats  #: from the first pool to the second, there and back


@dataclass(frozen=True)
class IncidentArrays:
    """What happens to replicas, in order of time."""

    at_s: Floats
    replica: Ints  #: counted through all pools
    kind: Ints  #: ``FAIL``, ``RETURN`` or ``SLOW``
    factor: Floats  #: of ``SLOW``: that service times are multiplied by from then on
    detect_s: float = 1.0  #: until what a failed replica held is sent again

    @staticmethod
    def none() -> "IncidentArrays":
        """Return that nothing happens."""
        empty = np.zeros(0, np.int32)
        return IncidentArrays(np.zeros(0), empty, empty, np.zeros(0))


@dataclass(frozen=True)
class RequestOutcomes:
    """What became of requests."""

    latency_s: Floats  #: of each request; not a number: it was lost
    busy_s: Floats  #: of each replica
    retried: int
    events: int


def simulate(
    arrivals: Floats,
    route: Ints,
    pools: PoolArrays,
    routes: RouteArrays,
    incidents: IncidentArrays | None = None,
    seed: int = 0,
) -> RequestOutcomes:
    """Return what becomes of requests.

    Args:
        arrivals: When each comes to its origin, in seconds, in order.
        route: That each takes.
        pools: Where they are answered.
        routes: That there are.
        incidents: What happens to replicas.
        seed: Of service times and escalations.
    """
    happens = incidents or IncidentArrays.none()
    enter = arrivals + routes.reach_s[route]
    order = np.argsort(enter, kind="stable")
    found = simulator_core.simulate_requests(
        arrivals, enter[order], order, route.copy(),
        pools.service_s, pools.waking_s, pools.max_batch, pools.wait_s, pools.replicas,
        pools.noise,
        routes.klass, routes.spare, routes.first, routes.second, routes.share,
        routes.reach_s, routes.pass_s,
        happens.at_s, happens.replica, happens.kind, happens.factor, happens.detect_s, seed,
    )  # fmt: skip
    return RequestOutcomes(*found)


def single(
    service_s: Floats, wait_s: float, replicas: int, noise: Floats, waking_s: float = 0.0
) -> tuple[PoolArrays, RouteArrays]:
    """Return one pool and the one route that leads to it."""
    one, zero = np.zeros(1, np.int32), np.zeros(1)
    pools = PoolArrays(
        service_s[None], np.array([service_s.size], np.int32), np.array([wait_s]),
        np.array([replicas], np.int32), noise, np.array([waking_s]),
    )  # fmt: skip
    ones = np.ones(1)
    return pools, RouteArrays(one, ones, ones, one, one - np.int32(1), zero, zero, zero)


def lognormal(sigma: float, seed: int = 0, n: int = 4096) -> Floats:
    """Return factors of mean 1: quantiles of a log-normal distribution, shuffled."""
    rng = np.random.default_rng(seed)
    found: Floats = np.exp(sigma * np.sort(rng.standard_normal(n)))
    rng.shuffle(found)
    found /= found.mean()
    return found
