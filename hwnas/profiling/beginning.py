"""A table for a space that none knows, by the operators of a few networks measured here.

Few networks hold a fair sample of a space's operators. These are tuned and timed, the others are
foretold from them. How good that is say the same networks, each foretold by the others, as if the
operators that it alone has had not been timed.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.cost.calibration import Calibration, features, fit
from hwnas.errors import CompileError, TableError
from hwnas.graph import Graph, distinct, n_macs
from hwnas.latency_table import FEWEST, FORETOLD, Entry, LatencyTable, is_transferred
from hwnas.op import OpSpec
from hwnas.profiling import networks, operators
from hwnas.profiling.effort import Effort, apart, drawn
from hwnas.profiling.foretelling import Foretelling
from hwnas.profiling.networks import Whole
from hwnas.profiling.subject import Subject
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.space import Genotype
from hwnas.timing import Timing

_FEW = 64  #: operators, at most, that are timed so that what is known of a space can stay


@dataclass(frozen=True)
class Begun:
    """Networks of a space that were measured, and how well each is foretold by the others."""

    wholes: list[Whole]
    share: float  #: of them that are foretold as ``Effort.within`` asks for


def begin(
    table: LatencyTable,
    subjects: Sequence[Subject],
    pool: Pool,
    effort: Effort,
    progress: Progress,
) -> dict[str, Begun]:
    """Fill a table for some spaces, and save it.

    Networks are measured until as many of those that are left out are foretold as ``effort`` asks
    for, or it took long. Operators that the table has already are not timed again.

    Returns:
        What was measured, by space.

    Raises:
        CompileError: an operator cannot be compiled.
        TableError: a space has too few networks.
    """
    since, begun = time.monotonic(), dict[str, Begun]()
    subjects = [s for s in subjects if not _completed(table, s, pool, effort, progress)]
    if not subjects:
        return begun
    table.forget_transfer()
    for count in effort.counts:
        chosen = {subject.space.name: _spread(subject, count) for subject in subjects}
        ops = distinct(s.lower(genotype) for s in subjects for genotype in chosen[s.space.name])
        _measure(table, ops, pool, effort, progress)
        told = Foretelling.of({op: table.entries[op].timing.median_ms for op in table.plans()})
        for subject in subjects:
            genotypes = chosen[subject.space.name]
            wholes = networks.measure_networks(table, subject, genotypes, pool, progress)
            share = _calibrate(table, subject, wholes, told, effort.within)
            begun[subject.space.name] = Begun(wholes, share)
        least = min(each.share for each in begun.values())
        if least >= effort.share or time.monotonic() - since > effort.long_s:
            break
    with progress.phase("Foretell operators", 1) as advance:
        _foretell(table, subjects, told)
        advance(1)
    table.save()
    return begun


def _completed(
    table: LatencyTable, subject: Subject, pool: Pool, effort: Effort, progress: Progress
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
    pool: Pool,
    effort: Effort,
    progress: Progress,
) -> None:
    """Time the operators that a table lacks.

    Raises:
        CompileError: one cannot be compiled.
    """
    refused = operators.measure_operators(table, ops, pool, effort, progress)
    if refused:
        raise CompileError(next(iter(refused.values())))


def _spread(subject: Subject, n: int) -> list[Genotype]:
    """Return at most ``n`` networks, from the least work to the most.

    Raises:
        TableError: there are too few to learn from.
    """
    found = apart({g: math.log(n_macs(subject.lower(g))) for g in drawn(subject)}, n)
    if len(found) < FEWEST:
        raise TableError(
            f"Search space '{subject.space.name}' has {len(found)} networks, too few to learn "
            "latencies from. Measure each: cost=measured."
        )
    return found


def _calibrate(
    table: LatencyTable,
    subject: Subject,
    wholes: Sequence[Whole],
    told: Foretelling,
    within: float,
) -> float:
    """Calibrate a table for a space; return the share of left-out networks foretold so well."""
    nets = [subject.lower(whole.genotype) for whole in wholes]
    left_out = _left_out(nets, wholes, told)
    ratios = [whole.timing.median_ms / ms for ms, whole in zip(left_out, wholes, strict=True)]
    calibration = _fitted(wholes).within([abs(ratio - 1.0) for ratio in ratios])
    predicted = [calibration.around(value) for value in left_out]
    table.calibration[subject.space.name] = {
        "coefficients": calibration.to_json(),
        "error": networks.error(calibration, wholes, predicted),
        "foretold": {"from": len(told.known_ms)},
        "unit": "ms",
    }
    networks.record(table, wholes, ["held_out"] * len(wholes), predicted, subject.space.name)
    return sum(abs(1.0 / ratio - 1.0) <= within for ratio in ratios) / len(ratios)


def _fitted(wholes: Sequence[Whole]) -> Calibration:
    return fit([(whole.features, whole.timing.median_ms) for whole in wholes])


def _left_out(nets: Sequence[Graph], wholes: Sequence[Whole], told: Foretelling) -> list[float]:
    """Return what the others foretell of each network: as if its own operators were not timed."""
    found = []
    for i, net in enumerate(nets):
        others = {node.op for other in (*nets[:i], *nets[i + 1 :]) for node in other}
        own = {node.op for node in net} - others
        guessed = {op: ms for op, (ms, _, _) in told.foretold(own, own).items()}
        calibration = _fitted([*wholes[:i], *wholes[i + 1 :]])
        found.append(calibration.predict(features(net, {**told.known_ms, **guessed}))[0])
    return found


def _foretell(table: LatencyTable, subjects: Sequence[Subject], told: Foretelling) -> None:
    """Put what is foretold of all other operators of spaces into a table."""
    wanted = dict.fromkeys(op for s in subjects for op in s.operators(0))
    for op, (ms, low, high) in told.foretold(
        op for op in wanted if op not in told.known_ms
    ).items():
        table.entries[op] = Entry(FORETOLD, Timing(ms, low, high, 1, drifted=False))


def words(table: LatencyTable, space: str) -> str:
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
