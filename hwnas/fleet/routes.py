"""Options: ways to answer requests of a class.

A placement, a cascade of two (requests on which the first model is least sure are escalated), or a
network split over two devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

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
    curve_arguments,
    has_room,
    placements_of,
    pool_limits,
)
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.service_file import RequestClass
from hwnas.tasks.predictions import ESCALATED_FRACTIONS

Ints = NDArray[np.intp]

_SLACK = 0.03  # accuracies within this distance of the floor are mixed with others


@dataclass(frozen=True)
class OptionArrays:
    """Options of all classes, as arrays ``(options,)``."""

    request_class: Ints  #: index of the class
    first: Ints  #: index of the placement
    second: Ints  #: index of the placement of escalated requests, or of a tail; -1: none
    share: Array  #: fraction of requests that is escalated
    accuracy: Array  #: lower end of the accuracy, in [0, 1]
    usd: Array  #: transfer cost of a request in $
    threshold: Array  #: confidence of the first model below which requests are escalated
    links: NDArray[np.float64]  #: megabits of a request on each link ``(options, links)``

    def __len__(self) -> int:
        return self.request_class.size

    def only(self, which: Ints) -> "OptionArrays":
        """Return the options with the indices ``which``."""
        return OptionArrays(**{name: value[which] for name, value in vars(self).items()})


@dataclass(frozen=True)
class PlanChoices:
    """Placements and options from which a plan chooses."""

    placements: tuple[Placement, ...]
    options: OptionArrays
    goodputs: Goodputs  #: simulated requests/s of replicas, cached


def find_choices(problem: PlanningProblem, goodputs: Goodputs, progress: Progress) -> PlanChoices:
    """Return the placements and options of a problem.

    Raises:
        ConfigError: a class with demand has no option within its limits of accuracy and latency;
            the message has the limit that is too tight, and the nearest feasible value.
    """
    limits = pool_limits(problem)
    goodputs.prepare(curve_arguments(problem), progress)
    placements = [*placements_of(problem, goodputs, limits)]
    result = _Builder(problem, placements).options()
    for k, (name, request_class) in enumerate(problem.classes):
        mine = result.accuracy[result.request_class == k]
        if (
            problem.load.provisioned_rates[k].any()
            and not (mine >= request_class.accuracy_min).any()
        ):
            best = max(float(mine.max(initial=0.0)), _best_accuracy(problem, placements, name))
            raise ConfigError(_explain_infeasible(problem, name, best))
    return PlanChoices(tuple(placements), result, goodputs)


@dataclass(frozen=True)
class _Cascades:
    """Cascades of models as arrays; models by index into ``names``."""

    names: list[str]
    first: Ints
    second: Ints
    share: Array
    accuracy: Array
    threshold: Array


def _count_cascades(problem: PlanningProblem) -> _Cascades:
    """Return the cascades that are more accurate than their first model."""
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
    """Builder of the options of all classes."""

    problem: PlanningProblem
    placements: Sequence[Placement]
    rows: list[Array] = field(default_factory=list)  #: ``(7, n)`` each
    sent: list[Array] = field(default_factory=list)  #: ``(n, links)`` each

    def __post_init__(self) -> None:
        self.links = [*self.problem.fleet.links]
        self.cascades = _count_cascades(self.problem)
        self.of: dict[tuple[int, str, int], list[int]] = {}
        for i, s in enumerate(self.placements):
            self.of.setdefault((s.device, s.model, s.process), []).append(i)

    def options(self) -> OptionArrays:
        """Return all options."""
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
        """Return the milliseconds to a device; ``None`` if not allowed or not connected."""
        request_class, region = self.problem.classes[k][1], self.problem.devices[d][1].region
        way = self.problem.network_paths[request_class.source].get(region)
        return (
            None
            if way is None or region not in request_class.regions
            else way.ms(request_class.payload_kib)
        )

    def _limits(self, d: int) -> list[float]:
        """Return the latency limits that classes leave a device, longest first."""
        ways = [
            (request_class, self._reach(k, d))
            for k, (_, request_class) in enumerate(self.problem.classes)
        ]
        rest = {request_class.p99_ms - reach for request_class, reach in ways if reach is not None}
        return sorted(rest, reverse=True)

    def _placement_within(self, k: int, d: int, model: str, limit_ms: float) -> int:
        """Return a model's placement with the highest limit up to ``limit_ms``; -1 if none."""
        candidates = self.of.get((d, model, self.problem.process_of[k]), [])
        fitting = [i for i in candidates if self.placements[i].limit_ms <= limit_ms + 1e-6]
        return max(fitting, key=lambda i: self.placements[i].limit_ms, default=-1)

    def _add_singles(self, k: int, d: int) -> None:
        reach, request_class = self._reach(k, d), self.problem.classes[k][1]
        if reach is None:
            return
        low, rows = request_class.floor(degraded=True) - _SLACK, []
        limits = [limit for limit in self._limits(d) if limit <= request_class.p99_ms - reach]
        for name, model in self.problem.catalogue.models.items():
            if model.accuracy.lower >= low:
                within = dict.fromkeys(
                    self._placement_within(k, d, name, limit) for limit in limits
                )
                single = (-1, 0.0, model.accuracy.lower, 0.0, 0.0)
                rows += [(k, placement, *single) for placement in within if placement >= 0]
        self._take(np.array(rows, np.float64).reshape(-1, 7).T, (k, d, d), 0.0)

    def _add_cascades(self, k: int, d: int, d2: int) -> None:
        """Add cascades over two devices, which share the time limit."""
        request_class, c = self.problem.classes[k][1], self.cascades
        steps = self._steps(k, d, d2, request_class.payload_kib)
        if steps is None or not c.names:
            return
        low, high = request_class.floor(degraded=True) - _SLACK, request_class.accuracy_min + _SLACK
        rest, fits = request_class.p99_ms - sum(steps), (c.accuracy >= low) & (c.accuracy <= high)
        for part in PARTS:
            firsts = np.array([self._placement_within(k, d, a, part * rest) for a in c.names])
            limits = np.array([self.placements[i].limit_ms if i >= 0 else np.inf for i in firsts])
            seconds = np.full((len(c.names), len(c.names)), -1)
            for limit in np.unique(limits[np.isfinite(limits)]):
                placements = [self._placement_within(k, d2, b, rest - limit) for b in c.names]
                seconds[limits == limit] = placements
            first, second = firsts[c.first], seconds[c.first, c.second]
            i = np.flatnonzero(fits & (first >= 0) & (second >= 0))
            zero = np.zeros(i.size)
            rows = [zero + k, first[i], second[i], c.share[i], c.accuracy[i], zero, c.threshold[i]]
            self._take(np.stack(rows), (k, d, d2), request_class.payload_kib)

    def _add_splits(self, k: int, d: int, d2: int) -> None:
        """Add split networks: cascades that always escalate, and send activations."""
        request_class = self.problem.classes[k][1]
        for split in self.problem.splits:
            steps = self._steps(k, d, d2, split.activation_kib)
            accuracy = self.problem.catalogue.models[split.model].accuracy.lower
            if steps is None or accuracy < request_class.floor(degraded=True) - _SLACK:
                continue
            rest, rows = request_class.p99_ms - sum(steps), []
            for part in PARTS:
                first = self._placement_within(k, d, split.head, part * rest)
                tail = rest - self.placements[first].limit_ms if first >= 0 else 0.0
                second = self._placement_within(k, d2, split.tail, tail)
                if first >= 0 and second >= 0:
                    rows.append((k, first, second, 1.0, accuracy, 0.0, 0.0))
            columns = np.array(rows, np.float64).reshape(-1, 7).T
            self._take(columns, (k, d, d2), split.activation_kib)

    def _steps(self, k: int, d: int, d2: int, passed_kib: float) -> tuple[float, float] | None:
        """Return the milliseconds to a device, and from it to another."""
        devices = self.problem.devices
        reach, reach_second = self._reach(k, d), self._reach(k, d2)
        way = self.problem.network_paths[devices[d][1].region].get(devices[d2][1].region)
        if reach is None or reach_second is None or way is None:
            return None
        return reach, way.ms(passed_kib)

    def _take(self, rows: Array, key: tuple[int, int, int], passed_kib: float) -> None:
        """Add options of a class over two devices with their transfer costs."""
        if not rows.size:
            return
        k, d, d2 = key
        request_class, ways = self.problem.classes[k][1], self.problem.network_paths
        region, other = (self.problem.devices[i][1].region for i in (d, d2))
        to, on = ways[request_class.source][region], ways[region][other]
        rows[5] = to.usd(request_class.payload_kib) + rows[3] * on.usd(passed_kib)
        sent = (
            self._megabits(to.links, request_class.payload_kib),
            self._megabits(on.links, passed_kib),
        )
        self.rows.append(rows)
        self.sent.append(sent[0] + rows[3][:, None] * sent[1])

    def _megabits(self, along: Sequence[str], payload_kib: float) -> Array:
        """Return the megabits of a payload on each link."""
        result: Array = np.array([float(name in along) for name in self.links])
        return result * payload_mbit(payload_kib)


