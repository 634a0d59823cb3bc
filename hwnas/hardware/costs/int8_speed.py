"""Costs of networks that may compute in int8: refused where they are not faster than in float32."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.spaces import Genotype

RATIO = "int8_over_float32"  #: column: latency in int8 over that in float32
RATIOS = (RATIO, f"{RATIO}_low", f"{RATIO}_high")  #: with its 95 % interval
LATENCY = "float32_latency_ms"  #: column: of the same network in float32


def ratio_columns(found: InterleavedTimings) -> dict[str, float]:
    """Return what was found of a network in int8, timed in turns with the same in float32."""
    other, ratio = found.second, found.ratio
    return {
        LATENCY: other.median_ms, f"{LATENCY}_low": other.low_ms, f"{LATENCY}_high": other.high_ms,
        **dict(zip(RATIOS, (ratio.value, ratio.lower, ratio.upper), strict=True)),
    }  # fmt: skip


def int8_is_slower(found: Mapping[str, float]) -> bool:
    """Return whether a network was not found to be faster in int8, by its ``columns``.

    The upper end of the ratio's interval counts: in float32 a network answers no worse. Where
    nothing was timed in turns, it was not.
    """
    return found.get(RATIOS[-1], 0.0) >= 1.0


def describe_ratio(found: Mapping[str, float]) -> str:
    """Return how long a network takes in int8, by its ``columns``."""
    ratio, low, high = (found[name] for name in RATIOS)
    return f"{ratio:.2f} times ({low:.2f} to {high:.2f}) as long as in float32, timed in turns"


@final
class FasterThanFloat:
    """Has a cost model say the costs; refuses what is not faster in int8.

    Args:
        model: Says the costs.
        in_float: Gives the same network in float32, where a network is in int8 by choice.
        interleaved: Times two networks in alternation, where networks are measured. ``None``
            compares the two predictions of the model.
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
        """Return the cost of one genotype, beside what it takes in float32.

        Raises:
            CompileError: the target's compiler refuses the network.
        """
        cost, other = self._model.cost(genotype), self._in_float(genotype)
        if other is None or cost.reason:
            return cost
        details, reason = self._beside(cost, genotype, other)
        return replace(cost, details={**cost.details, **details}, reason=reason)

    def _beside(
        self, cost: Cost, genotype: Genotype, other: Genotype
    ) -> tuple[Mapping[str, float], str]:
        """Return what is known of the network in float32, and why that is to be preferred."""
        if self._interleaved is not None:
            found = ratio_columns(self._interleaved(genotype, other))
            return found, f"In int8 it takes {describe_ratio(found)}." if int8_is_slower(
                found
            ) else ""
        here, there = (c.figures["latency_ms"] for c in (cost, self._model.cost(other)))
        told = (
            f"In int8 it takes {here.value:.4g} ms, in float32 {there.value:.4g} ({here.source})."
        )
        return {LATENCY: there.value}, "" if here.upper < there.value else told
