"""Goodputs that are too low are found to be so by simulation, and corrected upwards."""

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
from tests.fleet import made


def test_each_class_bears_what_it_bears_while_others_do_or_not() -> None:
    ends = {"web": 1.3, "kiosk": 2.0}
    asked: list[float] = []

    def seen(load: float) -> Mapping[str, ClassStatistics]:
        asked.append(load)
        return {
            name: ClassStatistics(1000, 0.05 * (load > end), 0.0, 0, 1.0, 2.0)
            for name, end in ends.items()
        }

    assert headroom.max_loads(seen) == {"web": 1.25, "kiosk": 2.0}
    assert asked[-1] == 2.3  # nobody bears more


def _task(folder: Path, factor: float) -> PlanningTask:
    """Return a task with goodputs that are so many times what pools take."""
    asked = made.service()
    asked["classes"]["web"]["demand"] = {"hours": [300.0]}
    there = made.fleet()
    there["devices"]["cpu"]["quota"] = 20
    made.write(folder, asked, there)
    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    problem = replace(problem, arrivals=(Arrivals(),))
    found = find_choices(problem, Goodputs(0.05), NullProgress())
    scale = {(0, q): factor for q in range(len(found.placements))}
    return PlanningTask(problem, found, "cost", scale)


def test_goodputs_of_half_of_what_pools_take_are_raised(tmp_path: Path) -> None:
    task = _task(tmp_path, 0.5)
    found = solve_task(task, 20, NullProgress())
    plan: DeploymentPlan = to_plan(found)
    scene = SimulationSetup(planner.arrivals_by_class(task.problem))
    raised = headroom.find_headroom(found, plan, scene, 0, NullProgress())
    used = {(0, row.placement) for row in found.hours[0].pools}
    assert {*raised} <= used
    assert 0.8 < max(raised.values()) < 1.3
    best = planner.plan_task(task, 20, [0, 1], NullProgress())
    assert best.plan.value < 0.75 * plan.value
    assert best.late <= 0.01
    plain = planner.plan_task(replace(task, scale={}), 20, [0, 1], NullProgress())
    assert best.plan.value == pytest.approx(plain.plan.value, rel=0.1)


def test_simulations_see_all_of_a_trace() -> None:
    trace = Arrivals(np.ones(19_000))
    assert trace.period == 19_000
    assert Arrivals().period == 0
    assert _duration([(100.0, trace.period)], 0.05) == 190.0
    assert _duration([(100.0, 0)], 0.05) == 40.0
    assert _duration([(100.0, trace.period), (5000.0, 0)], 0.05) < 60.0  # which is enough to see
    assert _duration([(40_000.0, 0)], 60.0) * 40_000 <= 2e7  # however long limits are, it fits
