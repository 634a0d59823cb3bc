"""The time that a run may spend on finishing, however often it is interrupted."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from hwnas.core.progress import Progress

_EVERY_S = 15.0  # of work, what is spent is kept: as often as trainings are


@dataclass(frozen=True)
class TimeWindow:
    """When trainings may begin, and when they have to end: by this machine's monotonic clock.

    That clock is the same for all processes, so that a slot can be handed to others.
    """

    begin_by: float = math.inf
    end_by: float = math.inf

    @property
    def is_limited(self) -> bool:
        """Whether there is an end."""
        return self.end_by < math.inf

    def open_s(self) -> float:
        """Return the seconds in which trainings may begin."""
        return self.begin_by - time.monotonic()

    def left_s(self) -> float:
        """Return the seconds until trainings have to end."""
        return self.end_by - time.monotonic()


ALWAYS = TimeWindow()  #: where time is not limited


@final
class TimeBudget:
    """The seconds of a run's finishing: those that were spent, before and now, and those left.

    Args:
        limit_s: That it may take in all.
        spent_s: That it took before this run was resumed.
        keep: Writes what is spent by now where it will be found again.
    """

    def __init__(self, limit_s: float, spent_s: float, keep: Callable[[float], None]):
        self.limit_s, self._keep = limit_s, keep
        self.is_resumed = spent_s > 0  #: whether the run was finishing before
        self._began = time.monotonic() - spent_s
        self._kept_at = time.monotonic()

    @property
    def spent_s(self) -> float:
        """The seconds spent by now."""
        return time.monotonic() - self._began

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds that are left of a share of the limit."""
        return share * self.limit_s - self.spent_s

    def slot(self, share: float) -> TimeWindow:
        """Return when trainings may begin, within a share of the limit, and must have ended."""
        return TimeWindow(self._began + share * self.limit_s, self._began + self.limit_s)

    def end(self, *, was_short: bool) -> None:
        """Keep what was spent in the end.

        Args:
            was_short: Whether what is left does not suffice for what there would be to do: it
                counts as spent, or the same run, resumed, would try again.
        """
        self._keep(max(self.spent_s, self.limit_s) if was_short else self.spent_s)

    def watched(self, progress: Progress) -> Progress:
        """Return what shows phases, and keeps meanwhile what is spent."""
        return _Watched(progress, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._kept_at >= _EVERY_S:
            self._kept_at = now
            self._keep(self.spent_s)


@final
@dataclass(frozen=True)
class _Watched:
    """Shows phases; something looks whenever they advance."""

    progress: Progress
    look: Callable[[], None]

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Show a phase."""
        with self.progress.phase(name, total, done, remaining_s) as advance:

            def advanced(n: int) -> None:
                advance(n)
                self.look()

            yield advanced
