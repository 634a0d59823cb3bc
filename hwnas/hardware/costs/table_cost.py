"""From the sum of a network's operators to its latency, with an interval that was earned.

Operators that run alone find their data in the cache and their code hot; in a network each comes
after another. Few numbers describe what that costs, fitted on whole networks that were measured;
others, not used by the fit, say how wide the interval must be.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from hwnas.core.errors import TableError
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost, cost_by_segment
from hwnas.hardware.costs.measured_cost import host_cost
from hwnas.hardware.latency_tables.latency_table import LatencyTable, missing_operators_error
from hwnas.hardware.memory import parameter_bytes
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.spaces import Genotype

if TYPE_CHECKING:
    from hwnas.hardware.costs.operator_prediction import OperatorPredictions

COVERAGE = 0.95  #: of the interval


@dataclass(frozen=True)
class LatencyFeatures:
    """What a network's latency is predicted from."""

    operators_ms: float  #: sum of its operators, each measured alone
    n_operators: int
    weights_kib: float

    def vector(self) -> NDArray[np.float64]:
        """Return the features in the order of the coefficients."""
        return np.array([self.operators_ms, self.n_operators, self.weights_kib], float)


@dataclass(frozen=True)
class Calibration:
    """Latency in ms as a sum of features times non-negative coefficients, plus or minus a share."""

    scale: float  #: of the sum of operators
    operator_ms: float  #: of starting an operator
    weights_ms_per_kib: float  #: of fetching weights that were evicted
    interval: float  #: half width of the interval, as a share of the prediction
    n_fitted: int
    n_interval: int

    def predict(self, features: LatencyFeatures) -> tuple[float, float, float]:
        """Return the latency and the ends of its interval, in ms."""
        value = (
            self.scale * features.operators_ms
            + self.operator_ms * features.n_operators
            + self.weights_ms_per_kib * features.weights_kib
        )
        return self.around(value)

    def around(self, value: float) -> tuple[float, float, float]:
        """Return a latency and the ends of its interval, in ms."""
        return value, value * max(0.0, 1 - self.interval), value * (1 + self.interval)

    def within(self, errors: Sequence[float]) -> "Calibration":
        """Return it with the interval that shares of error, of networks it did not see, ask for.

        The largest counts where they are too few for ``COVERAGE``.
        """
        rank = min(len(errors), _rank(len(errors)))
        return replace(self, interval=sorted(errors)[rank - 1], n_interval=len(errors))

    @property
    def coverage(self) -> float:
        """The share of networks, like those that set the interval, for which it holds at least."""
        n = self.n_interval
        return min(n, _rank(n)) / (n + 1)

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as JSON."""
        return asdict(self)


def latency_features(graph: Graph, latencies_ms: Mapping[OpSpec, float]) -> LatencyFeatures:
    """Return the features of a fused network."""
    return LatencyFeatures(
        sum(latencies_ms[node.op] for node in graph),
        len(graph),
        sum(parameter_bytes(node.op) for node in graph) / 1024,
    )


def calibrate(
    fitted: Sequence[tuple[LatencyFeatures, float]],
    interval: Sequence[tuple[LatencyFeatures, float]],
) -> Calibration:
    """Fit on some measured networks, and set the interval by others.

    The interval is split-conformal: new networks of the same kind fall into it with the probability
    ``COVERAGE`` at least, whatever the errors are distributed like.

    Args:
        fitted: Features and measured latency in ms of the networks that are fitted.
        interval: The same of other networks; 19 or more for an interval of 95 %.

    Source: Papadopoulos et al., "Inductive confidence machines for regression", ECML 2002,
    https://doi.org/10.1007/3-540-36755-1_29.
    """
    rough = fit_calibration(fitted)
    errors = [abs(ms / rough.predict(known)[0] - 1.0) for known, ms in interval]
    if _rank(len(errors)) > len(errors):
        raise ValueError(f"{len(errors)} networks are too few for an interval of {COVERAGE:.0%}.")
    return rough.within(errors)


def _rank(n: int) -> int:
    """Return the rank of the error, of so many, that is the interval's half width."""
    return math.ceil((n + 1) * COVERAGE)


def fit_calibration(known: Sequence[tuple[LatencyFeatures, float]]) -> Calibration:
    """Return the coefficients of least relative squares, none negative, without an interval.

    Args:
        known: Features and measured latency in ms of networks.
    """
    latencies = np.array([ms for _, ms in known])
    rows = np.array([features.vector() for features, _ in known]) / latencies[:, None]
    sizes = rows.mean(axis=0)
    sizes[sizes == 0] = 1.0
    # A network that the machine disturbed must not bend the fit: twice, without the worst tenth.
    keep = np.ones(len(rows), bool)
    for _ in range(3):
        solution = optimize.nnls(rows[keep] / sizes, np.ones(int(keep.sum())))[0] / sizes
        errors = np.abs(rows @ solution - 1.0)
        keep = errors <= max(np.quantile(errors, 0.9), 1e-12)
    scale, operator_ms, weights = (float(value) for value in solution)
    return Calibration(scale, operator_ms, weights, 0.0, len(known), 0)


# Costs from a latency table: operators are looked up, and their sum is calibrated.


@final
class TableCostModel:
    """Predicts latency with an interval; nothing is compiled or measured."""

    max_cost_queries: int | None = None

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
        return cost_by_segment(
            self._lower(genotype),
            lambda each: host_cost(each, self._target, self.latency(each, genotype.space)),
        )

    def latency(self, graph: Graph, space: str) -> Quantity:
        """Return the latency of a fused network of a space in ms, with its interval."""
        missing = [node.op for node in graph if node.op not in self._latencies]
        if missing and self._timed:  # operators so rare that drawn networks had none of them
            told = self._told.foretold(missing)
            self._latencies |= {op: ms for op, (ms, _, _) in told.items()}
        elif missing:
            raise missing_operators_error(list(dict.fromkeys(missing)), self._target, self._command)
        known = latency_features(graph, self._latencies)
        value, low, high = self._calibrations[space].predict(known)
        return Quantity(value, "table", low, high)

    @cached_property
    def _told(self) -> "OperatorPredictions":
        from hwnas.hardware.costs.operator_prediction import (
            OperatorPredictions,
        )  # few searches ask it

        return OperatorPredictions.of(self._timed)
