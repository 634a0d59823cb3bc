"""Initial latency tables of a space, from the operators of a few networks measured here.

An operator is tuned by compiling and timing several plans (configurations of its schedule); the
fastest one is kept.
The operators of these networks are tuned and timed, and predict all others. The error is estimated
by leave-one-out over the networks, leaving out every operator that only the held-out network has.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.core.errors import CompileError, TableError
from hwnas.core.progress import Progress
from hwnas.hardware.costs.operator_prediction import OperatorPredictions
from hwnas.hardware.costs.table_cost import Calibration, fit_calibration, latency_features
from hwnas.hardware.latency_tables.latency_table import (
    MIN_NETWORKS,
    PREDICTED,
    LatencyTable,
    OperatorEntry,
    is_transferred,
)
from hwnas.hardware.profiling import operator_measurement
from hwnas.hardware.profiling.operator_measurement import MeasuredNetwork
from hwnas.hardware.profiling.passes import (
    MeasurementEffort,
    ProfiledSpace,
    candidate_networks,
    spread_out,
)
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.hardware.timing import Timing
from hwnas.models.graph import Graph, OpSpec, distinct_ops, n_macs_of_batch
from hwnas.models.spaces import Genotype

_MIN_PER_SPACE = 3  #: minimum number of networks of a space
_MAX_MISSING = (
    64  #: maximum number of missing operators that are timed while the calibration is kept
)


@dataclass(frozen=True)
class InitialMeasurements:
    """Measured networks, and the accuracy of leave-one-out predictions."""

    wholes: list[MeasuredNetwork]  #: networks of the last round, which has those of all rounds
    #: fraction of them whose latency, predicted from the others, has a relative error of at most
    #: ``MeasurementEffort.within``
    share: float


def create_initial_table(
    table: LatencyTable,
    subjects: Sequence[ProfiledSpace],
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> InitialMeasurements | None:
    """Fill a table for some search spaces with measured and predicted operators, and save it.

    Networks are measured in rounds, until the fraction ``effort.share`` of them is predicted well
    from the others, ``effort.rounds`` are over, or ``effort.long_s`` has passed. Operators that
    were timed on this device are not timed again. The spaces share the networks of a round.

    Returns:
        The measurements; ``None`` if the table was calibrated for all spaces and lacked at most 64
        operators of each, which were timed.

    Raises:
        CompileError: an operator or network cannot be compiled.
        DeviceError: no device answers.
        TableError: the spaces have fewer than ten networks.
    """
    since = time.monotonic()
    subjects = [s for s in subjects if not _is_completed(table, s, pool, effort, progress)]
    if not subjects:
        return None
    table.forget_transfer()
    ops = _operators(subjects)
    for count in effort.counts:
        graphs = _spread_networks(subjects, count)
        _measure(table, distinct_ops(graphs.values()), pool, effort, progress)
        # Only operators of these spaces: others were timed at other times, at another speed of the
        # machine. Experiment: dense_small with mbconv_small's operators, 88 % within 5 %; without,
        # all of 16.
        timed = table.only(ops).plans()
        predictions = OperatorPredictions.of(
            {op: table.entries[op].timing.median_ms for op in timed}
        )
        wholes = operator_measurement.measure_networks(table, graphs, pool, progress)
        share = _calibrate(table, [*graphs.values()], wholes, predictions, effort.within)
        if share >= effort.share or time.monotonic() - since > effort.long_s:
            break
    with progress.phase("Predict operators", 1) as advance:
        _add_predictions(table, ops, predictions)
        advance(1)
    table.save()
    return InitialMeasurements(wholes, share)


def _is_completed(
    table: LatencyTable,
    subject: ProfiledSpace,
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> bool:
    """Time the operators that a table lacks if they are few; return whether they are.

    Images of more channels, or data with other classes, have another stem and classifier. Operators
    that the table predicts are not lacking.
    """
    known = table.calibration.get(subject.space.name)
    if known is None or "transfer" in known:
        return False
    ops = subject.operators(0)
    missing = table.missing(ops)
    if "foretold" in known:
        missing = [op for op in ops if op not in table.entries]
    if len(missing) > _MAX_MISSING:
        return False
    _measure(table, missing, pool, effort, progress)
    table.save()
    return True


def _measure(
    table: LatencyTable,
    ops: Sequence[OpSpec],
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> None:
    """Time the operators that a table lacks.

    Raises:
        CompileError: an operator cannot be compiled.
    """
    refused = operator_measurement.measure_operators(table, ops, pool, effort, progress)
    if refused:
        raise CompileError(next(iter(refused.values())))


def _spread_networks(subjects: Sequence[ProfiledSpace], n: int) -> dict[Genotype, Graph]:
    """Return about ``n`` networks of some spaces, spread from the least work to the most.

    Raises:
        TableError: there are too few.
    """
    selected = dict[Genotype, Graph]()
    for subject in subjects:
        graphs = subject.graphs(candidate_networks(subject))
        work = {genotype: math.log(n_macs_of_batch(net)) for genotype, net in graphs.items()}
        chosen = spread_out(work, max(_MIN_PER_SPACE, math.ceil(n / len(subjects))))
        selected |= {genotype: graphs[genotype] for genotype in chosen}
    if len(selected) < MIN_NETWORKS:
        names = ", ".join(f"'{subject.space.name}'" for subject in subjects)
        raise TableError(
            f"Too few networks for a latency table: {len(selected)} of search space {names}; "
            f"{MIN_NETWORKS} or more are needed. Set cost=measured, which times each network."
        )
    return selected


def _calibrate(
    table: LatencyTable,
    nets: Sequence[Graph],
    wholes: Sequence[MeasuredNetwork],
    predictions: OperatorPredictions,
    within: float,
) -> float:
    """Calibrate a table; return the fraction of held-out networks within the relative error."""
    left_out = _leave_one_out(nets, wholes, predictions)
    ratios = [whole.timing.median_ms / ms for ms, whole in zip(left_out, wholes, strict=True)]
    calibration = _fit(wholes).with_interval([abs(ratio - 1.0) for ratio in ratios])
    predicted = {
        w.network: calibration.with_bounds(ms) for w, ms in zip(wholes, left_out, strict=True)
    }
    error = operator_measurement.prediction_error(
        calibration, wholes, [predicted[w.network] for w in wholes]
    )
    for space in dict.fromkeys(whole.genotype.space for whole in wholes):
        table.calibration[space] = {
            "coefficients": calibration.to_json(),
            "error": error,
            "foretold": {"from": len(predictions.known_ms)},
            "unit": "ms",
        }
        members = [whole for whole in wholes if whole.genotype.space == space]
        bounds = [predicted[whole.network] for whole in members]
        operator_measurement.store_networks(
            table, members, ["held_out"] * len(members), bounds, space
        )
    return sum(abs(1.0 / ratio - 1.0) <= within for ratio in ratios) / len(ratios)


def _fit(wholes: Sequence[MeasuredNetwork]) -> Calibration:
    return fit_calibration([(whole.features, whole.timing.median_ms) for whole in wholes])


def _leave_one_out(
    nets: Sequence[Graph], wholes: Sequence[MeasuredNetwork], predictions: OperatorPredictions
) -> list[float]:
    """Return leave-one-out predictions, without operators that only the held-out network has."""
    estimates = []
    for i, net in enumerate(nets):
        others = {node.op for other in (*nets[:i], *nets[i + 1 :]) for node in other}
        excluded = {node.op for node in net} - others
        predicted = {op: ms for op, (ms, _, _) in predictions.predict(excluded, excluded).items()}
        calibration = _fit([*wholes[:i], *wholes[i + 1 :]])
        estimates.append(
            calibration.predict(latency_features(net, {**predictions.known_ms, **predicted}))[0]
        )
    return estimates


def _operators(subjects: Sequence[ProfiledSpace]) -> list[OpSpec]:
    """Return the operators of spaces, including rare ones of small networks."""
    nets = [
        net for subject in subjects for net in subject.graphs(candidate_networks(subject)).values()
    ]
    sampled = (op for subject in subjects for op in subject.operators(0))
    return list(dict.fromkeys([*sampled, *distinct_ops(nets)]))


def _add_predictions(
    table: LatencyTable, ops: Sequence[OpSpec], predictions: OperatorPredictions
) -> None:
    """Add predictions of all other operators to a table."""
    missing_ops = [op for op in ops if op not in predictions.known_ms]
    for op, (ms, low, high) in predictions.predict(missing_ops).items():
        table.entries[op] = OperatorEntry(PREDICTED, Timing(ms, low, high, 1, drifted=False))


def describe_calibration(table: LatencyTable, space: str) -> str:
    """Return what the latencies of a search space follow from, and their error, as text.

    Empty if they follow neither from predicted operators nor from another device's table.
    """
    calibration = table.calibration.get(space, {})
    if "foretold" in calibration:
        source = f"{calibration['foretold']['from']} operators"
    elif "transfer" in calibration and any(is_transferred(e.plan) for e in table.entries.values()):
        source = f"the table of {calibration['transfer']['from']}"
    else:
        return ""
    error, fitted = calibration["error"], calibration["coefficients"]
    return (
        f"Latencies of {space} follow from {source} and {fitted['n_fitted']} networks measured "
        f"here: {error['table']['within_5']:.0%} of {error['n']} held-out networks are predicted "
        f"within 5 %; interval ±{fitted['interval']:.1%}."
    )
