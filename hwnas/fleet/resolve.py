"""Solving some hours of a solution again, near the running plan."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from hwnas.core.progress import Progress
from hwnas.fleet.column_generation import (
    SolverResult,
    availability_costs,
    generate_columns,
    initial_columns,
    solve,
    solve_all,
)
from hwnas.fleet.hours import Flow, Hour, scale_hour, served_rates, transfer_usd
from hwnas.fleet.program import HourBlock, OptionColumns, Program, assemble
from hwnas.fleet.solver import (
    MOST_COLUMNS,
    MOST_POOLS,
    Solution,
    join_columns,
    read_solution,
    select_options,
    start_values,
)
from hwnas.fleet.task import UNSERVED, Array, Ints, Objective, PlanningTask, machine_values

# Moves have a penalty and a limit. Replicas are equal if device, model, batch size and wait are.
# Each started or stopped replica, and each newly loaded model, costs a fraction of a replica-hour.

RunningPool = tuple[str, str, int, float]  #: device, model, batch size and wait in ms
Running = Mapping[RunningPool, int]  #: number of replicas


@dataclass(frozen=True)
class PreviousPlan:
    """The current plan, and the penalty and limit on replicas that a new plan starts or stops."""

    running: Mapping[int, Running]  #: number of replicas by hour of the plan and type of replica
    owned: Array  #: machines bought ``(devices,)``
    move_cost: float  #: penalty of a replica started or stopped in an hour, in the plan's unit
    max_moved_fraction: float  #: maximum fraction of an hour's replicas that is stopped
    devices_down: frozenset[str] = frozenset()  #: their replicas do not count for the limit
    unlimited_hours: frozenset[int] = frozenset()  #: hours without ``max_moved_fraction``

    def most_stopped(self, hour: int) -> float:
        """Return the maximum number of replicas of an hour that may be stopped."""
        fraction = 1.0 if hour in self.unlimited_hours else self.max_moved_fraction
        return fraction * self.n_replicas(hour)

    def n_replicas(self, hour: int) -> int:
        """Return the number of replicas of an hour on devices that are up."""
        return sum(n for key, n in self.running[hour].items() if key[0] not in self.devices_down)


def add_move_costs(
    program: Program, task: PlanningTask, before: PreviousPlan, part: HourBlock
) -> Program:
    """Return a program with a penalty for each replica started or stopped or model newly loaded.

    It also limits the stopped replicas of each hour. Its new variables, from ``begin["k"]`` on, are
    the replicas started, then those stopped.
    """
    hours = [task.hours[i] for i in part.hours]
    keys, group = _groups(program, task, before, hours)
    n, end = len(keys), program.begin["end"]
    weight = part.weight[[i for i, _ in keys]] * before.move_cost
    matrix = _matrix(program, group, n)
    running = np.array([before.running[hours[i]].get(key, 0) for i, key in keys], np.float64)
    caps, upper = _caps(keys, before, hours, end, n)
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
        low=np.concatenate([program.low, running, np.full(upper.size, -np.inf)]),
        high=np.concatenate([program.high, running, upper]),
        cost=np.concatenate([cost, weight, weight]),
        lower=np.concatenate([program.lower, np.zeros(2 * n)]),
        upper=np.concatenate([program.upper, np.full(2 * n, np.inf)]),
        integer=np.concatenate([program.integer, np.zeros(2 * n, np.bool_)]),
        begin=program.begin | {"k": end, "end": end + 2 * n},
        rows=program.rows | {"moves": slice(rows, rows + n)},
    )  # fmt: skip


def complete_values(program: Program, values: Array | None) -> Array | None:
    """Return values of variables completed by those of ``add_move_costs``; ``None`` if ``None``."""
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
    """Return (hour index, replica type) pairs, and the pair of each candidate pool."""
    p, placements = program.pools, task.choices.placements
    assert p is not None
    pool_keys = []
    for i, q, v in zip(p.hour, p.placement, p.config, strict=True):
        config = placements[q].configs[v]
        device = task.problem.devices[placements[q].device][0]
        pool_keys.append((int(i), (device, placements[q].model, config.batch, config.wait_ms)))
    running = [(i, key) for i, hour in enumerate(hours) for key in before.running[hour]]
    keys = sorted({*pool_keys, *running})
    place = {key: g for g, key in enumerate(keys)}
    return keys, np.array([place[key] for key in pool_keys], np.intp)


def _matrix(program: Program, group: Ints, n: int) -> sp.csr_matrix:
    """Return rows: replicas - started + stopped = running."""
    p, b, pools = program.pools, program.begin, np.arange(group.size)
    assert p is not None
    every, ones = np.arange(n), np.ones(group.size)
    rows = np.concatenate([group, group, every, every])
    columns = [b["u"] + pools, b["y"] + pools, b["end"] + every, b["end"] + n + every]
    signs = [ones, p.max_per_machine * ones, -np.ones(n), np.ones(n)]
    index = (rows, np.concatenate(columns))
    return sp.csr_matrix((np.concatenate(signs), index), shape=(n, b["end"] + 2 * n))


def _caps(
    keys: list[tuple[int, RunningPool]], before: PreviousPlan, hours: list[int], end: int, n: int
) -> tuple[sp.csr_matrix, Array]:
    """Return rows that limit the stopped replicas of an hour, and their limits."""
    limited = [(i, g) for g, (i, key) in enumerate(keys) if key[0] not in before.devices_down]
    table = np.array(limited, np.intp).reshape(-1, 2).T
    index = (table[0], end + n + table[1])
    caps = sp.csr_matrix((np.ones(len(limited)), index), shape=(len(hours), end + 2 * n))
    return caps, np.array([before.most_stopped(hour) for hour in hours])


def count_moves(ran: Running, runs: Running) -> tuple[int, int]:
    """Return the numbers of replicas started and stopped if ``runs`` replaces ``ran``."""
    keys: Iterable[RunningPool] = {*ran, *runs}
    change = [runs.get(key, 0) - ran.get(key, 0) for key in keys]
    return sum(c for c in change if c > 0), -sum(c for c in change if c < 0)


_GAP, _LEAST_S = 1e-3, 1.0
_NEAR = 1e-5  # relative tolerance of limits


def columns_of(task: PlanningTask, used: Sequence[Hour]) -> OptionColumns:
    """Return the options with which an hour is solved again; ``hour`` of all columns is 0.

    All of a small task; else those cheap at list prices, or on placements of the hours ``used``.
    """
    o, n_s = task.choices.options, task.n_scenarios
    options = np.arange(len(o))
    if _is_large(task):
        cheap = np.unique(np.concatenate([rows[:, 2] for rows in initial_columns(task)]))
        is_used = np.zeros(len(task.choices.placements), np.bool_)
        is_used[[row.placement for hour in used for row in hour.pools]] = True
        near = np.flatnonzero(is_used[o.first] & ((o.second < 0) | is_used[o.second]))
        options = np.union1d(cheap, near)
    rows = []
    for s in range(n_s):
        available: Ints = options[np.isfinite(availability_costs(task, s)[options])]
        rows.append(np.stack([np.full_like(available, s), np.zeros_like(available), available], 1))
    return OptionColumns.of(np.concatenate(rows))


def continue_hours(solution: Solution, hours: Sequence[int]) -> list[Hour]:
    """Return the hours of a solution, those with an index in ``hours`` scaled to their demand.

    Former routes stay. Additional requests follow them, or the linear program (without whole
    replicas); the cheaper alternative over all hours is returned.
    """
    solutions = []
    for placed in (False, True):
        now = replace(solution, hours=[*solution.hours])
        for i in hours:
            now.hours[i] = _continue_hour(solution, i, placed=placed)
        now.owned = np.max([solution.owned, *(_machines_owned(now, hour) for hour in now.hours)], 0)
        solutions.append(now)
    quota = np.array([device.quota for _, device in solution.task.problem.devices])
    key = [(any((h.machines > quota).any() for h in now.hours), now.value) for now in solutions]
    return solutions[key.index(min(key))].hours


def _continue_hour(solution: Solution, i: int, *, placed: bool) -> Hour:
    task, hour = solution.task, solution.hours[i]
    demand = task.problem.load.provisioned_rates[:, task.hours[i]]
    served = served_rates(task, hour.flows)
    request_class = task.choices.options.request_class
    part = np.minimum(1, np.divide(demand, served, out=np.zeros_like(served), where=served > 0))
    flows = [(s, o, rate * float(part[s, request_class[o]])) for s, o, rate in hour.flows]
    rest = np.maximum(demand - part * served, 0)
    if placed or (served[:, demand > 0] == 0).any():
        flows += _place_rest(solution, i, rest)
    return scale_hour(task, i, hour, flows)


def _place_rest(solution: Solution, i: int, rest: Array) -> list[Flow]:
    """Return the relaxed program's flows of requests ``(scenarios, classes)`` next to an hour's."""
    task, columns, hour = solution.task, solution.hour_columns[i], solution.hours[i]
    lp = assemble(task, columns, HourBlock((i,), task.weight[[i]]), relaxed=True)
    lp.low[lp.rows["demand"]] = lp.high[lp.rows["demand"]] = rest.ravel()
    b, devices = lp.begin, [device for _, device in task.problem.devices]
    quota, slots = (np.array([float(getattr(d, n)) for d in devices]) for n in ("quota", "slots"))
    lp.upper[b["m"] : b["r"]] = lp.upper[b["r"] : b["u"]] = np.maximum(quota - hour.machines, 0)
    lp.lower[b["r"] : b["u"]] = np.clip(
        solution.owned - hour.machines, 0, lp.upper[b["r"] : b["u"]]
    )
    used = np.zeros(len(devices))
    for row in hour.pools:
        used[task.choices.placements[row.placement].device] += row.replicas
    free = np.maximum(hour.machines - used / slots, 0)
    lp.high[lp.rows["slots"]] = np.concatenate([free * task.alive(s) for s in range(len(rest))])
    rates = solve(lp).values
    if rates is None:
        return []
    return [(int(columns.scenario[j]), int(columns.option[j]), float(rates[j]))
            for j in np.flatnonzero(rates[: len(columns)] > _NEAR)]  # fmt: skip


def resolve_with_more(
    solution: Solution,
    task: PlanningTask,
    hours: Sequence[int],
    before: PreviousPlan,
    limit_s: float,
    progress: Progress,
) -> Solution:
    """Return a solution with some hours solved again, as ``resolve_near``.

    Hours of large tasks with unserved demand are solved once more with options of column
    generation. ``limit_s`` applies to each of these three steps.
    """
    new = resolve_near(solution, task, hours, before, limit_s, progress)
    short = [i for i in hours if (new.hours[i].unserved > UNSERVED).any()]
    if not short or not _is_large(task):
        return new
    new.hour_columns = _more_columns(new, short, limit_s, progress)
    return resolve_near(new, task, short, before, limit_s, progress)


def resolve_near(
    solution: Solution,
    task: PlanningTask,
    hours: Sequence[int],
    before: PreviousPlan,
    limit_s: float,
    progress: Progress,
) -> Solution:
    """Return a solution with some hours solved again; machines that were bought stay.

    Small programs are solved at once, others hour by hour and then together in the remaining time.
    The limit on stopped replicas is lifted for hours with unserved demand or without a solution,
    for example after a lower quota.

    Args:
        solution: Solution; ``hour_columns`` has the options of its hours.
        task: Task with new goodputs or demands.
        hours: Indices of the hours to solve.
        before: Current plan.
        limit_s: Time limit in seconds; each step has at least one.
        progress: Receives phases.
    """
    new = replace(solution, task=task, hours=[*solution.hours])
    parts, began = _parts(new, hours, before), time.perf_counter()
    settled = {*range(len(new.hours))} - {*hours}
    with progress.phase("Hours again", len(hours)) as advance:
        for block in parts:
            seconds = max(_LEAST_S, limit_s / len(parts) / 2)
            is_solved = _resolve(new, block, settled, before, seconds)
            if not is_solved or any((new.hours[i].unserved > UNSERVED).any() for i in block):
                unlimited = before.unlimited_hours | {task.hours[i] for i in block}
                before = replace(before, unlimited_hours=unlimited)
                _resolve(new, block, settled, before, seconds)
            settled |= {*block}
            advance(len(block))
    if len(parts) > 1:
        rest_s = max(_LEAST_S, limit_s - (time.perf_counter() - began))
        with progress.phase("Polish", 1) as advance:
            _resolve(new, hours, settled - {*hours}, before, rest_s)
            advance(1)
    new.owned = _machines_bought(new, {*range(len(new.hours))}, before)
    return new


def _more_columns(
    solution: Solution, hours: Sequence[int], limit_s: float, progress: Progress
) -> list[OptionColumns]:
    """Return the options of hours, some extended by column generation."""
    guide, columns = generate_columns(solution.task, progress, limit_s), [*solution.hour_columns]
    for i in hours:
        parts = (columns[i], select_options(solution.task, guide, i))
        rows = [np.stack([c.scenario, c.hour, c.option], 1) for c in parts]
        columns[i] = OptionColumns.of(np.unique(np.concatenate(rows), axis=0))
    return columns


def _is_large(task: PlanningTask) -> bool:
    return len(task.choices.options) * task.n_scenarios * len(task.hours) > MOST_COLUMNS


def _parts(solution: Solution, hours: Sequence[int], before: PreviousPlan) -> list[list[int]]:
    """Return groups of hours that are solved together."""
    together = [*hours]
    if sum(len(solution.hour_columns[i]) for i in together) <= MOST_COLUMNS:
        program = _program(solution, together, set(), before)[0]
        if len(program.pools or ()) <= MOST_POOLS:
            return [together]
    return [[i] for i in together]


def _machines_bought(solution: Solution, hours: set[int], before: PreviousPlan) -> Array:
    """Return the machines that are bought, or must be for some hours ``(devices,)``."""
    result: Array = np.max(
        [before.owned, *(_machines_owned(solution, solution.hours[i]) for i in hours)], 0
    )
    return result


def _machines_owned(solution: Solution, hour: Hour) -> Array:
    """Return the machines of an hour that must be bought."""
    hourly = np.array([device.is_hourly for _, device in solution.task.problem.devices])
    return np.where(hourly, 0.0, hour.machines)


def _program(
    solution: Solution, some: Sequence[int], settled: set[int], before: PreviousPlan
) -> tuple[Program, HourBlock]:
    """Return the program of some hours, given the settled hours' purchases and the budgets left."""
    spent = _budget_use(solution, {*range(len(solution.hours))} - {*some})
    bought = _machines_bought(solution, settled, before)
    part = HourBlock(tuple(some), solution.task.weight[[*some]], bought=bought, spent=spent)
    return assemble(solution.task, join_columns(solution.hour_columns, some), part), part


