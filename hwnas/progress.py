"""How long phases report that they advance; the shell decides what is shown."""

import math
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
class Silent:
    """Shows nothing."""

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Give an ``advance`` that does nothing."""
        yield lambda n: None
