"""Simulator loop compiled by numba, with batches formed like Triton's batcher.

All functions are in one file: numba checks its cache by the modification time of this file only.

A batch is queued for a replica when it is full or its oldest request has waited for ``wait``; at
most two batches per replica are queued. Only the last queued batch may grow: when a replica takes
another one, or when requests fill it; a batch whose requests had all waited when it was queued
takes the next request, too. A replica also takes the next queued batch if that has waited and
there is room; if no batch remains, it grows no more.

Source: https://github.com/triton-inference-server/core, src/dynamic_batch_scheduler.cc,
instance_queue.cc and rate_limiter.cc; compared with Triton 2.51 in ``experiments/fleet``. There the
batcher's thread sometimes wakes before a replica takes its batch, which then grows. This is not
simulated.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FAIL, RETURN, SLOW = 0, 1, 2  #: kinds of incidents
_DONE, _ENTER, _TIMER = 0, 1, 2  # kinds of event, in the last two bits of their code
REPLICA_BITS = 20
_IN_LINE = 2  # maximum queued batches per replica


class RequestQueue(NamedTuple):
    """Queued batches, and requests without a batch, of each pool ``(pools,)``."""

    size: Ints  #: ``(pools, length)`` sizes of queued batches: a ring buffer
    begun: Floats  #: ``(pools, length)`` arrival of their oldest request
    first: Ints  #: position of the first batch in the ring buffer
    batches: Ints  #: number of queued batches
    closed: Ints  #: 1: the last batch may not grow, or is gone
    grown: Ints  #: requests of the last batch if it is not closed; 0: none
    enough: Ints  #: number of requests without a batch at which the batcher acts
    loose: Ints  #: number of requests without a batch
    next: Ints  #: index of the oldest request without a batch
    due: Floats  #: end of the wait of that request


@numba.njit(cache=True)
def _new_line(replicas: Any, wait: Any) -> Any:
    """Return an empty queue."""
    pools, places = replicas.size, 1
    for p in range(pools):
        if wait[p] > 0:
            places = max(places, _IN_LINE * replicas[p])
    return RequestQueue(
        np.zeros((pools, places), np.int64), np.zeros((pools, places)), np.zeros(pools, np.int64),
        np.zeros(pools, np.int64), np.ones(pools, np.int64), np.zeros(pools, np.int64),
        np.zeros(pools, np.int64), np.zeros(pools, np.int64), np.full(pools, -1, np.int64),
        np.full(pools, np.inf),
    )  # fmt: skip


@numba.njit(cache=True)
def _add_request(line: Any, p: Any, request: Any, room: Any) -> Any:
    """Add a request; return True if the batcher must act."""
    if line.loose[p] == 0:
        line.next[p] = request
    line.loose[p] += 1
    return line.batches[p] < room and (line.closed[p] == 1 or line.loose[p] >= line.enough[p])


@numba.njit(cache=True)
def _n_starting(  # noqa: PLR0913, PLR0917  (arrays of the simulator)
    line: Any, p: Any, now: Any, idle: Any, room: Any, largest: Any, wait: Any, since: Any, nxt: Any
) -> Any:
    """Return the number of requests that start now; 0: none; -1: set a timer.

    Args:
        line: Queue.
        p: Pool.
        now: Time.
        idle: Number of idle replicas.
        room: Maximum queued batches.
        largest: Maximum batch size.
        wait: Maximum wait of a batch in seconds.
        since: Arrival of each request at the pool.
        nxt: Next request of each request.
    """
    while True:
        if idle > 0 and line.batches[p] > 0:
            return _batch_size(line, p, now, largest, wait)
        if line.closed[p]:
            line.closed[p], line.grown[p], line.enough[p] = 0, 0, 0
        loose, grown = line.loose[p], line.grown[p]
        if loose == 0 or line.batches[p] >= room:
            line.due[p] = np.inf
            return 0
        n, due = loose, since[line.next[p]] + wait
        if grown + loose >= largest:
            n = largest - grown
            line.closed[p] = 1
        elif now < due:
            line.enough[p] = largest - grown
            if grown == 0:
                is_set = line.due[p] == due
                line.due[p] = due
                return 0 if is_set else -1
        line.due[p] = np.inf
        _line_up(line, p, n, since, nxt)


@numba.njit(cache=True)
def _line_up(line: Any, p: Any, n: Any, since: Any, nxt: Any) -> Any:
    """Move ``n`` loose requests into the last queued batch."""
    if line.grown[p] == 0:
        line.batches[p] += 1
    last = (line.first[p] + line.batches[p] - 1) % line.size.shape[1]
    if line.grown[p] == 0:
        line.size[p, last], line.begun[p, last] = 0, since[line.next[p]]
    line.size[p, last] += n
    line.grown[p] += n
    line.loose[p] -= n
    for _ in range(n):
        line.next[p] = nxt[line.next[p]]


@numba.njit(cache=True)
def _batch_size(line: Any, p: Any, now: Any, largest: Any, wait: Any) -> Any:
    """Return the size of the batch that a replica takes from the queue."""
    places, n = line.size.shape[1], 0
    while line.batches[p] > 0:
        first = line.first[p]
        if n > 0 and now - line.begun[p, first] <= wait:
            break
        if line.batches[p] == 1:
            line.closed[p] = 1
        if n + line.size[p, first] > largest:
            break
        n += line.size[p, first]
        line.first[p] = (first + 1) % places
        line.batches[p] -= 1
    return n


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
def _other_route(
    k: Any, request_class: Any, spare: Any, first: Any, second: Any, living: Any
) -> Any:
    """Return a live route of the class of route ``k``, drawn by ``spare``; -1: none."""
    seen, result = 0.0, -1
    for r in range(request_class.size):
        able = living[first[r]] > 0 and (second[r] < 0 or living[second[r]] > 0)
        if request_class[r] == request_class[k] and able:
            seen += spare[r]
            if np.random.random() * seen < spare[r]:
                result = r
    return result


@numba.njit(cache=True)
def simulate_requests(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917  (one loop: calls would copy its state)
    arrivals: Any, enter: Any, order: Any, route: Any,
    service: Any, waking: Any, max_batch: Any, wait: Any, replicas: Any, noise: Any,
    request_class: Any, spare: Any, first: Any, second: Any, share: Any, reach_s: Any, pass_s: Any,
    at_s: Any, of_replica: Any, of_kind: Any, factor: Any, detect: Any, seed: Any,
) -> Any:  # fmt: skip
    """Return (latency_s, busy_s, retried), as in ``events.RequestOutcomes``.

    The arguments are the arrays of ``events.simulate``.
    """
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
    queued, line = np.zeros(n_pools, np.int64), _new_line(replicas, wait)
    living = replicas.copy()
    idle, n_idle = np.arange(n_replicas), replicas.copy()  # a stack for each pool
    batch, epoch = np.full(n_replicas, -1, np.int64), np.zeros(n_replicas, np.int64)
    slow, busy, until = np.ones(n_replicas), np.zeros(n_replicas), np.zeros(n_replicas)
    alive = np.ones(n_replicas, np.bool_)
    room = 2 * count + n_replicas + 2 * at_s.size + 16
    times, codes = np.empty(room), np.empty(room, np.int64)
    size, next_in, next_at, retried = 0, 0, 0, 0
    mask = (1 << REPLICA_BITS) - 1
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
        p, q, is_due = -1, -1, True
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
                is_due = now == line.due[p]
            else:
                r = value & mask
                if value >> REPLICA_BITS != epoch[r]:
                    continue  # the batch was lost with its replica
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
                if k < 0:  # idle
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
                if living[p] == 0:  # no replica is left for the queue
                    k = head[p]
                    while k >= 0:
                        after = nxt[k]
                        size = _push(times, codes, size, now + detect, (k << 2) | _ENTER)
                        retried += 1
                        k = after
                    head[p], tail[p], queued[p] = -1, -1, 0
                    line.batches[p], line.closed[p], line.loose[p], line.due[p] = 0, 1, 0, np.inf
            elif kind == RETURN and not alive[r]:
                alive[r] = True
                living[p] += 1
                idle[begin[p] + n_idle[p]] = r
                n_idle[p] += 1
            next_at += 1
        if q >= 0:
            p = first[route[q]] if stage[q] == 0 else second[route[q]]
            if living[p] == 0:
                other = _other_route(route[q], request_class, spare, first, second, living)
                if other < 0:
                    continue  # lost: no live replica can answer it
                route[q], stage[q] = other, 0
                # New requests go there directly; others are sent again.
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
                is_due = _add_request(line, p, q, _IN_LINE * living[p])
        while is_due and queued[p] > 0:
            if wait[p] > 0:
                room_in_line = _IN_LINE * living[p]
                n = _n_starting(
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
            mean = service[p, n - 1] + (waking[p] if until[r] < now else 0.0)
            duration = mean * noise[int(np.random.random() * noise.size)] * slow[r]
            busy[r] += duration
            until[r] = now + duration
            code = (((epoch[r] << REPLICA_BITS) | r) << 2) | _DONE
            size = _push(times, codes, size, now + duration, code)
    return latency, busy, retried
