"""Solution of tasks: small ones at once, large ones by hour and then polished.

Large tasks: column generation selects the placements of each hour. The peak hours together decide
the purchases; each hour is solved separately, with more purchases if needed. Then the whole day is
polished.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hwnas.core.progress import Progress
from hwnas.fleet.column_generation import (
    ColumnGenerationResult,
    SolverResult,
    availability_costs,
    generate_columns,
    solve,
    solve_all,
)
from hwnas.fleet.hours import Hour, PoolRow, machines_needed, round_up, transfer_usd
from hwnas.fleet.program import HourBlock, OptionColumns, Program, all_hours, assemble
from hwnas.fleet.task import UNSERVED, Array, Objective, PlanningTask, machine_values

#: Maximum options in hours, and candidate pools, of programs that are solved at once.
MOST_COLUMNS, MOST_POOLS = 6_000, 700
#: Placements kept per hour: minimum, maximum, and total over distinct hours.
_STATIONS = (30, 90, 720)
_N_PLACEMENTS = 4  # placements of each device kept per hour regardless of the relaxed program
_MAX_OPTIONS = 1_000  # options kept per class, hour and scenario
_HOUR_GAP, _HOUR_S = 0.01, (1.0, 8.0)
_MIN_S = 5.0  # minimum time limit of a step
_EXACT = 1e-7
_TOLERANCE = 1e-6  # relative, of limits


@dataclass
class Solution:
    """Machines bought, and the machines, pools and flows of each hour."""

    task: PlanningTask
    hours: list[Hour]  #: in the order of the task's hours
    owned: Array  #: machines bought ``(devices,)``
    bound_kept: float  #: lower bound of the value over the options left after pruning
    bound_all: float  #: lower bound of the value over all options
    seconds: dict[str, float] = field(default_factory=dict)  #: times of the solver by step
    n_columns: int = 0  #: number of options in all hours, from which the solver chose
    #: options of each hour after pruning; empty: the task was small enough to be solved at once
    hour_columns: list[OptionColumns] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Value of the task's objective over all hours in $, kg of CO2 or kWh."""
        return self.objective_value(self.task.objective)

    def objective_value(self, objective: Objective) -> float:
        """Return the value of an objective over all hours in $, kg of CO2 or kWh."""
        task, total = self.task, 0.0
        rent, owned = machine_values(task, objective)
        for i, hour in enumerate(self.hours):
            total += float(rent[i] @ hour.machines) * task.weight[i]
            if objective == "cost":
                total += transfer_usd(task, i, hour) * task.weight[i]
        return float(total + owned @ self.owned)

    @property
    def unserved(self) -> Array:
        """Largest unserved fraction of the demand over hours and scenarios ``(classes,)``."""
        result: Array = np.max([hour.unserved.max(0) for hour in self.hours], 0)
        return result

    @property
    def serves(self) -> bool:
        """True if the demand of all classes is served in all hours and scenarios."""
        return bool((self.unserved < UNSERVED).all())


def solve_task(
    task: PlanningTask,
    limit_s: float,
    progress: Progress,
    start: tuple[Sequence[Hour], Array] | None = None,
) -> Solution:
    """Return the best solution found in time; it may leave demand unserved (see ``serves``).

    Args:
        task: Task.
        limit_s: Time limit in seconds; column generation of large tasks may exceed it.
        progress: Receives phases.
        start: Initial hours and machines bought; used only for small tasks.
    """
    if (program := small_program(task)) is not None:
        start_vector = None if start is None else start_values(program, *start)
        return _solve_program(task, program, limit_s, progress, start_vector)
    return min(
        _solve_large(task, limit_s, progress),
        key=lambda solution: (not solution.serves, solution.value),
    )


def small_program(task: PlanningTask) -> Program | None:
    """Return the program of a task; ``None`` if it is too large to be solved at once."""
    if len(task.choices.options) * task.n_scenarios * len(task.hours) > MOST_COLUMNS:
        return None
    program = assemble(task, _all_columns(task), all_hours(task))
    return program if len(program.pools or ()) <= MOST_POOLS else None


def lower_bound(task: PlanningTask, limit_s: float, progress: Progress) -> float:
    """Return a lower bound of the value of all solutions, in the unit of the task's objective.

    It is computed in about ``limit_s`` seconds.
    """
    if (program := small_program(task)) is None:
        return generate_columns(task, progress, limit_s).bound
    return _solve_program(task, program, limit_s, progress).bound_all


