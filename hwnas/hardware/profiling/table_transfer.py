"""A table for a device of which only some whole networks were measured, from another's table.

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
from hwnas.models.graph import Graph, OpSpec, distinct
from hwnas.models.spaces import Genotype

#: Kinds of operators that may be faster or slower on another device, each by a factor of its own.
GROUPS = ("pointwise", "depthwise", "dense", "other")
#: Of the factors towards one for all groups, in units of a measurement's relative error: it decides
#: where samples say no more than noise.
_PULL = 0.05


@dataclass(frozen=True)
class TableTransfer:
    """What multiplies the reference device's latencies, by group, and what starting costs."""

    factors: Mapping[str, float]
    operator_ms: float

    def latency_ms(self, op: OpSpec, reference_ms: float) -> float:
        """Return the latency of an operator on the new device."""
        return self.factors[group(op)] * reference_ms

    def network_ms(self, graph: Graph, reference: Mapping[OpSpec, float]) -> float:
        """Return the latency of a network on the new device."""
        total = sum(self.latency_ms(node.op, reference[node.op]) for node in graph)
        return total + self.operator_ms * len(graph)


def group(op: OpSpec) -> str:
    """Return the group of an operator."""
    if op.base == "conv2d" and op.depthwise:
        return "depthwise"
    if op.base in ("conv2d", "linear"):
        return "pointwise" if op.kernel == 1 else "dense"
    return "other"


