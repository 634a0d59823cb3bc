"""A table from another CPU's, by few networks measured here: a search begins within a minute.

Of CPUs of one architecture, each operator is nearly as fast by the plan that was found on another;
and what is slower or faster there is so here, by factors that some whole networks tell.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hwnas.latency_table import LatencyTable, is_transferred
from hwnas.op import OpSpec
from hwnas.profiling import networks, transfer
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.space import Genotype

WITHIN, SHARE = "within_5", 0.9  #: networks left out that must be foretold so well
_ROUNDS = 4  #: at most; each measures as many networks again
_LONG_S = 25.0  #: after which no other round begins
_DRAWN, _SHARES = 400, (0.0, 0.5, 0.75, 0.9)  #: of which networks are chosen

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
    """Return at most ``n`` networks that a table knows whole, spread over all their latencies.

    Fronts end with networks that are much faster than random ones. The first of more networks are
    those of fewer.
    """
    known = {op: source.entries[op].timing.median_ms for op in source.plans()}
    logs = dict[Genotype, float]()
    for genotype in _drawn(subject):
        ops = [node.op for node in subject.lower(genotype)]
        if all(op in known for op in ops):
            logs[genotype] = math.log(sum(known[op] for op in ops))
    order = sorted(logs, key=lambda genotype: logs[genotype])
    found, apart = list[Genotype](), dict.fromkeys(order, math.inf)
    while apart and len(found) < n:
        found.append(max(apart, key=lambda genotype: apart[genotype]))
        del apart[found[-1]]
        apart = {g: min(d, abs(logs[g] - logs[found[-1]])) for g, d in apart.items()}
    return found


def _drawn(subject: Subject) -> list[Genotype]:
    """Return different networks: random ones, and some with more and more of the first options."""
    rng, space = random.Random(0), subject.space
    found = [space.smallest(), space.largest()]
    for member in space.members:
        for share in _SHARES:
            for _ in range(_DRAWN // len(_SHARES)):
                choices = {
                    name: options[0] if rng.random() < share else rng.choice(options)
                    for name, options in member.choices.items()
                }
                found.append(member.genotype(choices))
    return list({genotype.id: genotype for genotype in found}.values())


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    n: int  #: networks of each space at first
    n_plans: int  #: ways to compile an operator that are tried where its plan is not taken over


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
    for count in range(effort.n, _ROUNDS * effort.n + 1, effort.n):
        chosen = {g: s.lower(g) for s in subjects for g in covered(source.table, s, count)}
        ops = dict.fromkeys(node.op for net in chosen.values() for node in net)
        missing = [op for op in ops if op not in compiled]
        compiled |= _tuned(missing, pool, effort.n_plans, progress)
        known = networks.time_whole(table, chosen, pool, progress, compiled)
        latencies = [each.timing.median_ms for each in known]
        nets = list(chosen.values())
        report = transfer.transferred(table, source.table, nets, latencies, spaces, compiled)
        if report[WITHIN] >= SHARE or time.monotonic() - since > _LONG_S:
            break
    table.provenance["transferred_from"] = source.table.provenance
    table.save()


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


def words(table: LatencyTable, space: str) -> str:
    """Return how a table came to know a space, if another's stands in; empty if it does not."""
    found = table.calibration.get(space, {})
    if "transfer" not in found or not any(is_transferred(e.plan) for e in table.entries.values()):
        return ""
    error, fitted = found["error"], found["coefficients"]
    return (
        f"Latencies of {space} follow from the table of {found['transfer']['from']} and "
        f"{fitted['n_fitted']} networks measured here: {error['table'][WITHIN]:.0%} of "
        f"{error['n']} that were left out are foretold within 5 %; interval "
        f"±{fitted['interval']:.1%}."
    )
