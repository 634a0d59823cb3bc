"""Measurement of operators, and of networks that calibrate a table and show its error."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hwnas.core.agreement import agreement
from hwnas.core.errors import CompileError, HwnasError
from hwnas.core.progress import Progress
from hwnas.hardware.costs.table_cost import (
    Calibration,
    LatencyFeatures,
    calibrate,
    latency_features,
)
from hwnas.hardware.latency_tables.latency_table import LatencyTable, OperatorEntry, TableRow
from hwnas.hardware.profiling.passes import (
    MeasurementEffort,
    MeasurementPasses,
    PeriodicSaver,
    RepeatedMeasurement,
)
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.timing import NetworksConfig, Timing
from hwnas.models.graph import Graph, OpSpec, n_macs_of_batch
from hwnas.models.spaces import Genotype

PredictedLatency = tuple[float, float, float]  #: latency and the ends of its interval, in ms


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network with its measured latency."""

    genotype: Genotype  #: its choices in the search space
    features: LatencyFeatures  #: features of its graph, from the latencies of a table
    macs_m: float  #: 10^6 multiply-accumulates of the whole batch
    measured: RepeatedMeasurement  #: its latency, from one or more passes
    network: str  #: digest of its graph, see ``network_digest``

    @property
    def timing(self) -> Timing:
        """Latency of a batch, combined from all passes."""
        return self.measured.timing


def measure_networks(
    table: LatencyTable,
    graphs: Mapping[Genotype, Graph],
    pool: DevicePool,
    progress: Progress,
    source_plans: Mapping[OpSpec, str] | None = None,
) -> list[MeasuredNetwork]:
    """Time fused networks, see ``time_networks``; return each with its features, in order.

    The table must have the latency of all their operators.

    Raises:
        HwnasError: a network cannot be timed; earlier results are kept.
    """
    latencies = {op: entry.timing.median_ms for op, entry in table.entries.items()}
    known = time_networks(table, graphs, pool, progress, source_plans)
    return [
        MeasuredNetwork(
            genotype,
            latency_features(net, latencies),
            n_macs_of_batch(net) / 1e6,
            measured,
            network_digest(net),
        )
        for (genotype, net), measured in zip(graphs.items(), known, strict=True)
    ]


def time_networks(
    table: LatencyTable,
    graphs: Mapping[Genotype, Graph],
    pool: DevicePool,
    progress: Progress,
    source_plans: Mapping[OpSpec, str] | None = None,
) -> list[RepeatedMeasurement]:
    """Time fused networks in passes, see ``MeasurementPasses``; return their latencies in order.

    Networks that the table has from two or more passes, undisturbed, are not timed again.

    Args:
        table: Has compilation plans of operators; results are added to its networks and saved.
        graphs: The fused networks, by genotype.
        pool: Worker processes that time networks.
        progress: Shows the progress.
        source_plans: Compilation plans of operators that were not timed on this device.

    Raises:
        HwnasError: a network cannot be timed; earlier results are kept.
    """
    plans = {**(source_plans or {}), **table.plans()}
    rows = {(row["search_space"], row["network"]): row for row in table.networks}
    keys = {genotype: (genotype.space, network_digest(net)) for genotype, net in graphs.items()}

    def measured(genotype: Genotype) -> RepeatedMeasurement | None:
        return _measurement_in(rows[keys[genotype]]) if keys[genotype] in rows else None

    def keep(genotype: Genotype, now: RepeatedMeasurement) -> None:
        if keys[genotype] not in rows:
            rows[keys[genotype]] = row = _row(genotype, keys[genotype][1])
            table.networks.append(row)
        rows[keys[genotype]].update(_cells(now))

    def time(worker: Worker, genotypes: Sequence[Genotype]) -> Sequence[Timing]:
        return [worker.time_network(graphs[genotype], plans) for genotype in genotypes]

    passes = MeasurementPasses("Measure networks", measured, keep, time)
    passes.run(table, list(graphs), pool, progress)
    return [_measurement_in(rows[key]) for key in keys.values()]


