"""Staying near what runs: a program whose moves from a former plan cost, and are limited.

A replica is what it is by its device, model, batch size and wait. One that is started or stopped,
and a model that is loaded where it was not, counts as much as a part of an hour of a replica.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from hwnas.planning.columns import Part
from hwnas.planning.program import Program
from hwnas.planning.task import Array, Ints, Task

Kept = tuple[str, str, int, float]  #: device, model, batch size and wait
Running = Mapping[Kept, int]  #: how many replicas there are


@dataclass(frozen=True)
class Before:
    """What ran until now, and what it counts to move it."""

    running: Mapping[int, Running]  #: by hour of the demand
    owned: Array  #: machines that are bought ``(devices,)``
    cost: float  #: of a replica that is started or stopped in an hour, as the objective counts
    most: float  #: share of an hour's replicas that may be stopped
    broken: frozenset[str] = frozenset()  #: devices whose replicas stop anyway
    free: frozenset[int] = frozenset()  #: hours of the demand in which all may be stopped

    def most_stopped(self, hour: int) -> float:
        """Return how many replicas of an hour may be stopped."""
        return (1.0 if hour in self.free else self.most) * self.kept(hour)

    def kept(self, hour: int) -> int:
        """Return how many replicas of an hour could all be kept."""
        return sum(n for key, n in self.running[hour].items() if key[0] not in self.broken)


def added(program: Program, task: Task, before: Before, part: Part) -> Program:
    """Return a program of some hours in which it counts to leave what ran before.

    It has two more variables for each kind of replica in each hour, from ``begin["k"]`` on: how
    many are started, and how many stopped.
    """
    hours = [task.hours[i] for i in part.hours]
    keys, group = _groups(program, task, before, hours)
    n, end = len(keys), program.begin["end"]
    weight = part.weight[[i for i, _ in keys]] * before.cost
    matrix = _matrix(program, group, n)
    ran = np.array([before.running[hours[i]].get(key, 0) for i, key in keys], np.float64)
    caps, most = _caps(keys, before, hours, end, n)
    known = {(i, key[:2]) for i, key in keys if before.running[hours[i]].get(key)}
    loaded = np.array([(keys[g][0], keys[g][1][:2]) not in known for g in group], np.float64)
    cost = program.cost.copy()
    begin, pools = program.begin["y"], np.arange(group.size)
    cost[begin + pools] += loaded * weight[group]
    rows = program.matrix.shape[0]
    return replace(
        program,
        matrix=sp.vstack([sp.hstack([program.matrix, sp.csr_matrix((rows, 2 * n))]), matrix, caps],
                         format="csr"),
        low=np.concatenate([program.low, ran, np.full(most.size, -np.inf)]),
        high=np.concatenate([program.high, ran, most]),
        cost=np.concatenate([cost, weight, weight]),
        lower=np.concatenate([program.lower, np.zeros(2 * n)]),
        upper=np.concatenate([program.upper, np.full(2 * n, np.inf)]),
        integer=np.concatenate([program.integer, np.zeros(2 * n, np.bool_)]),
        begin=program.begin | {"k": end, "end": end + 2 * n},
        rows=program.rows | {"moves": slice(rows, rows + n)},
    )  # fmt: skip


def filled(program: Program, values: Array | None) -> Array | None:
    """Return values of variables with those of moves, which the others decide."""
    if values is None:
        return None
    rows, k = program.rows["moves"], program.begin["k"]
    values = np.concatenate([values[:k], np.zeros(program.begin["end"] - k)])
    more = program.matrix[rows] @ values - program.low[rows]
    values[k:] = np.concatenate([np.maximum(more, 0), np.maximum(-more, 0)])
    return values


def _groups(
    program: Program, task: Task, before: Before, hours: list[int]
) -> tuple[list[tuple[int, Kept]], Ints]:
    """Return places of hours with kinds of replicas, and of each candidate for a pool its own."""
    p, stations = program.pools, task.choices.stations
    assert p is not None
    own = []
    for i, q, v in zip(p.hour, p.station, p.variant, strict=True):
        variant = stations[q].variants[v]
        device = task.problem.devices[stations[q].device][0]
        own.append((int(i), (device, stations[q].model, variant.batch, variant.wait_ms)))
    ran = [(i, key) for i, hour in enumerate(hours) for key in before.running[hour]]
    keys = sorted({*own, *ran})
    place = {key: g for g, key in enumerate(keys)}
    return keys, np.array([place[key] for key in own], np.intp)


def _matrix(program: Program, group: Ints, n: int) -> sp.csr_matrix:
    """Return rows: replicas of a kind, less those started, and those stopped, are what ran."""
    p, b, pools = program.pools, program.begin, np.arange(group.size)
    assert p is not None
    every, one = np.arange(n), np.ones(group.size)
    rows = np.concatenate([group, group, every, every])
    columns = [b["u"] + pools, b["y"] + pools, b["end"] + every, b["end"] + n + every]
    signs = [one, p.spread * one, -np.ones(n), np.ones(n)]
    where = (rows, np.concatenate(columns))
    return sp.csr_matrix((np.concatenate(signs), where), shape=(n, b["end"] + 2 * n))


def _caps(
    keys: list[tuple[int, Kept]], before: Before, hours: list[int], end: int, n: int
) -> tuple[sp.csr_matrix, Array]:
    """Return rows that limit how many replicas of an hour are stopped, and their limits."""
    own = [(i, g) for g, (i, key) in enumerate(keys) if key[0] not in before.broken]
    table = np.array(own, np.intp).reshape(-1, 2).T
    where = (table[0], end + n + table[1])
    caps = sp.csr_matrix((np.ones(len(own)), where), shape=(len(hours), end + 2 * n))
    return caps, np.array([before.most_stopped(hour) for hour in hours])


def counted(ran: Running, runs: Running) -> tuple[int, int]:
    """Return how many replicas are started, and how many stopped."""
    keys: Iterable[Kept] = {*ran, *runs}
    change = [runs.get(key, 0) - ran.get(key, 0) for key in keys]
    return sum(c for c in change if c > 0), -sum(c for c in change if c < 0)
