"""Runs and what is compared of them: fronts as points with intervals, in named objectives."""

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
from hwnas.core.typed_files import read_yaml
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.metrics import is_metric, metric_of

Array = NDArray[np.float64]
FrontStage = Literal["searched", "verified"]

MOST_OBJECTIVES = 4


@dataclass(frozen=True)
class Objective:
    """A figure that is compared, and which direction is better."""

    name: str
    maximise: bool

    @property
    def title(self) -> str:
        """Label with unit; the name itself where it is not one of ours."""
        return metric_of(self.name).title if is_metric(self.name) else self.name

    @property
    def unit(self) -> str:
        """The unit; empty where there is none, or none is known."""
        return metric_of(self.name).unit if is_metric(self.name) else ""


def objectives(directions: Mapping[str, str]) -> tuple[Objective, ...]:
    """Return the objectives that ``{accuracy: max, latency_ms: min}`` names.

    Raises:
        ConfigError: there are not two to four, or a direction is not what the figure allows.
    """
    for name, direction in directions.items():
        if direction not in ("max", "min"):
            raise ConfigError(f"objectives: {name} must be max or min, got '{direction}'.")
        if is_metric(name) and metric_of(name).maximise is not (direction == "max"):
            raise ConfigError(f"objectives: {name}: {direction} is the wrong way round.")
    if not 2 <= len(directions) <= MOST_OBJECTIVES:
        raise ConfigError(
            f"Fronts are compared in 2 to {MOST_OBJECTIVES} objectives, got {len(directions)}: "
            "name some with objectives='{accuracy: max, latency_ms: min}'."
        )
    return tuple(Objective(name, direction == "max") for name, direction in directions.items())


def declared(names: Sequence[str]) -> dict[str, str]:
    """Return the directions of figures that are ours."""
    return {name: "max" if metric_of(name).maximise else "min" for name in names}


@dataclass(frozen=True)
class FrontPoint:
    """A network as a point: its figures, at least those that are compared."""

    id: str
    figures: Quantities


@dataclass(frozen=True)
class ComparedRun:
    """What one run, or one file of another tool, says."""

    name: str
    directions: Mapping[str, str]  #: its own objectives; empty where the file names none
    scored: Sequence[FrontPoint]  #: all that fits the budget and was scored, as search read it
    verified: Sequence[FrontPoint] | None = None  #: members that may be delivered, if verified
    group: str = ""
    block: str | None = None  #: what pairs it with runs of other groups: its seed
    config: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None  #: on which data accuracies were read, if the run says so
    limits: Mapping[str, float] = field(default_factory=dict)
    target: str | None = None
    notes: tuple[str, ...] = ()  #: what a reader must know
    #: in order of trials, with what is believed of those of a search that has ended; of runs only
    candidates: Sequence[Candidate] = ()
    seconds: Mapping[int, float] = field(default_factory=dict)  #: since the start, by trial
    members: Sequence[Member] = ()  #: verified members, those that left the front, too
    path: str = ""


@dataclass(frozen=True)
class RunFront:
    """The points of a run that are compared, and their values in order of the objectives."""

    run: ComparedRun
    points: Sequence[FrontPoint]
    values: Array  #: ``(n, objectives)``
    low: Array  #: ends of 95 % intervals; the value itself where none is known
    high: Array
    is_random: NDArray[np.bool_]  #: which intervals are of errors that differ between points
    mask: NDArray[np.bool_]  #: which points are non-dominated among them

    @property
    def members(self) -> Array:
        """The values of the non-dominated points ``(k, objectives)``."""
        return self.values[self.mask]

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.run.name

    @property
    def group(self) -> str:
        """The group of the run."""
        return self.run.group


def front(run: ComparedRun, names: Sequence[Objective], kind: FrontStage) -> RunFront:
    """Return what is compared of a run.

    Of verified figures all members that fit the budget, the dominated ones, too: within their
    intervals they may be on the front. Of searched ones the front alone.

    Raises:
        RunError: there is nothing, a figure is missing, or one is not a number.
    """
    points = run.scored if kind == "searched" else run.verified
    if not points:
        raise RunError(f"{run.name}: its front is empty: nothing fits the budget.")
    distinct = list({point.id: point for point in reversed(points)}.values())[::-1]
    for point in distinct:
        for objective in names:
            _check(run, point, objective)
    figures = [[point.figures[o.name] for o in names] for point in distinct]
    values = _matrix(figures, lambda f: f.value)
    mask = non_dominated(values, [o.maximise for o in names])
    if kind == "searched":
        distinct = [p for p, on_front in zip(distinct, mask, strict=True) if on_front]
        figures = [row for row, on_front in zip(figures, mask, strict=True) if on_front]
        values, mask = values[mask], mask[mask]
    low = _matrix(figures, lambda f: f.value if f.low is None else min(f.low, f.value))
    high = _matrix(figures, lambda f: f.value if f.high is None else max(f.high, f.value))
    is_random = np.array([[figure.source != "modelled" for figure in row] for row in figures])
    return RunFront(run, distinct, values, low, high, is_random, mask)


