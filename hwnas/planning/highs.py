"""HiGHS: the one place that calls the solver. Source: Huangfu and Hall, 2018, https://highs.dev."""

import time
from dataclasses import dataclass, replace

import highspy
import numpy as np
from numpy.typing import NDArray

from hwnas.planning.program import Program
from hwnas.planning.task import UNSERVED

Array = NDArray[np.float64]

_SLIVER = 0.01  # of a demand, that a machine more may count more than


@dataclass(frozen=True)
class Solved:
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
) -> Solved:
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
    return Solved(
        np.array(solution.col_value) if found else None,
        cost,
        float(info.mip_dual_bound) if program.integer.any() else cost,
        np.array(solution.row_dual),
        time.perf_counter() - began,
    )


def solve_all(program: Program, limit_s: float, gap: float, start: Array | None = None) -> Solved:
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
