"""Time limit of a run's fine-tuning, across interruptions."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from hwnas.core.progress import Progress

_SAVE_INTERVAL_S = 15.0


@dataclass(frozen=True)
class TimeWindow:
    """Start and end times of trainings on this machine's monotonic clock.

    All processes share that clock, so a window can be passed to other processes.
    """

    begin_by: float = math.inf
    end_by: float = math.inf

    @property
    def is_limited(self) -> bool:
        """True if there is an end."""
        return self.end_by < math.inf

    def open_s(self) -> float:
        """Return the seconds in which trainings may start."""
        return self.begin_by - time.monotonic()

    def left_s(self) -> float:
        """Return the seconds until trainings must end."""
        return self.end_by - time.monotonic()


ALWAYS = TimeWindow()  #: without a time limit


@final
class TimeBudget:
    """Elapsed and remaining seconds of a run's fine-tuning.

    Args:
        limit_s: Time limit.
        spent_s: Time spent before this run was resumed.
        save: Stores the time spent for a resumed run.
    """

    def __init__(self, limit_s: float, spent_s: float, save: Callable[[float], None]):
        self.limit_s, self._save = limit_s, save
        self.is_resumed = spent_s > 0  #: True if fine-tuning started in an earlier process
        self._start = time.monotonic() - spent_s
        self._saved_at = time.monotonic()

    @property
    def spent_s(self) -> float:
        """Elapsed seconds, including earlier processes."""
        return time.monotonic() - self._start

    def left_s(self, share: float = 1.0) -> float:
        """Return the remaining seconds of a share of the limit."""
        return share * self.limit_s - self.spent_s

    def slot(self, share: float) -> TimeWindow:
        """Return a window: trainings start within a share of the limit and end within all of it."""
        return TimeWindow(self._start + share * self.limit_s, self._start + self.limit_s)

    def end(self, *, was_short: bool) -> None:
        """Store the time spent.

        Args:
            was_short: True if work remains that does not fit into the remaining time. The limit is
                recorded as used up then, so that a resumed run does not try again.
        """
        self._save(max(self.spent_s, self.limit_s) if was_short else self.spent_s)

    def tracked(self, progress: Progress) -> Progress:
        """Return a progress display that also stores the time spent regularly."""
        return _TrackedProgress(progress, self._update)

    def _update(self) -> None:
        now = time.monotonic()
        if now - self._saved_at >= _SAVE_INTERVAL_S:
            self._saved_at = now
            self._save(self.spent_s)


@final
@dataclass(frozen=True)
class _TrackedProgress:
    """Shows phases and calls a function whenever they advance."""

    progress: Progress
    on_advance: Callable[[], None]

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Show a phase."""
        with self.progress.phase(name, total, done, remaining_s) as advance:

            def advanced(n: int) -> None:
                advance(n)
                self.on_advance()

            yield advanced
