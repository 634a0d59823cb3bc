"""Column generation: select the useful ones of millions of options by a linear program.

The program starts with few options; options with negative reduced costs are found in numpy. The
reduced costs also bound the program with all options (Lagrange).
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import highspy
import numpy as np

from hwnas.core.progress import Progress
from hwnas.fleet.program import OptionColumns, Program, all_hours, assemble
from hwnas.fleet.task import UNSERVED, Array, Ints, PlanningTask, machine_values

# Solver: HiGHS (Huangfu and Hall, 2018, https://highs.dev).
_SLIVER = 0.01  # unserved fraction whose penalty may be below the price of another machine


@dataclass(frozen=True)
class SolverResult:
    """Result of the solver."""

    values: Array | None  #: values of the variables; ``None``: no feasible solution found in time
    cost: float  #: value of the minimised function, including penalties of unserved demand
    bound: float  #: lower bound of the cost
    dual: Array  #: dual values of the constraints; meaningful only without integer variables
    seconds: float  #: time that the solver took

    @property
    def gap(self) -> float:
        """Distance of the cost to its lower bound as a fraction of the cost, in [0, 1]."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > 0 else 0.0


def solve(
    program: Program, *, limit_s: float = 60.0, gap: float = 1e-4, start: Array | None = None
) -> SolverResult:
    """Return the best solution of a program that HiGHS finds within a time limit.

    The solver has one thread, so that equal input gives equal plans.

    Args:
        program: Linear or mixed-integer program.
        limit_s: Time limit in seconds.
        gap: Relative distance to the lower bound at which the solver stops.
        start: Initial values of the variables.
    """
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    options = {"time_limit": float(limit_s), "mip_rel_gap": gap, "threads": 1, "random_seed": 0}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(_model(program))
    if start is not None:
        initial = highspy.HighsSolution()
        initial.col_value = list(start)
        solver.setSolution(initial)
    began = time.perf_counter()
    solver.run()
    info, solution = solver.getInfo(), solver.getSolution()
    result = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    cost = float(info.objective_function_value)
    return SolverResult(
        np.array(solution.col_value) if result else None,
        cost,
        float(info.mip_dual_bound) if program.integer.any() else cost,
        np.array(solution.row_dual),
        time.perf_counter() - began,
    )


def solve_all(
    program: Program, limit_s: float, gap: float, start: Array | None = None
) -> SolverResult:
    """Return a solution as ``solve``, without small unserved demand if possible.

    The penalty for unserved demand of up to 1 % may be below the price of another machine. If the
    solution has such demand, the program is solved again, in up to ``limit_s`` seconds more, with
    all demand served; the first solution is returned only if this finds none.
    """
    result = solve(program, limit_s=limit_s, gap=gap, start=start)
    z = slice(program.begin["z"], program.begin["m"])
    if result.values is None or not UNSERVED < result.values[z].max(initial=0.0) <= _SLIVER:
        return result
    upper = program.upper.copy()
    upper[z] = 0.0
    within_bounds = solve(replace(program, upper=upper), limit_s=limit_s, gap=gap)
    return result if within_bounds.values is None else within_bounds


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
            kinds.kInteger if is_integer else kinds.kContinuous for is_integer in program.integer
        ]
    return lp


_TAKEN = 8  # new options per scenario, hour and class in a round
_ROUNDS = 60
_NEAR = 1e-3  # relative gap at which column generation stops
_FIRST = (0.0, 0.3, 1.0, 3.0, 10.0)  # values of a point of accuracy, in mean request costs


@dataclass(frozen=True)
class ColumnGenerationResult:
    """Result of column generation: selected options, and the duals of the linear program."""

    columns: OptionColumns  #: selected options by scenario and hour
    rates: Array  #: requests/s of each selected option, may be 0 ``(columns,)``
    reduced: Array  #: reduced costs ``(scenarios, hours, options)`` without the dual of demand
    demand: Array  #: duals ``(scenarios, hours, classes)``: cost of one more request/s
    accuracy: Array  #: duals, same shape: cost of a higher accuracy floor
    bound: float  #: lower bound of the cost over all options, selected or not


