"""Fills a latency table from that of another target, by few networks measured here."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from hwnas.config import ProfileConfig
from hwnas.device import SHIPPED, effort
from hwnas.errors import CompileError, TableError
from hwnas.graph import Graph
from hwnas.latency_table import LatencyTable, find, load, setting
from hwnas.profiling import networks, operators, transfer
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress
from hwnas.provenance import here
from hwnas.runtimes.pool import Pool
from hwnas.space import Genotype
from hwnas.target import Remote


def run(
    config: ProfileConfig, table: LatencyTable, subject: Subject, pool: Pool, phases: Progress
) -> dict[str, float]:
    """Measure a few networks and fill the table from another device's."""
    source, chosen = _covering(references(config), config, subject)
    ops = {node.op for net in chosen.values() for node in net}
    refused = operators.measure_operators(
        table, sorted(ops, key=str), pool, effort(config, None), phases
    )
    if refused:
        raise CompileError(next(iter(refused.values())))
    measured = networks.time_whole(table, chosen, pool, phases)
    latencies = [known.timing.median_ms for known in measured]
    report = transfer.transferred(
        table, source, list(chosen.values()), latencies, [subject.space.name]
    )
    table.provenance["transferred_from"] = source.provenance
    table.save()
    return report


def references(config: ProfileConfig) -> list[LatencyTable]:
    """Return the tables of the target of ``transfer_from``: first the one measured here.

    Raises:
        TableError: there is none of the target's setting.
    """
    assert config.transfer_from is not None
    other = dataclasses.replace(config.target, name=config.transfer_from)
    roots, found = [Path(config.table.dir), SHIPPED], list[LatencyTable]()
    if config.transfer_from != config.target.name:
        # The user's own lies beside one that ships, which has the usual place.
        if (own := here(other, Remote(), roots)) is not None:
            found.append(own)
        if (path := find(other, roots)) is not None and path not in [t.path for t in found]:
            found.append(load(path))
    if not found:
        raise TableError(
            f"transfer_from={config.transfer_from}: no latency table of another target of that "
            f"name for {setting(other)} in {', '.join(map(str, roots))}."
        )
    return found


def _covering(
    sources: Sequence[LatencyTable], config: ProfileConfig, subject: Subject
) -> tuple[LatencyTable, dict[Genotype, Graph]]:
    """Return the first table that knows enough networks whole, and these.

    Raises:
        TableError: none does.
    """
    n, drawn = config.n_samples, subject.sample(20 * config.n_samples, config.seed + 1)
    lowered, most = subject.lowered(drawn), 0
    for source in sources:
        known = source.plans()
        covered = {g: net for g, net in lowered.items() if all(node.op in known for node in net)}
        if len(covered) >= n:
            return source, dict(itertools.islice(covered.items(), n))
        most = max(most, len(covered))
    raise TableError(
        f"The table {' or '.join(str(source.path) for source in sources)} covers only {most} of "
        f"{len(drawn)} networks of search space '{subject.space.name}', too few for n_samples={n}."
    )
