"""Measures and calibrates latency tables, and reports their prediction errors."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hwnas.analysis.figures import prediction_png
from hwnas.core.errors import CompileError, TableError
from hwnas.core.progress import Progress
from hwnas.hardware.costs.table_cost import Calibration
from hwnas.hardware.latency_tables import provenance
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    find_table,
    load_table,
    table_name,
)
from hwnas.hardware.profiling import operator_measurement, table_transfer
from hwnas.hardware.profiling.operator_measurement import MeasuredNetwork
from hwnas.hardware.profiling.passes import ProfiledSpace
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.hardware.target import Remote
from hwnas.models.graph import Graph, OpSpec, distinct_ops
from hwnas.models.spaces import Genotype
from hwnas.workflows.config import ProfileConfig
from hwnas.workflows.device import SHIPPED, check_device, effort, fill, source
from hwnas.workflows.networks import read_networks
from hwnas.workflows.profile_kit import profile_offline
from hwnas.workflows.profile_layers import layer_latencies
from hwnas.workflows.profile_throughput import throughput_messages
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import ProfileResult


def transfer_table(
    config: ProfileConfig,
    table: LatencyTable,
    subject: ProfiledSpace,
    pool: DevicePool,
    phases: Progress,
) -> dict[str, float]:
    """Measure a few networks, scale another device's table to them, and save it as ``table``.

    Returns:
        Leave-one-out errors with the keys of ``core.agreement``; ``interval``, the half width of
        the interval relative to the prediction; and ``coverage``, the minimum probability that it
        contains the latency of a similar network.

    Raises:
        TableError: there is no table of ``transfer_from``, or it covers too few networks.
        CompileError: an operator cannot be compiled or timed.
        DeviceError: the device does not respond.
    """
    source, chosen = _covering_table(references(config), config, subject)
    ops = {node.op for net in chosen.values() for node in net}
    refused = operator_measurement.measure_operators(
        table, sorted(ops, key=str), pool, effort(config, None), phases
    )
    if refused:
        op, reason = next(iter(refused.items()))
        raise CompileError(
            f"{len(refused)} of {len(ops)} operators cannot be compiled or timed, for example "
            f"{op}: {reason} Repeat the command, or use a search space without these operators."
        )
    measured = operator_measurement.time_networks(table, chosen, pool, phases)
    latencies = [known.timing.median_ms for known in measured]
    report = table_transfer.fill_from_source(
        table, source, list(chosen.values()), latencies, [subject.space.name]
    )
    table.provenance["transferred_from"] = source.provenance
    table.save()
    return report


def references(config: ProfileConfig) -> list[LatencyTable]:
    """Return the one or two tables of target ``transfer_from``, one of this machine first.

    Raises:
        TableError: there is none for the engine, dtype, threads and batch sizes of the target.
    """
    assert config.transfer_from is not None
    other = dataclasses.replace(config.target, name=config.transfer_from)
    roots, tables = [Path(config.table.dir), SHIPPED], list[LatencyTable]()
    # The user's table comes before the shipped one, which has the default path.
    if (table := provenance.matching_table(other, Remote(), roots)) is not None:
        tables.append(table)
    if (path := find_table(other, roots)) is not None and path not in [t.path for t in tables]:
        tables.append(load_table(path))
    if not tables:
        name = table_name(other)
        named = {path.parent.name for root in roots for path in root.glob(f"*/{name}")}
        listed = ", ".join(sorted(named - {config.target.name}))
        raise TableError(
            f"transfer_from={config.transfer_from}: no latency table of this target for {name} in "
            f"{', '.join(map(str, roots))}. {f'Targets with one: {listed}. ' * bool(listed)}"
            f"Measure one first: hwnas profile +target={config.transfer_from}"
        )
    return tables


def _covering_table(
    sources: Sequence[LatencyTable], config: ProfileConfig, subject: ProfiledSpace
) -> tuple[LatencyTable, dict[Genotype, Graph]]:
    """Return the first table that predicts enough networks, with these networks.

    Raises:
        TableError: there is none.
    """
    n, networks = config.n_samples, subject.sample(20 * config.n_samples, config.seed + 1)
    lowered, n_max, enough = subject.graphs(networks), 0, 0
    for table in sources:
        known = table.plans()
        covered = [
            i for i, g in enumerate(networks) if all(node.op in known for node in lowered[g])
        ]
        if len(covered) >= n:
            return table, {networks[i]: lowered[networks[i]] for i in covered[:n]}
        n_max = max(n_max, len(covered))
        # A smaller n_samples, at least 10, draws proportionally fewer networks: the first of these.
        counts = (m for m, i in enumerate(covered, 1) if m >= 10 and i < 20 * m)
        enough = max([enough, *counts])
    smaller = f"set n_samples={enough}, " * bool(enough)
    raise TableError(
        f"The table {' or '.join(str(table.path) for table in sources)} covers only {n_max} of "
        f"{len(networks)} networks of search space '{subject.space.name}', fewer than "
        f"n_samples={n}. Measure without transfer_from, {smaller}or profile the other device for "
        f"this search space first: hwnas profile +target={config.transfer_from} "
        f"search_space={config.spaces[0]}"
    )


_ROUNDS = 8  #: maximum number of measured batches of networks: twice that of a search


def profile(config: ProfileConfig, arguments: Sequence[str], reporter: Reporter) -> ProfileResult:
    """Measure the missing entries of a target's latency table, calibrate it and save it.

    With ``transfer_from``, measure a few networks and scale another target's table. With ``kit``,
    ``measured`` or ``genotype``, write a kit, fit a device file, or return the latency of one
    network by operator instead.

    Args:
        config: The options.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Raises:
        ConfigError: an option is invalid, or the target's compiler is not installed.
        TableError: a search space has too few networks, a table is damaged or (``transfer_from``)
            missing, or (``measured``) too few measurements can be used.
        CompileError: an operator cannot be compiled or timed.
        DeviceError: the device does not respond.
    """
    check_device(config)
    reading = config
    if config.dataset.is_files:  # only the shape and the classes of the images are needed
        undecoded = dataclasses.replace(config.dataset, in_memory=False)
        reading = dataclasses.replace(config, dataset=undecoded)
    with reporter.timed("Load data"):
        parts, data = read_networks(reading, reporter)
    reporter.say(data.notes)
    if config.is_offline:
        return ProfileResult(*profile_offline(config, parts, reporter))
    if config.genotype is not None:
        layers = layer_latencies(parts, config)
        return ProfileResult(layers.path, layers.messages, layers=layers)
    table = provenance.writable_table(config.target, config.rpc, Path(config.table.dir), SHIPPED)
    _describe(table, config, arguments)
    subjects = [ProfiledSpace(member, parts.fused_graph) for member in parts.space.members]
    with table.locked(), _open_pool(config) as pool:
        if config.transfer_from is not None:
            (only,) = subjects
            report = transfer_table(config, table, only, pool, reporter)
            return ProfileResult(table.path, [_transfer_message(table, report)], table)
        measured = {
            s.space.name: _measured_networks(config, table, s, pool, reporter) for s in subjects
        }
    held_out = next(iter(measured.values()))
    messages = [line for space in measured for line in _error_messages(table, space)]
    if not config.rpc.tracker:
        messages += throughput_messages(config, parts, held_out, reporter)
    return ProfileResult(table.path, messages, table)


def _transfer_message(table: LatencyTable, report: Mapping[str, float]) -> str:
    return (
        f"{len(table.entries)} operators in {table.path}, most of them transferred. Networks left "
        f"out of the fit: Spearman {report['spearman']:.4f}, MAPE {report['mape']:.2%}. Interval: "
        f"±{report['interval']:.1%}, contains at least {report['coverage']:.0%} of latencies."
    )


def _error_messages(table: LatencyTable, space: str) -> Iterator[str]:
    """Yield the prediction errors of a table on one search space."""
    known = table.calibration[space]
    error, n_predicted = known["error"], len(table.entries) - len(table.plans())
    seen = "leave-one-out" if "foretold" in known else "in neither the fit nor the interval"
    predicted = f", {n_predicted} of them predicted" * bool(n_predicted)
    scope = f" of {space}" * (len(table.calibration) > 1)
    yield f"{len(table.entries)} operators in {table.path}{predicted}."
    yield f"Error on {error['n']} networks{scope}, {seen}:"
    for name in ("table", "macs"):
        e = error[name]
        yield (
            f"  {name:<6} within 5 %: {e['within_5']:.1%}, within 10 %: {e['within_10']:.1%}, "
            f"MAPE {e['mape']:.2%}, Spearman {e['spearman']:.4f}, Kendall {e['kendall']:.4f}"
        )
    yield (
        f"Interval: ±{error['table']['interval']:.1%}, contains {error['table']['coverage']:.1%} "
        f"of them (target: 95 %). {error['drifted']} were measured while the machine drifted."
    )


def _measured_networks(
    config: ProfileConfig,
    table: LatencyTable,
    subject: ProfiledSpace,
    pool: DevicePool,
    phases: Reporter,
) -> list[MeasuredNetwork]:
    """Measure and calibrate for one space; plot and return the prediction errors."""
    space, counts = subject.space.name, config.networks
    held_out = _networks_if_accurate(config, table, subject, pool, phases)
    if held_out is None:
        wholes = _measure(config, table, subject, pool, phases)
        operator_measurement.calibrate_table(table, wholes, counts, space)
        held_out = wholes[counts.fit + counts.interval :]
    title = f"{config.target.name}, {table.path.name}, {space}"
    png = prediction_png(table.networks, space, title)
    several = f"_{space}" if len(config.spaces) > 1 else ""
    (table.path / f"error{several}.png").write_bytes(png)
    return held_out


def _networks_if_accurate(
    config: ProfileConfig,
    table: LatencyTable,
    subject: ProfiledSpace,
    pool: DevicePool,
    phases: Reporter,
) -> list[MeasuredNetwork] | None:
    """Return the evidence that few measurements suffice; ``None`` if they do not."""
    if config.tolerance is None:
        return None
    space, other = subject.space.name, source(config)
    known = table.calibration.get(space)
    if config.table.networks and (known is None or "foretold" in known):
        goal = {
            "within": config.tolerance, "share": config.coverage, "long_s": math.inf,
            "rounds": _ROUNDS,
        }  # fmt: skip
        outcome = fill(table, other, [subject], pool, effort(config, other, **goal), phases)
        if outcome is not None and outcome.share >= config.coverage:
            return outcome.wholes
        if outcome is not None:
            message = f"{outcome.share:.1%} of {len(outcome.wholes)} networks are predicted within "
            phases.say([f"{message}{config.tolerance:.0%}: all operators are timed now."])
            return None
    if other is None or space not in table.calibration:
        return None
    return _confirming_networks(config, table, other.plans, subject, pool, phases)


def _confirming_networks(
    config: ProfileConfig,
    table: LatencyTable,
    taken: Mapping[OpSpec, str],
    subject: ProfiledSpace,
    pool: DevicePool,
    phases: Reporter,
) -> list[MeasuredNetwork] | None:
    """Return networks that confirm another CPU's table; ``None`` if its errors are too large."""
    assert config.tolerance is not None
    space, counts = subject.space.name, config.networks
    lowered = subject.graphs(_sampled_networks(config, subject)[counts.fit + counts.interval :])
    if any(op not in table.entries for op in distinct_ops(lowered.values())):
        return None  # the other table predicts only some networks of the space
    plans = table_transfer.network_plans(
        table, taken, lowered.values(), pool, config.tuning.n_plans, phases
    )
    held_out = operator_measurement.measure_networks(table, lowered, pool, phases, plans)
    calibration = Calibration(**table.calibration[space]["coefficients"])
    if (
        operator_measurement.fraction_within(calibration, held_out, config.tolerance)
        < config.coverage
    ):
        return None
    predicted = [calibration.predict(network.features) for network in held_out]
    error = operator_measurement.prediction_error(calibration, held_out, predicted)
    table.calibration[space]["error"] = error
    roles = ["held_out"] * len(held_out)
    operator_measurement.store_networks(table, held_out, roles, predicted, space)
    return held_out


