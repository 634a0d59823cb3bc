"""The targets of a search: quantities of several are named ``npu.latency_ms``, of one plainly."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, final

from hwnas.core.errors import BudgetError, CompileError, DeviceCrashError
from hwnas.core.quantity import Quantities, Quantity
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.models.spaces import Genotype, Space
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member, without_prefix
from hwnas.nas.search_progress import SearchView
from hwnas.tasks.metrics import metric_of, quality_names
from hwnas.tasks.metrics.budget import Budget

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Targets:
    """The budgets of all targets. A candidate is scored if it meets one of them."""

    budgets: Mapping[str, Budget]  #: by name of the target

    @property
    def are_several(self) -> bool:
        """Whether names of quantities have a target prefix."""
        return len(self.budgets) > 1

    def prefixed(self, target: str, values: Mapping[str, T]) -> dict[str, T]:
        """Return values by name with the prefix of a target, if there are several targets."""
        prefix = self._prefix(target)
        return {f"{prefix}{name}": value for name, value in values.items()}

    @property
    def limits(self) -> dict[str, float]:
        """Limits that each candidate must meet, by column.

        Empty for several targets: there it is enough to meet the budget of one target.
        """
        return {} if self.are_several else self.all_limits

    @property
    def all_limits(self) -> dict[str, float]:
        """The limits of all targets, by column (with prefixes for several targets)."""
        limits_by_target = (
            self.prefixed(target, budget.limits) for target, budget in self.budgets.items()
        )
        return {name: limit for limits in limits_by_target for name, limit in limits.items()}

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return the names of the targets that can run a candidate and whose budgets it meets."""
        return frozenset(
            target
            for target, budget in self.budgets.items()
            if (target_figures := self._target_values(target, figures))
            and not budget.exceeded(target_figures)
        )

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return the violations of the target whose budget is exceeded least.

        They are fractions of the limits by column, positive if exceeded; empty if no target can run
        the candidate.
        """
        violations = [
            self.prefixed(target, budget.violations(target_figures))
            for target, budget in self.budgets.items()
            if (target_figures := self._target_values(target, figures))
        ]
        return min(violations, key=lambda over: max(over.values(), default=0.0), default={})

    def exceeded(self, figures: Quantities) -> str:
        """Return the exceeded limits of all targets as text; empty if one budget is met."""
        reasons = []
        for target, budget in self.budgets.items():
            target_figures = self._target_values(target, figures)
            reason = (
                budget.exceeded(target_figures) if target_figures else "the target cannot run it"
            )
            if not reason:
                return ""
            reasons.append(f"{target}: {reason}" if self.are_several else reason)
        return "; ".join(reasons)

    def on_target(self, candidate: Candidate, target: str) -> Candidate:
        """Return a candidate with the quantities of one target only, without prefix.

        It is infeasible if it does not meet the budget of this target, and has no metric then.
        """
        if not self.are_several:
            return candidate
        figures, budget = self._target_values(target, candidate.figures), self.budgets[target]
        scored = {n: figure for n, figure in candidate.figures.items() if n in quality_names()}
        details = {n: value for n, value in candidate.details.items() if "." not in n}
        details |= self._target_values(target, candidate.details)
        reason = budget.exceeded(figures) if figures else f"Target '{target}' cannot run it."
        if not reason and not scored:  # on each target, such as a training that collapsed
            reason = candidate.reason
        view_figures = figures if reason else {**scored, **figures}
        return replace(candidate, figures=view_figures, details=details, reason=reason)

    def fits_all(self, candidate: Candidate) -> bool:
        """Return whether a candidate is scored completely and meets the budgets of all targets."""
        views = (self.on_target(candidate, target) for target in self.budgets)
        return all(
            view.state == "complete" and any(n in quality_names() for n in view.figures)
            for view in views
        )

    def view(self, target: str, objectives: Sequence[str]) -> SearchView:
        """Return the objectives and limits of a target, and the function to its candidates.

        Args:
            target: Name of the target.
            objectives: Objectives of the target, without prefix.
        """
        name, view_of = target if self.are_several else "", partial(self.on_target, target=target)
        return SearchView(name, objectives, self.budgets[target].limits, view_of)

    def view_of_all(self, objectives: Sequence[str]) -> SearchView:
        """Return the objectives and limits of all targets, and the function to their candidates.

        Candidates that do not meet all budgets are infeasible.

        Args:
            objectives: Objectives of the search, with prefixes.
        """

        def seen(candidate: Candidate) -> Candidate:
            if self.met(candidate.figures) == self.budgets.keys():
                return candidate
            return replace(candidate, reason="It does not meet all budgets.")

        return SearchView("all", objectives, self.all_limits, seen)

    def cost_model(self, models: Mapping[str, CostModel]) -> CostModel:
        """Return one cost model of all targets, given the cost model of each by name.

        For several targets, names of costs have the prefix of the target.
        """
        if self.are_several:
            return _CostOnAll(self, models)
        (only,) = models.values()
        return only

    def _prefix(self, target: str) -> str:
        return f"{target}." if self.are_several else ""

    def _target_values(self, target: str, values: Mapping[str, T]) -> dict[str, T]:
        return without_prefix(self._prefix(target), values)


@final
class _CostOnAll:
    """Computes the costs of a genotype on every target."""

    def __init__(self, targets: Targets, models: Mapping[str, CostModel]):
        self._targets, self._models = targets, models
        affordable = [m.max_cost_queries for m in models.values() if m.max_cost_queries is not None]
        self.max_cost_queries = min(affordable, default=None)

    def cost(self, genotype: Genotype) -> Cost:
        """Return the costs on all targets that can run the network.

        Raises:
            CompileError: no target can run it.
        """
        figures: dict[str, Quantity] = {}
        details: dict[str, float] = {}
        errors = []
        for target, model in self._models.items():
            try:
                cost = model.cost(genotype)
            except (CompileError, DeviceCrashError) as error:  # of this network only
                cost = Cost({}, reason=str(error))
            if cost.reason:
                errors.append(f"{target}: {cost.reason}")
                continue
            figures |= self._targets.prefixed(target, cost.figures)
            details |= self._targets.prefixed(target, cost.details)
        if not figures:
            raise CompileError("; ".join(errors))
        return Cost(figures, details)


def join_members(candidate: Candidate, parts: Mapping[str, Member]) -> Member:
    """Return the member of the joint front, given the verified member of each target by name.

    It has no costs of segments and no confusion matrix.
    """

    def named(mapping: Callable[[Member], Mapping[str, T]]) -> dict[str, T]:
        return {
            f"{t}.{n}": value for t, part in parts.items() for n, value in mapping(part).items()
        }

    figures, details = named(lambda part: part.figures), named(lambda part: part.details)
    over = named(lambda part: dict.fromkeys(part.over_budget))
    return Member(candidate, figures, details, named(lambda part: part.files), tuple(over))


_IMPOSSIBLE = 2.0  # factor by which the cheapest candidate misses a limit that is refused


def check_limits(space: Space, limits: Mapping[str, float], cost_model: CostModel) -> None:
    """Refuse limits that even the cheapest candidates miss by more than a factor of 2.

    The cheapest candidates are the smallest genotypes of the spaces. Others may cost less, so
    trials decide about limits that are nearly met. Nothing is checked if costs are not known before
    a trial.

    Raises:
        BudgetError: it names the binding limit and the cost of the cheapest candidate.
    """
    if cost_model.max_cost_queries == 0 or not limits:
        return
    figures = dict[Genotype, Quantities]()
    for member in space.members:
        with contextlib.suppress(CompileError):
            cost = cost_model.cost(member.smallest())
            figures |= {} if cost.reason else {member.smallest(): cost.figures}
    for name, limit in limits.items():
        known = {
            g: metric_of(name).binding(quantities[name])
            for g, quantities in figures.items()
            if name in quantities
        }
        excess = [(_excess(name, value, limit), g.id, value) for g, value in known.items()]
        factor, genotype_id, value = min(excess, default=(0.0, "", 0.0))
        if factor > _IMPOSSIBLE:
            raise BudgetError(
                f"No candidate meets the budget; {binding_words(name, limit)} the cheapest "
                f"candidate, {genotype_id}, {cost_words(name, value)}. Relax the limit "
                "(without limits: budget=none) or choose another search_space."
            )


def _excess(name: str, value: float, limit: float) -> float:
    """Return by what factor a value misses a limit; at most 1 if it meets the limit."""
    first, second = (limit, value) if metric_of(name).maximise else (value, limit)
    return first / second if second else math.inf


def binding_words(name: str, limit: float) -> str:
    """Return a text such as ``the binding limit is budget.latency_ms=5:``."""
    return f"the binding limit is budget.{name}={limit:g}:"


def cost_words(name: str, value: float) -> str:
    """Return a text such as ``needs 7.5 ms``, or ``reaches ...`` for a maximised quantity."""
    verb = "reaches" if metric_of(name).maximise else "needs"
    return f"{verb} {f'{value:.4g} {metric_of(name).unit}'.rstrip()}"
