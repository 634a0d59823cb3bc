"""Metrics that are computed from others: throughput, cost per inference, int8 over float32.

A network that chooses int8 must be faster than in float32.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.quantity import Quantities, Quantity
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.target import Target
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import builtin
from hwnas.tasks.metrics.registry import BASE_COSTS, all_metrics


@dataclass(frozen=True)
class DerivedMetrics:
    """Adds derived metrics to the metrics of a network on one target."""

    target: Target  #: its ``facts`` are used
    names: Sequence[str]  #: names of the derived metrics, such as ``throughput_ips``

    def __call__(self, figures: Quantities) -> dict[str, Quantity]:
        """Return a copy of ``figures``, by name, with the derived metrics added.

        Metrics in ``figures`` are not replaced. Derived metrics are left out if ``figures`` lacks a
        metric that they are computed from.
        """
        result = dict(figures)
        for name in self.names:
            if (figure := _figure(name, result, self.target)) is not None:
                result[name] = figure
        return result


def derived_metrics(target: Target, requested: Iterable[str]) -> DerivedMetrics:
    """Return the derived metrics of a target: those whose facts it has.

    Facts are the numbers in ``target.facts``, such as a price. Metrics that need no fact, such as
    throughput, are added only if they are requested.

    Args:
        target: The target.
        requested: Names of metrics; other names, and metrics without their facts, are ignored.
    """
    explicit = {*requested}
    names = [
        metric.name
        for metric in all_metrics().values()
        if metric.derive is not None
        and not _missing_facts(metric.name, target)
        and (metric.name in explicit or _facts(metric.name))
    ]
    return DerivedMetrics(target, names)


def check_facts(target: Target, requested: Iterable[str], option: str) -> None:
    """Check the names in ``target.facts``, and that it has the facts that metrics need.

    Args:
        target: The target of the search.
        requested: Names of metrics, all of which exist.
        option: The option that requests them, for the message.

    Raises:
        ConfigError: a fact is unknown, the ratio of p99 to median latency is below 1, or a fact
            that a requested metric needs is missing.
    """
    known_facts = {
        fact: description for name in all_metrics() for fact, description in _facts(name).items()
    }
    for fact in target.facts:
        if fact not in known_facts:
            raise ConfigError(f"Target '{target.name}': {unknown_name('fact', fact, known_facts)}")
    if (ratio := target.facts.get(builtin.P99_FACT, 1.0)) < 1:
        raise ConfigError(
            f"target.facts.{builtin.P99_FACT} must be at least 1, got {ratio:g}: a p99 latency is "
            "never below the median. hwnas profile prints the value of a device."
        )
    for name in requested:
        for fact in _missing_facts(name, target):
            raise ConfigError(
                f"{option}: {name} needs target.facts.{fact} ({known_facts[fact]}), which target "
                f"'{target.name}' does not have: add target.facts.{fact}=NUMBER, or add it to the "
                "target's file."
            )


def check_stated(target: Target, requested: Iterable[str], option: str) -> None:
    """Check that the target of a finished search has the facts that metrics need.

    Args:
        target: The target as the search recorded it.
        requested: Names of metrics; unknown names are ignored.
        option: The option that requests them, for the message.

    Raises:
        ConfigError: a fact is missing; the search must be repeated with it.
    """
    for name in requested:
        for fact in _missing_facts(name, target) if name in all_metrics() else ():
            raise ConfigError(
                f"{option}.{name} needs target.facts.{fact}, which the search for target "
                f"'{target.name}' did not have: search again with target.facts.{fact}=NUMBER."
            )


def _missing_facts(name: str, target: Target) -> list[str]:
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


RATIO = "int8_over_float32"  #: column of a network's int8 latency divided by its float32 latency
RATIOS = (RATIO, f"{RATIO}_low", f"{RATIO}_high")  #: columns of the ratio and its 95 % interval
LATENCY = "float32_latency_ms"  #: column of the float32 latency of the same network


def ratio_columns(timings: InterleavedTimings) -> dict[str, float]:
    """Return the float32 latency in ms and the ratio int8 / float32, each with its 95 % interval.

    Keys are ``float32_latency_ms`` and ``int8_over_float32``, each also with ``_low`` and
    ``_high``. ``timings`` has the network in int8 first, and in float32 second.
    """
    other, ratio = timings.second, timings.ratio
    return {
        LATENCY: other.median_ms, f"{LATENCY}_low": other.low_ms, f"{LATENCY}_high": other.high_ms,
        **dict(zip(RATIOS, (ratio.value, ratio.lower, ratio.upper), strict=True)),
    }  # fmt: skip


def int8_is_slower(columns: Mapping[str, float]) -> bool:
    """Return True if the upper end of the ratio int8 / float32 is 1 or more.

    float32 is at least as accurate, so int8 must be faster even at the upper end of the interval.
    ``columns`` are from ``ratio_columns``; False if they lack the ratio (it was not measured).
    """
    return columns.get(RATIOS[-1], 0.0) >= 1.0


def describe_ratio(columns: Mapping[str, float]) -> str:
    """Return the ratio int8 / float32 with its interval as text, from all ``ratio_columns``."""
    ratio, low, high = (columns[name] for name in RATIOS)
    return f"{ratio:.2f} times ({low:.2f} to {high:.2f}) as long as in float32, timed in turns"


@final
class FasterThanFloat:
    """A cost model that rejects networks that chose int8 but are not faster than in float32.

    Args:
        model: Cost model of the networks.
        in_float: Returns the same network in float32; ``None`` if a network did not choose int8, or
            the space has no float32.
        interleaved: Times two networks in turns. ``None``: the two latencies of ``model`` are
            compared, int8 by the upper end of its interval.
    """

    def __init__(
        self,
        model: CostModel,
        in_float: Callable[[Genotype], Genotype | None],
        interleaved: Callable[[Genotype, Genotype], InterleavedTimings] | None = None,
    ):
        self._model, self._in_float, self._interleaved = model, in_float, interleaved
        self.max_cost_queries = model.max_cost_queries

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        If it chose int8, exists in float32 and is not rejected by ``model``, both are compared:
        ``Cost.details`` has ``ratio_columns`` (without ``interleaved`` only
        ``float32_latency_ms``), and ``Cost.reason`` is set if the network is not faster in int8.

        Raises:
            CompileError: the target's compiler cannot compile the network.
        """
        cost, other = self._model.cost(genotype), self._in_float(genotype)
        if other is None or cost.reason:
            return cost
        details, reason = self._compare(cost, genotype, other)
        return replace(cost, details={**cost.details, **details}, reason=reason)

    def _compare(
        self, cost: Cost, genotype: Genotype, other: Genotype
    ) -> tuple[Mapping[str, float], str]:
        """Return the columns of the comparison, and the reason to refuse int8, if any."""
        if self._interleaved is not None:
            columns = ratio_columns(self._interleaved(genotype, other))
            slower = int8_is_slower(columns)
            return columns, f"In int8 it takes {describe_ratio(columns)}." if slower else ""
        int8, float32 = (c.figures["latency_ms"] for c in (cost, self._model.cost(other)))
        end = "" if int8.high is None else f" (up to {int8.high:.4g})"
        reason = (
            f"In int8 it takes {int8.value:.4g} ms{end}, in float32 {float32.value:.4g} ms "
            f"({int8.source})."
        )
        return {LATENCY: float32.value}, "" if int8.upper < float32.value else reason
