"""Costs from a latency table: a calibrated sum of operators, with an interval.

Isolated operators find their data and code in the cache; in a network each follows another one. A
few coefficients, fitted to measured networks, describe the difference. Other networks, not used for
the fit, set the width of the interval.
"""

import math
import random
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

COVERAGE = 0.95  #: minimum probability that an interval covers the measured latency


@dataclass(frozen=True)
class LatencyFeatures:
    """The features that predict a network's latency."""

    operators_ms: float  #: sum of the latencies of isolated operators
    n_operators: int  #: number of operators
    weights_kib: float  #: size of all weights, biases and scales

    def vector(self) -> NDArray[np.float64]:
        """Return the features ``(3,)`` in the order of the coefficients of ``Calibration``."""
        return np.array([self.operators_ms, self.n_operators, self.weights_kib], float)


@dataclass(frozen=True)
class Calibration:
    """A linear latency model in ms with non-negative coefficients and a relative interval."""

    scale: float  #: factor of the sum of operators
    operator_ms: float  #: time to start an operator
    weights_ms_per_kib: float  #: time to fetch evicted weights
    interval: float  #: relative half width of the interval: 0.05 is 5 %
    n_fitted: int  #: number of networks that the coefficients are fitted to
    n_interval: int  #: number of other networks that set the interval

    def predict(self, features: LatencyFeatures) -> tuple[float, float, float]:
        """Return the latency, and the lower and upper end of its interval, in ms."""
        value = (
            self.scale * features.operators_ms
            + self.operator_ms * features.n_operators
            + self.weights_ms_per_kib * features.weights_kib
        )
        return self.with_bounds(value)

    def with_bounds(self, value: float) -> tuple[float, float, float]:
        """Return ``value``, and the lower and upper end of its interval, in ms."""
        return value, value * max(0.0, 1 - self.interval), value * (1 + self.interval)

    def with_interval(self, errors: Sequence[float]) -> "Calibration":
        """Return a copy whose interval is set from relative errors of networks not in the fit.

        The half width is the quantile of the absolute ``errors`` (0.05: 5 %) for ``COVERAGE``. If
        there are fewer than 19, it is the largest one.
        """
        rank = min(len(errors), _rank(len(errors)))
        return replace(self, interval=sorted(errors)[rank - 1], n_interval=len(errors))

    @property
    def coverage(self) -> float:
        """Minimum probability that the interval covers a similar network, in [0, 1].

        Below ``COVERAGE`` if fewer than 19 networks set the interval.
        """
        n = self.n_interval
        return min(n, _rank(n)) / (n + 1)

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, as ``calibration.json`` of a latency table has them."""
        return asdict(self)


def latency_features(graph: Graph, latencies_ms: Mapping[OpSpec, float]) -> LatencyFeatures:
    """Return the latency features of a fused network.

    ``latencies_ms`` has the latency in ms of each of its operators, isolated.
    """
    return LatencyFeatures(
        sum(latencies_ms[node.op] for node in graph),
        len(graph),
        sum(parameter_bytes(node.op) for node in graph) / 1024,
    )


def calibrate(
    fitted: Sequence[tuple[LatencyFeatures, float]],
    interval: Sequence[tuple[LatencyFeatures, float]],
) -> Calibration:
    """Return a calibration fitted to some networks, with an interval from others.

    The interval is split-conformal: it covers new networks of the same kind with at least the
    probability ``COVERAGE``, for any distribution of errors.

    Args:
        fitted: Features and measured latency in ms of networks, for ``fit_calibration``.
        interval: Features and measured latency in ms of other networks, at least 19.

    Raises:
        ValueError: ``interval`` has too few networks.

    Source: Papadopoulos et al., "Inductive confidence machines for regression", ECML 2002,
    https://doi.org/10.1007/3-540-36755-1_29.
    """
    rough = fit_calibration(fitted)
    errors = [abs(ms / rough.predict(known)[0] - 1.0) for known, ms in interval]
    if _rank(len(errors)) > len(errors):
        raise ValueError(
            f"calibrate() got {len(errors)} networks for the interval; an interval of "
            f"{COVERAGE:.0%} needs 19 or more."
        )
    return rough.with_interval(errors)


def _rank(n: int) -> int:
    """Return the rank of the error, of ``n``, that is the interval's half width."""
    return math.ceil((n + 1) * COVERAGE)


