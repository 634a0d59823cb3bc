"""Runs, their fronts as points with intervals, and the frame of a comparison."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, RunError
from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.typed_files import read_json, read_yaml
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.metrics import is_metric, metric_of

Array = NDArray[np.float64]
FrontStage = Literal["searched", "verified"]

_MAX_OBJECTIVES = 4


@dataclass(frozen=True)
class Objective:
    """A compared figure with its direction."""

    name: str  #: as ``latency_ms``, or a column of a CSV file
    maximise: bool  #: True if higher is better

    @property
    def title(self) -> str:
        """Label with unit, as ``latency [ms]``; the name if it is not a metric of hwnas."""
        return metric_of(self.name).title if is_metric(self.name) else self.name

    @property
    def unit(self) -> str:
        """The unit, as ``ms``; empty without one, or if it is not a metric of hwnas."""
        return metric_of(self.name).unit if is_metric(self.name) else ""


def objectives(directions: Mapping[str, str]) -> tuple[Objective, ...]:
    """Return the objectives of a mapping ``{accuracy: max, latency_ms: min}``.

    Raises:
        ConfigError: there are not two to four, a direction is not ``max`` or ``min``, or it is not
            that of a metric of hwnas.
    """
    for name, direction in directions.items():
        if direction not in ("max", "min"):
            raise ConfigError(f"objectives: {name} must be max or min, got '{direction}'.")
        if is_metric(name) and metric_of(name).maximise is not (direction == "max"):
            right = "max" if metric_of(name).maximise else "min"
            raise ConfigError(
                f"objectives: {name} is {direction}, but a better {name} is a "
                f"{'higher' if right == 'max' else 'lower'} one: write {name}: {right}."
            )
    if not 2 <= len(directions) <= _MAX_OBJECTIVES:
        raise ConfigError(
            f"Fronts are compared in 2 to {_MAX_OBJECTIVES} objectives, got {len(directions)}: "
            f"select some by {directions_example(directions)}."
        )
    return tuple(Objective(name, direction == "max") for name, direction in directions.items())


def directions_example(directions: Mapping[str, str]) -> str:
    """Return an example of the option ``objectives`` as text, for messages.

    It has the first two of ``directions``, or accuracy and latency if there are fewer.
    """
    pairs = [*directions.items()][:2]
    if len(pairs) < 2:
        pairs = [("accuracy", "max"), ("latency_ms", "min")]
    return f"objectives='{{{', '.join(f'{name}: {direction}' for name, direction in pairs)}}}'"


def declared(names: Sequence[str]) -> dict[str, str]:
    """Return ``max`` or ``min`` by name: the direction of each metric.

    Raises:
        ConfigError: a name is not a metric of hwnas.
    """
    return {name: "max" if metric_of(name).maximise else "min" for name in names}


@dataclass(frozen=True)
class FrontPoint:
    """A network with its figures."""

    id: str  #: id of the genotype, or of the row of a CSV file
    figures: Quantities  #: metric and costs by name, at least the compared ones


@dataclass(frozen=True)
class ComparedRun:
    """A run, or a front of a CSV file."""

    name: str
    directions: Mapping[str, str]  #: ``max`` or ``min`` by objective; empty for CSV files
    scored: Sequence[FrontPoint]  #: feasible, completely scored networks, with searched figures
    #: verified members within the budget and not slower in int8 than in float32, with verified
    #: figures; ``None``: nothing was verified
    verified: Sequence[FrontPoint] | None = None
    group: str = ""  #: runs of a group are repetitions, which are compared by their mean
    #: pairs runs of different groups in tests: the seed; of CSV files the column ``run``
    block: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  #: of the manifest; empty: CSV file
    #: text that is equal for runs on the same images and splits; ``None``: unknown
    data: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  #: limits of the budget by cost
    target: str | None = None  #: name of the target; ``None``: CSV file
    notes: tuple[str, ...] = ()  #: remarks for the reader
    #: candidates in order of trials, with posterior figures if the search has ended; empty for CSV
    #: files
    candidates: Sequence[Candidate] = ()
    #: seconds from the start of the first trial to the end of each, by number of the trial
    seconds: Mapping[int, float] = field(default_factory=dict)
    members: Sequence[Member] = ()  #: all verified members, including those off the front
    path: str = ""  #: path of the run folder or CSV file


@dataclass(frozen=True)
class RunFront:
    """The compared points of a run, with values in order of the objectives."""

    run: ComparedRun
    points: Sequence[FrontPoint]  #: see ``front``; each id once
    values: Array  #: values of the points ``(n, objectives)``
    low: Array  #: lower ends of 95 % intervals, same shape; the value if unknown
    high: Array  #: upper ends of 95 % intervals, same shape; the value if unknown
    is_random: NDArray[np.bool_]  #: True for values with independent errors (not modelled)
    mask: NDArray[np.bool_]  #: True for non-dominated points ``(n,)``

    @property
    def members(self) -> Array:
        """The values of the non-dominated points ``(k, objectives)``."""
        return self.values[self.mask]

    @property
    def name(self) -> str:
        """The name of ``run``."""
        return self.run.name

    @property
    def group(self) -> str:
        """The group of ``run``; runs of a group are repetitions."""
        return self.run.group


def front(run: ComparedRun, objectives: Sequence[Objective], kind: FrontStage) -> RunFront:
    """Return the compared points of a run.

    For ``verified`` these are all of ``run.verified``, since dominated ones may be on the front
    within their intervals; for ``searched`` the non-dominated networks of ``run.scored``.

    Raises:
        RunError: the front is empty, or a figure is missing or not finite.
    """
    points = run.scored if kind == "searched" else run.verified
    if not points:
        reason = (
            "no network is within the budget and completely scored"
            if kind == "searched"
            else "no verified network is within the budget and as fast in int8 as in float32"
        )
        raise RunError(
            f"{run.name}: the front is empty: {reason}. Leave the run out, finish it, or search "
            "again, for example with a larger budget."
        )
    distinct = list({point.id: point for point in reversed(points)}.values())[::-1]
    for point in distinct:
        for objective in objectives:
            _check(run, point, objective)
    figures = [[point.figures[o.name] for o in objectives] for point in distinct]
    values = _matrix(figures, lambda f: f.value)
    mask = non_dominated(values, [o.maximise for o in objectives])
    if kind == "searched":
        distinct = [p for p, on_front in zip(distinct, mask, strict=True) if on_front]
        figures = [row for row, on_front in zip(figures, mask, strict=True) if on_front]
        values, mask = values[mask], mask[mask]
    low = _matrix(figures, lambda f: min(f.lower, f.value))
    high = _matrix(figures, lambda f: max(f.upper, f.value))
    is_random = np.array([[figure.source != "modelled" for figure in row] for row in figures])
    return RunFront(run, distinct, values, low, high, is_random, mask)


def union(fronts: Sequence[RunFront], objectives: Sequence[Objective]) -> Array:
    """Return the non-dominated points of all fronts together ``(k, objectives)``."""
    points = np.concatenate([front.members for front in fronts])
    return points[non_dominated(points, [o.maximise for o in objectives])]


def _check(run: ComparedRun, point: FrontPoint, objective: Objective) -> None:
    if objective.name not in point.figures:
        known = {n: way for n, way in run.directions.items() if n in point.figures}
        raise RunError(
            f"{run.name}: network {point.id} has no {objective.name}: choose other objectives, as "
            f"{directions_example(known)}, or leave the run out."
        )
    figure = point.figures[objective.name]
    for value in (figure.value, figure.low, figure.high):
        if value is not None and not np.isfinite(value):
            raise RunError(
                f"{run.name}: {objective.name} of network {point.id} is {value}; only finite "
                "numbers can be compared. Choose other objectives, or leave the run out."
            )


def _matrix(figures: Sequence[Sequence[Quantity]], part: Callable[[Quantity], float]) -> Array:
    return np.array([[part(figure) for figure in row] for row in figures], np.float64)


# The frame of a comparison: ideal and reference point, which normalise objectives.

FORMAT = 1  #: of ``comparison.json``; earlier and hand-written files have none
_MARGIN = 0.1  # of the reference point beyond the worst value, as a fraction of the range


@dataclass(frozen=True)
class ReferenceFrame:
    """Ideal and reference point of a comparison, in the units of the objectives."""

    objectives: tuple[Objective, ...]
    ideal: Array  #: ideal point ``(objectives,)``
    reference: Array  #: reference point ``(objectives,)``, worse than the ideal in each objective
    origin: str  #: origin of the reference point, as text

    @property
    def maximise(self) -> list[bool]:
        """True for each objective that is maximised, in the order of ``objectives``."""
        return [objective.maximise for objective in self.objectives]

    @property
    def volume(self) -> float:
        """The volume of the box from ideal to reference point, in the product of all units."""
        return float(np.prod(np.abs(self.reference - self.ideal)))

    def normalised(self, values: Array) -> Array:
        """Return values scaled to 0 at the ideal and 1 at the reference point, of the same shape.

        Lower is better for every objective.
        """
        return (values - self.ideal) / (self.reference - self.ideal)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return ``ideal`` and ``reference``, each as a mapping from objective to value."""
        return {
            "ideal": self._values_by_name(self.ideal),
            "reference": self._values_by_name(self.reference),
        }

    def _values_by_name(self, point: Array) -> dict[str, float]:
        return {o.name: float(x) for o, x in zip(self.objectives, point, strict=True)}