def generate_columns(
    task: PlanningTask, progress: Progress, limit_s: float = math.inf
) -> ColumnGenerationResult:
    """Return the selected options, and the solution of their linear program.

    Its replicas need not be whole. The lower bound is valid even if the column generation ends
    after ``limit_s`` seconds.
    """
    began = time.perf_counter()
    n_s, n_i = task.n_scenarios, len(task.hours)
    columns = OptionColumns.of(np.unique(np.concatenate([*initial_columns(task)]), axis=0))
    with progress.phase("Columns", _ROUNDS) as advance:
        for done in range(_ROUNDS):
            program = assemble(task, columns, all_hours(task), relaxed=True)
            lp = solve(program)
            reduced, demand, accuracy = _reduced_costs(task, program, lp)
            rows, worst = _improving_options(task, reduced, demand)
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


def availability_costs(task: PlanningTask, s: int) -> Array:
    """Return 0 for options available in scenario ``s``, infinity for the others ``(options,)``.

    Scenario 0 is normal operation; in scenario 1 all spot machines are down.
    """
    o, alive = task.choices.options, task.alive(s)
    device = np.array([placement.device for placement in task.choices.placements])
    second = (o.second < 0) | alive[device[np.maximum(o.second, 0)]]
    return np.where(alive[device[o.first]] & second, 0.0, np.inf)


def _machines(task: PlanningTask) -> tuple[Array, Array, Ints]:
    """Return the machines per request at both placements ``(options,)``, and the devices."""
    o, placements = task.choices.options, task.choices.placements
    devices = task.problem.devices
    per = 1 / (task.best_goodputs() * [devices[s.device][1].slots for s in placements])
    device = np.array([s.device for s in placements], np.intp)
    return per[o.first], np.where(o.second >= 0, o.share * per[o.second], 0.0), device


def initial_columns(task: PlanningTask) -> Iterator[Ints]:
    """Yield arrays ``(n, 3)`` of scenario, hour and option: the first columns.

    For each class they are the cheapest options at list prices, for several values of accuracy.
    """
    o = task.choices.options
    first, second, device = _machines(task)
    rent, owned = machine_values(task, "cost")
    price = rent.max(0) + owned / task.problem.load.n_hours + 1e-9
    cost = price[device[o.first]] * first + price[device[o.second]] * second + o.usd * 3600
    for s in range(task.n_scenarios):
        within = availability_costs(task, s)
        for k in range(len(task.problem.classes)):
            mine = np.flatnonzero((o.request_class == k) & np.isfinite(within))
            worth = cost[mine].mean() / 0.01 if mine.size else 0.0
            for point in _FIRST:
                best = mine[np.argsort(cost[mine] - point * worth * o.accuracy[mine])[:_TAKEN]]
                for i in range(len(task.hours)):
                    yield np.stack([np.full_like(best, s), np.full_like(best, i), best], 1)


def _reduced_costs(
    task: PlanningTask, program: Program, lp: SolverResult
) -> tuple[Array, Array, Array]:
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
    first, second, device = _machines(task)
    d1, d2 = device[o.first], device[np.maximum(o.second, 0)]
    result = np.empty((n_s, n_i, len(o)))
    for s in range(n_s):
        margin, within = o.accuracy - task.floors(s)[o.request_class], availability_costs(task, s)
        for i in range(n_i):
            cost = within - machines[s, i][d1] * first - machines[s, i][d2] * second
            cost -= accuracy[s, i][o.request_class] * margin
            if links:
                cost -= o.links @ of_link[:, s, i]
            if s == 0:
                by_cost = task.objective == "cost"
                cost += task.sending(i) * task.weight[i] * (by_cost - money)
            result[s, i] = cost
    return result, demand, accuracy


def _improving_options(task: PlanningTask, reduced: Array, demand: Array) -> tuple[Ints, float]:
    """Return options that reduce the cost, and a bound of the total reduction (at most 0)."""
    o, borne = task.choices.options, task.problem.load.provisioned_rates[:, list(task.hours)]
    rows, worst = [], 0.0
    for k in range(len(task.problem.classes)):
        options = np.flatnonzero(o.request_class == k)
        for s, i in np.ndindex(reduced.shape[0], reduced.shape[1]):
            values = reduced[s, i, options] - demand[s, i, k]
            best = (
                np.argpartition(values, min(_TAKEN, values.size - 1))[:_TAKEN]
                if values.size
                else options
            )
            if not best.size:
                continue
            worst += min(0.0, float(values[best].min())) * borne[k, i]
            best = best[values[best] < -1e-9 * max(1.0, abs(demand[s, i, k]))]
            row = [np.full(best.size, s), np.full(best.size, i), options[best]]
            rows.append(np.stack(row, 1).astype(np.intp))
    return np.concatenate(rows), worst
