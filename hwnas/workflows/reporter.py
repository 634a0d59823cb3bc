"""Interfaces for the progress of a verb; the caller decides what is shown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

from hwnas.core.progress import NullProgress, Progress

if TYPE_CHECKING:  # `verify` works without the packages that read runs
    from hwnas.nas.candidates import Candidate
    from hwnas.nas.search_progress import SearchView


class FinishedTrials(Protocol):
    """A source of the candidates of finished trials."""

    candidates: list[Candidate]  #: in order of trials


class LaterWork(Protocol):
    """Estimates the time that a command needs after its current phase."""

    def begin(self, name: str, n_steps: int) -> float:
        """Return the expected seconds of a phase that begins; infinite if they are unknown.

        The phase is then no longer counted as later work.

        Args:
            name: Name of the phase.
            n_steps: Number of its remaining steps.
        """
        ...

    def left_s(self, phase_s: float) -> float | None:
        """Return the seconds until the end of the command; ``None`` if they are unknown.

        Args:
            phase_s: Remaining seconds of the current phase.
        """
        ...


@runtime_checkable
class ShowsRemainingTime(Protocol):
    """Progress whose remaining time includes later phases of the command."""

    def expect(self, work: LaterWork) -> None:
        """Receive the estimate of the time that the command needs for all its phases."""
        ...


class Reporter(Progress, ShowsRemainingTime, Protocol):
    """Receives phases, messages for the user, and the state of a search."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Duration of each phase so far in seconds, by name of the phase."""
        ...

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Return a context that adds its duration to ``seconds[name]``, without a progress bar."""
        ...

    def say(self, lines: Sequence[str], *, alarming: bool = False) -> None:
        """Receive messages for the user, one per line; empty ones are ignored.

        Args:
            lines: The messages.
            alarming: Whether they are warnings.
        """
        ...

    def follow(self, study: FinishedTrials, views: Sequence[SearchView]) -> None:
        """Receive the study whose candidates are shown during the phase ``Search``.

        Args:
            study: Source of the candidates.
            views: Objectives and limits of each target.
        """
        ...


@final
class Stopwatch:
    """Records the duration of each phase, excluding nested phases."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.seconds: dict[str, float] = {}  #: duration in seconds by name of the phase
        self._clock, self._nested = clock, list[float]()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the context to ``seconds[name]``."""
        start = self._clock()
        self._nested.append(0.0)
        try:
            yield
        finally:
            elapsed = self._clock() - start
            inner = self._nested.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed - inner
            if self._nested:
                self._nested[-1] += elapsed


@final
class RecordingReporter:
    """Records durations and messages; optionally forwards phases.

    Args:
        progress: Receives the phases.
    """

    def __init__(self, progress: Progress | None = None):
        self._progress, self._watch = progress or NullProgress(), Stopwatch()
        self.lines: list[str] = []  #: the messages

    @property
    def seconds(self) -> Mapping[str, float]:
        """Duration of each phase so far in seconds, by name of the phase."""
        return self._watch.seconds

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Return a context that times a phase."""
        return self._watch.timed(name)

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Forward a phase and time it."""
        with self.timed(name), self._progress.phase(name, total, done, remaining_s) as advance:
            yield advance

    def say(self, lines: Sequence[str], *, alarming: bool = False) -> None:
        """Record messages."""
        self.lines += filter(None, lines)

    def follow(self, study: FinishedTrials, views: Sequence[SearchView]) -> None:
        """Do nothing: there is no screen."""

    def expect(self, work: LaterWork) -> None:
        """Forward the estimate, if the progress shows it."""
        if isinstance(self._progress, ShowsRemainingTime):
            self._progress.expect(work)
