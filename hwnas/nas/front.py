"""Pareto fronts: of the candidates of a search, and of verified networks."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hwnas.core.pareto import Array, ParetoFront, no_worse
from hwnas.core.quantity import Quantities, Quantity
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.base import Incumbent
from hwnas.tasks.metrics import costs_in, maximise_flags, metric_of, quality_in


@dataclass(frozen=True)
class Front:
    """Verified networks of a search, on one target or on all of several.

    Members that verification removed from the front are included.
    """

    objectives: Sequence[str] = ()  #: columns: the metric and costs
    members: Sequence[Member] = ()
    #: errors of networks that could not be verified, by id
    failed: Mapping[str, str] = field(default_factory=dict)
    #: ids of members that are not significantly better than a constant answer
    at_chance_level: Collection[str] = ()

    @property
    def remaining(self) -> list[Member]:
        """The members that no other member with ``is_deliverable`` dominates."""
        return [member for member in self.members if member.on_front]

    @property
    def recommendable(self) -> list[Member]:
        """The members of ``remaining`` that are significantly better than a constant answer."""
        return [m for m in self.remaining if m.candidate.id not in self.at_chance_level]

    @property
    def left_out(self) -> int:
        """The number of ``remaining`` members that are not ``recommendable``."""
        return len(self.remaining) - len(self.recommendable)

    @property
    def is_at_chance_level(self) -> bool:
        """Whether members remain, but none is significantly better than a constant answer."""
        return bool(self.remaining) and not self.recommendable

    def with_on_front(self) -> "Front":
        """Return the front with ``on_front`` and ``near_front`` set by the verified quantities.

        Compared are the metric on each target and the costs among ``objectives``, of deliverable
        members only.
        """
        fitting = [i for i, member in enumerate(self.members) if member.is_deliverable]
        values = {i: self._minimised_objectives(self.members[i]) for i in fitting}
        front = ParetoFront[int]([False for _ in values[fitting[0]]] if fitting else [])
        front.add(fitting, [*values.values()])
        best = [self.members[i] for i in front.members]
        members = []
        for i, member in enumerate(self.members):
            on_front = i in front.members
            is_near = i in values and self._is_near(member, best)
            members.append(replace(member, on_front=on_front, near_front=on_front or is_near))
        return replace(self, members=members)

    def _is_near(self, member: Member, front: Sequence[Member]) -> bool:
        """Return whether no member of the front dominates one significantly.

        The difference of two accuracies is compared with its 95 % interval, computed from both
        intervals. On the same images differences vary less, so the test is conservative.

        Source: method 10 of Newcombe, "Interval estimation for the difference between independent
        proportions", Statistics in Medicine 17, 1998.
        """
        metric = metric_of(member.metric)

        def margin(mine: Quantity, theirs: Quantity) -> float:
            below = metric.best(mine) - mine.value
            above = theirs.value - metric.binding(theirs)
            return math.copysign(math.hypot(below, above), 1 if metric.maximise else -1)

        def dominates(other: Member) -> bool:
            margins = [
                margin(a, b) for a, b in zip(_qualities(member), _qualities(other), strict=True)
            ]
            mine, theirs = (
                self._minimised_objectives(member, margins),
                self._minimised_objectives(other),
            )
            return bool(no_worse(np.array(theirs), np.array(mine), [False] * len(mine)))

        return not any(map(dominates, front))

    def _minimised_objectives(
        self, member: Member, margins: Sequence[float] | None = None
    ) -> list[float]:
        """Return the verified objectives, negated if maximised.

        Args:
            member: The member.
            margins: Added to the metric on each target; ``None``: zeros.
        """
        metric = quality_in(self.objectives)
        sign = -1.0 if metric_of(metric).maximise else 1.0
        qualities = _qualities(member)
        pairs = zip(qualities, margins or [0.0] * len(qualities), strict=True)
        values = [sign * (quality.value + margin) for quality, margin in pairs]
        for name in self.objectives:
            if name != metric:
                value = member.figures[name].value
                values.append(-value if metric_of(name).maximise else value)
        return values


def left_out_message(n_left_out: int, n_front: int, constant: str) -> str:
    """Return a message about networks of a front that are left out of a result.

    Args:
        n_left_out: Number of networks not significantly better than a constant answer.
        n_front: Number of networks of the front.
        constant: Description of the constant answer, see ``constant_answer``.
    """
    return (
        f"{n_left_out} of {n_front} networks of the front left out: not significantly better than "
        f"{constant}."
    )


def _qualities(member: Member) -> list[Quantity]:
    """Return the metric of a member on each target."""
    return [part.quality for part in member.parts.values()]


def pareto_front(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the Pareto front of the feasible, completely scored candidates, fastest first.

    Each genotype occurs once. Candidates without a value of an objective are left out. Without
    latencies, the first cost decides the order, lowest first.
    """
    complete = [c for c in candidates if c.state == "complete"]
    feasible = distinct([c for c in complete if all(name in c.figures for name in objectives)])
    front, cost = ParetoFront[Candidate](maximise_flags(objectives)), costs_in(objectives)[0]
    front.add(feasible, points(feasible, objectives))
    return sorted(
        front.members, key=lambda c: (c.figures.get("latency_ms", c.figures[cost]).value, c.id)
    )


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the first trial of each genotype, in order of trials."""
    first: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.trial):
        first.setdefault(candidate.id, candidate)
    return list(first.values())


def points(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Array:
    """Return the values of the objectives, ``(n_candidates, n_objectives)``."""
    values = [[c.figures[name].value for name in objectives] for c in candidates]
    return np.array(values, np.float64).reshape(len(candidates), len(objectives))


_MIN_COMPLETE = 5  # completely scored networks before any scoring stops early
_MAX_COMPLETE = 100  # of these, the latest are used for predictions


def incumbent(
    candidates: Sequence[Candidate], costs: Quantities, objectives: Sequence[str]
) -> Incumbent | None:
    """Return the network that a candidate with ``costs`` must beat, to stop its scoring early.

    This is the completely scored network with the best metric that costs no more. It dominates any
    network with these costs and a worse metric. ``None`` if no network costs as little, or if fewer
    than five networks are scored completely.

    Args:
        candidates: Candidates in order of trials.
        costs: Costs of the candidate to be scored, by column.
        objectives: Columns of the objectives; other costs are not compared.
    """
    latest_first = (c for c in reversed(candidates) if c.state == "complete")
    complete = [*{c.id: c for c in latest_first}.values()][::-1]  # each genotype's first trial
    metric = quality_in(objectives)
    # A target that cannot run a network has no costs for it.
    signs = {n: -1.0 if metric_of(n).maximise else 1.0 for n in costs_in(objectives) if n in costs}
    cheaper = [
        c
        for c in complete
        if all(
            n in c.figures and s * c.figures[n].value <= s * costs[n].value
            for n, s in signs.items()
        )
    ]
    if len(complete) < _MIN_COMPLETE or not cheaper:
        return None
    select = max if metric_of(metric).maximise else min
    best = select(cheaper, key=lambda c: c.figures[metric].value)
    latest = complete[-_MAX_COMPLETE:]
    return Incumbent(
        best.per_image,
        tuple(c.per_image for c in latest),
        best.figures[metric].value,
        tuple(c.details for c in latest),
    )
