"""How long phases report that they advance; the shell decides what is shown."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, final


class Progress(Protocol):
    """Opens one bar a phase."""

    def phase(
        self, name: str, total: int, done: int = 0
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context that gives ``advance(n)``; ``done`` is what an earlier run finished."""
        ...


@final
class Silent:
    """Shows nothing."""

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
        """Give an ``advance`` that does nothing."""
        yield lambda n: None
