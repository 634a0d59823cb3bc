"""Runs and what is compared of them: fronts as points with intervals, in named objectives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import ConfigError, RunError
from hwnas.figure import Figure, Figures
from hwnas.metrics import column, is_known
from hwnas.pareto import non_dominated
from hwnas.results import Candidate
from hwnas.searching.member import Member

Array = NDArray[np.float64]
Kind = Literal["searched", "verified"]

MOST_OBJECTIVES = 4


@dataclass(frozen=True)
class Objective:
    """A figure that is compared, and which direction is better."""

    name: str
    maximise: bool

    @property
    def title(self) -> str:
        """Label with unit; the name itself where it is not one of ours."""
        return column(self.name).title if is_known(self.name) else self.name

    @property
    def unit(self) -> str:
        """The unit; empty where there is none, or none is known."""
        return column(self.name).unit if is_known(self.name) else ""


def objectives(directions: Mapping[str, str]) -> tuple[Objective, ...]:
    """Return the objectives that ``{accuracy: max, latency_ms: min}`` names.

    Raises:
        ConfigError: there are not two to four, or a direction is not what the figure allows.
    """
    for name, direction in directions.items():
        if direction not in ("max", "min"):
            raise ConfigError(f"objectives: {name} must be max or min, got '{direction}'.")
        if is_known(name) and column(name).maximise is not (direction == "max"):
            raise ConfigError(f"objectives: {name}: {direction} is the wrong way round.")
    if not 2 <= len(directions) <= MOST_OBJECTIVES:
        raise ConfigError(
            f"Fronts are compared in 2 to {MOST_OBJECTIVES} objectives, got {len(directions)}: "
            "name some with objectives='{accuracy: max, latency_ms: min}'."
        )
    return tuple(Objective(name, direction == "max") for name, direction in directions.items())


def declared(names: Sequence[str]) -> dict[str, str]:
    """Return the directions of figures that are ours."""
    return {name: "max" if column(name).maximise else "min" for name in names}


@dataclass(frozen=True)
class Point:
    """A network as a point: its figures, at least those that are compared."""

    id: str
    figures: Figures


@dataclass(frozen=True)
class Run:
    """What one run, or one file of another tool, says."""

    name: str
    directions: Mapping[str, str]  #: its own objectives; empty where the file names none
    scored: Sequence[Point]  #: all that fits the budget and was scored, as search read it
    verified: Sequence[Point] | None = None  #: members that may be delivered, if verified
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

    run: Run
    points: Sequence[Point]
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


def front(run: Run, names: Sequence[Objective], kind: Kind) -> RunFront:
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


def _check(run: Run, point: Point, objective: Objective) -> None:
    if objective.name not in point.figures:
        raise RunError(f"{run.name}: {point.id} has no {objective.name}.")
    figure = point.figures[objective.name]
    for value in (figure.value, figure.low, figure.high):
        if value is not None and not np.isfinite(value):
            raise RunError(f"{run.name}: {objective.name} of {point.id} is {value}.")


def _matrix(figures: Sequence[Sequence[Figure]], part: Callable[[Figure], float]) -> Array:
    return np.array([[part(figure) for figure in row] for row in figures], np.float64)