def _resolve(
    solution: Solution, some: Sequence[int], settled: set[int], before: PreviousPlan, limit_s: float
) -> bool:
    """Solve some hours of a solution again; return False if no solution was found in time."""
    plain, part = _program(solution, some, settled, before)
    program = add_move_costs(plain, solution.task, before, part)
    owned = _machines_bought(solution, settled | {*some}, before)
    start = complete_values(
        program, start_values(program, [solution.hours[i] for i in some], owned)
    )
    solved: SolverResult = solve_all(program, limit_s, _GAP, start)
    if solved.values is None and start is not None:
        return False
    for i, hour in zip(some, read_solution(solution.task, program, solved, part)[0], strict=True):
        solution.hours[i] = hour
    return True


def _budget_use(solution: Solution, others: set[int]) -> dict[str, float]:
    """Return the daily budgets that hours use, without purchases."""
    task, used = solution.task, dict[str, float]()
    budgets: tuple[Objective, ...] = ("cost", "carbon")
    for name in budgets:
        rent, _ = machine_values(task, name)
        machines = {i: solution.hours[i].machines for i in others}
        used[name] = sum(float(rent[i] @ n) * task.weight[i] for i, n in machines.items())
    used["cost"] += sum(transfer_usd(task, i, solution.hours[i]) * task.weight[i] for i in others)
    return used


