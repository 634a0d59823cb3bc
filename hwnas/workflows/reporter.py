"""What hears of a verb's work while it goes on; a shell decides what of it is shown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, final

from hwnas.core.progress import NullProgress, Progress

if TYPE_CHECKING:  # `verify` works where what reads runs is not installed
    from hwnas.nas.candidates import Candidate
    from hwnas.nas.search_progress import SearchView


class FinishedTrials(Protocol):
    """What keeps the candidates of finished trials."""

    candidates: list[Candidate]


class Reporter(Progress, Protocol):
    """Hears of phases, of sentences for the user, and of how a search stands."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """What each phase took so far, by its name."""
        ...

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Return a context that counts the seconds of a phase that shows no bar."""
        ...

    def say(self, lines: Sequence[str], *, alarming: bool = False) -> None:
        """Take in sentences for the user; empty ones are none."""
        ...

    def follow(self, study: FinishedTrials, views: Sequence[SearchView]) -> None:
        """Look at a study during the phase ``Search``."""
        ...


@final
class Stopwatch:
    """Keeps the seconds that each phase took without the phases nested in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.seconds: dict[str, float] = {}
        self._clock, self._nested = clock, list[float]()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the seconds of a phase."""
        start = self._clock()
        self._nested.append(0.0)
        try:
            yield
        finally:
            took = self._clock() - start
            inner = self._nested.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + took - inner
            if self._nested:
                self._nested[-1] += took


@final
class RecordingReporter:
    """Keeps seconds and sentences; whoever called is told of phases, if they want.

    Args:
        progress: Is told of phases.
    """

    def __init__(self, progress: Progress | None = None):
        self._progress, self._watch = progress or NullProgress(), Stopwatch()
        self.lines: list[str] = []

    @property
    def seconds(self) -> Mapping[str, float]:
        """What each phase took so far, by its name."""
        return self._watch.seconds

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Return a context that counts the seconds of a phase."""
        return self._watch.timed(name)

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Pass a phase on, and count its seconds."""
        with self.timed(name), self._progress.phase(name, total, done, remaining_s) as advance:
            yield advance

    def say(self, lines: Sequence[str], *, alarming: bool = False) -> None:
        """Keep sentences."""
        self.lines += filter(None, lines)

    def follow(self, study: FinishedTrials, views: Sequence[SearchView]) -> None:
        """Do nothing: there is no screen."""
