"""Latency tables transferred from another device, with few networks measured here.

Source: the idea of few samples and a reference device is that of Lee et al., "HELP", NeurIPS 2021,
https://arxiv.org/abs/2106.08630; here the model is linear, so that 10 samples are enough to fit.
"""

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from hwnas.core.agreement import agreement
from hwnas.core.progress import Progress
from hwnas.hardware.costs.table_cost import Calibration
from hwnas.hardware.latency_tables.latency_table import (
    TRANSFERRED,
    LatencyTable,
    OperatorEntry,
    is_transferred,
)
from hwnas.hardware.profiling import operator_measurement
from hwnas.hardware.profiling.passes import (
    MeasurementEffort,
    ProfiledSpace,
    candidate_networks,
    spread_out,
)
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.models.graph import Graph, OpSpec, distinct_ops
from hwnas.models.spaces import Genotype

#: Groups of operators with a separate speed factor.
GROUPS = ("pointwise", "depthwise", "dense", "other")
#: Weight of the prior that all groups have the same factor, in units of a measurement's relative
#: error.
_PRIOR_WEIGHT = 0.05


@dataclass(frozen=True)
class TableTransfer:
    """A model of a new device's latencies from those of a reference device."""

    #: latency on the new device / latency on the reference device, by group of operators
    factors: Mapping[str, float]
    operator_ms: float  #: time to start an operator in a network, in ms

    def latency_ms(self, op: OpSpec, reference_ms: float) -> float:
        """Return the latency of an operator on the new device in ms, without its start.

        ``reference_ms`` is its latency on the reference device.
        """
        return self.factors[group(op)] * reference_ms

    def network_ms(self, graph: Graph, reference: Mapping[OpSpec, float]) -> float:
        """Return the latency of a network on the new device in ms.

        ``reference`` has the latency of each operator on the reference device in ms.
        """
        total = sum(self.latency_ms(node.op, reference[node.op]) for node in graph)
        return total + self.operator_ms * len(graph)


def group(op: OpSpec) -> str:
    """Return the group of an operator, one of ``GROUPS``, by its type and kernel size."""
    if op.base == "conv2d" and op.depthwise:
        return "depthwise"
    if op.base in ("conv2d", "linear"):
        return "pointwise" if op.kernel == 1 else "dense"
    return "other"


def fit_transfer(
    networks: Sequence[Graph], measured_ms: Sequence[float], reference: Mapping[OpSpec, float]
) -> TableTransfer:
    """Return the model that fits measured networks, by least squares of relative errors.

    Factors and time are not negative; groups with few data get factors near the common one.

    Args:
        networks: Fused graphs.
        measured_ms: Latency of each on the new device in ms.
        reference: Latency of each operator on the reference device in ms.
    """
    target = np.array(measured_ms)
    rows = np.array([_row(graph, reference) for graph in networks]) / target[:, None]
    # A common factor first: groups with little data stay near it.
    common = float((rows[:, :-1].sum(axis=1)).sum() / (rows[:, :-1].sum(axis=1) ** 2).sum())
    sizes = np.maximum(rows.mean(axis=0), 1e-12)
    prior = np.diag([*[_PRIOR_WEIGHT / common] * len(GROUPS), 0.0])
    prior_target = np.array([*[_PRIOR_WEIGHT] * len(GROUPS), 0.0])
    solution, _ = optimize.nnls(
        np.vstack([rows, prior]) / sizes, np.concatenate([np.ones(len(rows)), prior_target])
    )
    values = solution / sizes
    factors = {name: float(value) for name, value in zip(GROUPS, values, strict=False)}
    return TableTransfer(factors, float(values[-1]))


def _row(graph: Graph, reference: Mapping[OpSpec, float]) -> NDArray[np.float64]:
    sums = dict.fromkeys(GROUPS, 0.0)
    for node in graph:
        sums[group(node.op)] += reference[node.op]
    return np.array([*sums.values(), len(graph)], float)


def leave_one_out(
    networks: Sequence[Graph], measured_ms: Sequence[float], reference: Mapping[OpSpec, float]
) -> list[float]:
    """Return the latency of each network in ms, as a model fitted to all others predicts it.

    The arguments are those of ``fit_transfer``.
    """
    estimates = []
    for i, graph in enumerate(networks):
        others = [net for j, net in enumerate(networks) if j != i]
        times = [ms for j, ms in enumerate(measured_ms) if j != i]
        estimates.append(fit_transfer(others, times, reference).network_ms(graph, reference))
    return estimates


