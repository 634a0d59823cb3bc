"""What a search decided, trial by trial: the lines of a page's decision log."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from hwnas import metrics
from hwnas.figure import Figure, Figures
from hwnas.metrics import column, maximised
from hwnas.pareto import ParetoFront
from hwnas.report.explorer import Line
from hwnas.results import Candidate
from hwnas.searching.front import distinct, points
from hwnas.searching.member import Member

_BLOCK = 512  # candidates that are held against the front at once
_BEYOND = re.compile(r"(\S+) \S+ ((?:over|under) budget [^;\s]+)")  # of ``Budget.exceeded``
_NAMED = 4  # members that a line names


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


def _trials(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Iterator[Line]:
    refused: list[Candidate] = []
    front, new = ParetoFront[Candidate](maximised(objectives)), distinct(candidates)
    for start in range(0, len(new), _BLOCK):
        block = new[start : start + _BLOCK]
        scored = [c for c in block if c.state == "complete"]
        beaten = front.dominates(points(scored, objectives)).tolist()
        may_enter = {c.id for c, is_beaten in zip(scored, beaten, strict=True) if not is_beaten}
        for candidate in block:
            if candidate.state == "infeasible":
                refused.append(candidate)
            elif candidate.id in may_enter:
                left = front.add([candidate], points([candidate], objectives))
                if front.members[-1] is not candidate:
                    continue
                if refused:
                    yield _refusal(refused)
                    refused = []
                yield _entry(candidate, left, len(front.members), objectives)
    if refused:
        yield _refusal(refused)


def _entry(
    candidate: Candidate, left: Sequence[Candidate], n_front: int, objectives: Sequence[str]
) -> Line:
    text = f"{candidate.id} enters the front: {_words(candidate.figures, objectives)}"
    if left:
        named = ", ".join(c.id for c in left[:_NAMED]) + (", ..." if len(left) > _NAMED else "")
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
    verified, changes = member.all_figures, []
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