def fit_calibration(known: Sequence[tuple[LatencyFeatures, float]]) -> Calibration:
    """Return coefficients fitted by non-negative least squares of relative errors.

    The interval is 0. The tenth of the networks with the largest errors is left out, as they may be
    disturbed.

    Args:
        known: Features and measured latency in ms of networks.
    """
    latencies = np.array([ms for _, ms in known])
    rows = np.array([features.vector() for features, _ in known]) / latencies[:, None]
    sizes = rows.mean(axis=0)
    sizes[sizes == 0] = 1.0
    # Robust against disturbed networks: fitted again twice, without the worst tenth.
    keep = np.ones(len(rows), bool)
    for _ in range(3):
        solution = optimize.nnls(rows[keep] / sizes, np.ones(int(keep.sum())))[0] / sizes
        errors = np.abs(rows @ solution - 1.0)
        keep = errors <= max(np.quantile(errors, 0.9), 1e-12)
    scale, operator_ms, weights = (float(value) for value in solution)
    return Calibration(scale, operator_ms, weights, 0.0, len(known), 0)


_MAX_MISSING = 0.1  # fraction of a network's operators that are predicted if a table lacks them
_MAX_KNOWN = 1_000  # operators from which they are predicted


@final
class TableCostModel:
    """A cost model by a latency table; nothing is compiled or measured."""

    max_cost_queries: int | None = None

    def __init__(
        self,
        table: LatencyTable,
        target: Target,
        lower: Callable[[Genotype], Graph],
        spaces: Sequence[str],
        command: str,
    ):
        """Create a cost model for some search spaces.

        Args:
            table: The latency table.
            target: The target of the table.
            lower: Returns the fused graph of a genotype.
            spaces: Names of the search spaces.
            command: Command line that measures what the table lacks, for messages.

        Raises:
            TableError: the table is not calibrated for one of them.
        """
        for space in spaces:
            if space not in table.calibration:
                raise TableError(
                    f"Latency table {table.path} is not calibrated for search space '{space}'. "
                    f"Calibrate it with: {command}"
                )
        self._target, self._lower, self._command = target, lower, command
        self._calibrations = {
            space: Calibration(**table.calibration[space]["coefficients"]) for space in spaces
        }
        self._latencies = {op: entry.timing.median_ms for op, entry in table.entries.items()}
        self._is_predicted = any("foretold" in table.calibration[space] for space in spaces)
        self._timed = {op: self._latencies[op] for op in table.plans()} or {**self._latencies}

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype, with the latency from the table.

        Raises:
            TableError: the table lacks more than a tenth of the network's operators, and is not one
                that predicts them.
        """
        return cost_by_segment(
            self._lower(genotype),
            lambda graph: host_cost(graph, self._target, self.latency(graph, genotype.space)),
        )

    def latency(self, graph: Graph, space: str) -> Quantity:
        """Return the latency of a fused network in ms, with its 95 % interval.

        Args:
            graph: The network, without exits.
            space: Name of its search space, whose calibration applies.

        Raises:
            TableError: see ``cost``.
        """
        missing = [node.op for node in graph if node.op not in self._latencies]
        # Rare operators, which no sampled network has, are predicted.
        if missing and (self._is_predicted or len(missing) <= _MAX_MISSING * len(graph)):
            predictions = self._predictions.predict(missing)
            self._latencies |= {op: ms for op, (ms, _, _) in predictions.items()}
        elif missing:
            raise missing_operators_error(list(dict.fromkeys(missing)), self._target, self._command)
        known = latency_features(graph, self._latencies)
        value, low, high = self._calibrations[space].predict(known)
        return Quantity(value, "table", low, high)

    @cached_property
    def _predictions(self) -> "OperatorPredictions":
        from hwnas.hardware.costs.operator_prediction import OperatorPredictions  # rarely used

        known = [*self._timed]
        chosen = random.Random(0).sample(known, min(len(known), _MAX_KNOWN))
        return OperatorPredictions.of({op: self._timed[op] for op in chosen})