def fill_from_source(
    table: LatencyTable,
    source: LatencyTable,
    networks: Sequence[Graph],
    measured_ms: Sequence[float],
    spaces: Sequence[str],
    plans: Mapping[OpSpec, str] | None = None,
) -> dict[str, Any]:
    """Fill a table from another device's table; return the leave-one-out errors. Nothing is saved.

    Operators get the transferred latency; those that were timed on this device keep theirs.
    Earlier transfers for other spaces are removed, as latencies change.

    Args:
        table: Table of this device, which is changed.
        source: Table of the other device.
        networks: Fused graphs of the measured networks.
        measured_ms: Latency of each on this device in ms.
        spaces: Names of the search spaces that are calibrated.
        plans: Compilation plans of operators; others are tuned when they are first compiled.

    Returns:
        The errors of predicting each network from the others: the keys of ``core.agreement``,
        ``interval`` (relative half width, from these errors) and ``coverage`` (minimum probability
        that the interval covers a similar network, in [0, 1]).
    """
    table.forget_transfer()
    reference = {op: entry.timing.median_ms for op, entry in source.entries.items()}
    model = fit_transfer(networks, measured_ms, reference)
    predicted = leave_one_out(networks, measured_ms, reference)
    errors = [abs(ms / p - 1.0) for ms, p in zip(measured_ms, predicted, strict=True)]
    timed = table.plans()
    shift = _network_factor(table, networks, measured_ms, model, reference)
    for op, entry in source.entries.items():
        if op not in timed:
            scale = model.factors[group(op)] / shift
            old = entry.timing
            timing = replace(
                old,
                median_ms=old.median_ms * scale,
                low_ms=old.low_ms * scale,
                high_ms=old.high_ms * scale,
            )
            plan = (plans or {}).get(op, "")
            table.entries[op] = OperatorEntry(f"{TRANSFERRED} {plan}".strip(), timing)
    n = len(networks)
    calibration = Calibration(shift, model.operator_ms, 0.0, 0.0, n, 0).with_interval(errors)
    report = agreement(predicted, measured_ms)
    calibrated = {
        "coefficients": calibration.to_json(),
        "error": {"n": n, "table": report, "method": "each network left out once"},
        "transfer": {"factors": dict(model.factors), "from": _device_name(source)},
        "unit": "ms",
    }
    table.calibration |= dict.fromkeys(spaces, calibrated)
    return {**report, "interval": calibration.interval, "coverage": calibration.coverage}


def _device_name(table: LatencyTable) -> str:
    """Return the target of a table, and its CPU if known."""
    cpu = table.provenance.get("device", {}).get("cpu", "")
    return f"{table.path.parent.name} ({cpu})" if cpu else table.path.parent.name


def _network_factor(
    table: LatencyTable,
    networks: Sequence[Graph],
    measured_ms: Sequence[float],
    model: TableTransfer,
    reference: Mapping[OpSpec, float],
) -> float:
    """Return the factor by which operators take longer in networks than isolated."""
    timed = {op: table.entries[op].timing.median_ms for op in table.plans()}
    ratios = [
        (ms - model.operator_ms * len(net)) / sum(timed[node.op] for node in net)
        for net, ms in zip(networks, measured_ms, strict=True)
        if all(node.op in timed for node in net)
    ]
    if not ratios:
        both = [op for op in timed if op in reference]
        ratios = [model.latency_ms(op, reference[op]) / timed[op] for op in both]
    return statistics.median(ratios) if ratios else 1.0


# For CPUs of one architecture: a plan of another CPU is nearly optimal, and factors of a few
# networks adapt its latencies, so that a search starts within a minute.

#: Vector extensions that plans depend on: plans are transferred only if they are equal.
_VECTORS = frozenset({"avx2", "avx512f", "asimd", "sve"})