def fit_transfer(
    networks: Sequence[Graph], measured_ms: Sequence[float], reference: Mapping[OpSpec, float]
) -> TableTransfer:
    """Fit factors on networks measured on the new device, least relative squares, none negative."""
    target = np.array(measured_ms)
    rows = np.array([_row(graph, reference) for graph in networks]) / target[:, None]
    # One factor for all first: groups that the samples say little of stay near it.
    common = float((rows[:, :-1].sum(axis=1)).sum() / (rows[:, :-1].sum(axis=1) ** 2).sum())
    sizes = np.maximum(rows.mean(axis=0), 1e-12)
    pull = np.diag([*[_PULL / common] * len(GROUPS), 0.0])
    wanted = np.array([*[_PULL] * len(GROUPS), 0.0])
    solution, _ = optimize.nnls(
        np.vstack([rows, pull]) / sizes, np.concatenate([np.ones(len(rows)), wanted])
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
    """Return the prediction of each network by a fit on all others."""
    found = []
    for i, graph in enumerate(networks):
        others = [net for j, net in enumerate(networks) if j != i]
        times = [ms for j, ms in enumerate(measured_ms) if j != i]
        found.append(fit_transfer(others, times, reference).network_ms(graph, reference))
    return found


def fill_from_source(
    table: LatencyTable,
    source: LatencyTable,
    networks: Sequence[Graph],
    measured_ms: Sequence[float],
    spaces: Sequence[str],
    plans: Mapping[OpSpec, str] | None = None,
) -> dict[str, Any]:
    """Fill a table from another device's; return how well left-out networks are predicted.

    Operators get the latency that follows, and their plan if ``plans`` have one; others are tuned
    when they are first compiled. Those of the networks that were measured alone keep that; the
    others are told as if they were alone, too. The interval comes from the left-out predictions.
    What followed before for other spaces is forgotten: it was of operators of other latencies.
    """
    table.forget_transfer()
    reference = {op: entry.timing.median_ms for op, entry in source.entries.items()}
    model = fit_transfer(networks, measured_ms, reference)
    predicted = leave_one_out(networks, measured_ms, reference)
    errors = [abs(ms / p - 1.0) for ms, p in zip(measured_ms, predicted, strict=True)]
    alone = table.plans()
    shift = _in_networks(table, networks, measured_ms, model, reference)
    for op, entry in source.entries.items():
        if op not in alone:
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
    calibration = Calibration(shift, model.operator_ms, 0.0, 0.0, n, 0).within(errors)
    report = agreement(predicted, measured_ms)
    found = {
        "coefficients": calibration.to_json(),
        "error": {"n": n, "table": report, "method": "each network left out once"},
        "transfer": {"factors": dict(model.factors), "from": _device(source)},
        "unit": "ms",
    }
    table.calibration |= dict.fromkeys(spaces, found)
    return {**report, "interval": calibration.interval, "coverage": calibration.coverage}


def _device(table: LatencyTable) -> str:
    """Return what a table is of: its target, and its CPU where that is known."""
    cpu = table.provenance.get("device", {}).get("cpu", "")
    return f"{table.path.parent.name} ({cpu})" if cpu else table.path.parent.name


def _in_networks(
    table: LatencyTable,
    networks: Sequence[Graph],
    measured_ms: Sequence[float],
    model: TableTransfer,
    reference: Mapping[OpSpec, float],
) -> float:
    """Return how many times longer operators take in networks than alone on the new device.

    By networks whose operators were all measured alone; where those of other spaces were, by the
    operators that both devices know.
    """
    alone = {op: table.entries[op].timing.median_ms for op in table.plans()}
    found = [
        (ms - model.operator_ms * len(net)) / sum(alone[node.op] for node in net)
        for net, ms in zip(networks, measured_ms, strict=True)
        if all(node.op in alone for node in net)
    ]
    if not found:
        both = [op for op in alone if op in reference]
        found = [model.latency_ms(op, reference[op]) / alone[op] for op in both]
    return statistics.median(found) if found else 1.0


# A table from another CPU's, by few networks measured here: a search begins within a minute.
#
# Of CPUs of one architecture, each operator is nearly as fast by the plan that was found on
# another;
# and what is slower or faster there is so here, by factors that some whole networks tell.

#: Instructions by whose width plans differ: taken over only where these are the same.
_VECTORS = frozenset({"avx2", "avx512f", "asimd", "sve"})


@dataclass(frozen=True)
class SourceTable:
    """Another CPU's table."""

    table: LatencyTable
    plans: Mapping[OpSpec, str]  #: those that are taken over

    @classmethod
    def of(cls, table: LatencyTable, here: Mapping[str, Any]) -> "SourceTable":
        """Return a table from which one of this machine may follow.

        Args:
            table: Another device's, see ``provenance.related``.
            here: Facts of this machine, see ``provenance.facts``.
        """
        there = table.provenance["device"].get("flags", ())
        same = _VECTORS & {*there} == _VECTORS & {*here["device"].get("flags", ())}
        return cls(table, table.plans() if same else {})

    def covers(self, subject: ProfiledSpace, n: int) -> bool:
        """Return whether it knows ``n`` networks of a space whole."""
        return len(covered_networks(self.table, subject, n)) == n


def covered_networks(source: LatencyTable, subject: ProfiledSpace, n: int) -> list[Genotype]:
    """Return at most ``n`` networks that a table knows whole, spread over all their latencies."""
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
    """Fill a table from another's for some spaces that it covers, and save it.

    Networks are measured until nine of ten that are left out are foretold within 5 %, or there are
    four times as many, or it took long.
    """
    compiled, since = dict(source.plans), time.monotonic()
    spaces = [subject.space.name for subject in subjects]
    for count in effort.counts:
        chosen = {g: s.lower(g) for s in subjects for g in covered_networks(source.table, s, count)}
        ops = dict.fromkeys(node.op for net in chosen.values() for node in net)
        missing = [op for op in ops if op not in compiled]
        compiled |= _tuned(missing, pool, effort.n_plans, progress)
        known = operator_measurement.time_networks(table, chosen, pool, progress, compiled)
        latencies = [each.timing.median_ms for each in known]
        nets = list(chosen.values())
        report = fill_from_source(table, source.table, nets, latencies, spaces, compiled)
        if report["within_5"] >= effort.share or time.monotonic() - since > effort.long_s:
            break
    table.provenance["transferred_from"] = source.table.provenance
    table.save()


def network_plans(
    table: LatencyTable,
    taken: Mapping[OpSpec, str],
    nets: Iterable[Graph],
    pool: DevicePool,
    n_plans: int,
    progress: Progress,
) -> Mapping[OpSpec, str]:
    """Return how operators of networks are compiled that a table knows but has not timed.

    Those that neither it nor ``taken`` has a plan of are tuned; the table keeps that.

    Raises:
        HwnasError: one cannot be compiled.
    """
    known = {**taken, **table.taken_over()}
    missing = [op for op in table.missing(distinct(nets)) if op not in known]
    found = _tuned(missing, pool, n_plans, progress)
    for op, plan in found.items():
        if is_transferred((entry := table.entries[op]).plan):
            table.entries[op] = replace(entry, plan=f"{TRANSFERRED} {plan}".strip())
    if found:
        table.save()
    return {**known, **found}


def _tuned(
    ops: Sequence[OpSpec], pool: DevicePool, n_plans: int, progress: Progress
) -> dict[OpSpec, str]:
    """Return a plan of operators that have none.

    Raises:
        HwnasError: one cannot be compiled.
    """
    found: dict[OpSpec, str] = {}
    if not ops:
        return found
    with progress.phase("Tune operators", len(ops)) as advance:
        tasks = [lambda worker, op=op: worker.tune(op, n_plans) for op in ops]
        for index, plan in pool.run(tasks):
            if isinstance(plan, Exception):
                raise plan
            found[ops[index]] = plan
            advance(1)
    return found
