"""Changes that telemetry shows: higher or lower demand, late requests, failed machines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.simulation import LATE
from hwnas.fleet.task import Array
from hwnas.fleet.telemetry import Telemetry

_SLOWER = (0.5, 0.95)  # minimum and maximum factor of goodputs of late classes
_UNKNOWN = 0.9  # the factor if no p99 is known


@dataclass(frozen=True)
class ReplanCause:
    """A reason to plan hours again."""

    #: changed demand, late requests, machines that are down or up again, or changed input files
    what: Literal["demand", "late", "down", "back", "files"]
    name: str  #: name of the class or device; empty: all
    hours: frozenset[int]  #: hours of the plan that are planned again
    text: str  #: for messages, as ``demand of search +20% (measured)``


@dataclass(frozen=True)
class PlanChanges:
    """Demand according to telemetry, and the causes to plan again."""

    rates: Array  #: expected requests/s ``(classes, hours)``
    #: requests/s that a plan must serve ``(classes, hours)``: ``rates`` times ``demand.spike``
    provisioned_rates: Array
    #: factors below 1 by which goodputs are reduced, by (late class, hour)
    slower: Mapping[tuple[str, int], float]
    causes: Sequence[ReplanCause]


def detect_changes(
    plan: DeploymentPlan, telemetry: Telemetry, tolerance: float, *, extrapolate: bool
) -> PlanChanges:
    """Return the changes of demand and the late classes that telemetry shows.

    Args:
        plan: Current plan.
        telemetry: Observed demand, latencies and failed machines.
        tolerance: Relative change of demand that is ignored.
        extrapolate: True: the demand of hours without telemetry changes by the same factor as that
            of the others; False: it stays as planned.
    """
    rates = np.array([c.demand for c in plan.classes.values()])
    borne = np.array([c.borne for c in plan.classes.values()])
    causes: list[ReplanCause] = []
    slower: dict[tuple[str, int], float] = {}
    for k, name in enumerate(plan.classes):
        new = _expected_rates(rates[k], telemetry.rates.get(name, {}), extrapolate=extrapolate)
        moved = np.abs(new - rates[k]) > tolerance * rates[k]
        causes += _demand_causes(name, rates[k], new, moved, {*telemetry.rates.get(name, {})})
        slower |= _goodput_factors(plan, name, telemetry, np.where(moved, new > rates[k], False))
        spike = np.divide(borne[k], rates[k], out=np.ones_like(new), where=rates[k] > 0)
        spike[rates[k] == 0] = spike.max()
        borne[k] = np.where(moved, new * spike, borne[k])
        rates[k] = np.where(moved, new, rates[k])
    causes += [_late_cause(name, hour, telemetry) for name, hour in slower]
    return PlanChanges(rates, borne, slower, causes)


def _expected_rates(planned: Array, observed: Mapping[int, float], *, extrapolate: bool) -> Array:
    """Return the demand of a class by hour: as observed, or scaled like the observed hours."""
    new, hours = planned.copy(), [*observed]
    if not hours:
        return new
    before, after = float(planned[hours].sum()), sum(observed.values())
    if extrapolate and before > 0:
        new *= after / before
    new[hours] = [*observed.values()]
    return new


def _demand_causes(
    name: str, old: Array, new: Array, moved: Array, observed: set[int]
) -> Iterator[ReplanCause]:  # fmt: skip
    """Yield the changes of a class's demand: measured, and extrapolated."""
    hours = {int(h) for h in np.flatnonzero(moved)}
    for subset, source in ((hours & observed, "measured"), (hours - observed, "extrapolated")):
        if subset:
            before, after = (float(rates[sorted(subset)].sum()) for rates in (old, new))
            change = (
                f"{after / before - 1:+.0%}"
                if before
                else f"0 to {after / len(subset):.4g} requests/s"
            )
            yield ReplanCause(
                "demand", name, frozenset(subset), f"demand of {name} {change} ({source})"
            )


