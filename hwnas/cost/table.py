"""Costs from a latency table: operators are looked up, and their sum is calibrated."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, final

from hwnas.cost.base import Cost
from hwnas.cost.calibration import Calibration, features
from hwnas.cost.host import host_cost
from hwnas.cost.segments import one_by_one
from hwnas.errors import TableError
from hwnas.figure import Figure
from hwnas.graph import Graph
from hwnas.latency_table import LatencyTable, incomplete
from hwnas.space import Genotype
from hwnas.target import Target

if TYPE_CHECKING:
    from hwnas.cost.foretelling import Foretelling


@final
class TableCostModel:
    """Predicts latency with an interval; nothing is compiled or measured."""

    n_affordable: int | None = None

    def __init__(
        self,
        table: LatencyTable,
        target: Target,
        lower: Callable[[Genotype], Graph],
        spaces: Sequence[str],
        command: str,
    ):
        """Use a table for the spaces of these names.

        Raises:
            TableError: it is not calibrated for one of them.
        """
        for space in spaces:
            if space not in table.calibration:
                raise TableError(
                    f"Latency table {table.path} is not calibrated for search space '{space}'. "
                    f"Do so with: {command}"
                )
        self._target, self._lower, self._command = target, lower, command
        self._calibrations = {
            space: Calibration(**table.calibration[space]["coefficients"]) for space in spaces
        }
        self._latencies = {op: entry.timing.median_ms for op, entry in table.entries.items()}
        foretold = any("foretold" in table.calibration[space] for space in spaces)
        self._timed = {op: self._latencies[op] for op in table.plans()} if foretold else {}

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            TableError: the table lacks operators of it.
        """
        return one_by_one(
            self._lower(genotype),
            lambda each: host_cost(each, self._target, self.latency(each, genotype.space)),
        )

    def latency(self, lowered: Graph, space: str) -> Figure:
        """Return the latency of a fused network of a space in ms, with its interval."""
        missing = [node.op for node in lowered if node.op not in self._latencies]
        if missing and self._timed:  # operators so rare that drawn networks had none of them
            told = self._told.foretold(missing)
            self._latencies |= {op: ms for op, (ms, _, _) in told.items()}
        elif missing:
            raise incomplete(list(dict.fromkeys(missing)), self._target, self._command)
        known = features(lowered, self._latencies)
        value, low, high = self._calibrations[space].predict(known)
        return Figure(value, "table", low, high)

    @cached_property
    def _told(self) -> "Foretelling":
        from hwnas.cost.foretelling import Foretelling  # few searches ask it

        return Foretelling.of(self._timed)
