"""Times things in passes, minutes apart: what disturbs a machine once is seldom there again.

Everything measured is saved as it comes: a profile that is cut off goes on where it was.
"""

import random
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, final

from hwnas.errors import HwnasError
from hwnas.latency_table import LatencyTable
from hwnas.progress import Progress
from hwnas.runtimes.pool import Pool
from hwnas.runtimes.worker import Worker
from hwnas.timing import Timing

K = TypeVar("K", bound=Hashable)

_SAVE_S = 5.0  #: at most so much work is lost by a kill
MOST = 6  #: passes, at most
_AGREE = 0.03  #: what is measured is timed until two quiet passes differ by no more


@dataclass(frozen=True)
class Measured:
    """What is known of one thing."""

    timing: Timing
    n_passes: int = 1


@dataclass(frozen=True)
class Passes(Generic[K]):
    """Times things that a table keeps, as often as each needs."""

    title: str  #: of the progress bar
    measured: Callable[[K], Measured | None]  #: what the table has
    keep: Callable[[K, Measured], None]  #: put it into the table
    time: Callable[[Worker, Sequence[K]], Sequence[Timing]]
    block: int = 1  #: things that one worker times in a row
    most: int = MOST  #: passes

    def run(
        self,
        table: LatencyTable,
        things: Sequence[K],
        pool: Pool,
        progress: Progress,
    ) -> None:
        """Time everything, what the table has included, until two passes confirm the fastest.

        Raises:
            HwnasError: something cannot be timed; what was timed before is kept.
        """
        found: dict[K, list[Timing]] = {}
        for thing in things:
            known = self.measured(thing)
            found[thing] = [known.timing] if known else []
        for number in range(1, self.most + 1):
            todo = [thing for thing in things if self._wants(thing, found[thing], number)]
            random.Random(number).shuffle(todo)
            blocks = [todo[i : i + self.block] for i in range(0, len(todo), self.block)]
            if not blocks:
                continue
            tasks = [partial(self._block, block) for block in blocks]
            phase = progress.phase(f"{self.title}, {number}", len(todo))
            with phase as advance, Saver(table) as saver:
                for index, outcome in pool.run(tasks):
                    if isinstance(outcome, HwnasError):
                        raise outcome
                    for thing, timing in zip(blocks[index], outcome, strict=True):
                        found[thing].append(timing)
                        self.keep(thing, _with(self.measured(thing), timing))
                    saver.soon()
                    advance(len(blocks[index]))

    def _block(self, things: Sequence[K], worker: Worker) -> Sequence[Timing]:
        return self.time(worker, things)

    def _wants(self, thing: K, found: Sequence[Timing], number: int) -> bool:
        """Return whether something needs the pass of that number, after those of this run."""
        known = self.measured(thing)
        n_passes = known.n_passes if known else 0
        if len(found) == 1 and n_passes > 1:  # confirmed by an earlier run, if it was quiet then
            return found[0].drifted and number == 1
        return n_passes < number and not confirmed(found)


def confirmed(timings: Sequence[Timing]) -> bool:
    """Return whether two quiet passes agree on the fastest latency."""
    quiet = sorted(timing.median_ms for timing in timings if not timing.drifted)
    return len(quiet) > 1 and quiet[1] <= quiet[0] * (1 + _AGREE)


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


def _with(known: Measured | None, timing: Timing) -> Measured:
    if known is None:
        return Measured(timing)
    return Measured(together([known.timing, timing]), known.n_passes + 1)


@final
class Saver:
    """Saves a table every few seconds, and at the end, whatever the end is."""

    def __init__(self, table: LatencyTable):
        self._table, self._last = table, time.monotonic()

    def soon(self) -> None:
        """Save if the last time is long ago."""
        if time.monotonic() - self._last > _SAVE_S:
            self._table.save()
            self._last = time.monotonic()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._table.entries:
            self._table.save()