def _solve_large(task: PlanningTask, limit_s: float, progress: Progress) -> Iterator[Solution]:
    """Yield a solution by hours, and one without cascades and splits."""
    began = time.perf_counter()
    result = _by_hours(task, limit_s, progress)
    yield result
    o = task.choices.options
    single = np.flatnonzero(o.second < 0)
    if single.size < len(o):  # fewer options: the solver searches them better
        alone = replace(task, choices=replace(task.choices, options=o.only(single)))
        other = solve_task(alone, max(_MIN_S, began + limit_s - time.perf_counter()), progress)
        other.bound_kept = min(result.bound_kept, other.bound_kept)
        other.bound_all = result.bound_all
        yield other


def _all_columns(task: PlanningTask) -> OptionColumns:
    """Return every available option in every scenario and hour."""
    rows = []
    for s in range(task.n_scenarios):
        able = np.flatnonzero(np.isfinite(availability_costs(task, s)))
        for i in range(len(task.hours)):
            rows.append(np.stack([np.full_like(able, s), np.full_like(able, i), able], 1))
    return OptionColumns.of(np.concatenate(rows))


def _solve_program(
    task: PlanningTask,
    program: Program,
    limit_s: float,
    progress: Progress,
    start: Array | None = None,
) -> Solution:
    with progress.phase("Program", 1) as advance:
        result = solve_all(program, limit_s, _EXACT, start)
        advance(1)
    part = all_hours(task)
    hours, owned = read_solution(task, program, result, part)
    seconds = {"program": result.seconds}
    return Solution(task, hours, owned, result.bound, result.bound, seconds, len(program.columns))


def read_solution(
    task: PlanningTask, program: Program, result: SolverResult, part: HourBlock
) -> tuple[list[Hour], Array]:
    """Return the hours and the machines bought ``(devices,)`` of a solver's result.

    Without a solution all demand is unserved.
    """
    n_s, n_i, n_k = task.n_scenarios, len(part.hours), len(task.problem.classes)
    b, v = program.begin, result.values
    if v is None:  # no time for any solution: nothing is served
        v = np.zeros(b["end"])
        v[b["z"] : b["m"]] = 1.0
    unserved = v[b["z"] : b["m"]].reshape(n_s, n_i, n_k)
    machines = v[b["m"] : b["r"]].reshape(n_i, -1).round()
    hours = [Hour(machines[i], [], [], unserved[:, i]) for i in range(n_i)]
    c, p = program.columns, program.pools
    assert p is not None
    for j in np.flatnonzero(v[b["y"] : b["y"] + len(p)] > 0.5):
        n = round(v[b["u"] + j]) + int(p.max_per_machine[j])
        if n > p.max_per_machine[j]:
            row = PoolRow(int(p.placement[j]), int(p.config[j]), int(p.max_per_machine[j]), n)
            hours[p.hour[j]].pools.append(row)
    o, placements = task.choices.options, [{row.placement for row in hour.pools} for hour in hours]
    for j in np.flatnonzero(v[: b["z"]] > 1e-9):
        i, option = int(c.hour[j]), int(c.option[j])
        # Within the solver's tolerance, tiny flows may go to placements without replicas.
        if {int(q) for q in (o.first[option], o.second[option]) if q >= 0} <= placements[i]:
            hours[i].flows.append((int(c.scenario[j]), option, float(v[j])))
    for hour in hours:  # the solver may use more bought machines than needed: they cost no more
        for d, (_, device) in enumerate(task.problem.devices):
            rows = [row for row in hour.pools if task.choices.placements[row.placement].device == d]
            hour.machines[d] = min(hour.machines[d], machines_needed(rows, device.slots))
    return hours, v[b["r"] : b["u"]].round()


def _by_hours(task: PlanningTask, limit_s: float, progress: Progress) -> Solution:
    began = time.perf_counter()
    guide = generate_columns(task, progress)
    columns = [select_options(task, guide, i) for i in range(len(task.hours))]
    firsts = [round_up(task, guide.columns, guide.rates, i) for i in range(len(task.hours))]
    seconds = {"columns": time.perf_counter() - began}
    owned, hours = _solve_peaks(task, columns, firsts, limit_s / 3, progress)
    seconds["hours"] = time.perf_counter() - began - seconds["columns"]
    result = Solution(task, hours, owned, guide.bound, guide.bound, seconds, hour_columns=columns)
    result.n_columns = sum(len(hour_columns) for hour_columns in columns)
    rest_s = max(_MIN_S, limit_s - (time.perf_counter() - began))
    _polish(result, columns, rest_s, progress)
    seconds["polish"] = time.perf_counter() - began - sum(seconds.values())
    return result