def _best_accuracy(problem: PlanningProblem, placements: Sequence[Placement], name: str) -> float:
    """Return the highest accuracy of a class within ``p99_ms``, without cascades; 0 if none."""
    classes = problem.service.classes
    free = replace(classes[name], accuracy_min=0.0, degraded_accuracy=None)
    service = replace(problem.service, classes={**classes, name: free})
    options = _Builder(replace(problem, service=service), placements).options()
    mine = options.request_class == [*classes].index(name)
    return float(options.accuracy[mine].max(initial=0.0))


def _explain_infeasible(problem: PlanningProblem, name: str, best: float) -> str:
    """Return the limit that leaves a class without options, and the nearest feasible value.

    Args:
        problem: Problem.
        name: Class.
        best: Highest accuracy within ``p99_ms``; 0 if none.
    """
    request_class, models = problem.service.classes[name], problem.catalogue.models
    prefix = (
        f"class '{name}': no model answers within p99_ms={request_class.p99_ms:g} with an accuracy "
    )
    prefix += f"of {request_class.accuracy_min:g} (lower end) in {', '.join(request_class.regions)}"
    idle = [*_idle_latencies(problem, request_class)]
    able = [row for row in idle if models[row[1]].accuracy.lower >= request_class.accuracy_min]
    fitting = [row for row in able if has_room(problem, problem.fleet.devices[row[2]], row[1])]
    if fitting:
        needed, model, device = min(fitting)
        tiers, left_ms = problem.service.tiers_ms, request_class.p99_ms - _network_ms(problem, name)
        if tiers is not None and min(tiers) > left_ms:
            return (
                f"{prefix}: tiers_ms has no value up to {left_ms:.4g} ms, which the network leaves."
            )
        which = f"{model} on {device}" + ", alone and idle" * (needed < request_class.p99_ms)
        within = f"; the highest accuracy within it is {best:.4f}" if best else ""
        return (
            f"{prefix}: p99_ms is too low; the fastest accurate enough is {which} with "
            f"{needed:.3g} ms{within}."
        )
    if able:
        _, model, device = min(able)
        device_type, needed_mib = problem.fleet.devices[device], problem.catalogue.memory_mib(model)
        return (
            f"{prefix}: memory_mib in the fleet file is too low; {model} takes "
            f"{needed_mib:.4g} MiB in each of the {device_type.slots} slots of {device}, which has "
            f"{device_type.memory_mib:g} MiB."
        )
    if not idle:
        return f"{prefix}: no model was timed on a device there: add latencies to profiles."
    top = max((models[model] for _, model, _ in idle), key=lambda m: m.accuracy.lower)
    text = f"the most accurate there, {top.name}, has {top.accuracy.lower:.4f}"
    other = max(models.values(), key=lambda m: m.accuracy.lower)
    if other.accuracy.lower >= request_class.accuracy_min:
        text += f" ({other.name} has {other.accuracy.lower:.4f}, but was not timed there)"
    if not best:
        return f"{prefix}: accuracy_min is too high, and p99_ms too low for any model; {text}."
    return (
        f"{prefix}: accuracy_min is too high; {text}: accuracy_min={_round_down(best)} is feasible."
    )


def _network_ms(problem: PlanningProblem, name: str) -> float:
    """Return the shortest round trip of a class in ms."""
    request_class = problem.service.classes[name]
    paths = problem.network_paths[request_class.source]
    return min(
        paths[region].ms(request_class.payload_kib)
        for region in request_class.regions
        if region in paths
    )


def _idle_latencies(
    problem: PlanningProblem, request_class: RequestClass
) -> Iterator[tuple[float, str, str]]:
    """Yield (round-trip milliseconds, model, device) of an idle system for a class."""
    for device, device_type in problem.devices:
        way = problem.network_paths[request_class.source].get(device_type.region)
        if way is not None and device_type.region in request_class.regions:
            for model in problem.catalogue.models:
                if timed := problem.catalogue.on(problem.fleet, device, model):
                    needed = min(f.upper for f in timed.values()) + way.ms(
                        request_class.payload_kib
                    )
                    yield needed, model, device


def _round_down(accuracy: float) -> str:
    return f"{np.floor(round(accuracy * 1e4, 6)) / 1e4:.4f}"  # 0.69 is a little less than that
