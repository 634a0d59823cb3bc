"""Time limit of a run's fine-tuning, across interruptions."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np

from hwnas.core.progress import Progress

_SAVE_INTERVAL_S = 15.0


@dataclass(frozen=True)
class TimeWindow:
    """Latest start and end of trainings, in seconds of ``time.monotonic``.

    All processes share that clock, so a window can be passed to other processes.
    """

    begin_by: float = math.inf  #: trainings must start before this time
    end_by: float = math.inf  #: trainings must end before this time

    @property
    def is_limited(self) -> bool:
        """True if there is an end."""
        return self.end_by < math.inf

    def open_s(self) -> float:
        """Return the seconds until ``begin_by``, negative if in the past; infinite: no limit."""
        return self.begin_by - time.monotonic()

    def left_s(self) -> float:
        """Return the seconds until ``end_by``, negative if in the past; infinite: no limit."""
        return self.end_by - time.monotonic()


ALWAYS = TimeWindow()  #: without a time limit


@final
class TimeBudget:
    """Elapsed and remaining time of the fine-tuning of a search.

    Args:
        limit_s: Time limit in seconds; infinite: none.
        spent_s: Seconds of fine-tuning before the search was resumed.
        save: Stores the seconds spent for a resumed search.
        epochs: Epochs per network that an earlier process chose; ``None``: not chosen yet.
        save_epochs: Stores the chosen epochs for a resumed search.
    """

    def __init__(
        self,
        limit_s: float,
        spent_s: float,
        save: Callable[[float], None],
        epochs: int | None = None,
        save_epochs: Callable[[int], None] = lambda epochs: None,
    ):
        self.limit_s, self._save = limit_s, save
        self.epochs, self._save_epochs = epochs, save_epochs
        self.is_resumed = spent_s > 0  #: True if fine-tuning started in an earlier process
        self._start = time.monotonic() - spent_s
        self._saved_at, self._paused_at = time.monotonic(), math.inf

    @property
    def spent_s(self) -> float:
        """Elapsed seconds, including earlier processes."""
        return min(time.monotonic(), self._paused_at) - self._start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count the time of the context as that of the search: trials run meanwhile.

        It reduces the limit of fine-tuning, but ``left_s`` only at the end of the context.
        """
        self._paused_at = time.monotonic()
        try:
            yield
        finally:
            elapsed_s = time.monotonic() - self._paused_at
            self._start, self.limit_s = self._start + elapsed_s, self.limit_s - elapsed_s
            self._paused_at = math.inf

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until ``share`` of the limit is spent; negative if it is exceeded.

        Args:
            share: Fraction of the limit, in (0, 1].
        """
        return share * self.limit_s - self.spent_s

    def slot(self, share: float) -> TimeWindow:
        """Return the window of trainings that start before ``share`` of the limit is spent.

        They end within the whole limit.

        Args:
            share: Fraction of the limit, in (0, 1].
        """
        return TimeWindow(self._start + share * self.limit_s, self._start + self.limit_s)

    @property
    def is_limited(self) -> bool:
        """True if there is a limit."""
        return math.isfinite(self.limit_s)

    def choose_epochs(self, epochs: int) -> None:
        """Store the number of epochs of each network."""
        self.epochs = epochs
        self._save_epochs(epochs)

    def end(self, *, was_short: bool) -> None:
        """Store the time spent.

        Args:
            was_short: True if work remains that does not fit into the remaining time. The whole
                limit is recorded as spent then, so that a resumed search does not try again.
        """
        self._save(max(self.spent_s, self.limit_s) if was_short else self.spent_s)

    def tracked(self, progress: Progress) -> Progress:
        """Return a progress display that also stores the time spent, at most every 15 seconds."""
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


# Which schedules and networks fit.

INT8_TRAINING = 1.5  #: relative duration of fine-tuning with the int8 training of some networks
N_MEMBERS, _MIN_MEMBERS = 25, 12  #: with short schedules, and with longer ones
_MIN_SCHEDULE = 1 / 3  # fraction of the epochs below which fewer networks are trained for longer


@final
class TrainingTimes:
    """Durations of trainings, interpolated by size between a few networks that are timed.

    Completed trainings correct the estimates, as the load of the machine may change.

    Args:
        sizes: Multiply-accumulates per image of each network, by id of its genotype.
        epoch_s: Returns the duration in seconds of an epoch of a network, given its id.
    """

    def __init__(self, sizes: Mapping[str, int], epoch_s: Callable[[str], float]):
        by_size = sorted(sizes, key=lambda name: (sizes[name], name))
        timed = dict.fromkeys([by_size[0], by_size[len(by_size) // 2], by_size[-1]])
        self._sizes, self.names = sizes, [*sizes]
        self._known = {sizes[name]: epoch_s(name) for name in timed}
        self._factor = 1.0  # of the estimates, by the durations of completed trainings

    def correct(self, durations_s: Mapping[str, float], epochs: int) -> None:
        """Scale the estimates to the durations of completed trainings.

        Args:
            durations_s: Seconds of fine-tuning and int8 training, by id of the network.
            epochs: Epochs of each network.
        """
        self._factor = 1.0
        estimated_s = sum(self.member_s(name, epochs) for name in durations_s)
        if estimated_s:
            self._factor = sum(durations_s.values()) / estimated_s

    def member_s(self, name: str, epochs: int) -> float:
        """Return the estimated seconds of fine-tuning and int8 training of a network, by its id."""
        return INT8_TRAINING * self.training_s(name, epochs)

    def training_s(self, name: str, epochs: int) -> float:
        """Return the estimated seconds of fine-tuning of a network for ``epochs``, by its id."""
        seconds = np.interp(self._sizes[name], [*self._known], [*self._known.values()])
        return self._factor * epochs * float(seconds)

    def epochs(self, names: Sequence[str], max_epochs: int, left_s: float, n_processes: int) -> int:
        """Return the number of epochs, from 1 to ``max_epochs``, with which enough networks fit.

        Enough are 25 networks, or 12 if a third of ``max_epochs`` would not fit otherwise.

        Args:
            names: Ids of the networks, in the order of training.
            max_epochs: Epochs of the full schedule.
            left_s: Available seconds.
            n_processes: Number of processes, all of which wait for the first network, the teacher.
        """

        def fitting(n: int) -> int:
            teacher_s = max(self.training_s(name, 1) for name in names[:n])
            members_s = [self.member_s(name, 1) for name in names[:n]]
            epoch_s = teacher_s + max(*members_s, sum(members_s) / n_processes)
            return min(max_epochs, int(left_s / epoch_s))

        shortest = int(_MIN_SCHEDULE * max_epochs)
        return max(1, fitting(N_MEMBERS), min(shortest, fitting(_MIN_MEMBERS)))

    def within(self, names: Iterable[str], epochs: int, core_s: float, left_s: float) -> list[str]:
        """Return the ids of the networks that can be fine-tuned together, in their order.

        Most networks need no int8 training, so it is not counted.

        Args:
            names: Ids of the networks, in the order of preference.
            epochs: Epochs of each network.
            core_s: Remaining seconds of all processes together.
            left_s: Remaining seconds until the end.
        """
        chosen = list[str]()
        for name in names:
            seconds = self.training_s(name, epochs)
            if seconds <= min(core_s, left_s):
                chosen.append(name)
                core_s -= seconds
        return chosen
