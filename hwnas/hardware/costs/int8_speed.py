"""Latency of int8 networks relative to float32: a network must be faster in int8."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.spaces import Genotype

RATIO = "int8_over_float32"  #: column: int8 latency over float32 latency
RATIOS = (RATIO, f"{RATIO}_low", f"{RATIO}_high")  #: with the 95 % interval
LATENCY = "float32_latency_ms"  #: column: float32 latency of the same network


def ratio_columns(timings: InterleavedTimings) -> dict[str, float]:
    """Return the float32 latency in ms and the ratio int8 / float32, each with its interval.

    Keys are ``float32_latency_ms`` and ``int8_over_float32``, each also with ``_low`` and
    ``_high``. ``timings`` has the int8 network first, and the same in float32 second.
    """
    other, ratio = timings.second, timings.ratio
    return {
        LATENCY: other.median_ms, f"{LATENCY}_low": other.low_ms, f"{LATENCY}_high": other.high_ms,
        **dict(zip(RATIOS, (ratio.value, ratio.lower, ratio.upper), strict=True)),
    }  # fmt: skip


def int8_is_slower(columns: Mapping[str, float]) -> bool:
    """Return True if a network is not faster in int8, by its ``ratio_columns``.

    float32 is at least as accurate, so int8 must be faster even at the upper end of the interval.
    False if the two were not timed in alternation.
    """
    return columns.get(RATIOS[-1], 0.0) >= 1.0


def describe_ratio(columns: Mapping[str, float]) -> str:
    """Return the int8 latency relative to float32 as text, from its ``ratio_columns``."""
    ratio, low, high = (columns[name] for name in RATIOS)
    return f"{ratio:.2f} times ({low:.2f} to {high:.2f}) as long as in float32, timed in turns"


@final
class FasterThanFloat:
    """A cost model that makes networks infeasible that are not faster in int8 than in float32.

    Args:
        model: Cost model of the networks.
        in_float: Returns the same network in float32, or ``None`` if a network did not choose int8.
        interleaved: Times two networks in alternation, if networks are measured. ``None`` compares
            the two predictions of the model.
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
        """Return the cost of one genotype; if it chose int8, with the comparison in ``details``.

        ``Cost.reason`` is set if the network is not faster in int8.

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
        reason = (
            f"In int8 it takes {int8.value:.4g} ms, in float32 {float32.value:.4g} ({int8.source})."
        )
        return {LATENCY: float32.value}, "" if int8.upper < float32.value else reason