def is_feasible(task: PlanningTask, hour: Hour, i: int, owned: Array) -> bool:
    """Return True if hour ``i`` keeps all constraints of a task except daily budgets.

    ``owned`` has the machines bought ``(devices,)``.
    """
    used = {q for s, o, _ in hour.flows for q in _placements_of(task, o)}
    plain = replace(hour, pools=[row for row in hour.pools if row.placement in used])
    rows = np.array([(s, 0, o) for s, o, _ in hour.flows], np.intp).reshape(-1, 3)
    free = {"cost": -np.inf, "carbon": -np.inf}
    part = HourBlock((i,), task.weight[[i]], bought=owned, spent=free)
    program = assemble(task, OptionColumns.of(rows), part)
    result = start_values(program, [plain], owned)
    if result is None:
        return False
    has = program.matrix @ result
    slack = _NEAR * (1 + np.abs(has))
    satisfies_rows = (has >= program.low - slack).all() and (has <= program.high + slack).all()
    satisfies_bounds = result <= program.upper + _NEAR * (1 + np.abs(result))
    return bool(satisfies_rows and satisfies_bounds[: program.begin["u"]].all())


def _placements_of(task: PlanningTask, option: int) -> list[int]:
    o = task.choices.options
    return [int(q) for q in (o.first[option], o.second[option]) if q >= 0]
