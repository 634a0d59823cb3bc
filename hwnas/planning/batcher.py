"""Batches that wait, as Triton's dynamic batcher forms them, compiled by numba.

A batch lines up for a replica when it is full, or its oldest request has waited for ``wait``,
though all replicas be busy; two for each replica are in line at most. Only the last in line may
grow: when a replica takes another, and else by what fills it; one whose requests had all waited
when it lined up takes the next request too. With what a replica takes goes the next in line, if
that has waited and there is room; if there is none, it grows no more.

Source: https://github.com/triton-inference-server/core, src/dynamic_batch_scheduler.cc,
instance_queue.cc and rate_limiter.cc; held against Triton 2.51 in ``experiments/fleet``. There the
batcher's thread now and then wakes before a replica takes its batch, which then grows: not here.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

IN_LINE = 2  #: batches for each replica, at most


class Line(NamedTuple):
    """What is in line of each pool, and what came since; places of requests are the queue's."""

    size: Ints  #: ``(pools, places)`` requests of batches in line: a ring
    begun: Floats  #: likewise, when their oldest came
    first: Ints  #: ``(pools,)`` place of the first
    batches: Ints  #: how many are in line
    closed: Ints  #: whether the last may not grow, or is gone
    grown: Ints  #: requests of the last, where it is not closed; 0: none is in line yet
    enough: Ints  #: loose requests that are looked at when they come
    loose: Ints  #: requests in no batch
    next: Ints  #: the oldest of these
    due: Floats  #: when that one will have waited


@numba.njit(cache=True)
def line(replicas: Any, wait: Any) -> Any:
    """Return that nothing is in line of pools; no places where no batch waits."""
    pools, places = replicas.size, 1
    for p in range(pools):
        if wait[p] > 0:
            places = max(places, IN_LINE * replicas[p])
    return Line(
        np.zeros((pools, places), np.int64), np.zeros((pools, places)), np.zeros(pools, np.int64),
        np.zeros(pools, np.int64), np.ones(pools, np.int64), np.zeros(pools, np.int64),
        np.zeros(pools, np.int64), np.zeros(pools, np.int64), np.full(pools, -1, np.int64),
        np.full(pools, np.inf),
    )  # fmt: skip


@numba.njit(cache=True)
def clear(at: Any, p: Any) -> Any:
    """Have nothing in line of a pool."""
    at.batches[p], at.closed[p], at.loose[p], at.due[p] = 0, 1, 0, np.inf


@numba.njit(cache=True)
def came(at: Any, p: Any, request: Any, room: Any) -> Any:
    """Take in a request; return whether the batcher looks at what there is."""
    if at.loose[p] == 0:
        at.next[p] = request
    at.loose[p] += 1
    return at.batches[p] < room and (at.closed[p] == 1 or at.loose[p] >= at.enough[p])


@numba.njit(cache=True)
def begins(  # noqa: PLR0913, PLR0917  (arrays of the simulator)
    at: Any, p: Any, now: Any, idle: Any, room: Any, largest: Any, wait: Any, since: Any, nxt: Any
) -> Any:
    """Return how many requests of the queue's head begin now; 0: none do; -1: set a timer.

    Args:
        at: The line.
        p: Of this pool.
        now: The time.
        idle: Replicas that are free.
        room: Batches that may be in line.
        largest: Requests of a batch.
        wait: Seconds that a batch may wait.
        since: When each request came.
        nxt: The one that came after it.
    """
    while True:
        if idle > 0 and at.batches[p] > 0:
            return _taken(at, p, now, largest, wait)
        if at.closed[p]:
            at.closed[p], at.grown[p], at.enough[p] = 0, 0, 0
        loose, grown = at.loose[p], at.grown[p]
        if loose == 0 or at.batches[p] >= room:
            at.due[p] = np.inf
            return 0
        n, due = loose, since[at.next[p]] + wait
        if grown + loose >= largest:
            n = largest - grown
            at.closed[p] = 1
        elif now < due:
            at.enough[p] = largest - grown
            if grown == 0:
                is_set = at.due[p] == due
                at.due[p] = due
                return 0 if is_set else -1
        at.due[p] = np.inf
        _line_up(at, p, n, since, nxt)


@numba.njit(cache=True)
def _line_up(at: Any, p: Any, n: Any, since: Any, nxt: Any) -> Any:
    """Put so many of the loose into the last batch in line."""
    if at.grown[p] == 0:
        at.batches[p] += 1
    last = (at.first[p] + at.batches[p] - 1) % at.size.shape[1]
    if at.grown[p] == 0:
        at.size[p, last], at.begun[p, last] = 0, since[at.next[p]]
    at.size[p, last] += n
    at.grown[p] += n
    at.loose[p] -= n
    for _ in range(n):
        at.next[p] = nxt[at.next[p]]


@numba.njit(cache=True)
def _taken(at: Any, p: Any, now: Any, largest: Any, wait: Any) -> Any:
    """Return the size of the batch that a replica takes from the line."""
    places, n = at.size.shape[1], 0
    while at.batches[p] > 0:
        first = at.first[p]
        if n > 0 and now - at.begun[p, first] <= wait:
            break
        if at.batches[p] == 1:
            at.closed[p] = 1
        if n + at.size[p, first] > largest:
            break
        n += at.size[p, first]
        at.first[p] = (first + 1) % places
        at.batches[p] -= 1
    return n
