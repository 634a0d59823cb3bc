"""One search for several targets: figures of each are named after it, as ``npu.latency_ms``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, final

import numpy as np

from hwnas.budget import Budget, side
from hwnas.cost.base import Cost, CostModel
from hwnas.errors import CompileError
from hwnas.figure import Figure, Figures
from hwnas.metrics import column, qualities, quality
from hwnas.pareto import non_dominated
from hwnas.results import Candidate, Row
from hwnas.searching.member import Member
from hwnas.space import Genotype, Space

T = TypeVar("T")


def on_target(candidate: Candidate, target: str, budget: Budget) -> Candidate:
    """Return a candidate as a search for one target alone would see it."""
    figures = _of(target, candidate.figures)
    scored = {n: figure for n, figure in candidate.figures.items() if n in qualities()}
    details = {n: value for n, value in candidate.details.items() if "." not in n}
    details |= _of(target, candidate.details)
    reason = budget.exceeded(figures) if figures else f"Target '{target}' cannot run it."
    known = figures if reason else {**scored, **figures}
    return replace(candidate, figures=known, details=details, reason=reason)


def _of(target: str, values: Mapping[str, T]) -> dict[str, T]:
    prefix = f"{target}."
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}


@dataclass(frozen=True)
class JointBudget:
    """The budgets of all targets. A candidate is worth being scored if it fits one of them."""

    budgets: Mapping[str, Budget]

    @property
    def limits(self) -> dict[str, float]:
        """What every candidate must meet: nothing, since one target's budget is enough."""
        return {}

    def met(self, figures: Figures) -> frozenset[str]:
        """Return the targets whose budgets a candidate fits."""
        known = {target: _of(target, figures) for target in self.budgets}
        return frozenset(
            target
            for target, budget in self.budgets.items()
            if known[target] and not budget.exceeded(known[target])
        )

    def violations(self, figures: Figures) -> dict[str, float]:
        """Return how far a candidate is beyond the limits of the target whose budget is nearest."""
        found = []
        for target, budget in self.budgets.items():
            known = _of(target, figures)
            if known:
                over = budget.violations(known)
                found.append({f"{target}.{name}": by for name, by in over.items()})
        return min(found, key=lambda over: max(over.values(), default=0.0), default={})

    def exceeded(self, figures: Figures) -> str:
        """Return what a candidate is beyond on each target, in words; empty if it fits one."""
        reasons = []
        for target, budget in self.budgets.items():
            known = _of(target, figures)
            reason = budget.exceeded(known) if known else "it cannot run"
            if not reason:
                return ""
            reasons.append(f"{target}: {reason}")
        return "; ".join(reasons)


@final
class JointCostModel:
    """Says what a genotype costs on every target; how well it answers is the same on all."""

    def __init__(self, models: Mapping[str, CostModel]):
        self._models = models
        affordable = [m.n_affordable for m in models.values() if m.n_affordable is not None]
        self.n_affordable = min(affordable, default=None)

    def cost(self, genotype: Genotype) -> Cost:
        """Return the costs on all targets that can run the network.

        Raises:
            CompileError: none can.
        """
        figures: dict[str, Figure] = {}
        details: dict[str, float] = {}
        refusals = []
        for target, model in self._models.items():
            try:
                cost = model.cost(genotype)
            except CompileError as error:
                cost = Cost({}, reason=str(error))
            if cost.reason:
                refusals.append(f"{target}: {cost.reason}")
                continue
            figures |= {f"{target}.{name}": figure for name, figure in cost.figures.items()}
            details |= {f"{target}.{name}": value for name, value in cost.details.items()}
        if not figures:
            raise CompileError("; ".join(refusals))
        return Cost(figures, details)


@dataclass(frozen=True)
class JointMember:
    """A model for all targets: a candidate that fits every budget, verified on each target."""

    candidate: Candidate
    members: Mapping[str, Member]  #: by target
    on_front: bool = True  #: whether it fits everywhere, and no other that does dominates it

    @property
    def over_budget(self) -> list[str]:
        """The limits that it leaves after verification, as ``npu.latency_ms``."""
        return [f"{t}.{name}" for t, member in self.members.items() for name in member.over_budget]

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


def fits_all(candidate: Candidate, budgets: Mapping[str, Budget]) -> bool:
    """Return whether a candidate was scored and fits every target's budget."""
    seen = (on_target(candidate, target, budget) for target, budget in budgets.items())
    return all(
        view.state == "complete" and any(n in qualities() for n in view.figures) for view in seen
    )


def judge(members: Sequence[JointMember], objectives: Sequence[str]) -> list[JointMember]:
    """Mark the members that verification takes off the front of models for all targets.

    What counts is each target's own artefact: how well it answers and what it costs, all at once.
    """
    fitting = [i for i, member in enumerate(members) if not member.over_budget]
    points = np.array([_verified(members[i], objectives) for i in fitting])
    mask = non_dominated(points, [False] * (points.shape[1] if fitting else 0))
    front = {i for i, stays in zip(fitting, mask, strict=True) if stays}
    return [replace(member, on_front=i in front) for i, member in enumerate(members)]


def _verified(member: JointMember, objectives: Sequence[str]) -> list[float]:
    """Return what verification found, to be minimised: errors on all targets, then the costs."""
    sign = -1.0 if column(quality(objectives)).maximise else 1.0
    found = [sign * part.quality.value for part in member.members.values()]
    for name in objectives:
        target, _, plain = name.rpartition(".")
        if target:
            value = member.members[target].figures[plain].value
            found.append(-value if column(name).maximise else value)
    return found
