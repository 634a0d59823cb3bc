"""Hours of a solution solved again, near what ran before; the others stay as they are."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from hwnas.core.progress import Progress
from hwnas.fleet.column_generation import SolverResult, able, first, priced, solve, solve_all
from hwnas.fleet.hours import Flow, Hour, grown, sent_usd, served
from hwnas.fleet.program import HourBlock, OptionColumns, Program, assemble
from hwnas.fleet.solver import (
    MOST_COLUMNS,
    MOST_POOLS,
    Solution,
    joined,
    read_solution,
    values,
    worth_having,
)
from hwnas.fleet.task import UNSERVED, Array, Ints, Objective, PlanningTask, machine_values

# Staying near what runs: a program whose moves from a former plan cost, and are limited.
#
# A replica is what it is by its device, model, batch size and wait. One that is started or stopped,
# and a model that is loaded where it was not, counts as much as a part of an hour of a replica.

RunningPool = tuple[str, str, int, float]  #: device, model, batch size and wait
Running = Mapping[RunningPool, int]  #: how many replicas there are


@dataclass(frozen=True)
class PreviousPlan:
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


def added(program: Program, task: PlanningTask, before: PreviousPlan, part: HourBlock) -> Program:
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
    program: Program, task: PlanningTask, before: PreviousPlan, hours: list[int]
) -> tuple[list[tuple[int, RunningPool]], Ints]:
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
    keys: list[tuple[int, RunningPool]], before: PreviousPlan, hours: list[int], end: int, n: int
) -> tuple[sp.csr_matrix, Array]:
    """Return rows that limit how many replicas of an hour are stopped, and their limits."""
    own = [(i, g) for g, (i, key) in enumerate(keys) if key[0] not in before.broken]
    table = np.array(own, np.intp).reshape(-1, 2).T
    where = (table[0], end + n + table[1])
    caps = sp.csr_matrix((np.ones(len(own)), where), shape=(len(hours), end + 2 * n))
    return caps, np.array([before.most_stopped(hour) for hour in hours])


def counted(ran: Running, runs: Running) -> tuple[int, int]:
    """Return how many replicas are started, and how many stopped."""
    keys: Iterable[RunningPool] = {*ran, *runs}
    change = [runs.get(key, 0) - ran.get(key, 0) for key in keys]
    return sum(c for c in change if c > 0), -sum(c for c in change if c < 0)


_GAP, _LEAST_S = 1e-3, 1.0
_NEAR = 1e-5  # of a limit: what rounding takes


def columns_of(task: PlanningTask, i: int, used: Sequence[Hour]) -> OptionColumns:
    """Return the options that an hour chooses from.

    All, where they are few; else those over stations that are in use, and others that are cheap at
    list prices.

    Args:
        task: What is solved.
        i: The place of the hour.
        used: Hours whose stations are in use.
    """
    o, n_s = task.choices.options, task.n_scenarios
    wanted = np.arange(len(o))
    if _is_large(task):
        cheap = np.unique(np.concatenate([rows[:, 2] for rows in first(task)]))
        there = np.zeros(len(task.choices.stations), np.bool_)
        there[[row.station for hour in used for row in hour.pools]] = True
        near = np.flatnonzero(there[o.first] & ((o.second < 0) | there[o.second]))
        wanted = np.union1d(cheap, near)
    rows = []
    for s in range(n_s):
        own: Ints = wanted[np.isfinite(able(task, s)[wanted])]
        rows.append(np.stack([np.full_like(own, s), np.zeros_like(own), own], 1))
    return OptionColumns.of(np.concatenate(rows))


def continued(found: Solution, hours: Sequence[int]) -> list[Hour]:
    """Return the hours of a solution, some with the demands of its task.

    What these served they serve on. The rest goes where it went, or where it costs least in the
    relaxed program; whichever costs less over all hours.

    Args:
        found: Hours as they were, and what is bought.
        hours: Places of those whose demands are new.
    """
    tried = []
    for placed in (False, True):
        now = replace(found, hours=[*found.hours])
        for i in hours:
            now.hours[i] = _continued(found, i, placed=placed)
        now.owned = np.max([found.owned, *(_owned(now, hour) for hour in now.hours)], 0)
        tried.append(now)
    quota = np.array([device.quota for _, device in found.task.problem.devices])
    key = [(any((h.machines > quota).any() for h in now.hours), now.value) for now in tried]
    return tried[key.index(min(key))].hours


def _continued(found: Solution, i: int, *, placed: bool) -> Hour:
    task, hour = found.task, found.hours[i]
    wanted, have = task.problem.load.borne[:, task.hours[i]], served(task, hour.flows)
    klass = task.choices.options.klass
    part = np.minimum(1, np.divide(wanted, have, out=np.zeros_like(have), where=have > 0))
    flows = [(s, o, rate * float(part[s, klass[o]])) for s, o, rate in hour.flows]
    rest = np.maximum(wanted - part * have, 0)
    if placed or (have[:, wanted > 0] == 0).any():
        flows += _placed(found, i, rest)
    return grown(task, i, hour, flows)


def _placed(found: Solution, i: int, rest: Array) -> list[Flow]:
    """Return where the relaxed program sends requests ``(scenarios, classes)`` beside an hour's."""
    task, columns, hour = found.task, found.kept[i], found.hours[i]
    lp = assemble(task, columns, HourBlock((i,), task.weight[[i]]), relaxed=True)
    lp.low[lp.rows["demand"]] = lp.high[lp.rows["demand"]] = rest.ravel()
    b, devices = lp.begin, [device for _, device in task.problem.devices]
    quota, slots = (np.array([float(getattr(d, n)) for d in devices]) for n in ("quota", "slots"))
    lp.upper[b["m"] : b["r"]] = lp.upper[b["r"] : b["u"]] = np.maximum(quota - hour.machines, 0)
    lp.lower[b["r"] : b["u"]] = np.clip(found.owned - hour.machines, 0, lp.upper[b["r"] : b["u"]])
    taken = np.zeros(len(devices))
    for row in hour.pools:
        taken[task.choices.stations[row.station].device] += row.replicas
    free = np.maximum(hour.machines - taken / slots, 0)
    lp.high[lp.rows["slots"]] = np.concatenate([free * task.alive(s) for s in range(len(rest))])
    rates = solve(lp).values
    if rates is None:
        return []
    return [(int(columns.scenario[j]), int(columns.option[j]), float(rates[j]))
            for j in np.flatnonzero(rates[: len(columns)] > _NEAR)]  # fmt: skip


