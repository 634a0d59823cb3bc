"""How long phases report that they advance; the shell decides what is shown."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, final


class Progress(Protocol):
    """Opens one bar a phase."""

    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context that gives ``advance(n)``.

        Args:
            name: Of the phase.
            total: Steps that it has.
            done: What an earlier run finished of them.
            left_s: Seconds after which it ends, finished or not.
        """
        ...


@final
class NullProgress:
    """Shows nothing."""

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Give an ``advance`` that does nothing."""
        yield lambda n: None


# Does something every so often while other work goes on.

EVERY_S = 15.0  # of work, what is spent is kept: as often as trainings are


@final
class PeriodicTimer:
    """Calls something from a thread of its own, until it is stopped or the process ends.

    Args:
        act: What is called; one call that fails is let be, the next one may not.
        every_s: Seconds between two calls, and before the first.
    """

    def __init__(self, act: Callable[[], None], every_s: float):
        self._act, self._every_s = act, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="ticking", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Call no more; a call that is under way ends first."""
        self._stopped.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._stopped.wait(self._every_s):
            with contextlib.suppress(Exception):
                self._act()
