"""The state of a running search: front, fraction of feasible trials, hypervolume."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from hwnas.core.pareto import ParetoFront, hypervolume
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import points
from hwnas.tasks.metrics import maximise_flags, perfect_value, quality_in


@dataclass(frozen=True)
class SearchView:
    """The objectives and limits of one target of a search, or of all targets together."""

    name: str  #: name of the target, or ``all``; empty if the search has one target
    objectives: Sequence[str]  #: columns, without prefix for one target
    limits: Mapping[str, float]  #: limits of the budget, by column
    #: returns a candidate with the quantities of this target only: see ``Targets.seen``
    seen: Callable[[Candidate], Candidate] = lambda candidate: candidate


_MAX_OBJECTIVES = 4  # for which the exact hypervolume is cheap


@dataclass(frozen=True)
class Snapshot:
    """The state of a search after some trials."""

    n: int  #: finished trials
    n_feasible: int  #: of these, trials whose candidates are feasible
    n_front: int  #: members of the front
    newest: int | None  #: number of the trial of the newest member; ``None`` without a front
    #: normalised hypervolume in [0, 1]; ``None`` without a front, for more than four objectives, or
    #: if the box (see ``SearchProgress``) has no volume
    hypervolume: float | None
    highest: Candidate | None  #: the member with the best metric; ``None`` without a front

    @property
    def feasible(self) -> float:
        """The fraction of feasible trials, in [0, 1]; NaN before the first trial."""
        return self.n_feasible / self.n if self.n else math.nan


@final
class SearchProgress:
    """Updates the front with each finished trial; the front equals ``pareto_front`` of them all.

    The hypervolume is the dominated fraction of a box. The ideal corner has a perfect metric
    (accuracy 1 or 100 %, no error) and costs of 0, or the highest observed value of a maximised
    cost. The reference corner has the budget's limits, or the worst observed value of an objective
    without a limit. The fraction thus also changes if a new candidate moves a corner.

    Args:
        objectives: Objectives of the search.
        limits: Limits of the budget, by column.
    """

    def __init__(self, objectives: Sequence[str], limits: Mapping[str, float]):
        self._objectives = tuple(objectives)
        self._maximise = maximise_flags(objectives)
        self._limits = np.array([limits.get(name, math.nan) for name in objectives])
        self._ids: set[str] = set()
        self._n = self._n_feasible = 0
        self._front = ParetoFront[Candidate](self._maximise)
        self._worst = np.full(len(objectives), math.nan)
        self._highest = np.full(len(objectives), math.nan)

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Add the candidates of finished trials that were not added before, in order of trials."""
        new = []
        for candidate in candidates:
            self._n += 1
            self._n_feasible += candidate.state != "infeasible"
            has_all = all(name in candidate.figures for name in self._objectives)
            if candidate.state == "complete" and has_all and candidate.id not in self._ids:
                self._ids.add(candidate.id)
                new.append(candidate)
        if new:
            self._join(new)

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        members, highest = self._front.members, None
        newest = max((member.trial for member in members), default=None)
        if members:
            i = self._objectives.index(quality_in(self._objectives))
            sign = 1 if self._maximise[i] else -1
            highest = members[np.argmax(sign * self._front.points[:, i])]
        volume = self._hypervolume()
        return Snapshot(self._n, self._n_feasible, len(members), newest, volume, highest)

    def _join(self, new: Sequence[Candidate]) -> None:
        values = points(new, self._objectives)
        ends = np.vstack([self._worst, values])
        self._worst = np.where(self._maximise, np.nanmin(ends, axis=0), np.nanmax(ends, axis=0))
        self._highest = np.nanmax(np.vstack([self._highest, values]), axis=0)
        self._front.add(new, values)

    def _hypervolume(self) -> float | None:
        if not self._front.members or len(self._objectives) > _MAX_OBJECTIVES:
            return None
        worst = np.where(np.isnan(self._limits), self._worst, self._limits)
        metric = quality_in(self._objectives)
        i = self._objectives.index(metric)
        best = np.where(self._maximise, self._highest, 0.0)
        best[i] = perfect_value(metric, self._front.points[:, i])
        box = float(np.prod(np.abs(best - worst)))
        if box <= 0:
            return None
        return hypervolume(self._front.points, worst.tolist(), self._maximise) / box