def resolved(
    found: Solution,
    task: PlanningTask,
    hours: Sequence[int],
    before: PreviousPlan,
    limit_s: float,
    progress: Progress,
) -> Solution:
    """Return a solution with some hours solved again, as ``near``.

    Where demand would be left unserved, hours choose from more than is kept for them.
    """
    new = near(found, task, hours, before, limit_s, progress)
    short = [i for i in hours if (new.hours[i].unserved > UNSERVED).any()]
    if not short or not _is_large(task):
        return new
    new.kept = _wider(new, short, limit_s, progress)
    return near(new, task, short, before, limit_s, progress)


def near(
    found: Solution,
    task: PlanningTask,
    hours: Sequence[int],
    before: PreviousPlan,
    limit_s: float,
    progress: Progress,
) -> Solution:
    """Return a solution with some hours solved again; what is bought stays so.

    They are solved together where that is small enough; else one by one, and what time is left all
    together from there. Where demand would be left unserved because too few replicas may be
    stopped, more are.

    Args:
        found: The solution; its ``kept`` options are what hours choose from.
        task: What is solved: goodputs or demands may be others than those of the solution.
        hours: Places of those that are solved again.
        before: What ran until now.
        limit_s: Seconds that it may take.
        progress: Is told of phases.
    """
    new = replace(found, task=task, hours=[*found.hours])
    parts, began = _parts(new, hours, before), time.perf_counter()
    settled = {*range(len(new.hours))} - {*hours}
    with progress.phase("Hours again", len(hours)) as advance:
        for some in parts:
            seconds = max(_LEAST_S, limit_s / len(parts) / 2)
            _resolve(new, some, settled, before, seconds)
            if any((new.hours[i].unserved > UNSERVED).any() for i in some):
                before = replace(before, free=before.free | {task.hours[i] for i in some})
                _resolve(new, some, settled, before, seconds)
            settled |= {*some}
            advance(len(some))
    if len(parts) > 1:
        left = max(_LEAST_S, limit_s - (time.perf_counter() - began))
        with progress.phase("Polish", 1) as advance:
            _resolve(new, hours, settled - {*hours}, before, left)
            advance(1)
    new.owned = _bought(new, {*range(len(new.hours))}, before)
    return new


