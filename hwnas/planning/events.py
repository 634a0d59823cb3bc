"""The simulator: requests, batches, failures and retries as discrete events, compiled by numba.

A pool is a queue from which its replicas take batches, first come, first served. A batch begins
when a replica is free, with what is there; where batches wait, Triton's way (``batcher``). What a
replica holds when it fails comes back after ``detect`` seconds, to its own pool or, where that has
no replica left, to another route of its class, drawn by what each has to spare; a request is lost
where there is none.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hwnas.planning import batcher

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

FAIL, RETURN, SLOW = 0, 1, 2  #: what may happen to a replica
_DONE, _ENTER, _TIMER = 0, 1, 2  # kinds of event, in the last two bits of their code
_REPLICA_BITS = 20


@dataclass(frozen=True)
class Pools:
    """Pools by what their replicas do."""

    service_s: Floats  #: ``(pools, largest batch)``: mean seconds of a batch of n + 1
    max_batch: Ints  #: ``(pools,)``
    wait_s: Floats  #: ``(pools,)``: that a batch waits to become full, as Triton has it; 0: not
    replicas: Ints  #: ``(pools,)``
    noise: Floats  #: factors of mean 1 that service times are multiplied by, drawn at random


@dataclass(frozen=True)
class Routes:
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
class Incidents:
    """What happens to replicas, in order of time."""

    at_s: Floats
    replica: Ints  #: counted through all pools
    kind: Ints  #: ``FAIL``, ``RETURN`` or ``SLOW``
    factor: Floats  #: of ``SLOW``: that service times are multiplied by from then on
    detect_s: float = 1.0  #: until what a failed replica held is sent again

    @staticmethod
    def none() -> "Incidents":
        """Return that nothing happens."""
        empty = np.zeros(0, np.int32)
        return Incidents(np.zeros(0), empty, empty, np.zeros(0))


@dataclass(frozen=True)
class Outcome:
    """What became of requests."""

    latency_s: Floats  #: of each request; not a number: it was lost
    busy_s: Floats  #: of each replica
    retried: int
    events: int


def simulate(
    arrivals: Floats,
    route: Ints,
    pools: Pools,
    routes: Routes,
    incidents: Incidents | None = None,
    seed: int = 0,
) -> Outcome:
    """Return what becomes of requests.

    Args:
        arrivals: When each comes to its origin, in seconds, in order.
        route: That each takes.
        pools: Where they are answered.
        routes: That there are.
        incidents: What happens to replicas.
        seed: Of service times and escalations.
    """
    happens = incidents or Incidents.none()
    enter = arrivals + routes.reach_s[route]
    order = np.argsort(enter, kind="stable")
    found = _run(
        arrivals, enter[order], order, route.copy(),
        pools.service_s, pools.max_batch, pools.wait_s, pools.replicas, pools.noise,
        routes.klass, routes.spare, routes.first, routes.second, routes.share,
        routes.reach_s, routes.pass_s,
        happens.at_s, happens.replica, happens.kind, happens.factor, happens.detect_s, seed,
    )  # fmt: skip
    return Outcome(*found)


def single(service_s: Floats, wait_s: float, replicas: int, noise: Floats) -> tuple[Pools, Routes]:
    """Return one pool and the one route that leads to it."""
    one, zero = np.zeros(1, np.int32), np.zeros(1)
    pools = Pools(
        service_s[None], np.array([service_s.size], np.int32), np.array([wait_s]),
        np.array([replicas], np.int32), noise,
    )  # fmt: skip
    ones = np.ones(1)
    return pools, Routes(one, ones, ones, one, one - np.int32(1), zero, zero, zero)


def lognormal(sigma: float, seed: int = 0, n: int = 4096) -> Floats:
    """Return factors of mean 1: quantiles of a log-normal distribution, shuffled."""
    rng = np.random.default_rng(seed)
    found: Floats = np.exp(sigma * np.sort(rng.standard_normal(n)))
    rng.shuffle(found)
    found /= found.mean()
    return found


@numba.njit(cache=True)
def _push(times: Any, codes: Any, size: Any, time: Any, code: Any) -> Any:
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[up] <= time:
            break
        times[i], codes[i] = times[up], codes[up]
        i = up
    times[i], codes[i] = time, code
    return size + 1


@numba.njit(cache=True)
def _pop(times: Any, codes: Any, size: Any) -> Any:
    size -= 1
    time, code, i = times[size], codes[size], 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[i], codes[i] = times[child], codes[child]
        i = child
    times[i], codes[i] = time, code
    return size


@numba.njit(cache=True)
def _other_route(k: Any, klass: Any, spare: Any, first: Any, second: Any, living: Any) -> Any:
    """Return a route of the class of route ``k`` whose pools live, by ``spare``; -1: none does."""
    seen, found = 0.0, -1
    for r in range(klass.size):
        able = living[first[r]] > 0 and (second[r] < 0 or living[second[r]] > 0)
        if klass[r] == klass[k] and able:
            seen += spare[r]
            if np.random.random() * seen < spare[r]:
                found = r
    return found


@numba.njit(cache=True)
def _run(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917  (one loop: calls would copy its state)
    arrivals: Any, enter: Any, order: Any, route: Any,
    service: Any, max_batch: Any, wait: Any, replicas: Any, noise: Any,
    klass: Any, spare: Any, first: Any, second: Any, share: Any, reach_s: Any, pass_s: Any,
    at_s: Any, of_replica: Any, of_kind: Any, factor: Any, detect: Any, seed: Any,
) -> Any:  # fmt: skip
    np.random.seed(seed)
    count, n_pools, n_replicas = arrivals.size, replicas.size, replicas.sum()
    begin = np.zeros(n_pools + 1, np.int64)
    pool_of = np.empty(n_replicas, np.int64)
    for p in range(n_pools):
        begin[p + 1] = begin[p] + replicas[p]
        pool_of[begin[p] : begin[p + 1]] = p
    latency = np.full(count, np.nan)
    nxt, since = np.empty(count, np.int64), np.empty(count)
    stage = np.zeros(count, np.int8)
    head, tail = np.full(n_pools, -1, np.int64), np.full(n_pools, -1, np.int64)
    queued, line = np.zeros(n_pools, np.int64), batcher.line(replicas, wait)
    living = replicas.copy()
    idle, n_idle = np.arange(n_replicas), replicas.copy()  # a stack a pool
    batch, epoch = np.full(n_replicas, -1, np.int64), np.zeros(n_replicas, np.int64)
    slow, busy, until = np.ones(n_replicas), np.zeros(n_replicas), np.zeros(n_replicas)
    alive = np.ones(n_replicas, np.bool_)
    room = 2 * count + n_replicas + 2 * at_s.size + 16
    times, codes = np.empty(room), np.empty(room, np.int64)
    size, next_in, next_at, retried, events = 0, 0, 0, 0, 0
    mask = (1 << _REPLICA_BITS) - 1
    while True:
        now = np.inf
        source = -1
        if next_in < count:
            now, source = enter[next_in], 0
        if size and times[0] < now:
            now, source = times[0], 1
        if next_at < at_s.size and at_s[next_at] <= now and source >= 0:
            now, source = at_s[next_at], 2
        if source < 0:
            break
        events += 1
        p, q, looked = -1, -1, True
        if source == 0:
            q = order[next_in]
            next_in += 1
        elif source == 1:
            code = codes[0]
            size = _pop(times, codes, size)
            kind, value = code & 3, code >> 2
            if kind == _ENTER:
                q = value
            elif kind == _TIMER:
                p = value
                looked = now == line.due[p]
            else:
                r = value & mask
                if value >> _REPLICA_BITS != epoch[r]:
                    continue  # that batch was lost with its replica
                p = pool_of[r]
                k = batch[r]
                batch[r] = -1
                while k >= 0:
                    after = nxt[k]
                    way = route[k]
                    if stage[k] == 0 and second[way] >= 0 and np.random.random() < share[way]:
                        stage[k] = 1
                        size = _push(times, codes, size, now + pass_s[way], (k << 2) | _ENTER)
                    else:
                        latency[k] = now - arrivals[k]
                    k = after
                idle[begin[p] + n_idle[p]] = r
                n_idle[p] += 1
        else:
            r, kind = of_replica[next_at], of_kind[next_at]
            p = pool_of[r]
            if kind == SLOW:
                slow[r] = factor[next_at]
            elif kind == FAIL and alive[r]:
                alive[r] = False
                living[p] -= 1
                epoch[r] += 1
                k = batch[r]
                if k < 0:  # it was idle
                    i = begin[p]
                    while idle[i] != r:
                        i += 1
                    n_idle[p] -= 1
                    idle[i] = idle[begin[p] + n_idle[p]]
                else:
                    busy[r] -= until[r] - now
                batch[r] = -1
                while k >= 0:
                    after = nxt[k]
                    size = _push(times, codes, size, now + detect, (k << 2) | _ENTER)
                    retried += 1
                    k = after
                if living[p] == 0:  # nobody is left to take what waits
                    k = head[p]
                    while k >= 0:
                        after = nxt[k]
                        size = _push(times, codes, size, now + detect, (k << 2) | _ENTER)
                        retried += 1
                        k = after
                    head[p], tail[p], queued[p] = -1, -1, 0
                    batcher.clear(line, p)
            elif kind == RETURN and not alive[r]:
                alive[r] = True
                living[p] += 1
                idle[begin[p] + n_idle[p]] = r
                n_idle[p] += 1
            next_at += 1
        if q >= 0:
            p = first[route[q]] if stage[q] == 0 else second[route[q]]
            if living[p] == 0:
                other = _other_route(route[q], klass, spare, first, second, living)
                if other < 0:
                    continue  # lost: no replica lives that may answer it
                route[q], stage[q] = other, 0
                # What was not sent yet goes there at once; what was, is sent again.
                due = (arrivals[q] if source == 0 else now) + reach_s[other]
                if due > now:
                    size = _push(times, codes, size, due, (q << 2) | _ENTER)
                    continue
                p = first[other]
            nxt[q], since[q] = -1, now
            if tail[p] >= 0:
                nxt[tail[p]] = q
            else:
                head[p] = q
            tail[p] = q
            queued[p] += 1
            if wait[p] > 0:
                looked = batcher.came(line, p, q, batcher.IN_LINE * living[p])
        while looked and queued[p] > 0:
            if wait[p] > 0:
                room_in_line = batcher.IN_LINE * living[p]
                n = batcher.begins(
                    line, p, now, n_idle[p], room_in_line, max_batch[p], wait[p], since, nxt
                )
                if n < 0:
                    size = _push(times, codes, size, line.due[p], (p << 2) | _TIMER)
            else:
                n = min(queued[p], max_batch[p]) if n_idle[p] > 0 else 0
            if n <= 0:
                break
            n_idle[p] -= 1
            r = idle[begin[p] + n_idle[p]]
            batch[r] = head[p]
            for _ in range(n):
                last = head[p]
                head[p] = nxt[last]
            nxt[last] = -1
            if head[p] < 0:
                tail[p] = -1
            queued[p] -= n
            took = service[p, n - 1] * noise[int(np.random.random() * noise.size)] * slow[r]
            busy[r] += took
            until[r] = now + took
            code = (((epoch[r] << _REPLICA_BITS) | r) << 2) | _DONE
            size = _push(times, codes, size, now + took, code)
    return latency, busy, retried, events
