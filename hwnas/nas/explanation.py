"""Dominance of a candidate over time: candidates that it dominates, and that dominate it."""

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

_NEAREST = 3  #: suggested ids for an unknown one


@dataclass(frozen=True)
class DominanceSummary:
    """Dominance relations of a candidate with other scored candidates."""

    n_others: int  #: number of other scored candidates
    #: candidates that it dominates, or later ones that are equal, in order of trials
    beaten: Sequence[Candidate]
    #: candidates that dominate it, or earlier ones that are equal: those on the front first, then
    #: by ascending difference: the largest over objectives, relative to the objective's range
    beaten_by: Sequence[Candidate]


@dataclass(frozen=True)
class Explanation:
    """Which candidates a candidate dominates and which dominate it: when it was scored, and now."""

    candidate: Candidate  #: of the first trial
    trials: Sequence[int]  #: numbers of all trials with this genotype
    #: among candidates of earlier trials; ``None``: it is not scored completely, or a target cannot
    #: run it
    before: DominanceSummary | None
    displaced: Sequence[Candidate]  #: front members that it removed when it was scored
    now: DominanceSummary | None  #: among all candidates; ``None`` as for ``before``
    #: the first candidate that removed it from the front; ``None``: it is on it, or never was
    removed_by: Candidate | None
    front: Sequence[Candidate]  #: members of the front, fastest first

    @property
    def on_front(self) -> bool:
        """Whether it is scored completely and no candidate dominates it."""
        return self.now is not None and not self.now.beaten_by

    @property
    def neighbours(self) -> tuple[Candidate | None, Candidate | None]:
        """The next faster and the next slower front member; ``None`` where there is none.

        Both are ``None`` if the candidate is not on the front.
        """
        ids = [member.id for member in self.front]
        if self.candidate.id not in ids:
            return None, None
        i = ids.index(self.candidate.id)
        return (
            self.front[i - 1] if i else None,
            self.front[i + 1] if i + 1 < len(ids) else None,
        )


def find(candidates: Sequence[Candidate], text: str) -> str:
    """Return the id of a candidate that equals ``text``, or the only one that starts with it.

    Raises:
        ConfigError: no candidate matches, or several do.
    """
    ids = list(dict.fromkeys(candidate.id for candidate in candidates))
    matching = [i for i in ids if i.startswith(text)]
    if len(matching) == 1 or text in ids:
        return text if text in ids else matching[0]
    if matching:
        more = f" and {len(matching) - _NEAREST} more" if len(matching) > _NEAREST else ""
        raise ConfigError(
            f"id={text}: {len(matching)} candidates start with it: "
            f"{', '.join(matching[:_NEAREST])}{more}. Use more digits."
        )
    if set(text) - set("0123456789abcdef"):
        raise ConfigError(
            f"id={text} is not an id: ids have hexadecimal digits, as {ids[0]}. hwnas why RUN "
            "lists those of the front."
        )
    nearest = difflib.get_close_matches(text, ids, n=_NEAREST, cutoff=0)
    raise ConfigError(
        f"id={text}: none of {len(ids)} candidates has this id. Similar ids: {', '.join(nearest)}."
    )


def explain(
    candidates: Sequence[Candidate], genotype_id: str, objectives: Sequence[str]
) -> Explanation:
    """Return which candidates one dominates and which dominate it: when it was scored, and now.

    Args:
        candidates: All candidates of the search.
        genotype_id: Id of one of them, in full.
        objectives: Columns of the objectives: the metric and costs.
    """
    distinct_candidates = distinct(candidates)
    candidate = next(c for c in distinct_candidates if c.id == genotype_id)
    scored = [c for c in distinct_candidates if _has_all(c, objectives)]
    earlier = [c for c in scored if c.trial < candidate.trial]
    before = now = removed_by = None
    displaced: list[Candidate] = []
    if _has_all(candidate, objectives):
        before = _dominance(candidate, earlier, objectives)
        now = _dominance(candidate, [c for c in scored if c is not candidate], objectives)
        if not before.beaten_by:
            on_front = pareto_front(earlier, objectives)
            displaced, _ = _dominated_and_dominating(candidate, on_front, objectives)
            removed_by = min(now.beaten_by, key=lambda c: c.trial, default=None)
    return Explanation(
        candidate,
        [c.trial for c in candidates if c.id == genotype_id],
        before,
        displaced,
        now,
        removed_by,
        pareto_front(distinct_candidates, objectives),
    )


def _has_all(candidate: Candidate, objectives: Sequence[str]) -> bool:
    """Return whether a candidate is scored and has costs on all targets."""
    return candidate.state == "complete" and all(name in candidate.figures for name in objectives)


def n_within_intervals(
    candidates: Sequence[Candidate], proposals: Mapping[int, Proposal]
) -> tuple[int, int]:
    """Return how many feasible candidates lie in their predicted interval, and how many have one.

    The interval is the 95 % interval of the metric that the sampler predicted. Each genotype counts
    once; candidates that were stopped early count with their predicted metric.

    Args:
        candidates: Candidates of the search.
        proposals: Proposal of each trial, by its number.
    """
    within = [
        proposal.expected[1] <= _metric_value(candidate) <= proposal.expected[2]
        for candidate in distinct(candidates)
        if (proposal := proposals[candidate.trial]).expected is not None
        and candidate.state != "infeasible"
    ]
    return sum(within), len(within)


def _dominance(
    candidate: Candidate, others: Sequence[Candidate], objectives: Sequence[str]
) -> DominanceSummary:
    values = points([candidate, *others], objectives)
    spread = np.ptp(values, axis=0)
    off = np.abs(values - values[0]) / np.where(spread == 0, 1.0, spread)
    distance = {c.id: away for c, away in zip(others, off[1:].max(axis=1).tolist(), strict=True)}
    best = {c.id for c in pareto_front(others, objectives)}
    beaten, beaten_by = _dominated_and_dominating(candidate, others, objectives)
    ordered = sorted(beaten_by, key=lambda c: (c.id not in best, distance[c.id], c.trial))
    return DominanceSummary(len(others), beaten, ordered)


def _dominated_and_dominating(
    candidate: Candidate, others: Sequence[Candidate], objectives: Sequence[str]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates that one removes from the front, and those that remove it.

    A candidate removes dominated ones, and equal ones of later trials.
    """
    maximise, point = maximise_flags(objectives), points([candidate], objectives)
    other_points = points(others, objectives)
    wins, loses = no_worse(point, other_points, maximise), no_worse(other_points, point, maximise)
    came_first = np.array([candidate.trial < c.trial for c in others], np.bool_)
    wins, loses = wins & (~loses | came_first), loses & (~wins | ~came_first)
    beaten, beaten_by = (np.flatnonzero(mask).tolist() for mask in (wins, loses))
    return [others[i] for i in beaten], [others[i] for i in beaten_by]


def _metric_value(candidate: Candidate) -> float:
    return candidate.figures[quality_in(candidate.figures)].value