def _wider(
    found: Solution, hours: Sequence[int], limit_s: float, progress: Progress
) -> list[OptionColumns]:
    """Return what hours choose from, some of them from what column generation finds as well."""
    guide, kept = priced(found.task, progress, limit_s), [*found.kept]
    for i in hours:
        parts = (kept[i], worth_having(found.task, guide, i))
        rows = [np.stack([c.scenario, c.hour, c.option], 1) for c in parts]
        kept[i] = OptionColumns.of(np.unique(np.concatenate(rows), axis=0))
    return kept


def _is_large(task: PlanningTask) -> bool:
    return len(task.choices.options) * task.n_scenarios * len(task.hours) > MOST_COLUMNS


def _parts(found: Solution, hours: Sequence[int], before: PreviousPlan) -> list[list[int]]:
    """Return places of hours that are solved together."""
    together = [*hours]
    if sum(len(found.kept[i]) for i in together) <= MOST_COLUMNS:
        program = _program(found, together, set(), before)[0]
        if len(program.pools or ()) <= MOST_POOLS:
            return [together]
    return [[i] for i in together]


def _bought(found: Solution, hours: set[int], before: PreviousPlan) -> Array:
    """Return the machines that are bought, or must be for hours ``(devices,)``."""
    most: Array = np.max([before.owned, *(_owned(found, found.hours[i]) for i in hours)], 0)
    return most


def _owned(found: Solution, hour: Hour) -> Array:
    """Return the machines of an hour that must be bought."""
    hourly = np.array([device.is_hourly for _, device in found.task.problem.devices])
    return np.where(hourly, 0.0, hour.machines)


def _program(
    found: Solution, some: Sequence[int], settled: set[int], before: PreviousPlan
) -> tuple[Program, HourBlock]:
    """Return the program of some hours: with what settled ones have bought, and others leave."""
    spent = _spent(found, {*range(len(found.hours))} - {*some})
    bought = _bought(found, settled, before)
    part = HourBlock(tuple(some), found.task.weight[[*some]], bought=bought, spent=spent)
    return assemble(found.task, joined(found.kept, some), part), part


def _resolve(
    found: Solution, some: Sequence[int], settled: set[int], before: PreviousPlan, limit_s: float
) -> None:
    plain, part = _program(found, some, settled, before)
    program = added(plain, found.task, before, part)
    owned = _bought(found, settled | {*some}, before)
    start = filled(program, values(program, [found.hours[i] for i in some], owned))
    solved: SolverResult = solve_all(program, limit_s, _GAP, start)
    if solved.values is None and start is not None:
        return  # there was no time for more than what it began with
    for i, hour in zip(some, read_solution(found.task, program, solved, part)[0], strict=True):
        found.hours[i] = hour


def _spent(found: Solution, others: set[int]) -> dict[str, float]:
    """Return what hours take of the budgets of days, but for what is bought."""
    task, taken = found.task, dict[str, float]()
    budgets: tuple[Objective, ...] = ("cost", "carbon")
    for name in budgets:
        rent, _ = machine_values(task, name)
        taken[name] = sum(float(rent[i] @ found.hours[i].machines) * task.weight[i] for i in others)
    taken["cost"] += sum(sent_usd(task, i, found.hours[i]) * task.weight[i] for i in others)
    return taken


def holds(task: PlanningTask, hour: Hour, i: int, owned: Array) -> bool:
    """Return whether an hour keeps all that is asked of it, but for the budgets of days."""
    used = {q for s, o, _ in hour.flows for q in _stations(task, o)}
    plain = replace(hour, pools=[row for row in hour.pools if row.station in used])
    rows = np.array([(s, 0, o) for s, o, _ in hour.flows], np.intp).reshape(-1, 3)
    free = {"cost": -np.inf, "carbon": -np.inf}
    part = HourBlock((i,), task.weight[[i]], bought=owned, spent=free)
    program = assemble(task, OptionColumns.of(rows), part)
    found = values(program, [plain], owned)
    if found is None:
        return False
    has = program.matrix @ found
    slack = _NEAR * (1 + np.abs(has))
    kept = (has >= program.low - slack).all() and (has <= program.high + slack).all()
    within = found <= program.upper + _NEAR * (1 + np.abs(found))
    return bool(kept and within[: program.begin["u"]].all())


def _stations(task: PlanningTask, option: int) -> list[int]:
    o = task.choices.options
    return [int(q) for q in (o.first[option], o.second[option]) if q >= 0]
