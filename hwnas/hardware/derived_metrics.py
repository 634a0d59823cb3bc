"""Figures that follow from others: the one place that computes them, whoever said the others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.quantity import Quantities, Quantity
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.target import Target
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics.registry import known


@dataclass(frozen=True)
class DerivedMetrics:
    """What is derived of every network on a target: figures by the names of metrics."""

    target: Target
    names: Sequence[str]

    def __call__(self, figures: Quantities) -> dict[str, Quantity]:
        """Return figures with what is derived from them; what was said itself stays."""
        found = dict(figures)
        for name in self.names:
            if (figure := _figure(name, found, self.target)) is not None:
                found[name] = figure
        return found


def deriving(target: Target, asked: Iterable[str]) -> DerivedMetrics:
    """Return what is derived on a target: what is asked for, and what it states the facts of.

    What needs no fact, as throughput, repeats what is known already: it is there if asked for.
    """
    wanted = {*asked}
    names = [
        metric.name
        for metric in known().values()
        if metric.derive is not None
        and not _missing(metric.name, target)
        and (metric.name in wanted or _facts(metric.name))
    ]
    return DerivedMetrics(target, names)


def check_facts(target: Target, asked: Iterable[str], option: str) -> None:
    """Refuse facts that are of no metric, and metrics whose facts a target does not state.

    Args:
        target: That is searched for.
        asked: Names of metrics, such as there are.
        option: By which they were asked for.

    Raises:
        ConfigError: it names the fact, and how to state it.
    """
    every = {fact: words for name in known() for fact, words in _facts(name).items()}
    for fact in target.facts:
        if fact not in every:
            raise ConfigError(f"Target '{target.name}': {unknown_name('fact', fact, every)}")
    for name in asked:
        for fact in _missing(name, target):
            raise ConfigError(
                f"{option}: {name} needs target.facts.{fact} ({every[fact]}), which target "
                f"'{target.name}' does not state: add target.facts.{fact}=NUMBER, or state it in "
                "the target's file."
            )


def check_stated(target: Target, asked: Iterable[str], option: str) -> None:
    """Refuse metrics whose facts a search that is over did not state.

    Args:
        target: That was searched for.
        asked: Names of metrics; what is none, others refuse.
        option: By which they are asked for.

    Raises:
        ConfigError: it names the fact, and says that only a search can state it.
    """
    for name in asked:
        for fact in _missing(name, target) if name in known() else ():
            raise ConfigError(
                f"{option}.{name} needs target.facts.{fact}, which the search for target "
                f"'{target.name}' did not state: search anew with target.facts.{fact}=NUMBER."
            )


def _missing(name: str, target: Target) -> list[str]:
    return [fact for fact in _facts(name) if fact not in target.facts]


def _facts(name: str) -> dict[str, str]:
    """Return the facts that a metric is derived with, and those that it is derived from, too."""
    metric = known()[name]
    found = dict(metric.facts)
    for other in metric.needs:
        found |= _facts(other)
    return found


def _figure(name: str, figures: Quantities, target: Target) -> Quantity | None:
    """Return a figure that is known, or follows; ``None`` where nothing that it needs is known."""
    metric = known()[name]
    if name in figures or metric.derive is None:
        return figures.get(name)
    needed = {other: _figure(other, figures, target) for other in metric.needs}
    found = {other: figure for other, figure in needed.items() if figure is not None}
    return metric.derive(found, target) if len(found) == len(needed) else None


# Costs with the metrics that are derived from them.


@final
class DerivedCostModel:
    """Has a cost model say the costs, and adds what is derived from them."""

    def __init__(self, model: CostModel, deriving: DerivedMetrics):
        self._model, self._deriving = model, deriving
        self.max_cost_queries = model.max_cost_queries

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            CompileError: the target's compiler refuses the network.
        """
        cost = self._model.cost(genotype)
        return replace(cost, figures=self._deriving(cost.figures))