def select_options(task: PlanningTask, guide: ColumnGenerationResult, i: int) -> OptionColumns:
    """Return the options of hour ``i`` with low reduced costs; ``hour`` of all columns is 0.

    ``guide`` is the result of ``generate_columns``.
    """
    o, score = task.choices.options, np.full(len(task.choices.placements), np.inf)
    for s in range(task.n_scenarios):
        for k in range(len(task.problem.classes)):
            options = np.flatnonzero((o.request_class == k) & np.isfinite(guide.reduced[s, i]))
            cost = guide.reduced[s, i, options] / max(abs(guide.demand[s, i, k]), 1e-12)
            for side in (o.first[options], o.second[options]):
                is_used = side >= 0
                np.minimum.at(score, side[is_used], cost[is_used])
    used = guide.columns.option[(guide.columns.hour == i) & (guide.rates > 1e-6)]
    for side in (o.first[used], o.second[used]):
        score[side[side >= 0]] = -np.inf
    lower, upper, of_all = _STATIONS
    n = max(min(upper, of_all // len(task.hours)), lower, int(np.isneginf(score).sum()))
    chosen = np.zeros(score.size, np.bool_)
    order = np.argsort(score)
    chosen[order[:n]] = True
    kinds = np.array([s.device * len(task.problem.arrivals) + s.process
                      for s in task.choices.placements])  # fmt: skip
    for kind in np.unique(kinds):  # quotas may bind only with whole replicas
        chosen[order[kinds[order] == kind][:_N_PLACEMENTS]] = True
    chosen &= score < np.inf
    able = chosen[o.first] & ((o.second < 0) | chosen[np.maximum(o.second, 0)])
    rows = []
    for s in range(task.n_scenarios):
        for k in range(len(task.problem.classes)):
            fits = able & (o.request_class == k) & np.isfinite(guide.reduced[s, i])
            options = np.flatnonzero(fits)
            options = options[
                np.argsort(guide.reduced[s, i, options], kind="stable")[:_MAX_OPTIONS]
            ]
            rows.append(np.stack([np.full_like(options, s), np.zeros_like(options), options], 1))
    return OptionColumns.of(np.concatenate(rows))


def join_columns(kept: Sequence[OptionColumns], hours: Sequence[int]) -> OptionColumns:
    """Return the options ``kept[h]`` of some hours ``h`` as columns of one program.

    Their ``hour`` is the index into ``hours``.
    """
    parts = [
        np.stack([kept[h].scenario, np.full_like(kept[h].hour, i), kept[h].option], 1)
        for i, h in enumerate(hours)
    ]
    return OptionColumns.of(np.concatenate(parts))


def _solve_peaks(
    task: PlanningTask,
    columns: Sequence[OptionColumns],
    firsts: Sequence[Hour],
    limit_s: float,
    progress: Progress,
) -> tuple[Array, list[Hour]]:
    """Return the purchases for the peak hours, and each hour solved with them."""
    borne = task.problem.load.provisioned_rates[:, list(task.hours)]
    peaks, n = sorted({int(row.argmax()) for row in borne}), len(task.hours)
    weight = task.weight[peaks] * (task.weight.sum() / task.weight[peaks].sum())
    part = HourBlock(tuple(peaks), weight)
    program = assemble(task, join_columns(columns, peaks), part)
    with progress.phase("Peaks", 1) as advance:
        counts = np.max([firsts[i].machines for i in peaks], 0)
        start = start_values(program, [firsts[i] for i in peaks], counts)
        joint = solve(program, limit_s=limit_s / 2, gap=_HOUR_GAP, start=start)
        advance(1)
    _, owned = read_solution(task, program, joint, part)
    hours = []
    with progress.phase("Hours", n) as advance:
        for i in range(n):
            hour, owned = _solve_hour(task, columns[i], i, owned, (limit_s / 2 / n, firsts[i]))
            hours.append(hour)
            advance(1)
    return owned, hours


def _solve_hour(
    task: PlanningTask, options: OptionColumns, i: int, owned: Array, begin: tuple[float, Hour]
) -> tuple[Hour, Array]:
    """Return an hour solved with given purchases; with more if these are not enough.

    Args:
        task: Task.
        options: Options of the hour.
        i: Index of the hour.
        owned: Machines bought.
        begin: Time limit in seconds, and an initial hour.
    """
    limit_s, first = min(max(begin[0], _HOUR_S[0]), _HOUR_S[1]), begin[1]
    for part in (HourBlock((i,), task.weight[[i]], owned), HourBlock((i,), task.weight[[i]])):
        program = assemble(task, options, part)
        fits = part.owned is None or (first.machines <= owned + _rented_machines(task)).all()
        start = start_values(program, [first], first.machines) if fits else None
        result = solve_all(program, limit_s, _HOUR_GAP, start)
        (hour,), more = read_solution(task, program, result, part)
        if not (hour.unserved > UNSERVED).any():
            return hour, owned if part.owned is not None else np.maximum(owned, more)
        limit_s *= 2
    return hour, owned


def _rented_machines(task: PlanningTask) -> Array:
    """Return infinity for devices rented by the hour, else 0."""
    return np.array([np.inf if d.is_hourly else 0.0 for _, d in task.problem.devices])


def solve_again(
    solution: Solution, task: PlanningTask, hours: Sequence[int], limit_s: float, progress: Progress
) -> Solution:
    """Return a solution for corrected goodputs, given one for former goodputs.

    Of a large task only ``hours`` (indices) are solved again, each in up to 8 s, and 16 s more if
    machines must be bought; ``limit_s`` is ignored. A small task is solved completely in up to
    ``limit_s`` seconds.
    """
    if not solution.hour_columns:
        return solve_task(task, limit_s, progress)
    new = replace(solution, task=task, hours=[*solution.hours], owned=solution.owned.copy())
    with progress.phase("Hours again", len(hours)) as advance:
        for i in hours:
            new.hours[i], new.owned = _solve_hour(
                task, solution.hour_columns[i], i, new.owned, (_HOUR_S[1], new.hours[i])
            )
            advance(1)
    return new


def _polish(
    solution: Solution, columns: Sequence[OptionColumns], limit_s: float, progress: Progress
) -> None:
    """Solve the whole day from a solution; keep the result if better, and its bound."""
    task, part = solution.task, all_hours(solution.task)
    program = assemble(task, join_columns(columns, part.hours), part)
    with progress.phase("Polish", 1) as advance:
        start = start_values(program, solution.hours, solution.owned)
        if start is not None:  # served demand stays served
            z = slice(program.begin["z"], program.begin["m"])
            program.upper[z] = start[z]
        better = solve(program, limit_s=limit_s, gap=1e-3, start=start)
        advance(1)
    solution.bound_kept = max(solution.bound_kept, better.bound)
    if start is None or better.values is None:
        return
    exceeds = (program.matrix @ start > program.high * (1 + _TOLERANCE) + _TOLERANCE).any()
    if exceeds or better.cost <= float(program.cost @ start) + 1e-9:
        solution.hours, solution.owned = read_solution(task, program, better, part)


def start_values(program: Program, hours: Sequence[Hour], owned: Array) -> Array | None:
    """Return hours as values of a program's variables ``(variables,)``.

    ``None`` if the program lacks one of their pools or options. ``owned`` has the machines bought
    ``(devices,)``.
    """
    b, c, p = program.begin, program.columns, program.pools
    assert p is not None
    v = np.zeros(b["end"])
    option_index = {key: j for j, key in enumerate(zip(c.hour, c.scenario, c.option, strict=True))}
    pool_index = {
        key: j
        for j, key in enumerate(zip(p.hour, p.placement, p.config, p.max_per_machine, strict=True))
    }
    n_s, n_k = hours[0].unserved.shape
    unserved = v[b["z"] : b["m"]].reshape(n_s, len(hours), n_k)
    machines = v[b["m"] : b["r"]].reshape(len(hours), -1)
    try:
        for i, hour in enumerate(hours):
            for s, o, x in hour.flows:
                v[option_index[i, s, o]] = x
            for row in hour.pools:
                j = pool_index[i, row.placement, row.config, row.max_per_machine]
                v[b["u"] + j], v[b["y"] + j] = row.replicas - row.max_per_machine, 1
            unserved[:, i], machines[i] = hour.unserved, hour.machines
    except KeyError:
        return None
    v[b["r"] : b["u"]] = owned
    return v
