"""Networks for all targets of a search: each fits every budget, and is verified on every target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from hwnas.metrics import column, quality
from hwnas.pareto import ParetoFront
from hwnas.results import Candidate
from hwnas.searching.member import Member

T = TypeVar("T")


def joined(candidate: Candidate, parts: Mapping[str, Member]) -> Member:
    """Return a candidate with what was verified on all targets, by their names."""

    def named(of: Callable[[Member], Mapping[str, T]]) -> dict[str, T]:
        return {f"{t}.{n}": value for t, part in parts.items() for n, value in of(part).items()}

    figures, details = named(lambda part: part.figures), named(lambda part: part.details)
    over = named(lambda part: dict.fromkeys(part.over_budget))
    return Member(candidate, figures, details, {}, tuple(over))


def judge(members: Sequence[Member], objectives: Sequence[str]) -> list[Member]:
    """Mark the members that verification takes off the front of networks for all targets.

    What counts is each target's own artefact: how well it answers and what it costs, all at once.
    """
    fitting = [i for i, member in enumerate(members) if member.is_deliverable]
    points = [_verified(members[i], objectives) for i in fitting]
    front = ParetoFront[int]([False for _ in points[0]] if points else [])
    front.add(fitting, points)
    return [replace(member, on_front=i in front.members) for i, member in enumerate(members)]


def _verified(member: Member, objectives: Sequence[str]) -> list[float]:
    """Return what verification found, to be minimised: errors on all targets, then the costs."""
    sign = -1.0 if column(quality(objectives)).maximise else 1.0
    found = [sign * part.quality.value for part in member.parts.values()]
    for name in objectives:
        if "." in name:
            value = member.figures[name].value
            found.append(-value if column(name).maximise else value)
    return found