def network_digest(graph: Graph) -> str:
    """Return 12 hex digits that identify a graph, in any search space."""
    text = repr(graph) + f"{graph.threads} threads" * bool(graph.threads)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def calibrate_table(
    table: LatencyTable, wholes: Sequence[MeasuredNetwork], counts: NetworksConfig, space: str
) -> Calibration:
    """Calibrate a table for a space, and save it with networks and error; return the calibration.

    The first ``counts.fit`` networks are fitted, the next ``counts.interval`` set the interval, and
    the others (two or more) show the error.
    """
    fit, end = counts.fit, counts.fit + counts.interval
    pairs = [(whole.features, whole.timing.median_ms) for whole in wholes]
    calibration = calibrate(pairs[:fit], pairs[fit:end])
    held_out, predicted = wholes[end:], [calibration.predict(whole.features) for whole in wholes]
    table.calibration[space] = {
        "coefficients": calibration.to_json(),
        "error": prediction_error(calibration, held_out, predicted[end:]),
        "unit": "ms",
    }
    roles = ["fit"] * fit + ["interval"] * (end - fit) + ["held_out"] * len(held_out)
    store_networks(table, wholes, roles, predicted, space)
    return calibration


def store_networks(
    table: LatencyTable,
    wholes: Sequence[MeasuredNetwork],
    roles: Sequence[str],
    predicted: Sequence[PredictedLatency],
    space: str,
) -> None:
    """Store the networks of a space's calibration in the table, and save it.

    ``roles`` (``fit``, ``interval`` or ``held_out``) and ``predicted`` are in the order of
    ``wholes``. Other networks of the space stay in the table without a role and a prediction.
    """
    new = {whole.network for whole in wholes}
    others = [
        row if row["search_space"] != space else row | _UNUSED
        for row in table.networks
        if row["search_space"] != space or row["network"] not in new
    ]
    rows = [
        _row(whole.genotype, whole.network)
        | _cells(whole.measured)
        | _prediction_cells(whole, prediction, role)
        for role, whole, prediction in zip(roles, wholes, predicted, strict=True)
    ]
    table.networks = others + rows
    table.save()


def fraction_within(
    calibration: Calibration, wholes: Sequence[MeasuredNetwork], within: float
) -> float:
    """Return the fraction of networks whose relative error is at most ``within`` (0.05: 5 %).

    The error is measured latency / predicted latency - 1, without its sign.
    """
    errors = [w.timing.median_ms / calibration.predict(w.features)[0] - 1 for w in wholes]
    return sum(abs(error) <= within for error in errors) / len(errors)


def prediction_error(
    calibration: Calibration,
    held_out: Sequence[MeasuredNetwork],
    predicted: Sequence[PredictedLatency],
) -> dict[str, Any]:
    """Return the errors of predicted latencies of held-out networks, and of a prediction from MACs.

    Keys: ``n``, the number of networks; ``table``, the errors of ``predicted`` (as
    ``core.agreement``, with ``coverage``, the fraction of networks inside their interval, and
    ``interval``, its relative half width); ``macs``, the errors of latencies proportional to MACs;
    and ``drifted``, the number of networks with a disturbed measurement. There are at least two
    networks; ``predicted`` is in their order.
    """
    measured = [whole.timing.median_ms for whole in held_out]
    inside = [low <= ms <= high for (_, low, high), ms in zip(predicted, measured, strict=True)]
    macs = [whole.macs_m for whole in held_out]
    # The best case for MACs: fitted to the networks it is evaluated on.
    scale = sum(m * m / t / t for m, t in zip(macs, measured, strict=True))
    per_mac = sum(m / t for m, t in zip(macs, measured, strict=True)) / scale
    return {
        "n": len(held_out),
        "table": agreement([value for value, _, _ in predicted], measured)
        | {"coverage": sum(inside) / len(inside), "interval": calibration.interval},
        "macs": agreement([m * per_mac for m in macs], measured),
        "drifted": sum(whole.timing.drifted for whole in held_out),
    }


#: Columns of a network that the calibration does not use.
_UNUSED = dict.fromkeys(
    (
        *("role", "predicted_ms", "predicted_ms_low", "predicted_ms_high"),
        *("operators_ms", "n_operators", "weights_kib", "macs_m"),
    ),
    "",
)