def _open_pool(config: ProfileConfig) -> DevicePool:
    return DevicePool(config.target, config.timing, config.rpc, config.tuning.limit_s)


def _describe(table: LatencyTable, config: ProfileConfig, arguments: Sequence[str]) -> None:
    """Update the provenance of the table."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    table.provenance = {
        **table.provenance,
        **provenance.provenance_facts(config.target, config.rpc),
        "created": table.provenance.get("created", now),
        "updated": now,
        "arguments": list(arguments),
        "timing": dataclasses.asdict(config.timing),
        "tuning": dataclasses.asdict(config.tuning),
    }


def _measure(
    config: ProfileConfig,
    table: LatencyTable,
    subject: ProfiledSpace,
    pool: DevicePool,
    phases: Reporter,
) -> list[MeasuredNetwork]:
    counts = config.networks
    with phases.timed("Find operators"):
        ops = subject.operators(config.seed)
        genotypes = _sampled_networks(config, subject)
    needed = counts.fit + counts.interval + 10
    if len(genotypes) < needed:
        raise TableError(
            f"Search space '{subject.space.name}' has {len(genotypes)} networks. Profiling needs "
            f"{needed}: networks.fit={counts.fit}, networks.interval={counts.interval} and 10 held "
            "out. Set networks.fit (6 or more) and networks.interval (19 or more) to smaller "
            "numbers, or use a larger space."
        )
    plenty = effort(config, source(config) if config.tolerance is not None else None)
    table.forget_transfer()
    if table.transferred_plans().keys() & {*ops} and not plenty.plans:
        # Networks of scaled spaces use plans that may change now.
        table.networks = [row for row in table.networks if row["search_space"] in table.calibration]
    refused = operator_measurement.measure_operators(table, ops, pool, plenty, phases)
    if refused:
        op, reason = next(iter(refused.items()))
        raise CompileError(
            f"{len(refused)} of {len(ops)} operators cannot be compiled or timed, for example "
            f"{op}: {reason} The others are in {table.path}. Repeat the command, or use a search "
            "space without these operators."
        )
    return operator_measurement.measure_networks(table, subject.graphs(genotypes), pool, phases)


def _sampled_networks(config: ProfileConfig, subject: ProfiledSpace) -> list[Genotype]:
    """Return the networks for the fit, then those for the interval, then the others."""
    counts = config.networks
    return subject.sample(counts.fit + counts.interval + counts.held_out, config.seed + 1)
