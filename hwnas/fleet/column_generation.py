"""Column generation: of millions of options, those that a linear program would take.

The program starts with few options; what its duals say that others would save is found in numpy.
What none of them would save bounds the program with all options (Lagrange).
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import highspy
import numpy as np

from hwnas.core.progress import Progress
from hwnas.fleet.program import OptionColumns, Program, assemble, whole
from hwnas.fleet.task import UNSERVED, Array, Ints, PlanningTask, machine_values

# HiGHS: the one place that calls the solver. Source: Huangfu and Hall, 2018, https://highs.dev.


_SLIVER = 0.01  # of a demand, that a machine more may count more than


@dataclass(frozen=True)
class SolverResult:
    """What the solver found."""

    values: Array | None  #: of the variables; ``None``: nothing was found
    cost: float
    bound: float  #: that no solution can be below
    dual: Array  #: of the rows, of programs without integers
    seconds: float

    @property
    def gap(self) -> float:
        """How far the cost may be above the best, as a fraction of it."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > 0 else 0.0


def solve(
    program: Program, *, limit_s: float = 60.0, gap: float = 1e-4, start: Array | None = None
) -> SolverResult:
    """Return a solution of a program; one thread, so that equal input gives equal plans.

    Args:
        program: What is solved.
        limit_s: After so many seconds the best that was found is returned.
        gap: Where cost and bound are so near, it is good enough.
        start: Values of variables to begin with.
    """
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    options = {"time_limit": float(limit_s), "mip_rel_gap": gap, "threads": 1, "random_seed": 0}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(_model(program))
    if start is not None:
        begun = highspy.HighsSolution()
        begun.col_value = list(start)
        solver.setSolution(begun)
    began = time.perf_counter()
    solver.run()
    info, solution = solver.getInfo(), solver.getSolution()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    cost = float(info.objective_function_value)
    return SolverResult(
        np.array(solution.col_value) if found else None,
        cost,
        float(info.mip_dual_bound) if program.integer.any() else cost,
        np.array(solution.row_dual),
        time.perf_counter() - began,
    )


def solve_all(
    program: Program, limit_s: float, gap: float, start: Array | None = None
) -> SolverResult:
    """Return a solution as ``solve``; where all can be served, it serves all.

    What it counts that a sliver is not served may be less than what another machine costs.
    """
    found = solve(program, limit_s=limit_s, gap=gap, start=start)
    z = slice(program.begin["z"], program.begin["m"])
    if found.values is None or not UNSERVED < found.values[z].max(initial=0.0) <= _SLIVER:
        return found
    upper = program.upper.copy()
    upper[z] = 0.0
    whole = solve(replace(program, upper=upper), limit_s=limit_s, gap=gap)
    return found if whole.values is None else whole


def _model(program: Program) -> highspy.HighsLp:
    lp, m = highspy.HighsLp(), program.matrix
    lp.num_row_, lp.num_col_ = m.shape
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.low, program.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = m.indptr, m.indices, m.data
    if program.integer.any():
        kinds = highspy.HighsVarType
        lp.integrality_ = [
            kinds.kInteger if whole else kinds.kContinuous for whole in program.integer
        ]
    return lp


_TAKEN = 8  # options a scenario, hour and class that a round takes in
_ROUNDS = 60
_NEAR = 1e-3  # of the cost: where the bound is so near, it is good enough
_FIRST = (0.0, 0.3, 1.0, 3.0, 10.0)  # what a point of accuracy is worth, in dear requests


@dataclass(frozen=True)
class ColumnGenerationResult:
    """What column generation found."""

    columns: OptionColumns
    rates: Array  #: of the columns
    reduced: Array  #: costs of all options ``(scenarios, hours, options)``, demand not counted
    demand: Array  #: duals ``(scenarios, hours, classes)``: what a request a second more costs
    accuracy: Array  #: duals likewise: what a point more of a class's floor costs
    bound: float  #: over all options


def priced(
    task: PlanningTask, progress: Progress, limit_s: float = math.inf
) -> ColumnGenerationResult:
    """Return the options that the relaxed program takes, and its duals.

    Args:
        task: What is solved.
        progress: Is told of phases.
        limit_s: After so many seconds it ends early; the bound holds all the same.
    """
    began = time.perf_counter()
    n_s, n_i = task.n_scenarios, len(task.hours)
    columns = OptionColumns.of(np.unique(np.concatenate([*first(task)]), axis=0))
    with progress.phase("Columns", _ROUNDS) as advance:
        for done in range(_ROUNDS):
            program = assemble(task, columns, whole(task), relaxed=True)
            lp = solve(program)
            reduced, demand, accuracy = _reduced(task, program, lp)
            rows, worst = _better(task, reduced, demand)
            advance(1)
            is_near = not len(rows) or -worst < _NEAR * abs(lp.cost)
            if is_near or time.perf_counter() - began > limit_s:
                advance(_ROUNDS - done - 1)
                break
            old = np.stack([columns.scenario, columns.hour, columns.option], 1)
            columns = OptionColumns.of(np.unique(np.concatenate([old, rows]), axis=0))
    assert lp.values is not None
    rates = lp.values[: len(program.columns)]
    shape = (n_s, n_i, -1)
    return ColumnGenerationResult(
        program.columns, rates, reduced.reshape(*shape), demand, accuracy, lp.cost + worst
    )