def _row(genotype: Genotype, network: str) -> TableRow:
    return {
        "search_space": genotype.space,
        "id": genotype.id,
        "network": network,
        **_cells(None),
        **_UNUSED,
        "genotype": json.dumps(genotype.to_dict()),
    }


def _cells(measured: RepeatedMeasurement | None) -> TableRow:
    """Return the columns of a measurement."""
    names = ("measured_ms", "measured_ms_low", "measured_ms_high")
    if measured is None:
        return dict.fromkeys((*names, "n_repeats", "n_passes", "drifted"), "")
    timing = measured.timing
    values = (timing.median_ms, timing.low_ms, timing.high_ms)
    return {name: f"{value:.7g}" for name, value in zip(names, values, strict=True)} | {
        "n_repeats": timing.n_repeats,
        "n_passes": measured.n_passes,
        "drifted": timing.drifted,
    }


def _measurement_in(row: TableRow) -> RepeatedMeasurement:
    value, low, high = (float(row[f"measured_ms{end}"]) for end in ("", "_low", "_high"))
    timing = Timing(value, low, high, int(row["n_repeats"]), str(row["drifted"]) == "True")
    return RepeatedMeasurement(timing, int(row["n_passes"]))


def _prediction_cells(whole: MeasuredNetwork, predicted: PredictedLatency, role: str) -> TableRow:
    """Return the columns of a network with a role in the calibration."""
    value, low, high = predicted
    return {
        "role": role,
        "predicted_ms": f"{value:.7g}",
        "predicted_ms_low": f"{low:.7g}",
        "predicted_ms_high": f"{high:.7g}",
        "operators_ms": f"{whole.features.operators_ms:.7g}",
        "n_operators": whole.features.n_operators,
        "weights_kib": f"{whole.features.weights_kib:.7g}",
        "macs_m": f"{whole.macs_m:.7g}",
    }


_BLOCK = 10  #: operators between two readings of the sentinel


def measure_operators(
    table: LatencyTable,
    ops: Sequence[OpSpec],
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> dict[OpSpec, str]:
    """Tune the operators that a table lacks, and time operators in passes; save the table.

    Operators that the table has from two or more passes, undisturbed, are not timed again. Return
    the error messages of operators that cannot be compiled, by operator.

    Raises:
        HwnasError: an operator cannot be timed for another reason; earlier results are kept.
    """
    missing, transferred = table.missing(ops), table.transferred_plans()
    refused: dict[OpSpec, str] = {}

    def tune(op: OpSpec) -> Callable[[Worker], tuple[str, Timing]]:
        def work(worker: Worker) -> tuple[str, Timing]:
            plan = effort.plans.get(op) or worker.tune(op, effort.n_plans, transferred.get(op, ""))
            return plan, worker.time_operators([(op, plan)])[0]

        return work

    with progress.phase("Tune operators", len(missing)) as advance, PeriodicSaver(table) as saver:
        for index, outcome in pool.run([tune(op) for op in missing]):
            op = missing[index]
            if isinstance(outcome, CompileError):
                refused[op] = str(outcome)
            elif isinstance(outcome, HwnasError):
                raise outcome
            else:
                table.entries[op] = OperatorEntry(*outcome)
                saver.soon()
            advance(1)
    _passes(table, effort.n_passes).run(
        table, [op for op in ops if op not in refused], pool, progress
    )
    return refused


def _passes(table: LatencyTable, max_passes: int) -> MeasurementPasses[OpSpec]:
    def measured(op: OpSpec) -> RepeatedMeasurement:
        return RepeatedMeasurement(table.entries[op].timing, table.entries[op].n_passes)

    def keep(op: OpSpec, now: RepeatedMeasurement) -> None:
        table.entries[op] = OperatorEntry(table.entries[op].plan, now.timing, now.n_passes)

    def time(worker: Worker, ops: Sequence[OpSpec]) -> Sequence[Timing]:
        return worker.time_operators([(op, table.entries[op].plan) for op in ops])

    return MeasurementPasses("Time operators", measured, keep, time, _BLOCK, max_passes)
