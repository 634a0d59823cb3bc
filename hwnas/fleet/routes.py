"""Options: how requests of a class can be answered.

By a station, by a cascade of two (the small model first; what it is least sure of goes on to
another), or by a network that is cut over two devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.fleet.fleet_file import payload_mbit
from hwnas.fleet.placements import (
    PARTS,
    Array,
    Goodputs,
    Placement,
    curves_of,
    has_room,
    limits_of,
    stations_of,
)
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.service_file import RequestClass
from hwnas.tasks.predictions import ESCALATED_FRACTIONS

Ints = NDArray[np.intp]

_SLACK = 0.03  # accuracies so far below the floor, and of cascades above it, are mixed with others


@dataclass(frozen=True)
class OptionArrays:
    """Options of all classes, as arrays ``(options,)``."""

    klass: Ints
    first: Ints  #: the station
    second: Ints  #: of what is escalated; -1: none
    share: Array  #: that is escalated
    accuracy: Array  #: the lower end
    usd: Array  #: of a request, for what it sends
    threshold: Array  #: of the first model's confidence
    links: NDArray[np.float64]  #: ``(options, links)``: megabits that a request sends

    def __len__(self) -> int:
        return self.klass.size

    def only(self, which: Ints) -> "OptionArrays":
        """Return some of them."""
        return OptionArrays(**{name: value[which] for name, value in vars(self).items()})


@dataclass(frozen=True)
class PlanChoices:
    """All that a program chooses from."""

    stations: tuple[Placement, ...]
    options: OptionArrays
    goodputs: Goodputs  #: as they were simulated


def choices(problem: PlanningProblem, goodputs: Goodputs, progress: Progress) -> PlanChoices:
    """Return the stations and options of a problem.

    Raises:
        ConfigError: a class has none; it says which limit that is, and what would come nearest.
    """
    limits = limits_of(problem)
    goodputs.prepare(curves_of(problem), progress)
    stations = [*stations_of(problem, goodputs, limits)]
    found = _Builder(problem, stations).options()
    for k, (name, asked) in enumerate(problem.classes):
        mine = found.accuracy[found.klass == k]
        if problem.load.borne[k].any() and not (mine >= asked.accuracy_min).any():
            raise ConfigError(_refusal(problem, name, float(mine.max(initial=0.0))))
    return PlanChoices(tuple(stations), found, goodputs)


@dataclass(frozen=True)
class _Cascades:
    """Cascades of models as they were counted, as arrays; models by their place in ``names``."""

    names: list[str]
    first: Ints
    second: Ints
    share: Array
    accuracy: Array
    threshold: Array


def _counted(problem: PlanningProblem) -> _Cascades:
    """Return the cascades that are more accurate than their first model alone."""
    names = [name for name in problem.answers.models if name in problem.catalogue.models]
    rows = []
    for i, a in enumerate(names):
        alone = problem.answers.cascade(a, a, 0.0)
        assert alone is not None
        for j, b in enumerate(names):
            for share in ESCALATED_FRACTIONS if a != b else ():
                counted = problem.answers.cascade(a, b, share)
                assert counted is not None
                if counted[0].value > alone[0].value:
                    rows.append((i, j, share, counted[0].lower, counted[1]))
    columns = np.array(rows, np.float64).reshape(-1, 5).T
    return _Cascades(names, columns[0].astype(np.intp), columns[1].astype(np.intp), *columns[2:])


@dataclass
class _Builder:
    """Finds the options of all classes; they become the columns of arrays."""

    problem: PlanningProblem
    stations: Sequence[Placement]
    rows: list[Array] = field(default_factory=list)  #: ``(7, n)`` each
    sent: list[Array] = field(default_factory=list)  #: ``(n, links)`` each

    def __post_init__(self) -> None:
        self.links = [*self.problem.fleet.links]
        self.cascades = _counted(self.problem)
        self.of: dict[tuple[int, str, int], list[int]] = {}
        for i, s in enumerate(self.stations):
            self.of.setdefault((s.device, s.model, s.process), []).append(i)

    def options(self) -> OptionArrays:
        """Return all of them."""
        devices = range(len(self.problem.devices))
        for k in range(len(self.problem.classes)):
            for d in devices:
                self._add_singles(k, d)
                for d2 in devices:
                    self._add_cascades(k, d, d2)
                    self._add_splits(k, d, d2)
        columns = np.concatenate([np.zeros((7, 0)), *self.rows], axis=1)
        sent = np.concatenate([np.zeros((0, len(self.links))), *self.sent])
        k, first, second = columns[:3].astype(np.intp)
        share, accuracy, usd, threshold = columns[3:]
        return OptionArrays(k, first, second, share, accuracy, usd, threshold, sent)

    def _reach(self, k: int, d: int) -> float | None:
        """Return the milliseconds to a device; ``None`` where the class must not go there."""
        asked, region = self.problem.classes[k][1], self.problem.devices[d][1].region
        way = self.problem.ways[asked.source].get(region)
        return None if way is None or region not in asked.regions else way.ms(asked.payload_kib)

    def _limits(self, d: int) -> list[float]:
        """Return the limits that classes leave a device, longest first: they may share a pool."""
        ways = [(asked, self._reach(k, d)) for k, (_, asked) in enumerate(self.problem.classes)]
        left = {asked.p99_ms - reach for asked, reach in ways if reach is not None}
        return sorted(left, reverse=True)

    def _within(self, k: int, d: int, model: str, limit_ms: float) -> int:
        """Return the station of a model with the highest limit that is not above one; -1: none."""
        of = self.of.get((d, model, self.problem.process_of[k]), [])
        fitting = [i for i in of if self.stations[i].limit_ms <= limit_ms + 1e-6]
        return max(fitting, key=lambda i: self.stations[i].limit_ms, default=-1)

    def _add_singles(self, k: int, d: int) -> None:
        reach, asked = self._reach(k, d), self.problem.classes[k][1]
        if reach is None:
            return
        low, rows = asked.floor(degraded=True) - _SLACK, []
        limits = [limit for limit in self._limits(d) if limit <= asked.p99_ms - reach]
        for name, model in self.problem.catalogue.models.items():
            if model.accuracy.lower >= low:
                within = dict.fromkeys(self._within(k, d, name, limit) for limit in limits)
                single = (-1, 0.0, model.accuracy.lower, 0.0, 0.0)
                rows += [(k, station, *single) for station in within if station >= 0]
        self._take(np.array(rows, np.float64).reshape(-1, 7).T, (k, d, d), 0.0)

    def _add_cascades(self, k: int, d: int, d2: int) -> None:
        """Add cascades over two devices, whose limits share the time that there is."""
        asked, c = self.problem.classes[k][1], self.cascades
        steps = self._steps(k, d, d2, asked.payload_kib)
        if steps is None or not c.names:
            return
        low, high = asked.floor(degraded=True) - _SLACK, asked.accuracy_min + _SLACK
        left, fits = asked.p99_ms - sum(steps), (c.accuracy >= low) & (c.accuracy <= high)
        for part in PARTS:
            firsts = np.array([self._within(k, d, a, part * left) for a in c.names])
            taken = np.array([self.stations[i].limit_ms if i >= 0 else np.inf for i in firsts])
            seconds = np.full((len(c.names), len(c.names)), -1)
            for limit in np.unique(taken[np.isfinite(taken)]):
                own = [self._within(k, d2, b, left - limit) for b in c.names]
                seconds[taken == limit] = own
            one, two = firsts[c.first], seconds[c.first, c.second]
            i = np.flatnonzero(fits & (one >= 0) & (two >= 0))
            zero = np.zeros(i.size)
            rows = [zero + k, one[i], two[i], c.share[i], c.accuracy[i], zero, c.threshold[i]]
            self._take(np.stack(rows), (k, d, d2), asked.payload_kib)

    def _add_splits(self, k: int, d: int, d2: int) -> None:
        """Add networks that are cut: cascades that always escalate, and send activations."""
        asked = self.problem.classes[k][1]
        for split in self.problem.splits:
            steps = self._steps(k, d, d2, split.activation_kib)
            accuracy = self.problem.catalogue.models[split.model].accuracy.lower
            if steps is None or accuracy < asked.floor(degraded=True) - _SLACK:
                continue
            left, rows = asked.p99_ms - sum(steps), []
            for part in PARTS:
                one = self._within(k, d, split.head, part * left)
                rest = left - self.stations[one].limit_ms if one >= 0 else 0.0
                two = self._within(k, d2, split.tail, rest)
                if one >= 0 and two >= 0:
                    rows.append((k, one, two, 1.0, accuracy, 0.0, 0.0))
            whole = np.array(rows, np.float64).reshape(-1, 7).T
            self._take(whole, (k, d, d2), split.activation_kib)

    def _steps(self, k: int, d: int, d2: int, passed_kib: float) -> tuple[float, float] | None:
        """Return the milliseconds to a device, and from it to another."""
        devices = self.problem.devices
        reach, there = self._reach(k, d), self._reach(k, d2)
        way = self.problem.ways[devices[d][1].region].get(devices[d2][1].region)
        if reach is None or there is None or way is None:
            return None
        return reach, way.ms(passed_kib)

    def _take(self, rows: Array, at: tuple[int, int, int], passed_kib: float) -> None:
        """Take in options of a class over two devices, with what they send."""
        if not rows.size:
            return
        k, d, d2 = at
        asked, ways = self.problem.classes[k][1], self.problem.ways
        region, other = (self.problem.devices[i][1].region for i in (d, d2))
        to, on = ways[asked.source][region], ways[region][other]
        rows[5] = to.usd(asked.payload_kib) + rows[3] * on.usd(passed_kib)
        sent = self._sent(to.links, asked.payload_kib), self._sent(on.links, passed_kib)
        self.rows.append(rows)
        self.sent.append(sent[0] + rows[3][:, None] * sent[1])

    def _sent(self, along: Sequence[str], payload_kib: float) -> Array:
        """Return the megabits that a payload is on each link."""
        found: Array = np.array([float(name in along) for name in self.links])
        return found * payload_mbit(payload_kib)


def _refusal(problem: PlanningProblem, name: str, best: float) -> str:
    """Return why no model fits a class: which limit binds, and what would come nearest.

    Args:
        problem: The problem.
        name: Of the class.
        best: The highest accuracy that it gets within its ``p99_ms``; 0: none.
    """
    asked, models = problem.service.classes[name], problem.catalogue.models
    where = f"class '{name}': no model answers within p99_ms={asked.p99_ms:g} with an accuracy of "
    where += f"{asked.accuracy_min:g} (lower end) in {', '.join(asked.regions)}"
    there = [*_idle(problem, asked)]
    able = [each for each in there if models[each[1]].accuracy.lower >= asked.accuracy_min]
    fitting = [each for each in able if has_room(problem, problem.fleet.devices[each[2]], each[1])]
    if fitting:
        needed, model, device = min(fitting)
        which = f"{model} on {device}" + ", alone and idle" * (needed < asked.p99_ms)
        within = f"; within it the most accurate have {best:.4f}" if best else ""
        return f"{where}: p99_ms binds; the nearest is {which}, {needed:.3g} ms{within}."
    if able:
        _, model, device = min(able)
        at, each = problem.fleet.devices[device], problem.catalogue.memory_mib(model)
        return (
            f"{where}: memory_mib binds; {model} takes {each:.4g} MiB in each of the {at.slots} "
            f"slots of {device}, which has {at.memory_mib:g}."
        )
    if not there:
        return f"{where}: no model was timed on a device there."
    top = max((models[model] for _, model, _ in there), key=lambda m: m.accuracy.lower)
    said = f"the most accurate there, {top.name}, has {top.accuracy.lower:.4f}"
    other = max(models.values(), key=lambda m: m.accuracy.lower)
    if other.accuracy.lower >= asked.accuracy_min:
        said += f" ({other.name} has {other.accuracy.lower:.4f}, but was not timed there)"
    nearest = _floored(best or top.accuracy.lower)
    return f"{where}: accuracy_min binds; {said}: accuracy_min={nearest} would do."


def _idle(problem: PlanningProblem, asked: RequestClass) -> Iterator[tuple[float, str, str]]:
    """Yield where models could answer a class: milliseconds there and back, model and device."""
    for device, at in problem.devices:
        way = problem.ways[asked.source].get(at.region)
        if way is not None and at.region in asked.regions:
            for model in problem.catalogue.models:
                if timed := problem.catalogue.on(problem.fleet, device, model):
                    needed = min(f.upper for f in timed.values()) + way.ms(asked.payload_kib)
                    yield needed, model, device


def _floored(accuracy: float) -> str:
    return f"{np.floor(round(accuracy * 1e4, 6)) / 1e4:.4f}"  # 0.69 is a little less than that