def able(task: PlanningTask, s: int) -> Array:
    """Return infinity for options that a scenario takes away, else 0 ``(options,)``."""
    o, alive = task.choices.options, task.alive(s)
    device = np.array([station.device for station in task.choices.stations])
    second = (o.second < 0) | alive[device[np.maximum(o.second, 0)]]
    return np.where(alive[device[o.first]] & second, 0.0, np.inf)


def _machines(task: PlanningTask) -> tuple[Array, Array, Ints]:
    """Return machines a request takes at its stations ``(options,)`` twice, and their devices."""
    o, stations = task.choices.options, task.choices.stations
    devices = task.problem.devices
    per = np.array([1 / (s.best * devices[s.device][1].slots) for s in stations])
    device = np.array([s.device for s in stations], np.intp)
    return per[o.first], np.where(o.second >= 0, o.share * per[o.second], 0.0), device


def first(task: PlanningTask) -> Iterator[Ints]:
    """Yield options that are cheap at list prices, whatever a point of accuracy is worth.

    Rows are scenarios, hours and options.
    """
    o = task.choices.options
    one, two, device = _machines(task)
    rent, owned = machine_values(task, "cost")
    price = rent.max(0) + owned / task.problem.load.n_hours + 1e-9
    cost = price[device[o.first]] * one + price[device[o.second]] * two + o.usd * 3600
    for s in range(task.n_scenarios):
        within = able(task, s)
        for k in range(len(task.problem.classes)):
            mine = np.flatnonzero((o.klass == k) & np.isfinite(within))
            worth = cost[mine].mean() / 0.01 if mine.size else 0.0
            for point in _FIRST:
                best = mine[np.argsort(cost[mine] - point * worth * o.accuracy[mine])[:_TAKEN]]
                for i in range(len(task.hours)):
                    yield np.stack([np.full_like(best, s), np.full_like(best, i), best], 1)


def _reduced(task: PlanningTask, program: Program, lp: SolverResult) -> tuple[Array, Array, Array]:
    """Return reduced costs without the dual of demand, and the duals of demand and accuracy."""
    o, n_s, n_i = task.choices.options, task.n_scenarios, len(task.hours)
    rows, shape = program.rows, (n_s, n_i, -1)
    demand, accuracy, machines = (
        lp.dual[rows[name]].reshape(shape) for name in ("demand", "accuracy", "slots")
    )
    links = [lp.dual[rows[name]] if (name := f"links.{link}") in rows else np.zeros(n_s * n_i)
             for link in task.problem.fleet.links]  # fmt: skip
    of_link = np.array(links).reshape(len(links), n_s, n_i)
    money = lp.dual[rows["cost_budget"]][0] if "cost_budget" in rows else 0.0
    one, two, device = _machines(task)
    d1, d2 = device[o.first], device[np.maximum(o.second, 0)]
    found = np.empty((n_s, n_i, len(o)))
    for s in range(n_s):
        margin, within = o.accuracy - task.floors(s)[o.klass], able(task, s)
        for i in range(n_i):
            cost = within - machines[s, i][d1] * one - machines[s, i][d2] * two
            cost -= accuracy[s, i][o.klass] * margin
            if links:
                cost -= o.links @ of_link[:, s, i]
            if s == 0:
                own = task.objective == "cost"
                cost += task.sending(i) * task.weight[i] * (own - money)
            found[s, i] = cost
    return found, demand, accuracy


def _better(task: PlanningTask, reduced: Array, demand: Array) -> tuple[Ints, float]:
    """Return options that would save something, and how much all would at most (below 0)."""
    o, borne = task.choices.options, task.problem.load.borne[:, list(task.hours)]
    rows, worst = [], 0.0
    for k in range(len(task.problem.classes)):
        mine = np.flatnonzero(o.klass == k)
        for s, i in np.ndindex(reduced.shape[0], reduced.shape[1]):
            own = reduced[s, i, mine] - demand[s, i, k]
            best = np.argpartition(own, min(_TAKEN, own.size - 1))[:_TAKEN] if own.size else mine
            if not best.size:
                continue
            worst += min(0.0, float(own[best].min())) * borne[k, i]
            best = best[own[best] < -1e-9 * max(1.0, abs(demand[s, i, k]))]
            row = [np.full(best.size, s), np.full(best.size, i), mine[best]]
            rows.append(np.stack(row, 1).astype(np.intp))
    return np.concatenate(rows), worst
