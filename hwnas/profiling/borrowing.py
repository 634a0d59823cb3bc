"""A table from another CPU's, by few networks measured here: a search begins within a minute.

Of CPUs of one architecture, each operator is nearly as fast by the plan that was found on another;
and what is slower or faster there is so here, by factors that some whole networks tell.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hwnas.graph import Graph, distinct
from hwnas.latency_table import TRANSFERRED, LatencyTable, is_transferred
from hwnas.op import OpSpec
from hwnas.profiling import networks, transfer
from hwnas.profiling.effort import Effort, apart, drawn
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.space import Genotype

#: Instructions by whose width plans differ: taken over only where these are the same.
_VECTORS = frozenset({"avx2", "avx512f", "asimd", "sve"})


@dataclass(frozen=True)
class Source:
    """Another CPU's table."""

    table: LatencyTable
    plans: Mapping[OpSpec, str]  #: those that are taken over

    @classmethod
    def of(cls, table: LatencyTable, here: Mapping[str, Any]) -> "Source":
        """Return a table from which one of this machine may follow.

        Args:
            table: Another device's, see ``provenance.related``.
            here: Facts of this machine, see ``provenance.facts``.
        """
        there = table.provenance["device"].get("flags", ())
        same = _VECTORS & {*there} == _VECTORS & {*here["device"].get("flags", ())}
        return cls(table, table.plans() if same else {})

    def covers(self, subject: Subject, n: int) -> bool:
        """Return whether it knows ``n`` networks of a space whole."""
        return len(covered(self.table, subject, n)) == n


def covered(source: LatencyTable, subject: Subject, n: int) -> list[Genotype]:
    """Return at most ``n`` networks that a table knows whole, spread over all their latencies."""
    known = {op: source.entries[op].timing.median_ms for op in source.plans()}
    logs = dict[Genotype, float]()
    for genotype in drawn(subject):
        ops = [node.op for node in subject.lower(genotype)]
        if all(op in known for op in ops):
            logs[genotype] = math.log(sum(known[op] for op in ops))
    return apart(logs, n)


def borrow(
    table: LatencyTable,
    source: Source,
    subjects: Sequence[Subject],
    pool: Pool,
    effort: Effort,
    progress: Progress,
) -> None:
    """Fill a table from another's for some spaces that it covers, and save it.

    Networks are measured until nine of ten that are left out are foretold within 5 %, or there are
    four times as many, or it took long.
    """
    compiled, since = dict(source.plans), time.monotonic()
    spaces = [subject.space.name for subject in subjects]
    for count in effort.counts:
        chosen = {g: s.lower(g) for s in subjects for g in covered(source.table, s, count)}
        ops = dict.fromkeys(node.op for net in chosen.values() for node in net)
        missing = [op for op in ops if op not in compiled]
        compiled |= _tuned(missing, pool, effort.n_plans, progress)
        known = networks.time_whole(table, chosen, pool, progress, compiled)
        latencies = [each.timing.median_ms for each in known]
        nets = list(chosen.values())
        report = transfer.transferred(table, source.table, nets, latencies, spaces, compiled)
        if report["within_5"] >= effort.share or time.monotonic() - since > effort.long_s:
            break
    table.provenance["transferred_from"] = source.table.provenance
    table.save()


def plans(
    table: LatencyTable,
    taken: Mapping[OpSpec, str],
    nets: Iterable[Graph],
    pool: Pool,
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
    ops: Sequence[OpSpec], pool: Pool, n_plans: int, progress: Progress
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
