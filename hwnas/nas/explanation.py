"""What a search knew of a candidate, what it beat, and what beats it."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hwnas.core.errors import ConfigError
from hwnas.core.pareto import no_worse
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import distinct, pareto_front, points
from hwnas.nas.trial_attributes import Proposal
from hwnas.tasks.metrics import maximise_flags, quality_in

_NEAREST = 3  #: ids that are offered where one is unknown


@dataclass(frozen=True)
class DominanceSummary:
    """How a candidate stands among others that were scored."""

    n_others: int
    beaten: Sequence[Candidate]  #: in order of trials
    beaten_by: Sequence[Candidate]  #: those on the front of the others first, the nearest first


@dataclass(frozen=True)
class Explanation:
    """A candidate's way through a search."""

    candidate: Candidate  #: as it came first
    trials: Sequence[int]  #: all in which it came
    #: among those that had come; ``None``: it was not scored, or a target cannot run it
    before: DominanceSummary | None
    displaced: Sequence[Candidate]  #: members of the front that left it when this one came
    now: DominanceSummary | None  #: among all
    left_by: Candidate | None  #: what put it off the front, if it was ever on it
    front: Sequence[Candidate]  #: fastest first

    @property
    def on_front(self) -> bool:
        """Whether nothing beats it."""
        return self.now is not None and not self.now.beaten_by

    @property
    def neighbours(self) -> tuple[Candidate | None, Candidate | None]:
        """The members of the front next to it, faster and slower, if it is on it."""
        ids = [member.id for member in self.front]
        if self.candidate.id not in ids:
            return None, None
        i = ids.index(self.candidate.id)
        return (
            self.front[i - 1] if i else None,
            self.front[i + 1] if i + 1 < len(ids) else None,
        )


def find(candidates: Sequence[Candidate], text: str) -> str:
    """Return the id that ``text`` is, or is the beginning of.

    Raises:
        ConfigError: no candidate has it, or several have.
    """
    ids = list(dict.fromkeys(candidate.id for candidate in candidates))
    matching = [i for i in ids if i.startswith(text)]
    if len(matching) == 1 or text in ids:
        return text if text in ids else matching[0]
    if matching:
        more = f" and {len(matching) - _NEAREST} more" if len(matching) > _NEAREST else ""
        raise ConfigError(
            f"id={text}: {len(matching)} candidates begin so: "
            f"{', '.join(matching[:_NEAREST])}{more}. Write more of it."
        )
    nearest = difflib.get_close_matches(text, ids, n=_NEAREST, cutoff=0)
    raise ConfigError(
        f"id={text}: none of {len(ids)} candidates. The nearest: {', '.join(nearest)}."
    )


def explain(
    candidates: Sequence[Candidate], genotype_id: str, objectives: Sequence[str]
) -> Explanation:
    """Return a candidate's way through a search.

    Args:
        candidates: All of the search.
        genotype_id: Of one of them.
        objectives: Of the search.
    """
    all_of_it = distinct(candidates)
    candidate = next(c for c in all_of_it if c.id == genotype_id)
    scored = [c for c in all_of_it if _has_all(c, objectives)]
    earlier = [c for c in scored if c.trial < candidate.trial]
    before = now = left_by = None
    displaced: list[Candidate] = []
    if _has_all(candidate, objectives):
        before = _standing(candidate, earlier, objectives)
        now = _standing(candidate, [c for c in scored if c is not candidate], objectives)
        if not before.beaten_by:
            on_front = pareto_front(earlier, objectives)
            displaced, _ = _beaten(candidate, on_front, objectives)
            left_by = min(now.beaten_by, key=lambda c: c.trial, default=None)
    return Explanation(
        candidate,
        [c.trial for c in candidates if c.id == genotype_id],
        before,
        displaced,
        now,
        left_by,
        pareto_front(all_of_it, objectives),
    )


def _has_all(candidate: Candidate, objectives: Sequence[str]) -> bool:
    """Whether a candidate was scored, and every target can run it: one that cannot says no cost."""
    return candidate.state == "complete" and all(name in candidate.figures for name in objectives)


def kept_within(
    candidates: Sequence[Candidate], proposals: Mapping[int, Proposal]
) -> tuple[int, int]:
    """Return how many candidates turned out within their expected interval, and of how many.

    What was stopped early counts, by what it was believed to come to: most of it came out worse.
    """
    within = [
        proposal.expected[1] <= _scored(candidate) <= proposal.expected[2]
        for candidate in distinct(candidates)
        if (proposal := proposals[candidate.trial]).expected is not None
        and candidate.state != "infeasible"
    ]
    return sum(within), len(within)


def _standing(
    candidate: Candidate, others: Sequence[Candidate], objectives: Sequence[str]
) -> DominanceSummary:
    values = points([candidate, *others], objectives)
    spread = np.ptp(values, axis=0)
    off = np.abs(values - values[0]) / np.where(spread == 0, 1.0, spread)
    distance = {c.id: away for c, away in zip(others, off[1:].max(axis=1).tolist(), strict=True)}
    best = {c.id for c in pareto_front(others, objectives)}
    beaten, beaten_by = _beaten(candidate, others, objectives)
    ordered = sorted(beaten_by, key=lambda c: (c.id not in best, distance[c.id], c.trial))
    return DominanceSummary(len(others), beaten, ordered)


def _beaten(
    candidate: Candidate, others: Sequence[Candidate], objectives: Sequence[str]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return which others a candidate keeps off the front, and which keep it off.

    Those dominate, or are as good and came first.
    """
    maximise, mine = maximise_flags(objectives), points([candidate], objectives)
    theirs = points(others, objectives)
    wins, loses = no_worse(mine, theirs, maximise), no_worse(theirs, mine, maximise)
    came_first = np.array([candidate.trial < c.trial for c in others], np.bool_)
    wins, loses = wins & (~loses | came_first), loses & (~wins | ~came_first)
    beaten, beaten_by = (np.flatnonzero(mask).tolist() for mask in (wins, loses))
    return [others[i] for i in beaten], [others[i] for i in beaten_by]


def _scored(candidate: Candidate) -> float:
    return candidate.figures[quality_in(candidate.figures)].value
