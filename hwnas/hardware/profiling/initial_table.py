"""A table for a space that none knows, by the operators of a few networks measured here.

Few networks hold a fair sample of a space's operators. These are tuned and timed, the others are
foretold from them. How good that is say the same networks, each foretold by the others, as if the
operators that it alone has had not been timed.
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
from hwnas.models.graph import Graph, OpSpec, distinct, n_macs_of_batch
from hwnas.models.spaces import Genotype

_OF_EACH = 3  #: networks of a space, at least
_FEW = 64  #: operators, at most, that are timed so that what is known of a space can stay


@dataclass(frozen=True)
class InitialMeasurements:
    """Networks that were measured, and how well each is foretold by the others."""

    wholes: list[MeasuredNetwork]
    share: float  #: of them that are foretold as ``Effort.within`` asks for


def create_initial_table(
    table: LatencyTable,
    subjects: Sequence[ProfiledSpace],
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> InitialMeasurements | None:
    """Fill a table for some spaces, and save it.

    Networks are measured until as many of those that are left out are foretold as ``effort`` asks
    for, or it took long. Operators that the table has already are not timed again. Several spaces
    share the networks of ``effort``, and what is learned from them.

    Returns:
        What was measured; ``None`` where the table lacked but a few operators.

    Raises:
        CompileError: an operator cannot be compiled.
        TableError: there are too few networks.
    """
    since = time.monotonic()
    subjects = [s for s in subjects if not _completed(table, s, pool, effort, progress)]
    if not subjects:
        return None
    table.forget_transfer()
    ops = _operators(subjects)
    for count in effort.counts:
        graphs = _spread(subjects, count)
        _measure(table, distinct(graphs.values()), pool, effort, progress)
        # Those of other spaces were timed at other times, when the machine was slower or faster:
        # dense_small beside mbconv_small, 88 % within 5 % with them, all of 16 without.
        timed = table.only(ops).plans()
        told = OperatorPredictions.of({op: table.entries[op].timing.median_ms for op in timed})
        wholes = operator_measurement.measure_networks(table, graphs, pool, progress)
        share = _calibrate(table, [*graphs.values()], wholes, told, effort.within)
        if share >= effort.share or time.monotonic() - since > effort.long_s:
            break
    with progress.phase("Foretell operators", 1) as advance:
        _foretell(table, ops, told)
        advance(1)
    table.save()
    return InitialMeasurements(wholes, share)


def _completed(
    table: LatencyTable,
    subject: ProfiledSpace,
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> bool:
    """Time the operators that a table lacks, if it knows a space but for few; return whether so.

    Images of more channels or data of other classes have a stem and a classifier of their own.
    """
    known = table.calibration.get(subject.space.name)
    if known is None or {"transfer", "foretold"} & {*known}:
        return False
    missing = table.missing(subject.operators(0))
    if len(missing) > _FEW:
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
        CompileError: one cannot be compiled.
    """
    refused = operator_measurement.measure_operators(table, ops, pool, effort, progress)
    if refused:
        raise CompileError(next(iter(refused.values())))


def _spread(subjects: Sequence[ProfiledSpace], n: int) -> dict[Genotype, Graph]:
    """Return some ``n`` networks of spaces, of each from the least work to the most.

    Raises:
        TableError: there are too few to learn from.
    """
    found = dict[Genotype, Graph]()
    for subject in subjects:
        graphs = subject.graphs(candidate_networks(subject))
        work = {genotype: math.log(n_macs_of_batch(net)) for genotype, net in graphs.items()}
        chosen = spread_out(work, max(_OF_EACH, math.ceil(n / len(subjects))))
        found |= {genotype: graphs[genotype] for genotype in chosen}
    if len(found) < MIN_NETWORKS:
        names = ", ".join(f"'{subject.space.name}'" for subject in subjects)
        raise TableError(
            f"Search space {names}: {len(found)} networks are too few to learn latencies from. "
            "Measure each: cost=measured."
        )
    return found


def _calibrate(
    table: LatencyTable,
    nets: Sequence[Graph],
    wholes: Sequence[MeasuredNetwork],
    told: OperatorPredictions,
    within: float,
) -> float:
    """Calibrate a table; return the share of left-out networks that are foretold so well."""
    left_out = _left_out(nets, wholes, told)
    ratios = [whole.timing.median_ms / ms for ms, whole in zip(left_out, wholes, strict=True)]
    calibration = _fitted(wholes).within([abs(ratio - 1.0) for ratio in ratios])
    predicted = {w.network: calibration.around(ms) for w, ms in zip(wholes, left_out, strict=True)}
    error = operator_measurement.prediction_error(
        calibration, wholes, [predicted[w.network] for w in wholes]
    )
    for space in dict.fromkeys(whole.genotype.space for whole in wholes):
        table.calibration[space] = {
            "coefficients": calibration.to_json(),
            "error": error,
            "foretold": {"from": len(told.known_ms)},
            "unit": "ms",
        }
        own = [whole for whole in wholes if whole.genotype.space == space]
        told_of = [predicted[whole.network] for whole in own]
        operator_measurement.store_networks(table, own, ["held_out"] * len(own), told_of, space)
    return sum(abs(1.0 / ratio - 1.0) <= within for ratio in ratios) / len(ratios)


def _fitted(wholes: Sequence[MeasuredNetwork]) -> Calibration:
    return fit_calibration([(whole.features, whole.timing.median_ms) for whole in wholes])


def _left_out(
    nets: Sequence[Graph], wholes: Sequence[MeasuredNetwork], told: OperatorPredictions
) -> list[float]:
    """Return what the others foretell of each network: as if its own operators were not timed."""
    found = []
    for i, net in enumerate(nets):
        others = {node.op for other in (*nets[:i], *nets[i + 1 :]) for node in other}
        own = {node.op for node in net} - others
        guessed = {op: ms for op, (ms, _, _) in told.foretold(own, own).items()}
        calibration = _fitted([*wholes[:i], *wholes[i + 1 :]])
        found.append(calibration.predict(latency_features(net, {**told.known_ms, **guessed}))[0])
    return found


def _operators(subjects: Sequence[ProfiledSpace]) -> list[OpSpec]:
    """Return the operators of spaces, of small networks rare ones, too."""
    nets = [
        net for subject in subjects for net in subject.graphs(candidate_networks(subject)).values()
    ]
    drawn_evenly = (op for subject in subjects for op in subject.operators(0))
    return list(dict.fromkeys([*drawn_evenly, *distinct(nets)]))


def _foretell(table: LatencyTable, ops: Sequence[OpSpec], told: OperatorPredictions) -> None:
    """Put what is foretold of all other operators into a table."""
    wanted = [op for op in ops if op not in told.known_ms]
    for op, (ms, low, high) in told.foretold(wanted).items():
        table.entries[op] = OperatorEntry(PREDICTED, Timing(ms, low, high, 1, drifted=False))


def describe_calibration(table: LatencyTable, space: str) -> str:
    """Return how a table came to know a space, where not all operators were timed; else nothing."""
    found = table.calibration.get(space, {})
    if "foretold" in found:
        source = f"{found['foretold']['from']} operators"
    elif "transfer" in found and any(is_transferred(e.plan) for e in table.entries.values()):
        source = f"the table of {found['transfer']['from']}"
    else:
        return ""
    error, fitted = found["error"], found["coefficients"]
    return (
        f"Latencies of {space} follow from {source} and {fitted['n_fitted']} networks measured "
        f"here: {error['table']['within_5']:.0%} of {error['n']} that were left out are foretold "
        f"within 5 %; interval ±{fitted['interval']:.1%}."
    )