@dataclass(frozen=True)
class SourceTable:
    """The table of another CPU, as the source of a transfer."""

    table: LatencyTable  #: the table of the other CPU
    plans: Mapping[OpSpec, str]  #: its compilation plans that can be used on this machine

    @classmethod
    def of(cls, table: LatencyTable, here: Mapping[str, Any]) -> "SourceTable":
        """Return the source; it has no plans if the vector extensions of the two CPUs differ.

        Args:
            table: Table of another device, see ``provenance.related_table``.
            here: Facts of this machine, see ``provenance.provenance_facts``.
        """
        there = table.provenance["device"].get("flags", ())
        same = _VECTORS & {*there} == _VECTORS & {*here["device"].get("flags", ())}
        return cls(table, table.plans() if same else {})

    def covers(self, subject: ProfiledSpace, n: int) -> bool:
        """Return True if the table has all operators of at least ``n`` networks of a space."""
        return len(covered_networks(self.table, subject, n)) == n


def covered_networks(source: LatencyTable, subject: ProfiledSpace, n: int) -> list[Genotype]:
    """Return ``n`` networks of a space all of whose operators were timed for a table, or fewer.

    They are candidates of ``candidate_networks``, spread over the logarithm of the sum of their
    operators' latencies.
    """
    known = {op: source.entries[op].timing.median_ms for op in source.plans()}
    logs = dict[Genotype, float]()
    for genotype in candidate_networks(subject):
        ops = [node.op for node in subject.lower(genotype)]
        if all(op in known for op in ops):
            logs[genotype] = math.log(sum(known[op] for op in ops))
    return spread_out(logs, n)


def transfer_table(
    table: LatencyTable,
    source: SourceTable,
    subjects: Sequence[ProfiledSpace],
    pool: DevicePool,
    effort: MeasurementEffort,
    progress: Progress,
) -> None:
    """Fill a table for some search spaces from another CPU's, and save it.

    Networks are measured in rounds, until the fraction ``effort.share`` of them is predicted within
    5 % from the others, ``effort.rounds`` are over, or ``effort.long_s`` has passed. ``source``
    must cover the spaces, see ``SourceTable.covers``.

    Raises:
        HwnasError: an operator cannot be compiled, or a network cannot be timed.
    """
    compiled, since = dict(source.plans), time.monotonic()
    spaces = [subject.space.name for subject in subjects]
    for count in effort.counts:
        chosen = {g: s.lower(g) for s in subjects for g in covered_networks(source.table, s, count)}
        ops = dict.fromkeys(node.op for net in chosen.values() for node in net)
        missing = [op for op in ops if op not in compiled]
        compiled |= _tuned_plans(missing, pool, effort.n_plans, progress)
        known = operator_measurement.time_networks(table, chosen, pool, progress, compiled)
        latencies = [network.timing.median_ms for network in known]
        nets = list(chosen.values())
        report = fill_from_source(table, source.table, nets, latencies, spaces, compiled)
        if report["within_5"] >= effort.share or time.monotonic() - since > effort.long_s:
            break
    table.provenance["transferred_from"] = source.table.provenance
    table.save()


def network_plans(
    table: LatencyTable,
    source_plans: Mapping[OpSpec, str],
    nets: Iterable[Graph],
    pool: DevicePool,
    n_plans: int,
    progress: Progress,
) -> Mapping[OpSpec, str]:
    """Return compilation plans of operators that were not timed on this device, by operator.

    All operators of the fused graphs ``nets`` that were not timed have one. Plans that ``table``
    has from another device replace ``source_plans``. Operators without a plan are tuned, and the
    table is saved with the new plans.

    Raises:
        HwnasError: an operator cannot be compiled.
    """
    known = {**source_plans, **table.transferred_plans()}
    missing = [op for op in table.missing(distinct_ops(nets)) if op not in known]
    tuned = _tuned_plans(missing, pool, n_plans, progress)
    for op, plan in tuned.items():
        if is_transferred((entry := table.entries[op]).plan):
            table.entries[op] = replace(entry, plan=f"{TRANSFERRED} {plan}".strip())
    if tuned:
        table.save()
    return {**known, **tuned}


def _tuned_plans(
    ops: Sequence[OpSpec], pool: DevicePool, n_plans: int, progress: Progress
) -> dict[OpSpec, str]:
    """Return tuned plans of operators.

    Raises:
        HwnasError: an operator cannot be compiled.
    """
    plans: dict[OpSpec, str] = {}
    if not ops:
        return plans
    with progress.phase("Tune operators", len(ops)) as advance:
        tasks = [lambda worker, op=op: worker.tune(op, n_plans) for op in ops]
        for index, plan in pool.run(tasks):
            if isinstance(plan, Exception):
                raise plan
            plans[ops[index]] = plan
            advance(1)
    return plans
