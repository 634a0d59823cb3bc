"""Tunes and times the operators that a table lacks.

Everything measured is saved as it comes: a profile that is cut off goes on where it was.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import final

from hwnas.errors import CompileError, HwnasError
from hwnas.latency_table import Entry, LatencyTable
from hwnas.op import OpSpec
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.runtimes.worker import Worker
from hwnas.timing import Timing

_SAVE_S = 5.0  #: at most so much work is lost by a kill
_BLOCK = 10  #: operators between two readings of the sentinel
_AGREE = 0.04  #: two passes whose medians differ by more are followed by a third


def measure_operators(
    table: LatencyTable,
    ops: Sequence[OpSpec],
    pool: Pool,
    n_plans: int,
    progress: Progress,
) -> dict[OpSpec, str]:
    """Tune and time the operators that a table lacks; return those that cannot be compiled."""
    missing = table.missing(ops)
    saved = _Saver(table)
    refused: dict[OpSpec, str] = {}

    def tune(op: OpSpec) -> Callable[[Worker], tuple[str, Timing]]:
        def work(worker: Worker) -> tuple[str, Timing]:
            plan = worker.tune(op, n_plans)
            return plan, worker.time_operators([(op, plan)])[0]

        return work

    with progress.phase("Tune operators", len(missing)) as advance, saved:
        for index, outcome in pool.run([tune(op) for op in missing]):
            op = missing[index]
            if isinstance(outcome, CompileError):
                refused[op] = str(outcome)
            elif isinstance(outcome, HwnasError):
                raise outcome
            else:
                table.entries[op] = Entry(*outcome)
                saved.soon()
            advance(1)
    _time_again(table, [op for op in ops if op not in refused], pool, progress)
    return refused


def _time_again(table: LatencyTable, ops: Sequence[OpSpec], pool: Pool, progress: Progress) -> None:
    """Time in further passes: what disturbed the machine once is seldom there again."""
    saved = _Saver(table)
    passes = {op: [table.entries[op].timing] for op in ops}
    for number in (2, 3):
        todo = [op for op in ops if _wants(table.entries[op], passes[op], number)]
        random.Random(number).shuffle(todo)
        blocks = [todo[i : i + _BLOCK] for i in range(0, len(todo), _BLOCK)]
        if not blocks:
            continue

        def again(block: list[OpSpec]) -> Callable[[Worker], list[Timing]]:
            return lambda worker: worker.time_operators(
                [(op, table.entries[op].plan) for op in block]
            )

        with progress.phase(f"Time operators, {number}", len(todo)) as advance, saved:
            for index, outcome in pool.run([again(block) for block in blocks]):
                if isinstance(outcome, HwnasError):
                    raise outcome
                for op, timing in zip(blocks[index], outcome, strict=True):
                    old = table.entries[op]
                    passes[op].append(timing)
                    both = together([old.timing, timing])
                    table.entries[op] = Entry(old.plan, both, old.n_passes + 1)
                saved.soon()
                advance(len(blocks[index]))


def _wants(entry: Entry, passes: Sequence[Timing], number: int) -> bool:
    """Return whether an operator needs the pass of that number, after the passes of this run."""
    if number == 2:
        return entry.n_passes < number or entry.timing.drifted
    return entry.n_passes == number - 1 and differ(passes)


def differ(timings: Sequence[Timing]) -> bool:
    """Return whether passes disagree, or one of them was disturbed."""
    medians = [timing.median_ms for timing in timings]
    return any(t.drifted for t in timings) or max(medians) > min(medians) * (1 + _AGREE)


def together(timings: Sequence[Timing]) -> Timing:
    """Return one timing of several passes: the fastest quiet one.

    What disturbs a machine makes it slower, never faster. The interval is that of all quiet passes.
    """
    quiet = [timing for timing in timings if not timing.drifted] or list(timings)
    fastest = min(quiet, key=lambda timing: timing.median_ms)
    low = min(timing.low_ms for timing in quiet)
    high = max(timing.high_ms for timing in quiet)
    n = sum(timing.n_repeats for timing in quiet)
    return Timing(fastest.median_ms, low, high, n, all(timing.drifted for timing in timings))


@final
class _Saver:
    """Saves a table every few seconds, and at the end, whatever the end is."""

    def __init__(self, table: LatencyTable):
        self._table, self._last = table, time.monotonic()

    def soon(self) -> None:
        """Save if the last time is long ago."""
        if time.monotonic() - self._last > _SAVE_S:
            self._table.save()
            self._last = time.monotonic()

    def __enter__(self) -> "_Saver":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._table.entries:
            self._table.save()
