"""What telemetry changes of what was planned for, and what it does not."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hwnas.errors import ConfigError, unknown
from hwnas.planning.plan import Plan
from hwnas.planning.problem import Problem
from hwnas.planning.simulation import LATE
from hwnas.planning.task import Array
from hwnas.planning.telemetry import Telemetry

_SLOWER = (0.5, 0.95)  # what a goodput is multiplied by at least, and at most, if answers are late
_UNKNOWN = 0.9  # where nothing says how late they are


@dataclass(frozen=True)
class Cause:
    """Why hours are planned again."""

    what: Literal["demand", "late", "down", "back", "files"]
    name: str  #: of the class or device; empty: of all
    hours: frozenset[int]
    words: str


@dataclass(frozen=True)
class Changes:
    """What is to be planned for, and what of it is new."""

    rates: Array  #: ``(classes, hours)`` requests a second, as they are expected
    borne: Array  #: likewise, as they must be borne
    slower: Mapping[tuple[str, int], float]  #: what goodputs of a class's pools turn out to be
    causes: Sequence[Cause]


def changes(plan: Plan, seen: Telemetry, tolerance: float, *, extrapolate: bool) -> Changes:
    """Return what telemetry changes of a plan.

    Args:
        plan: What was planned for.
        seen: The telemetry.
        tolerance: What demand may differ by, as a fraction of it, without being new.
        extrapolate: Whether hours that were not seen follow those that were.
    """
    rates = np.array([c.demand for c in plan.classes.values()])
    borne = np.array([c.borne for c in plan.classes.values()])
    causes: list[Cause] = []
    slower: dict[tuple[str, int], float] = {}
    for k, name in enumerate(plan.classes):
        new = _expected(rates[k], seen.rates.get(name, {}), extrapolate=extrapolate)
        moved = np.abs(new - rates[k]) > tolerance * rates[k]
        causes += _demands(name, rates[k], new, moved, {*seen.rates.get(name, {})})
        slower |= _late(plan, name, seen, np.where(moved, new > rates[k], False))
        spike = np.divide(borne[k], rates[k], out=np.ones_like(new), where=rates[k] > 0)
        spike[rates[k] == 0] = spike.max()
        borne[k] = np.where(moved, new * spike, borne[k])
        rates[k] = np.where(moved, new, rates[k])
    causes += [_lateness(name, hour, seen) for name, hour in slower]
    return Changes(rates, borne, slower, causes)


def _expected(planned: Array, seen: Mapping[int, float], *, extrapolate: bool) -> Array:
    """Return the demand of a class by hour: as it was seen, or as the hours that were suggest."""
    new, hours = planned.copy(), [*seen]
    if not hours:
        return new
    was, now = float(planned[hours].sum()), sum(seen.values())
    if extrapolate and was > 0:
        new *= now / was
    new[hours] = [*seen.values()]
    return new


def _demands(
    name: str, old: Array, new: Array, moved: Array, seen: set[int]
) -> Iterator[Cause]:  # fmt: skip
    """Yield what is new of a class's demand: what was measured, and what follows from it."""
    hours = {int(h) for h in np.flatnonzero(moved)}
    for some, how in ((hours & seen, "measured"), (hours - seen, "as in the hours measured")):
        if some:
            was, now = (float(of[sorted(some)].sum()) for of in (old, new))
            change = f"{now / was - 1:+.0%}" if was else f"0 to {now / len(some):.4g} requests/s"
            yield Cause("demand", name, frozenset(some), f"demand of {name} {change} ({how})")


def _late(plan: Plan, name: str, seen: Telemetry, more: Array) -> dict[tuple[str, int], float]:
    """Return what goodputs turn out to be where answers are late, though no more is asked for."""
    found, limit = {}, plan.classes[name].p99_ms
    late, p99 = seen.late.get(name, {}), seen.p99_ms.get(name, {})
    for hour in sorted({*late, *p99}):
        if not more[hour] and (late.get(hour, 0.0) > LATE or p99.get(hour, 0.0) > limit):
            least, most = _SLOWER
            part = limit / p99[hour] if p99.get(hour, 0.0) > limit else _UNKNOWN
            found[name, hour] = min(max(part, least), most)
    return found


def _lateness(name: str, hour: int, seen: Telemetry) -> Cause:
    late, p99 = seen.late.get(name, {}).get(hour), seen.p99_ms.get(name, {}).get(hour)
    said = [f"{late:.1%} of {name} late"] if late is not None else []
    said += [f"p99 of {name} {p99:.4g} ms"] if p99 is not None else []
    return Cause("late", name, frozenset([hour]), f"{', '.join(said)} (measured)")


def changed(problem: Problem, plan: Plan, found: Changes, seen: Telemetry) -> Problem:
    """Return a problem with what was seen: its demands, and without the machines that are down.

    Raises:
        ConfigError: telemetry names a device that there is not, or the service is another.
    """
    names = [name for name, _ in problem.classes]
    if names != [*plan.classes] or problem.load.n_hours != found.rates.shape[1]:
        raise ConfigError(
            f"The service has classes {', '.join(names)} and {problem.load.n_hours} hours, the "
            f"plan {', '.join(plan.classes)} and {found.rates.shape[1]}: plan anew, with "
            "python -m hwnas plan."
        )
    devices = dict(problem.fleet.devices)
    for name, down in seen.down.items():
        if name not in devices:
            raise ConfigError(f"telemetry: {unknown('device', name, devices)}")
        quota = 0 if down is None else max(0, devices[name].quota - down)
        devices[name] = replace(devices[name], quota=quota)
    load = replace(problem.load, rates=found.rates, borne=found.borne)
    return replace(problem, load=load, fleet=replace(problem.fleet, devices=devices))


def back(bare: Collection[tuple[int, str]]) -> Iterator[Cause]:
    """Yield devices that are whole again, of which there was no machine to spare in some hours."""
    for name in sorted({name for _, name in bare}):
        hours = frozenset(hour for hour, other in bare if other == name)
        yield Cause("back", name, hours, f"all {name} there again: one is to spare")


def downs(plan: Plan, problem: Problem, seen: Telemetry) -> Iterator[Cause]:
    """Yield devices that are down of which the plan uses more machines than there are left."""
    for name, down in seen.down.items():
        left = problem.fleet.devices[name].quota
        hours = {h for of in plan.hours if of.machines.get(name, 0) > left for h in of.hours}
        if hours:
            said = f"all {name}" if down is None else f"{down} of {name}"
            yield Cause("down", name, frozenset(hours), f"{said} down (measured)")
