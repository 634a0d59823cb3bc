"""From a task to a solution: small ones whole, large ones hour by hour and then polished.

Large: column generation says which stations are worth having in each hour. The hours of the peaks
together say what is bought; each hour is solved alone, and more is bought where that is not enough.
Then the whole day is polished from there.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hwnas.core.progress import Progress
from hwnas.fleet.column_generation import (
    ColumnGenerationResult,
    SolverResult,
    priced,
    solve,
    solve_all,
)
from hwnas.fleet.hours import Hour, PoolRow, rounded, sent_usd
from hwnas.fleet.program import HourBlock, OptionColumns, Program, assemble, whole
from hwnas.fleet.task import UNSERVED, Array, Objective, PlanningTask, machine_values

#: Programs that are solved whole: so many options in hours, and candidates for pools.
MOST_COLUMNS, MOST_POOLS = 6_000, 700
#: Stations that are kept for an hour, at least and at most, and for all hours that differ.
_STATIONS = (30, 90, 720)
_EACH = 4  # stations of each device that are kept for an hour, whatever the relaxed program says
_KEPT = 1_000  # options that are kept for a class in an hour and scenario
_HOUR_GAP, _HOUR_S = 0.01, (1.0, 8.0)
_LEAST_S = 5.0  # that a part of the work has, however late it is
_EXACT = 1e-7


@dataclass
class Solution:
    """What is bought, and what runs in which hour."""

    task: PlanningTask
    hours: list[Hour]  #: those of the task
    owned: Array  #: ``(devices,)``
    bound_kept: float  #: no plan of the options that were kept is cheaper
    bound_all: float  #: nor of all options
    seconds: dict[str, float] = field(default_factory=dict)
    n_columns: int = 0
    kept: list[OptionColumns] = field(default_factory=list)  #: options by hour; empty: solved whole

    @property
    def value(self) -> float:
        """What it comes to, in the unit of the objective; with what breaks ties left out."""
        return self.taken(self.task.objective)

    def taken(self, objective: Objective) -> float:
        """Return what it comes to in the unit of an objective, its own or another."""
        task, total = self.task, 0.0
        rent, owned = machine_values(task, objective)
        for i, hour in enumerate(self.hours):
            total += float(rent[i] @ hour.machines) * task.weight[i]
            if objective == "cost":
                total += sent_usd(task, i, hour) * task.weight[i]
        return float(total + owned @ self.owned)

    @property
    def unserved(self) -> Array:
        """The largest part of a demand that is not served, by class."""
        found: Array = np.max([hour.unserved.max(0) for hour in self.hours], 0)
        return found

    @property
    def serves(self) -> bool:
        """Whether all demands are served."""
        return bool((self.unserved < UNSERVED).all())


def solution(
    task: PlanningTask,
    limit_s: float,
    progress: Progress,
    start: tuple[Sequence[Hour], Array] | None = None,
) -> Solution:
    """Return the best solution that is found in so many seconds; it may leave demands unserved.

    Args:
        task: What is solved.
        limit_s: Seconds that it may take.
        progress: Is told of phases.
        start: Hours and what is bought, to begin with where the whole is solved at once.
    """
    if (program := small(task)) is not None:
        begun = None if start is None else values(program, *start)
        return _whole(task, program, limit_s, progress, begun)
    return min(_tried(task, limit_s, progress), key=lambda found: (not found.serves, found.value))


def small(task: PlanningTask) -> Program | None:
    """Return the program of a task that is small enough to be solved whole."""
    if len(task.choices.options) * task.n_scenarios * len(task.hours) > MOST_COLUMNS:
        return None
    program = assemble(task, _all_columns(task), whole(task))
    return program if len(program.pools or ()) <= MOST_POOLS else None


def bound(task: PlanningTask, limit_s: float, progress: Progress) -> float:
    """Return what no solution of a task can be below, as it is found in so many seconds."""
    if (program := small(task)) is None:
        return priced(task, progress, limit_s).bound
    return _whole(task, program, limit_s, progress).bound_all


def _tried(task: PlanningTask, limit_s: float, progress: Progress) -> Iterator[Solution]:
    """Yield a solution by hours, and one of single models alone."""
    began = time.perf_counter()
    found = _by_hours(task, limit_s, progress)
    yield found
    o = task.choices.options
    single = np.flatnonzero(o.second < 0)
    if single.size < len(o):  # so few that more of their plans are seen
        alone = replace(task, choices=replace(task.choices, options=o.only(single)))
        other = solution(alone, max(_LEAST_S, began + limit_s - time.perf_counter()), progress)
        other.bound_kept = min(found.bound_kept, other.bound_kept)
        other.bound_all = found.bound_all
        yield other


def _all_columns(task: PlanningTask) -> OptionColumns:
    """Return every option in every scenario that leaves it, and every hour."""
    o, rows = task.choices.options, []
    device = np.array([station.device for station in task.choices.stations])
    for s in range(task.n_scenarios):
        alive = task.alive(s)
        second = (o.second < 0) | alive[device[np.maximum(o.second, 0)]]
        able = np.flatnonzero(alive[device[o.first]] & second)
        for i in range(len(task.hours)):
            rows.append(np.stack([np.full_like(able, s), np.full_like(able, i), able], 1))
    return OptionColumns.of(np.concatenate(rows))


def _whole(
    task: PlanningTask,
    program: Program,
    limit_s: float,
    progress: Progress,
    start: Array | None = None,
) -> Solution:
    with progress.phase("Program", 1) as advance:
        found = solve_all(program, limit_s, _EXACT, start)
        advance(1)
    part = whole(task)
    hours, owned = read_solution(task, program, found, part)
    seconds = {"program": found.seconds}
    return Solution(task, hours, owned, found.bound, found.bound, seconds, len(program.columns))


def read_solution(
    task: PlanningTask, program: Program, found: SolverResult, part: HourBlock
) -> tuple[list[Hour], Array]:
    """Return what values of variables say, by hour, and what is bought."""
    n_s, n_i, n_k = task.n_scenarios, len(part.hours), len(task.problem.classes)
    b, v = program.begin, found.values
    if v is None:  # not even what leaves all demands unserved: there was no time
        v = np.zeros(b["end"])
        v[b["z"] : b["m"]] = 1.0
    unserved = v[b["z"] : b["m"]].reshape(n_s, n_i, n_k)
    machines = v[b["m"] : b["r"]].reshape(n_i, -1).round()
    hours = [Hour(machines[i], [], [], unserved[:, i]) for i in range(n_i)]
    c, p = program.columns, program.pools
    assert p is not None
    for j in np.flatnonzero(v[b["y"] : b["y"] + len(p)] > 0.5):
        n = round(v[b["u"] + j]) + int(p.spread[j])
        if n > p.spread[j]:
            row = PoolRow(int(p.station[j]), int(p.variant[j]), int(p.spread[j]), n)
            hours[p.hour[j]].pools.append(row)
    o, there = task.choices.options, [{row.station for row in hour.pools} for hour in hours]
    for j in np.flatnonzero(v[: b["z"]] > 1e-9):
        i, option = int(c.hour[j]), int(c.option[j])
        # The solver's tolerance lets next to nothing flow where there is no replica.
        if {int(q) for q in (o.first[option], o.second[option]) if q >= 0} <= there[i]:
            hours[i].flows.append((int(c.scenario[j]), option, float(v[j])))
    return hours, v[b["r"] : b["u"]].round()


def _by_hours(task: PlanningTask, limit_s: float, progress: Progress) -> Solution:
    began = time.perf_counter()
    guide = priced(task, progress)
    kept = [worth_having(task, guide, i) for i in range(len(task.hours))]
    firsts = [rounded(task, guide, i) for i in range(len(task.hours))]
    seconds = {"columns": time.perf_counter() - began}
    owned, hours = _bought(task, kept, firsts, limit_s / 3, progress)
    seconds["hours"] = time.perf_counter() - began - seconds["columns"]
    found = Solution(task, hours, owned, guide.bound, guide.bound, seconds, kept=kept)
    found.n_columns = sum(len(each) for each in kept)
    left = max(_LEAST_S, limit_s - (time.perf_counter() - began))
    _polish(found, kept, left, progress)
    seconds["polish"] = time.perf_counter() - began - sum(seconds.values())
    return found


def worth_having(task: PlanningTask, guide: ColumnGenerationResult, i: int) -> OptionColumns:
    """Return the options of an hour that need only stations that are worth having in it."""
    o, score = task.choices.options, np.full(len(task.choices.stations), np.inf)
    for s in range(task.n_scenarios):
        for k in range(len(task.problem.classes)):
            mine = np.flatnonzero((o.klass == k) & np.isfinite(guide.reduced[s, i]))
            cost = guide.reduced[s, i, mine] / max(abs(guide.demand[s, i, k]), 1e-12)
            for side in (o.first[mine], o.second[mine]):
                there = side >= 0
                np.minimum.at(score, side[there], cost[there])
    used = guide.columns.option[(guide.columns.hour == i) & (guide.rates > 1e-6)]
    for side in (o.first[used], o.second[used]):
        score[side[side >= 0]] = -np.inf
    least, most, of_all = _STATIONS
    n = max(min(most, of_all // len(task.hours)), least, int(np.isneginf(score).sum()))
    chosen = np.zeros(score.size, np.bool_)
    order = np.argsort(score)
    chosen[order[:n]] = True
    kinds = np.array([s.device * len(task.problem.arrivals) + s.process
                      for s in task.choices.stations])  # fmt: skip
    for kind in np.unique(kinds):  # what the relaxed program has enough of may be full
        chosen[order[kinds[order] == kind][:_EACH]] = True
    chosen &= score < np.inf
    able = chosen[o.first] & ((o.second < 0) | chosen[np.maximum(o.second, 0)])
    rows = []
    for s in range(task.n_scenarios):
        for k in range(len(task.problem.classes)):
            fits = able & (o.klass == k) & np.isfinite(guide.reduced[s, i])
            mine = np.flatnonzero(fits)
            mine = mine[np.argsort(guide.reduced[s, i, mine], kind="stable")[:_KEPT]]
            rows.append(np.stack([np.full_like(mine, s), np.zeros_like(mine), mine], 1))
    return OptionColumns.of(np.concatenate(rows))


def joined(kept: Sequence[OptionColumns], hours: Sequence[int]) -> OptionColumns:
    """Return the options of some hours of a task together, as of one program."""
    parts = [
        np.stack([kept[h].scenario, np.full_like(kept[h].hour, i), kept[h].option], 1)
        for i, h in enumerate(hours)
    ]
    return OptionColumns.of(np.concatenate(parts))


def _bought(
    task: PlanningTask,
    kept: Sequence[OptionColumns],
    firsts: Sequence[Hour],
    limit_s: float,
    progress: Progress,
) -> tuple[Array, list[Hour]]:
    """Return what is bought, by the hours of the peaks, and each hour with that."""
    borne = task.problem.load.borne[:, list(task.hours)]
    peaks, n = sorted({int(row.argmax()) for row in borne}), len(task.hours)
    weight = task.weight[peaks] * (task.weight.sum() / task.weight[peaks].sum())
    part = HourBlock(tuple(peaks), weight)
    program = assemble(task, joined(kept, peaks), part)
    with progress.phase("Peaks", 1) as advance:
        most = np.max([firsts[i].machines for i in peaks], 0)
        start = values(program, [firsts[i] for i in peaks], most)
        joint = solve(program, limit_s=limit_s / 2, gap=_HOUR_GAP, start=start)
        advance(1)
    _, owned = read_solution(task, program, joint, part)
    hours = []
    with progress.phase("Hours", n) as advance:
        for i in range(n):
            hour, owned = _served(task, kept[i], i, owned, (limit_s / 2 / n, firsts[i]))
            hours.append(hour)
            advance(1)
    return owned, hours


def _served(
    task: PlanningTask, kept: OptionColumns, i: int, owned: Array, begin: tuple[float, Hour]
) -> tuple[Hour, Array]:
    """Return an hour with what is bought; where that is not enough, with more.

    Args:
        task: What is solved.
        kept: The options of the hour.
        i: Its place.
        owned: What is bought.
        begin: Seconds that it may take, and a way to serve the hour.
    """
    limit_s, first = min(max(begin[0], _HOUR_S[0]), _HOUR_S[1]), begin[1]
    for part in (HourBlock((i,), task.weight[[i]], owned), HourBlock((i,), task.weight[[i]])):
        program = assemble(task, kept, part)
        fits = part.owned is None or (first.machines <= owned + _hourly(task)).all()
        start = values(program, [first], first.machines) if fits else None
        found = solve_all(program, limit_s, _HOUR_GAP, start)
        (hour,), more = read_solution(task, program, found, part)
        if not (hour.unserved > UNSERVED).any():
            return hour, owned if part.owned is not None else np.maximum(owned, more)
        limit_s *= 2
    return hour, owned


def _hourly(task: PlanningTask) -> Array:
    """Return infinity for devices that are rented by the hour, else 0."""
    return np.array([np.inf if d.is_hourly else 0.0 for _, d in task.problem.devices])


def again(
    found: Solution, task: PlanningTask, hours: Sequence[int], limit_s: float, progress: Progress
) -> Solution:
    """Return a solution of a task whose goodputs were corrected in some hours since.

    Where hours were solved one by one, these are solved again, with what is bought; if that is not
    enough, more is.
    """
    if not found.kept:
        return solution(task, limit_s, progress)
    new = replace(found, task=task, hours=[*found.hours], owned=found.owned.copy())
    with progress.phase("Hours again", len(hours)) as advance:
        for i in hours:
            new.hours[i], new.owned = _served(
                task, found.kept[i], i, new.owned, (_HOUR_S[1], new.hours[i])
            )
            advance(1)
    return new


def _polish(
    found: Solution, kept: Sequence[OptionColumns], limit_s: float, progress: Progress
) -> None:
    """Solve the whole day, begun at what was found; keep what is better, and its bound."""
    task, part = found.task, whole(found.task)
    program = assemble(task, joined(kept, part.hours), part)
    with progress.phase("Polish", 1) as advance:
        start = values(program, found.hours, found.owned)
        if start is not None:  # what is served already stays so
            z = slice(program.begin["z"], program.begin["m"])
            program.upper[z] = start[z]
        better = solve(program, limit_s=limit_s, gap=1e-3, start=start)
        advance(1)
    found.bound_kept = max(found.bound_kept, better.bound)
    if start is None or better.values is None:
        return
    if better.cost <= float(program.cost @ start) + 1e-9:
        found.hours, found.owned = read_solution(task, program, better, part)


def values(program: Program, hours: Sequence[Hour], owned: Array) -> Array | None:
    """Return hours as values of the variables; ``None``: a pool or an option is not of them."""
    b, c, p = program.begin, program.columns, program.pools
    assert p is not None
    v = np.zeros(b["end"])
    at = {key: j for j, key in enumerate(zip(c.hour, c.scenario, c.option, strict=True))}
    of = {key: j for j, key in enumerate(zip(p.hour, p.station, p.variant, p.spread, strict=True))}
    n_s, n_k = hours[0].unserved.shape
    unserved = v[b["z"] : b["m"]].reshape(n_s, len(hours), n_k)
    machines = v[b["m"] : b["r"]].reshape(len(hours), -1)
    try:
        for i, hour in enumerate(hours):
            for s, o, x in hour.flows:
                v[at[i, s, o]] = x
            for row in hour.pools:
                j = of[i, row.station, row.variant, row.spread]
                v[b["u"] + j], v[b["y"] + j] = row.replicas - row.spread, 1
            unserved[:, i], machines[i] = hour.unserved, hour.machines
    except KeyError:
        return None
    v[b["r"] : b["u"]] = owned
    return v
