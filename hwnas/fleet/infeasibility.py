"""Explanation of unserved demand: the binding limit, and the nearest feasible value."""

import math
from collections.abc import Iterator
from dataclasses import replace

from hwnas.core.progress import NullProgress, Progress
from hwnas.fleet.fleet_file import Fleet
from hwnas.fleet.plan import UNITS
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.service_file import FailureTolerance
from hwnas.fleet.solver import Solution, solve_task
from hwnas.fleet.task import Objective, PlanningTask

_LIMIT_S = 20.0  # per relaxed limit
_MORE = 100  # factor of relaxed quotas


def explain_unserved(solution: Solution, progress: Progress) -> str:
    """Return one line: the limit that leaves demand unserved, and what a plan without it takes.

    It solves the problem again without one limit after another, each in up to 20 s, until all
    demand is served. If that needs several limits or only more time, the line states this.
    """
    task = solution.task
    names = [name for name, _ in task.problem.classes]
    k = int(solution.unserved.argmax())
    served = max(0.0, 1 - float(solution.unserved[k]))
    served_text = f"{served:.0%} of the demand of class '{names[k]}' can be served"
    with progress.phase("Binding limit", 1) as advance:
        if solve_task(task, _LIMIT_S, NullProgress()).serves:
            advance(1)
            return (
                f"No plan that serves all demand was found in time: {served_text}. No limit of the "
                "files is the cause: increase limit_s, or make a new plan (hwnas plan)."
            )
        for sentence, lifted in _relaxed_problems(task.problem):
            other = solve_task(replace(task, problem=lifted), _LIMIT_S, NullProgress())
            if other.serves:
                advance(1)
                needed = _describe_relaxed_plan(task.problem, other)
                return f"No plan serves all demand: {served_text}. {sentence} {needed}"
    return (
        f"No plan that serves all demand was found: {served_text}; several limits of the service "
        "file and the fleet file seem too tight at once (quotas, budgets, power, links, survive): "
        "reduce the demand or accuracy_min, or increase p99_ms of that class."
    )


def _relaxed_problems(problem: PlanningProblem) -> Iterator[tuple[str, PlanningProblem]]:
    """Yield problems with one limit less, and the message if that limit binds."""
    service, budgets, fleet = problem.service, problem.service.budgets, problem.fleet
    for name, limit, without in (
        ("cost_per_day", budgets.cost_per_day, replace(budgets, cost_per_day=None)),
        ("carbon_kg_per_day", budgets.carbon_kg_per_day, replace(budgets, carbon_kg_per_day=None)),
    ):
        if limit is not None:
            lifted = replace(problem, service=replace(service, budgets=without))
            yield f"budgets.{name}={limit:g} in the service file is too low:", lifted
    if budgets.power_w:
        lifted = replace(problem, service=replace(service, budgets=replace(budgets, power_w={})))
        yield "budgets.power_w in the service file is too low:", lifted
    devices = {n: replace(d, quota=max(1, d.quota) * _MORE) for n, d in fleet.devices.items()}
    yield (
        "Quotas in the fleet file, without machines that are down, are too low:",
        replace(problem, fleet=replace(fleet, devices=devices)),
    )
    if any(link.mbit_s is not None for link in fleet.links.values()):
        links = {name: replace(link, mbit_s=None) for name, link in fleet.links.items()}
        yield (
            "mbit_s of links in the fleet file is too low:",
            replace(problem, fleet=Fleet(fleet.devices, links, fleet.carbon)),
        )
    if service.survive != FailureTolerance():
        yield (
            "survive in the service file asks for too much:",
            replace(problem, service=replace(service, survive=FailureTolerance())),
        )


def _describe_relaxed_plan(problem: PlanningProblem, other: Solution) -> str:
    """Return the requirements of a plan without one of the limits."""
    task: PlanningTask = other.task
    days = problem.load.n_hours / 24
    machines: dict[str, int] = {}
    power: dict[str, float] = {}
    for hour in other.hours:
        watts: dict[str, float] = {}
        for d, n in enumerate(hour.machines):
            name, device = problem.devices[d]
            if n > device.quota:
                machines[name] = max(machines.get(name, 0), int(n))
            watts[device.region] = watts.get(device.region, 0.0) + n * device.power_w
        power = {r: max(power.get(r, 0.0), w) for r, w in watts.items()}
    if machines:
        more = [f"{n} of {name} (quota {problem.fleet.devices[name].quota})"
                for name, n in sorted(machines.items())]  # fmt: skip
        return f"{', '.join(more)} would suffice."
    if problem.service.budgets.power_w != task.problem.service.budgets.power_w:
        messages = [f"{region}={math.ceil(10 * w) / 10:g}" for region, w in sorted(power.items())
                if region in problem.service.budgets.power_w]  # fmt: skip
        return f"{', '.join(messages)} W would suffice."
    budgets, now = problem.service.budgets, task.problem.service.budgets
    lifted: Objective = task.objective
    if budgets.carbon_kg_per_day != now.carbon_kg_per_day:
        lifted = "carbon"
    elif budgets.cost_per_day != now.cost_per_day:
        lifted = "cost"
    per_day = _round_up(other.objective_value(lifted) / days)
    return f"the best plan without it takes {per_day:.4g} {UNITS[lifted]} a day."


def _round_up(value: float) -> float:
    """Return a positive value rounded up to 4 digits, so that it suffices as a limit."""
    step = 10.0 ** (math.floor(math.log10(max(value, 1e-9))) - 3)
    return math.ceil(value / step) * step
