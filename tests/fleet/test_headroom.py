"""Headroom: simulation corrects goodputs that are too low."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas.core.progress import NullProgress
from hwnas.fleet import planner
from hwnas.fleet import planner as headroom
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.placements import Goodputs
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_conversion import to_plan
from hwnas.fleet.problem import read_problem
from hwnas.fleet.routes import find_choices
from hwnas.fleet.simulation import ClassStatistics, SimulationSetup, _duration
from hwnas.fleet.solver import solve_task
from hwnas.fleet.task import PlanningTask
from tests.fleet import examples


def test_max_loads_are_found_per_class() -> None:
    ends = {"web": 1.3, "kiosk": 2.0}
    loads: list[float] = []

    def simulate(load: float) -> Mapping[str, ClassStatistics]:
        loads.append(load)
        return {
            name: ClassStatistics(1000, 0.05 * (load > end), 0.0, 0, 1.0, 2.0)
            for name, end in ends.items()
        }

    assert headroom.max_loads(simulate) == {"web": 1.25, "kiosk": 2.0}
    assert loads[-1] == 2.3  # no class sustains more


def _task(folder: Path, factor: float) -> PlanningTask:
    """Return a task whose goodputs are scaled by a factor."""
    service = examples.service()
    service["classes"]["web"]["demand"] = {"hours": [300.0]}
    fleet = examples.fleet()
    fleet["devices"]["cpu"]["quota"] = 20
    examples.write(folder, service, fleet)
    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    problem = replace(problem, arrivals=(Arrivals(),))
    choices = find_choices(problem, Goodputs(0.05), NullProgress())
    scale = {(0, q): factor for q in range(len(choices.placements))}
    return PlanningTask(problem, choices, "cost", scale)


def test_underestimated_goodputs_are_raised(tmp_path: Path) -> None:
    task = _task(tmp_path, 0.5)
    solution = solve_task(task, 20, NullProgress())
    plan: DeploymentPlan = to_plan(solution)
    setup = SimulationSetup(planner.arrivals_by_class(task.problem))
    headroom_by_pool = headroom.find_headroom(solution, plan, setup, 0, NullProgress())
    used_pools = {(0, row.placement) for row in solution.hours[0].pools}
    assert {*headroom_by_pool} <= used_pools
    assert 0.8 < max(headroom_by_pool.values()) < 1.3
    best = planner.plan_task(task, 20, [0, 1], NullProgress())
    assert best.plan.value < 0.75 * plan.value
    assert best.late <= 0.01
    plain = planner.plan_task(replace(task, scale={}), 20, [0, 1], NullProgress())
    assert best.plan.value == pytest.approx(plain.plan.value, rel=0.1)


def test_simulation_covers_whole_trace() -> None:
    trace = Arrivals(np.ones(19_000))
    assert trace.period == 19_000
    assert Arrivals().period == 0
    assert _duration([(100.0, trace.period)], 0.05) == 190.0
    assert _duration([(100.0, 0)], 0.05) == 40.0
    assert (
        _duration([(100.0, trace.period), (5000.0, 0)], 0.05) < 60.0
    )  # long enough for statistics
    assert _duration([(40_000.0, 0)], 60.0) * 40_000 <= 2e7  # bounded memory for any latency limit
