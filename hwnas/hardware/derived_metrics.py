"""Metrics that are computed from other metrics, such as throughput or cost per inference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.quantity import Quantities, Quantity
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.target import Target
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import builtin
from hwnas.tasks.metrics.registry import BASE_COSTS, all_metrics


@dataclass(frozen=True)
class DerivedMetrics:
    """Adds derived metrics to the metrics of a network on one target."""

    target: Target
    names: Sequence[str]  #: names of the derived metrics

    def __call__(self, figures: Quantities) -> dict[str, Quantity]:
        """Return the metrics and the derived ones, by name; given metrics are not replaced.

        Derived metrics whose inputs are unknown are left out.
        """
        result = dict(figures)
        for name in self.names:
            if (figure := _figure(name, result, self.target)) is not None:
                result[name] = figure
        return result


def derived_metrics(target: Target, requested: Iterable[str]) -> DerivedMetrics:
    """Return the derived metrics of a target: those requested, and those whose facts it has.

    Facts are the numbers in ``target.facts``, such as a price. Metrics that need no fact, such as
    throughput, are added only on request.
    """
    explicit = {*requested}
    names = [
        metric.name
        for metric in all_metrics().values()
        if metric.derive is not None
        and not _missing(metric.name, target)
        and (metric.name in explicit or _facts(metric.name))
    ]
    return DerivedMetrics(target, names)


def check_facts(target: Target, requested: Iterable[str], option: str) -> None:
    """Check ``target.facts``: their names, and that requested metrics have what they need.

    Args:
        target: The target of the search.
        requested: Names of known metrics.
        option: The option that requests them, for the message.

    Raises:
        ConfigError: a fact is unknown, wrong or missing; the message says how to set it.
    """
    known_facts = {fact: words for name in all_metrics() for fact, words in _facts(name).items()}
    for fact in target.facts:
        if fact not in known_facts:
            raise ConfigError(f"Target '{target.name}': {unknown_name('fact', fact, known_facts)}")
    if (ratio := target.facts.get(builtin.P99_FACT, 1.0)) < 1:
        raise ConfigError(
            f"target.facts.{builtin.P99_FACT} must be at least 1, got {ratio:g}: a p99 latency is "
            "never below the median. hwnas profile prints the value of a device."
        )
    for name in requested:
        for fact in _missing(name, target):
            raise ConfigError(
                f"{option}: {name} needs target.facts.{fact} ({known_facts[fact]}), which target "
                f"'{target.name}' does not have: add target.facts.{fact}=NUMBER, or add it to the "
                "target's file."
            )


def check_stated(target: Target, requested: Iterable[str], option: str) -> None:
    """Check that a finished search had the facts that metrics need.

    Args:
        target: The target of the search.
        requested: Names of metrics; unknown names are ignored.
        option: The option that requests them, for the message.

    Raises:
        ConfigError: a fact is missing; only a new search can have it.
    """
    for name in requested:
        for fact in _missing(name, target) if name in all_metrics() else ():
            raise ConfigError(
                f"{option}.{name} needs target.facts.{fact}, which the search for target "
                f"'{target.name}' did not have: search again with target.facts.{fact}=NUMBER."
            )


def _missing(name: str, target: Target) -> list[str]:
    return [fact for fact in _facts(name) if fact not in target.facts]


def _facts(name: str) -> dict[str, str]:
    """Return the facts that a metric needs, including those of the metrics it is derived from."""
    metric = all_metrics()[name]
    facts = dict(metric.facts)
    for other in metric.needs:
        facts |= _facts(other)
    return facts


def _figure(name: str, figures: Quantities, target: Target) -> Quantity | None:
    """Return a figure, derived if necessary; ``None`` if a needed figure is unknown."""
    metric = all_metrics()[name]
    if name in figures or metric.derive is None:
        return figures.get(name)
    needed = {other: _figure(other, figures, target) for other in metric.needs}
    inputs = {other: figure for other, figure in needed.items() if figure is not None}
    return metric.derive(inputs, target) if len(inputs) == len(needed) else None


@final
class DerivedCostModel:
    """A cost model that adds derived metrics to the costs of another."""

    def __init__(self, model: CostModel, derive: DerivedMetrics):
        self._model, self._derive = model, derive
        self.max_cost_queries = model.max_cost_queries

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype, with the derived metrics.

        Raises:
            CompileError: the target's compiler cannot compile the network.
            ConfigError: the cost model of a plug-in lacks a base cost.
        """
        cost = self._model.cost(genotype)
        missing = [name for name in BASE_COSTS if name not in cost.figures]
        if missing and not cost.reason:
            raise ConfigError(
                f"The cost model {type(self._model).__name__} of target.runtime="
                f"{self._derive.target.runtime} returns no {', '.join(missing)}. The backend must "
                "return all base costs; its tests should use hwnas.testing.CostModelContract."
            )
        return replace(cost, figures=self._derive(cost.figures))
