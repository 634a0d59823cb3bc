"""The targets of a search: figures of one have plain names, of several ``npu.latency_ms``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, final

from hwnas.core.errors import CompileError
from hwnas.core.pareto import ParetoFront
from hwnas.core.quantity import Quantities, Quantity
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import SearchView
from hwnas.nas.member import Member
from hwnas.tasks.metrics import column, qualities, quality
from hwnas.tasks.metrics.budget import Budget

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Targets:
    """The budgets of all targets. A candidate is worth being scored if it fits one of them."""

    budgets: Mapping[str, Budget]

    @property
    def are_several(self) -> bool:
        """Whether figures are named after targets."""
        return len(self.budgets) > 1

    def prefixed(self, target: str, values: Mapping[str, T]) -> dict[str, T]:
        """Return values of a target by the names that the search has for them."""
        prefix = self._prefix(target)
        return {f"{prefix}{name}": value for name, value in values.items()}

    @property
    def limits(self) -> dict[str, float]:
        """What every candidate must meet: of several targets nothing, since one is enough."""
        return {} if self.are_several else self.all_limits

    @property
    def all_limits(self) -> dict[str, float]:
        """The limits of all targets."""
        each = (self.prefixed(target, budget.limits) for target, budget in self.budgets.items())
        return {name: limit for limits in each for name, limit in limits.items()}

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return the targets whose budgets a candidate fits."""
        known = {target: self._of(target, figures) for target in self.budgets}
        return frozenset(
            target
            for target, budget in self.budgets.items()
            if known[target] and not budget.exceeded(known[target])
        )

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return how far a candidate is beyond the limits of the target whose budget is nearest."""
        found = []
        for target, budget in self.budgets.items():
            if known := self._of(target, figures):
                found.append(self.prefixed(target, budget.violations(known)))
        return min(found, key=lambda over: max(over.values(), default=0.0), default={})

    def exceeded(self, figures: Quantities) -> str:
        """Return what a candidate is beyond on each target, in words; empty if it fits one."""
        reasons = []
        for target, budget in self.budgets.items():
            known = self._of(target, figures)
            reason = budget.exceeded(known) if known else "it cannot run"
            if not reason:
                return ""
            reasons.append(self._told(target, reason))
        return "; ".join(reasons)

    def seen(self, candidate: Candidate, target: str) -> Candidate:
        """Return a candidate as a search for one target alone would see it."""
        if not self.are_several:
            return candidate
        figures, budget = self._of(target, candidate.figures), self.budgets[target]
        scored = {n: figure for n, figure in candidate.figures.items() if n in qualities()}
        details = {n: value for n, value in candidate.details.items() if "." not in n}
        details |= self._of(target, candidate.details)
        reason = budget.exceeded(figures) if figures else f"Target '{target}' cannot run it."
        known = figures if reason else {**scored, **figures}
        return replace(candidate, figures=known, details=details, reason=reason)

    def fits_all(self, candidate: Candidate) -> bool:
        """Return whether a candidate was scored and fits every target's budget."""
        seen = (self.seen(candidate, target) for target in self.budgets)
        return all(
            view.state == "complete" and any(n in qualities() for n in view.figures)
            for view in seen
        )

    def view(self, target: str, objectives: Sequence[str]) -> SearchView:
        """Return how a target sees the search.

        Args:
            target: Its name.
            objectives: Its own, by plain names.
        """
        name, seen = target if self.are_several else "", partial(self.seen, target=target)
        return SearchView(name, objectives, self.budgets[target].limits, seen)

    def view_of_all(self, objectives: Sequence[str]) -> SearchView:
        """Return the search as who wants networks for all targets sees it.

        Args:
            objectives: Of the search.
        """

        def seen(candidate: Candidate) -> Candidate:
            if self.met(candidate.figures) == self.budgets.keys():
                return candidate
            return replace(candidate, reason="It does not fit all budgets.")

        return SearchView("all", objectives, self.all_limits, seen)

    def cost_model(self, models: Mapping[str, CostModel]) -> CostModel:
        """Return what says the costs on all targets, of the cost model of each."""
        if self.are_several:
            return _CostOnAll(self, models)
        (only,) = models.values()
        return only

    def _prefix(self, target: str) -> str:
        return f"{target}." if self.are_several else ""

    def _of(self, target: str, values: Mapping[str, T]) -> dict[str, T]:
        prefix = self._prefix(target)
        return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}

    def _told(self, target: str, reason: str) -> str:
        return f"{target}: {reason}" if self.are_several else reason


@final
class _CostOnAll:
    """Says what a genotype costs on every target; how well it answers is the same on all."""

    def __init__(self, targets: Targets, models: Mapping[str, CostModel]):
        self._targets, self._models = targets, models
        affordable = [m.max_cost_queries for m in models.values() if m.max_cost_queries is not None]
        self.max_cost_queries = min(affordable, default=None)

    def cost(self, genotype: Genotype) -> Cost:
        """Return the costs on all targets that can run the network.

        Raises:
            CompileError: none can.
        """
        figures: dict[str, Quantity] = {}
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
            figures |= self._targets.prefixed(target, cost.figures)
            details |= self._targets.prefixed(target, cost.details)
        if not figures:
            raise CompileError("; ".join(refusals))
        return Cost(figures, details)


# Networks for all targets of a search: each fits every budget, and is verified on every target.


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
