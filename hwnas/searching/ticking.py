"""Does something every so often while other work goes on."""

import contextlib
import threading
from collections.abc import Callable
from typing import final

EVERY_S = 15.0  # of work, what is spent is kept: as often as trainings are


@final
class Ticking:
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
