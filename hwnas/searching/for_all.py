"""Networks for all targets of a search: each fits every budget, and is verified on every target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hwnas.budget import side
from hwnas.metrics import column, quality
from hwnas.pareto import ParetoFront
from hwnas.results import Candidate, Row
from hwnas.searching.member import Member
from hwnas.space import Space


@dataclass(frozen=True)
class MemberForAll:
    """A candidate that fits every budget, verified on each target."""

    candidate: Candidate
    members: Mapping[str, Member]  #: by target
    on_front: bool = True  #: whether it fits everywhere, and no other that does dominates it

    @property
    def over_budget(self) -> list[str]:
        """The limits that it leaves after verification, as ``npu.latency_ms``."""
        return [f"{t}.{name}" for t, member in self.members.items() for name in member.over_budget]

    @property
    def is_outrun(self) -> bool:
        """Whether float32 may be as fast on a target as int8, in which it computes there."""
        return any(member.is_outrun for member in self.members.values())

    @property
    def label(self) -> str:
        """What verification changed, in words; empty if nothing."""
        if self.over_budget:
            return "; ".join(f"{side(name)} {name}" for name in self.over_budget)
        return "" if self.on_front else "left the front"

    def row(self, space: Space, metric: str) -> Row:
        """Return searched figures, and those verified on each target, as one row.

        Args:
            space: Of the genotype.
            metric: Column of the figure that says how well it answers.
        """
        row = self.candidate.row(space, metric)
        for target, member in self.members.items():
            for name, figure in member.figures.items():
                row |= figure.columns(f"verified_{target}.{name}")
        fits = not self.over_budget
        return row | {"verified_fits_budget": fits, "verified_on_front": self.on_front}


def judge(members: Sequence[MemberForAll], objectives: Sequence[str]) -> list[MemberForAll]:
    """Mark the members that verification takes off the front of networks for all targets.

    What counts is each target's own artefact: how well it answers and what it costs, all at once.
    """
    fitting = [i for i, m in enumerate(members) if not m.over_budget and not m.is_outrun]
    points = [_verified(members[i], objectives) for i in fitting]
    front = ParetoFront[int]([False for _ in points[0]] if points else [])
    front.add(fitting, points)
    return [replace(member, on_front=i in front.members) for i, member in enumerate(members)]


def _verified(member: MemberForAll, objectives: Sequence[str]) -> list[float]:
    """Return what verification found, to be minimised: errors on all targets, then the costs."""
    sign = -1.0 if column(quality(objectives)).maximise else 1.0
    found = [sign * part.quality.value for part in member.members.values()]
    for name in objectives:
        target, _, plain = name.rpartition(".")
        if target:
            value = member.members[target].figures[plain].value
            found.append(-value if column(name).maximise else value)
    return found
