"""How a search stands, while it goes on: front, feasible share, hypervolume."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from hwnas.core.pareto import Array, ParetoFront, hypervolume
from hwnas.core.quantity import Quantities
from hwnas.nas.candidates import Candidate
from hwnas.tasks.base import Incumbent
from hwnas.tasks.metrics import column, maximised, paid, perfect, quality

# The searched front: what no other candidate of a search dominates.


def pareto_front(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the non-dominated feasible candidates, each genotype once, fastest first.

    Only what was read whole is on it. Where no latency is known, the first cost stands in for it.
    """
    scored = [c for c in candidates if c.state == "complete"]
    feasible = distinct([c for c in scored if all(name in c.figures for name in objectives)])
    front, cost = ParetoFront[Candidate](maximised(objectives)), paid(objectives)[0]
    front.add(feasible, points(feasible, objectives))
    return sorted(
        front.members, key=lambda c: (c.figures.get("latency_ms", c.figures[cost]).value, c.id)
    )


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return each candidate as it came first, in order of trials."""
    first: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.trial):
        first.setdefault(candidate.id, candidate)
    return list(first.values())


def points(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Array:
    """Return the objectives of candidates ``(n, objectives)``."""
    values = [[c.figures[name].value for name in objectives] for c in candidates]
    return np.array(values, np.float64).reshape(len(candidates), len(objectives))


# Which candidate another one must not be worse than, to enter the front.

_ENOUGH = 5  # networks read whole before any reading stops: the others are predicted from them
_KEPT = 100  # of those, the latest


def incumbent(
    candidates: Sequence[Candidate], costs: Quantities, objectives: Sequence[str]
) -> Incumbent | None:
    """Return the candidate that answers best of those read whole that cost no more.

    What is worse than it is dominated. ``None`` where nothing is as cheap, or where too few were
    read whole to predict from.
    """
    complete = (c for c in reversed(candidates) if c.state == "complete")
    whole = [*{c.id: c for c in complete}.values()][::-1]  # a repeated one counts once, read first
    metric = quality(objectives)
    # A target that cannot run a network says no costs of it.
    signs = {n: -1.0 if column(n).maximise else 1.0 for n in paid(objectives) if n in costs}
    cheaper = [
        c
        for c in whole
        if all(
            n in c.figures and s * c.figures[n].value <= s * costs[n].value
            for n, s in signs.items()
        )
    ]
    if len(whole) < _ENOUGH or not cheaper:
        return None
    of = max if column(metric).maximise else min
    best = of(cheaper, key=lambda c: c.figures[metric].value)
    latest = whole[-_KEPT:]
    return Incumbent(
        best.per_image,
        tuple(c.per_image for c in latest),
        best.figures[metric].value,
        tuple(c.details for c in latest),
    )


# A search as somebody looks at it.


@dataclass(frozen=True)
class SearchView:
    """A search as one target sees it, or all together."""

    name: str  #: empty if there is one view only
    objectives: Sequence[str]
    limits: Mapping[str, float]
    seen: Callable[[Candidate], Candidate] = lambda candidate: candidate


_MOST = 4  # objectives, up to which the exact hypervolume is cheap


@dataclass(frozen=True)
class Snapshot:
    """What is known after some trials."""

    n: int  #: finished trials
    n_feasible: int  #: of them, those that fit target and budget
    n_front: int  #: members of the front
    newest: int | None  #: the trial of the member that joined last
    #: the front's share of the box; ``None`` where there is none, or over four objectives
    hypervolume: float | None
    highest: Candidate | None  #: the member that answers best

    @property
    def feasible(self) -> float:
        """The share of trials that are feasible; NaN before the first."""
        return self.n_feasible / self.n if self.n else math.nan


@final
class SearchProgress:
    """Takes candidates in as trials finish, each once; its front is ``loop.front`` of them.

    The hypervolume is told as the share of a box: from a perfect metric (accuracy 1 or 100 %, no
    error) and costs of 0, which nobody reaches, to the budget's limit of each objective, or the
    worst value on any scored candidate where there is no limit. So it rises as the front does, and
    also when a worse candidate than any before moves the box's far corner. A cost to be maximised
    has no best value: the highest on any scored candidate stands in, and a higher one moves the
    near corner.

    Args:
        objectives: Of the search.
        limits: Of the budget, by column.
    """

    def __init__(self, objectives: Sequence[str], limits: Mapping[str, float]):
        self._objectives = tuple(objectives)
        self._maximise = maximised(objectives)
        self._limits = np.array([limits.get(name, math.nan) for name in objectives])
        self._ids: set[str] = set()
        self._n = self._n_feasible = 0
        self._front = ParetoFront[Candidate](self._maximise)
        self._worst = np.full(len(objectives), math.nan)
        self._highest = np.full(len(objectives), math.nan)

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Take in what became of trials."""
        new = []
        for candidate in candidates:
            self._n += 1
            self._n_feasible += candidate.state != "infeasible"
            is_known = all(name in candidate.figures for name in self._objectives)
            if candidate.state == "complete" and is_known and candidate.id not in self._ids:
                self._ids.add(candidate.id)
                new.append(candidate)
        if new:
            self._join(new)

    def snapshot(self) -> Snapshot:
        """Return what is known now."""
        members, highest = self._front.members, None
        newest = max((member.trial for member in members), default=None)
        if members:
            i = self._objectives.index(quality(self._objectives))
            sign = 1 if self._maximise[i] else -1
            highest = members[np.argmax(sign * self._front.points[:, i])]
        share = self._share()
        return Snapshot(self._n, self._n_feasible, len(members), newest, share, highest)

    def _join(self, new: Sequence[Candidate]) -> None:
        values = points(new, self._objectives)
        ends = np.vstack([self._worst, values])
        self._worst = np.where(self._maximise, np.nanmin(ends, axis=0), np.nanmax(ends, axis=0))
        self._highest = np.nanmax(np.vstack([self._highest, values]), axis=0)
        self._front.add(new, values)

    def _share(self) -> float | None:
        if not self._front.members or len(self._objectives) > _MOST:
            return None
        worst = np.where(np.isnan(self._limits), self._worst, self._limits)
        metric = quality(self._objectives)
        i = self._objectives.index(metric)
        best = np.where(self._maximise, self._highest, 0.0)
        best[i] = perfect(metric, self._front.points[:, i])
        box = float(np.prod(np.abs(best - worst)))
        if box <= 0:
            return None
        return hypervolume(self._front.points, worst.tolist(), self._maximise) / box
