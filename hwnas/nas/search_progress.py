"""The state of a running search: front and fraction of feasible trials."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from hwnas.core.pareto import ParetoFront
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import points
from hwnas.tasks.metrics import maximise_flags, quality_in


@dataclass(frozen=True)
class SearchView:
    """The objectives and limits of one target of a search, or of all targets together."""

    name: str  #: name of the target, or ``all``; empty if the search has one target
    objectives: Sequence[str]  #: columns, without prefix for one target
    limits: Mapping[str, float]  #: limits of the budget, by column
    #: returns a candidate with the quantities of this target only: see ``Targets.on_target``
    view_of: Callable[[Candidate], Candidate] = lambda candidate: candidate


@dataclass(frozen=True)
class Snapshot:
    """The state of a search after some trials."""

    n: int  #: finished trials
    n_feasible: int  #: of these, trials whose candidates are feasible
    n_front: int  #: members of the front
    newest: int | None  #: number of the trial of the newest member; ``None`` without a front
    highest: Candidate | None  #: the member with the best metric; ``None`` without a front

    @property
    def feasible(self) -> float:
        """The fraction of feasible trials, in [0, 1]; NaN before the first trial."""
        return self.n_feasible / self.n if self.n else math.nan


@final
class SearchProgress:
    """Updates the front with each finished trial; the front equals ``pareto_front`` of them all."""

    def __init__(self, objectives: Sequence[str]):
        self._objectives = tuple(objectives)
        self._maximise = maximise_flags(objectives)
        self._ids: set[str] = set()
        self._n = self._n_feasible = 0
        self._front = ParetoFront[Candidate](self._maximise)

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
            self._front.add(new, points(new, self._objectives))

    def snapshot(self) -> Snapshot:
        """Return the current state."""
        members, highest = self._front.members, None
        newest = max((member.trial for member in members), default=None)
        if members:
            i = self._objectives.index(quality_in(self._objectives))
            sign = 1 if self._maximise[i] else -1
            highest = members[np.argmax(sign * self._front.points[:, i])]
        return Snapshot(self._n, self._n_feasible, len(members), newest, highest)
