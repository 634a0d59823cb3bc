"""What a search decided, trial by trial: the lines of a page's decision log."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas import metrics
from hwnas.figure import Figure, Figures
from hwnas.metrics import column
from hwnas.report.explorer import Line
from hwnas.results import Candidate
from hwnas.searching.member import Member

_BLOCK = 512  # candidates that are held against the front at once
_BEYOND = re.compile(r"(\S+) \S+ ((?:over|under) budget [^;\s]+)")  # of ``Budget.exceeded``
_NAMED = 4  # members that a line names
Array = NDArray[np.float64]


def decisions(
    candidates: Sequence[Candidate], members: Sequence[Member], objectives: Sequence[str]
) -> list[Line]:
    """Return what entered and left the front, what was refused, and what verification found.

    Args:
        candidates: Of the search, in the order of trials; those that come again change nothing.
        members: The front, verified.
        objectives: What is minimised or maximised.
    """
    return [*_trials(candidates, objectives), *(_verification(m, objectives) for m in members)]


def different(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return each network once, as its first trial."""
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        found.setdefault(candidate.id, candidate)
    return list(found.values())


def _trials(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Iterator[Line]:
    refused: list[Candidate] = []
    front, new = _Front(objectives), different(candidates)
    for start in range(0, len(new), _BLOCK):
        block = new[start : start + _BLOCK]
        entering = front.may_enter([c for c in block if c.state == "complete"])
        for candidate in block:
            if candidate.state == "infeasible":
                refused.append(candidate)
            elif candidate.id in entering and (left := front.entered(candidate)) is not None:
                if refused:
                    yield _refusal(refused)
                    refused = []
                yield _entry(candidate, left, len(front), objectives)
    if refused:
        yield _refusal(refused)


class _Front:
    """The front as it was after each trial."""

    def __init__(self, objectives: Sequence[str]):
        self._objectives = objectives
        self._sign = np.array([-1.0 if column(name).maximise else 1.0 for name in objectives])
        self._points: Array = np.zeros((0, len(objectives)))
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    def may_enter(self, candidates: Sequence[Candidate]) -> set[str]:
        """Return the ids of those that the present front does not dominate; quick for many."""
        points = self._values(candidates)
        reached = np.ones((len(points), len(self)), np.bool_)
        for mine, theirs in zip(points.T, self._points.T, strict=True):
            reached &= theirs <= mine[:, None]
        enters = np.flatnonzero(~reached.any(axis=1))
        return {candidates[i].id for i in enters.tolist()}

    def entered(self, candidate: Candidate) -> list[str] | None:
        """Take a candidate in; return the ids that leave, or ``None`` if it is dominated."""
        (point,) = self._values([candidate])
        if (self._points <= point).all(axis=1).any():
            return None
        beaten = (point <= self._points).all(axis=1)
        left = [self._ids[i] for i in np.flatnonzero(beaten)]
        self._ids = [*(self._ids[i] for i in np.flatnonzero(~beaten)), candidate.id]
        self._points = np.vstack([self._points[~beaten], point])
        return left

    def _values(self, candidates: Sequence[Candidate]) -> Array:
        values = [[c.figures[name].value for name in self._objectives] for c in candidates]
        return np.asarray(np.array(values).reshape(-1, len(self._sign)) * self._sign)


def _entry(
    candidate: Candidate, left: Sequence[str], n_front: int, objectives: Sequence[str]
) -> Line:
    text = f"{candidate.id} enters the front: {_words(candidate.figures, objectives)}"
    if left:
        named = ", ".join(left[:_NAMED]) + (", ..." if len(left) > _NAMED else "")
        text += f"; {len(left)} {'leaves' if len(left) == 1 else 'leave'}: {named}"
    return Line(f"trial {candidate.trial}", "front", f"{text}. Front of {n_front}.")


def _refusal(refused: Sequence[Candidate]) -> Line:
    """Return a line of the refusals between two changes of the front."""
    first, last = refused[0], refused[-1]
    if len(refused) == 1:
        return Line(f"trial {first.trial}", "refused", f"{first.id} refused: {first.reason}")
    kinds: Counter[str] = Counter()
    for candidate in refused:
        found = [" ".join(parts) for parts in _BEYOND.findall(candidate.reason)]
        kinds.update(found or [candidate.reason])
    counted = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(_NAMED))
    return Line(
        f"trials {first.trial} to {last.trial}", "refused", f"{len(refused)} refused: {counted}"
    )


def _verification(member: Member, objectives: Sequence[str]) -> Line:
    searched = member.candidate.figures
    verified = {**member.figures, member.metric: member.quality}
    changes = []
    for name in objectives:
        text = f"{column(name).label} {figure_words(verified[name], name)}"
        changes.append(f"{text} (searched {number(searched[name].value, name)})")
    verdict = member.label or "fits, on the front"
    return Line("verified", "verified", f"{member.candidate.id} {verdict}: {', '.join(changes)}")


def _words(figures: Figures, names: Sequence[str]) -> str:
    return ", ".join(f"{column(name).label} {figure_words(figures[name], name)}" for name in names)


def figure_words(figure: Figure, name: str) -> str:
    """Return a value with its unit."""
    unit = column(name).unit if metrics.is_known(name) else ""
    return f"{number(figure.value, name)} {unit}".rstrip()


def number(value: float, name: str) -> str:
    """Return a value as people read it."""
    return f"{value:.2%}" if "accuracy" in name else f"{value:.4g}"
