"""Progress reports of long phases, and a periodic timer."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol, final


class Progress(Protocol):
    """Shows the progress of phases; the command line draws a bar for each."""

    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context manager that yields ``advance``; ``advance(n)`` counts ``n`` steps.

        Args:
            name: Name of the phase.
            total: Number of steps.
            done: Steps that an earlier run finished.
            remaining_s: Time limit of the phase in seconds, for the time left that is shown. The
                caller must stop by then.
        """
        ...


@final
class NullProgress:
    """Progress that shows nothing."""

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Yield an ``advance`` that does nothing."""
        yield lambda n: None


class TimeLimitReached(Exception):
    """A training was stopped by :func:`stop_trainings`; its checkpoint is saved.

    Args:
        done: Number of completed steps.
        total: Number of steps of the training.
    """

    def __init__(self, done: int = 0, total: int = 0):
        super().__init__(done, total)
        self.done, self.total = done, total


_stop_at: ContextVar[float] = ContextVar("_stop_at", default=math.inf)


@contextmanager
def stop_trainings(at: float) -> Iterator[None]:
    """Stop trainings within the context that cannot end by ``at``.

    They raise ``TimeLimitReached`` as soon as their measured step time shows it, see
    :func:`must_stop`.

    Args:
        at: Value of ``time.monotonic()`` in seconds; infinite: no limit.
    """
    token = _stop_at.set(at)
    try:
        yield
    finally:
        _stop_at.reset(token)


def must_stop(elapsed_s: float, done: int, left: int) -> bool:
    """Return whether a training has reached the time of ``stop_trainings``, or will miss it.

    The remaining time is projected after 10 seconds of steps; 80 % of it must fit.

    Args:
        elapsed_s: Seconds of the steps since the start of the training, or since its resumption.
        done: Number of these steps.
        left: Number of remaining steps.
    """
    left_s = left * elapsed_s / done if elapsed_s >= _PROJECTED_AFTER_S else 0.0
    return time.monotonic() + _CERTAIN * left_s >= _stop_at.get()


_PROJECTED_AFTER_S = 10.0  # of steps, after which their mean duration is representative
_CERTAIN = 0.8  # of the projected time: load varies
SAVE_INTERVAL_S = 15.0  #: seconds between two saved states of trainings and elapsed times


@final
class PeriodicTimer:
    """Calls a function periodically in a background thread until it is stopped.

    Args:
        act: The function; an exception is ignored, and the next call is made all the same.
        every_s: Seconds between two calls, and before the first.
    """

    def __init__(self, act: Callable[[], None], every_s: float):
        self._act, self._every_s = act, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="ticking", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current call."""
        self._stopped.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._stopped.wait(self._every_s):
            with contextlib.suppress(Exception):
                self._act()
