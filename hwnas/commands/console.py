"""What the terminal shows: progress bars with rate and time left, and what phases cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@final
class Rate(ProgressColumn):
    """Steps a second, or seconds a step where that is easier to read."""

    def render(self, task: Task) -> Text:
        """Return the rate of a phase."""
        steps = task.completed - task.fields["done"]
        speed = steps / task.elapsed if task.elapsed else 0.0
        if not speed:
            return Text("")
        if speed >= 1:
            return Text(f"{speed:.1f}/s", style="cyan")
        return Text(f"{1 / speed:.1f} s each", style="cyan")


@final
class Phases:
    """Bars for the phases of a command; phases may nest. Keeps the seconds that each took."""

    def __init__(self, console: Console):
        self.seconds: dict[str, float] = {}
        self._nested: list[float] = []
        self._bars = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> "Phases":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
        """Show a bar while the phase runs; what nested phases take is counted as theirs."""
        bar = self._bars.add_task(name, total=total, completed=done, done=done)
        with self.timed(name):
            yield lambda n: self._bars.advance(bar, n)
        self._bars.stop_task(bar)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the seconds of a phase that shows no bar."""
        start = time.monotonic()
        self._nested.append(0.0)
        try:
            yield
        finally:
            took = time.monotonic() - start
            inner = self._nested.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + took - inner
            if self._nested:
                self._nested[-1] += took


def print_notes(console: Console, notes: Sequence[str]) -> None:
    """Say what a user should know of the data."""
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def print_ended(console: Console, reasons: Sequence[str]) -> None:
    """Say which processes ended before the search did; others took over what they had begun."""
    for reason in reasons:
        console.print(f"A process ended early: {reason}", style="red", markup=False, soft_wrap=True)


def print_phases(console: Console, phases: Phases) -> None:
    """Say what each phase took."""
    costs = ", ".join(f"{name.lower()} {s:.1f} s" for name, s in phases.seconds.items())
    total = sum(phases.seconds.values())
    console.print(f"Took {total:.1f} s: {costs}.", highlight=False, soft_wrap=True)