def spanned(values: Array, objectives: Sequence[Objective]) -> ReferenceFrame:
    """Return the frame of all compared points ``(n, objectives)``.

    The ideal is the best value of each objective. The reference point is the worst value, moved in
    the worse direction by a tenth of the range; if all values are equal, by a tenth of the value
    (0.1 if it is 0).
    """
    sign = np.array([-1.0 if o.maximise else 1.0 for o in objectives])
    best, worst = (values * sign).min(axis=0), (values * sign).max(axis=0)
    span = worst - best
    equal = span <= 0
    margin = np.where(equal, np.where(best == 0, 1.0, np.abs(best)), span) * _MARGIN
    origin = f"the worst values plus {_MARGIN:.0%} of the range"
    return ReferenceFrame(tuple(objectives), best * sign, (worst + margin) * sign, origin)


def read_frame(path: Path, objectives: Sequence[Objective]) -> ReferenceFrame:
    """Return the frame in ``comparison.json``, or another JSON or YAML file (``reference=FILE``).

    Raises:
        ConfigError: the file is missing, cannot be read or is of a newer version, a point has no
            finite number for an objective, or the reference point is not worse than the ideal.
    """
    place = f"reference={path}"
    try:
        read = read_json if path.suffix == ".json" else read_yaml
        content = read(dict[str, Any], path, ConfigError, place, newest=FORMAT)
    except FileNotFoundError:
        raise ConfigError(f"{place}: file not found; correct the path.") from None
    points = [_point(content, key, objectives, place) for key in ("ideal", "reference")]
    for objective, best, worst in zip(objectives, *points, strict=True):
        if not (best > worst if objective.maximise else best < worst):
            raise ConfigError(
                f"{place}: the reference point must be worse than the ideal, but for "
                f"{objective.name} they are {worst:g} and {best:g}."
            )
    ideal, reference = (np.array(point) for point in points)
    return ReferenceFrame(tuple(objectives), ideal, reference, f"that of {path}")


def _point(content: Any, key: str, objectives: Sequence[Objective], place: str) -> list[float]:
    point = content.get(key) if isinstance(content, dict) else None
    names = [o.name for o in objectives]
    best = {o.name: 0.9 if o.maximise else 0.5 for o in objectives}
    worst = {o.name: 0.5 if o.maximise else 0.9 for o in objectives}
    example = json.dumps({"ideal": best, "reference": worst})
    if not isinstance(point, Mapping) or not all(_is_number(point.get(n)) for n in names):
        raise ConfigError(
            f"{place}: '{key}' must give a number for each of {', '.join(names)}, as in {example}."
        )
    return [float(point[name]) for name in names]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
