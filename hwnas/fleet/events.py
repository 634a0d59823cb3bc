"""Discrete-event simulator of requests, batches, failures and retries.

A pool is a first-come, first-served queue. A batch starts when a replica is free, with the requests
in the queue; pools with a wait form batches like Triton (``simulator_core``). Requests of a failed
replica return after ``detect_s`` seconds to their pool or, if that has no replica left, to another
route of the class, drawn by spare capacity. Without such a route a request is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.fleet import simulator_core
from hwnas.fleet.plan import RequestRoute

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

MAX_REPLICAS = (1 << simulator_core.REPLICA_BITS) - 1  #: of all pools: events encode their index
FAIL, RETURN, SLOW = simulator_core.FAIL, simulator_core.RETURN, simulator_core.SLOW


@dataclass(frozen=True)
class PoolArrays:
    """Pools of equal replicas as arrays, input of the simulator."""

    service_s: Floats  #: ``(pools, largest batch)``: mean seconds of a batch of n + 1 requests
    max_batch: Ints  #: maximum requests of a batch ``(pools,)``
    wait_s: Floats  #: ``(pools,)``: maximum wait for a full batch, like Triton's; 0: none
    replicas: Ints  #: number of replicas ``(pools,)``
    noise: Floats  #: factors of mean 1 ``(n,)``: each batch draws one for its service time
    waking_s: Floats  #: ``(pools,)``: additional seconds of a batch on an idle replica


@dataclass(frozen=True)
class RouteArrays:
    """Routes of requests through one or two pools, as arrays ``(routes,)``."""

    request_class: Ints  #: index of the class
    chance: Floats  #: probability that a request of the class takes the route
    spare: Floats  #: weight (above 0) for taking over requests whose pool has no replica
    first: Ints  #: index of the first pool
    second: Ints  #: index of the pool of escalated requests; -1: none
    share: Floats  #: fraction of requests that is escalated
    reach_s: Floats  #: round-trip seconds from the requests' region to the first pool
    pass_s: Floats  #: round-trip seconds from the first pool to the second


_MIN_SPARE = 1e-6  # weight of routes without spare capacity, as a fraction of their rate


class Routing:
    """Routes of an hour; routes of the degraded state take over requests of failed pools.

    ``table`` has the routes as arrays, normal ones first; ``reached`` has the names of the classes
    with requests.

    Args:
        normal: Routes in normal operation.
        degraded: Routes of the state in which machines are down.
        names: Names of the classes, by index.
        pool: Index of each pool, by name.
    """

    def __init__(
        self,
        normal: Sequence[RequestRoute],
        degraded: Sequence[RequestRoute],
        names: Sequence[str],
        pool: Mapping[str, int],
    ):
        every = [*normal, *degraded]
        index = {name: k for k, name in enumerate(names)}
        rate = np.array([r.rate for r in normal] + [0.0] * len(degraded))
        request_class = np.array([index[r.klass] for r in every], np.int32)
        total = np.zeros(len(names))
        np.add.at(total, request_class, rate)
        chance = np.divide(
            rate, total[request_class], out=np.zeros(rate.size), where=total[request_class] > 0
        )
        self.reached = {name for k, name in enumerate(names) if total[k] > 0}
        self.table = RouteArrays(
            request_class,
            chance,
            _spare_weights(normal, degraded),
            np.array([pool[r.first] for r in every], np.int32),
            np.array([-1 if r.second is None else pool[r.second] for r in every], np.int32),
            np.array([r.share for r in every]),
            np.array([r.reach_ms for r in every]) / 1e3,
            np.array([r.pass_ms for r in every]) / 1e3,
        )

    def draw(self, request_class: NDArray[np.intp], rng: np.random.Generator) -> Ints:
        """Return a random route index for each request, given its class index ``(requests,)``."""
        route = np.zeros(request_class.size, np.int32)
        for k in np.unique(request_class):
            routes = np.flatnonzero((self.table.request_class == k) & (self.table.chance > 0))
            requests = request_class == k
            ends = np.cumsum(self.table.chance[routes])
            indices = np.searchsorted(
                ends / ends[-1], rng.random(int(requests.sum())), side="right"
            )
            route[requests] = routes[np.minimum(indices, routes.size - 1)]
        return route


def _spare_weights(normal: Sequence[RequestRoute], degraded: Sequence[RequestRoute]) -> Floats:
    """Return the weights ``(routes,)`` with which routes take over requests of failed pools.

    The weight is the additional rate of a route in the degraded state. If no live route has any,
    weights are proportional to rates.
    """
    had: dict[tuple[str, str, str | None, float], float] = {}
    for r in normal:
        key = (r.klass, r.first, r.second, r.threshold)
        had[key] = had.get(key, 0.0) + r.rate
    more = [
        max(0.0, r.rate - had.get((r.klass, r.first, r.second, r.threshold), 0.0)) for r in degraded
    ]
    least = [_MIN_SPARE * r.rate for r in (*normal, *degraded)]
    return np.maximum([0.0] * len(normal) + more, np.maximum(least, 1e-300))


@dataclass(frozen=True)
class IncidentArrays:
    """Failures, returns and slowdowns of replicas in chronological order ``(incidents,)``."""

    at_s: Floats  #: time in seconds
    replica: Ints  #: index of the replica, counted through all pools
    kind: Ints  #: ``FAIL``, ``RETURN`` or ``SLOW``
    factor: Floats  #: of ``SLOW``: factor of service times from then on
    detect_s: float = 1.0  #: delay until requests of a failed replica are sent again

    @staticmethod
    def none() -> "IncidentArrays":
        """Return arrays of length 0."""
        empty = np.zeros(0, np.int32)
        return IncidentArrays(np.zeros(0), empty, empty, np.zeros(0))


@dataclass(frozen=True)
class RequestOutcomes:
    """Latencies of requests, and utilisation of replicas, in a simulation."""

    latency_s: Floats  #: seconds from arrival to response ``(requests,)``; NaN: lost
    busy_s: Floats  #: seconds of computing ``(replicas,)``
    retried: int  #: number of requests sent again after a failure


def simulate(
    arrivals: Floats,
    route: Ints,
    pools: PoolArrays,
    routes: RouteArrays,
    incidents: IncidentArrays | None = None,
    seed: int = 0,
) -> RequestOutcomes:
    """Return the latency of each request, and the load of the replicas, by simulation.

    Args:
        arrivals: Ascending times in seconds at which clients send requests ``(requests,)``.
        route: Index of the route of each request ``(requests,)``.
        pools: Pools.
        routes: Routes.
        incidents: Failures and slowdowns of replicas.
        seed: Seed of service times and escalations.
    """
    happens = incidents or IncidentArrays.none()
    enter = arrivals + routes.reach_s[route]
    order = np.argsort(enter, kind="stable")
    result = simulator_core.simulate_requests(
        arrivals, enter[order], order, route.copy(),
        pools.service_s, pools.waking_s, pools.max_batch, pools.wait_s, pools.replicas,
        pools.noise,
        routes.request_class, routes.spare, routes.first, routes.second, routes.share,
        routes.reach_s, routes.pass_s,
        happens.at_s, happens.replica, happens.kind, happens.factor, happens.detect_s, seed,
    )  # fmt: skip
    return RequestOutcomes(*result)


def single_pool(
    service_s: Floats, wait_s: float, replicas: int, noise: Floats, waking_s: float = 0.0
) -> tuple[PoolArrays, RouteArrays]:
    """Return one pool, and a route to it without network time, as simulator input.

    Args:
        service_s: Mean seconds of batches of 1, 2, ... requests ``(largest batch,)``.
        wait_s: Maximum seconds that a request waits for a full batch.
        replicas: Number of replicas.
        noise: Factors of service times, of mean 1 ``(n,)``.
        waking_s: Additional seconds of a batch on an idle replica.
    """
    index, zero = np.zeros(1, np.int32), np.zeros(1)
    pools = PoolArrays(
        service_s[None], np.array([service_s.size], np.int32), np.array([wait_s]),
        np.array([replicas], np.int32), noise, np.array([waking_s]),
    )  # fmt: skip
    ones = np.ones(1)
    return pools, RouteArrays(index, ones, ones, index, index - np.int32(1), zero, zero, zero)


def lognormal_noise(sigma: float, seed: int = 0, n: int = 4096) -> Floats:
    """Return ``n`` random factors of mean 1 from a log-normal distribution ``(n,)``.

    ``sigma`` is the standard deviation of their logarithm.
    """
    rng = np.random.default_rng(seed)
    result: Floats = np.exp(sigma * np.sort(rng.standard_normal(n)))
    rng.shuffle(result)
    result /= result.mean()
    return result