def _goodput_factors(
    plan: DeploymentPlan, name: str, telemetry: Telemetry, more: Array
) -> dict[tuple[str, int], float]:
    """Return factors of goodputs where requests are late at no higher demand."""
    result, limit = {}, plan.classes[name].p99_ms
    late, p99 = telemetry.late.get(name, {}), telemetry.p99_ms.get(name, {})
    for hour in sorted({*late, *p99}):
        if not more[hour] and (late.get(hour, 0.0) > LATE or p99.get(hour, 0.0) > limit):
            lower, upper = _SLOWER
            part = limit / p99[hour] if p99.get(hour, 0.0) > limit else _UNKNOWN
            result[name, hour] = min(max(part, lower), upper)
    return result


def _late_cause(name: str, hour: int, telemetry: Telemetry) -> ReplanCause:
    late, p99 = telemetry.late.get(name, {}).get(hour), telemetry.p99_ms.get(name, {}).get(hour)
    text = [f"{late:.1%} of {name} late"] if late is not None else []
    text += [f"p99 of {name} {p99:.4g} ms"] if p99 is not None else []
    return ReplanCause("late", name, frozenset([hour]), f"{', '.join(text)} (measured)")


def apply_changes(
    problem: PlanningProblem, plan: DeploymentPlan, changes: PlanChanges, telemetry: Telemetry
) -> PlanningProblem:
    """Return the problem with the observed demand, and quotas without the machines that are down.

    Raises:
        ConfigError: telemetry names an unknown device, or the service has other classes, hours or
            ``demand.spike`` than the plan.
    """
    names = [name for name, _ in problem.classes]
    if names != [*plan.classes] or problem.load.n_hours != changes.rates.shape[1]:
        raise ConfigError(
            f"The service file has the classes {', '.join(names)} and {problem.load.n_hours} "
            f"hours, the plan {', '.join(plan.classes)} and {changes.rates.shape[1]} hours: replan "
            "needs the same; make a new plan with hwnas plan."
        )
    for k, (name, requirements) in enumerate(plan.classes.items()):
        planned, now = (
            _spike(borne, rates)
            for borne, rates in (
                (np.array(requirements.borne), np.array(requirements.demand)),
                (problem.load.provisioned_rates[k], problem.load.rates[k]),
            )
        )
        if planned is not None and now is not None and not np.isclose(planned, now):
            raise ConfigError(
                f"The service file has demand.spike={now:g} for class '{name}', the plan "
                f"{planned:g}: replan keeps that of the plan. Make a new plan with hwnas plan."
            )
    devices = dict(problem.fleet.devices)
    for name, down in telemetry.down.items():
        if name not in devices:
            raise ConfigError(f"telemetry: {unknown_name('device', name, devices)}")
        quota = 0 if down is None else max(0, devices[name].quota - down)
        devices[name] = replace(devices[name], quota=quota)
    load = replace(problem.load, rates=changes.rates, provisioned_rates=changes.provisioned_rates)
    return replace(problem, load=load, fleet=replace(problem.fleet, devices=devices))


def _spike(borne: Array, rates: Array) -> float | None:
    """Return ``demand.spike`` of a class; ``None`` without demand."""
    used = rates > 0
    return float((borne[used] / rates[used]).max()) if used.any() else None


def restored_devices(bare: Collection[tuple[int, str]]) -> Iterator[ReplanCause]:
    """Yield a cause per device whose machines are up again, to restore its redundancy.

    Args:
        bare: (hour, device) pairs that the current plan left without redundancy.
    """
    for name in sorted({name for _, name in bare}):
        hours = frozenset(hour for hour, other in bare if other == name)
        yield ReplanCause("back", name, hours, f"all {name} up again: redundancy restored")


def devices_down(
    plan: DeploymentPlan, problem: PlanningProblem, telemetry: Telemetry
) -> Iterator[ReplanCause]:
    """Yield a cause per device of which the plan uses more machines in some hour than are up.

    ``problem`` is the result of ``apply_changes``: its quotas do not count machines that are down.
    """
    for name, down in telemetry.down.items():
        quota = problem.fleet.devices[name].quota
        hours = {
            h
            for hour_plan in plan.hours
            if hour_plan.machines.get(name, 0) > quota
            for h in hour_plan.hours
        }
        if hours:
            text = f"all {name}" if down is None else f"{down} of {name}"
            yield ReplanCause("down", name, frozenset(hours), f"{text} down (measured)")