def union(fronts: Sequence[RunFront], names: Sequence[Objective]) -> Array:
    """Return the non-dominated points of all fronts ``(k, objectives)``."""
    points = np.concatenate([front.members for front in fronts])
    return points[non_dominated(points, [o.maximise for o in names])]


def _check(run: ComparedRun, point: FrontPoint, objective: Objective) -> None:
    if objective.name not in point.figures:
        raise RunError(f"{run.name}: {point.id} has no {objective.name}.")
    figure = point.figures[objective.name]
    for value in (figure.value, figure.low, figure.high):
        if value is not None and not np.isfinite(value):
            raise RunError(f"{run.name}: {objective.name} of {point.id} is {value}.")


def _matrix(figures: Sequence[Sequence[Quantity]], part: Callable[[Quantity], float]) -> Array:
    return np.array([[part(figure) for figure in row] for row in figures], np.float64)


# The frame of a comparison: ideal and reference point, by which objectives are normalised.

FORMAT = 1  #: of files that a comparison writes; earlier ones, and those of people, say none
_MARGIN = 0.1  # of the range, that the reference point is beyond the worst


@dataclass(frozen=True)
class ReferenceFrame:
    """Two points in the units of the objectives: nothing is expected beyond either."""

    objectives: tuple[Objective, ...]
    ideal: Array  #: ``(objectives,)``
    reference: Array  #: ``(objectives,)``; worse than the ideal in each
    origin: str  #: in words

    @property
    def maximise(self) -> list[bool]:
        """Which objectives are to be maximised."""
        return [objective.maximise for objective in self.objectives]

    @property
    def volume(self) -> float:
        """The volume between the two points, in the product of the objectives' units."""
        return float(np.prod(np.abs(self.reference - self.ideal)))

    def normalised(self, values: Array) -> Array:
        """Return values to be minimised: 0 at the ideal, 1 at the reference point."""
        return (values - self.ideal) / (self.reference - self.ideal)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return what a later comparison reads by ``reference=FILE``."""
        return {
            "ideal": self._named(self.ideal),
            "reference": self._named(self.reference),
        }

    def _named(self, point: Array) -> dict[str, float]:
        return {o.name: float(x) for o, x in zip(self.objectives, point, strict=True)}


def spanned(values: Array, objectives: Sequence[Objective]) -> ReferenceFrame:
    """Return the frame of all compared points ``(n, objectives)``.

    The ideal is the best of each objective, the reference point the worst and a tenth of the range
    beyond. Where all points are equal in an objective, a tenth of its value stands in for that.
    """
    sign = np.array([-1.0 if o.maximise else 1.0 for o in objectives])
    best, worst = (values * sign).min(axis=0), (values * sign).max(axis=0)
    span = worst - best
    equal = span <= 0
    margin = np.where(equal, np.where(best == 0, 1.0, np.abs(best)), span) * _MARGIN
    origin = f"the worst of all compared points and {_MARGIN:.0%} of the range beyond"
    return ReferenceFrame(tuple(objectives), best * sign, (worst + margin) * sign, origin)


def read_frame(path: Path, objectives: Sequence[Objective]) -> ReferenceFrame:
    """Read the frame of an earlier comparison, or a small JSON or YAML file of one.

    Raises:
        ConfigError: it does not name both points in these objectives, or is of a newer version.
    """
    where = f"reference={path}"
    try:
        content = read_yaml(dict[str, Any], path, ConfigError, where, newest=FORMAT)
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no such file.") from None
    points = [_point(content, key, objectives, where) for key in ("ideal", "reference")]
    for objective, best, worst in zip(objectives, *points, strict=True):
        if not (best > worst if objective.maximise else best < worst):
            raise ConfigError(
                f"{where}: the reference point must be worse than the ideal, but for "
                f"{objective.name} they are {worst:g} and {best:g}."
            )
    ideal, reference = (np.array(point) for point in points)
    return ReferenceFrame(tuple(objectives), ideal, reference, f"that of {path}")


def _point(content: Any, key: str, objectives: Sequence[Objective], where: str) -> list[float]:
    point = content.get(key) if isinstance(content, dict) else None
    example = json.dumps({"ideal": {"accuracy": 0.9}, "reference": {"accuracy": 0.5}})
    names = [o.name for o in objectives]
    if not isinstance(point, Mapping) or not all(_is_number(point.get(n)) for n in names):
        raise ConfigError(
            f"{where}: '{key}' must give a number for each of {', '.join(names)}, as in {example}."
        )
    return [float(point[name]) for name in names]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
