"""What the terminal shows: progress bars with rate and time left, and what phases cost.

Where there is no terminal (a log file, a pipe), a line says now and then how far a phase is, and
the bars are printed once, at the end.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from hwnas.core import database
from hwnas.workflows.reporter import FinishedTrials, Stopwatch

if TYPE_CHECKING:
    from rich.table import Table

    from hwnas.core.run_folder import RunFolder
    from hwnas.nas.search_progress import SearchView
    from hwnas.workflows.result_folders import FolderResult

Result = TypeVar("Result")

_FRAMES = 4  # a second: to draw one takes milliseconds
_LOOK_S = 0.5  # between two looks of a note, at least
_LOOKS = 0.01  # of the time, that looks may take
# Where there is no terminal: of a phase, and seconds, between two lines at least, and at most.
_PART, _LINE_S, _QUIET_S = 0.1, 10.0, 60.0
_UNLIMITED = 1_000_000  # steps that only a time limit ends: no total is shown
_SPEED_S = 300.0  # over which time left is estimated: steps may take minutes


class LiveNote(Protocol):
    """What else is known while a phase runs."""

    def look(self) -> bool:
        """Take in what is new; return whether there was something."""
        ...

    def line(self) -> str:
        """Return it in one line."""
        ...

    def panel(self) -> RenderableType:
        """Return it to be shown below the bars."""
        ...


@final
class StepRate(ProgressColumn):
    """Steps a second, or seconds a step where that is easier to read."""

    def render(self, task: Task) -> Text:
        """Return the rate of a phase."""
        return Text(_rate(task), style="cyan")


@final
class TimeLeft(ProgressColumn):
    """The time that is left; at the end, the time that it took without nested phases."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the time of a phase."""
        took = task.fields["took"]
        return Text(_left(task) if took is None else f"took {_clock(took)}", style="cyan")


def _left(task: Task) -> str:
    seconds = task.fields["ends"] - task.get_time()
    if task.time_remaining is not None:
        seconds = min(seconds, task.time_remaining)
    return f"{_clock(max(0.0, seconds))} left" if math.isfinite(seconds) else ""


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _rate(task: Task) -> str:
    steps = task.completed - task.fields["done"]
    speed = task.finished_speed or task.speed or (steps / task.elapsed if task.elapsed else 0.0)
    if not speed:
        return ""
    return f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"


@final
class Phases:
    """Bars for the phases of a command; phases may nest. Keeps the seconds that each took.

    Args:
        console: Where they are shown.
        clock: Returns seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._watch = Stopwatch(clock)
        self._notes: dict[str, LiveNote] = {}
        self._bars = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            StepRate(),
            TimeLeft(),
            get_time=clock,
            speed_estimate_period=_SPEED_S,
        )
        self._live = Live(self._bars, console=console, refresh_per_second=_FRAMES)

    def __enter__(self) -> Phases:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        if not self._console.is_interactive:
            self._console.print()  # the last line is left open

    def note(self, name: str, note: LiveNote) -> None:
        """Show a note beside the phase of that name, from its beginning on."""
        self._notes[name] = note

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Show a bar while the phase runs; what nested phases take is counted as theirs."""
        ends = self._clock() + remaining_s
        known = None if total >= _UNLIMITED else total
        bar = self._bars.add_task(
            name, total=known, completed=done, done=done, ends=ends, took=None
        )
        task = next(task for task in self._bars.tasks if task.id == bar)
        tell = self._in_terminal(task) if self._console.is_interactive else self._in_log(task)

        def advance(n: int) -> None:
            self._bars.advance(bar, n)
            tell()

        before = self.seconds.get(name, 0.0)
        with self.timed(name):
            try:
                yield advance
            finally:
                self._look(name)
        self._bars.update(bar, took=self.seconds[name] - before)
        self._bars.stop_task(bar)

    def _in_terminal(self, task: Task) -> Callable[[], None]:
        """Return what has a phase's note look, so seldom that it costs next to nothing."""
        name, due = task.description, -math.inf

        def tell() -> None:
            nonlocal due
            if name in self._notes and (begun := self._clock()) >= due:
                self._look(name)
                ended = self._clock()
                due = ended + max(_LOOK_S, (ended - begun) / _LOOKS)

        tell()
        return tell

    def _in_log(self, task: Task) -> Callable[[], None]:
        """Return what prints a line of a phase, every now and then."""
        printed, at = task.completed, self._clock()

        def tell() -> None:
            nonlocal printed, at
            total = math.inf if task.total is None else task.total
            is_far = printed + _PART * total <= task.completed
            due = at + (_LINE_S if is_far else _QUIET_S)
            if printed < task.completed < total and self._clock() >= due:
                printed, at = task.completed, self._clock()
                self._print(task)

        if task.completed and task.description in self._notes:
            self._print(task)
        return tell

    def _print(self, task: Task) -> None:
        total = "" if task.total is None else f"/{task.total:.0f}"
        done = f"{task.description} {task.completed:.0f}{total}"
        words = [done, _rate(task), _left(task)]
        if task.description in self._notes:
            self._look(task.description)
            words.append(self._notes[task.description].line())
        line = ", ".join(filter(None, words))
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _look(self, name: str) -> None:
        if name in self._notes and self._notes[name].look():
            self._live.update(Group(self._bars, self._notes[name].panel()))

    @property
    def seconds(self) -> Mapping[str, float]:
        """What each phase took so far, by its name."""
        return self._watch.seconds

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Return a context that counts the seconds of a phase that shows no bar."""
        return self._watch.timed(name)

    def say(self, lines: Sequence[str], *, alarming: bool = False) -> None:
        """Print sentences."""
        print_lines(self._console, lines, style="red" if alarming else None)

    def follow(self, study: FinishedTrials, views: Sequence[SearchView]) -> None:
        """Show how a search stands beside its bar."""
        from hwnas.cli.live_view import LiveView  # verbs without a study start without pyarrow

        self.note("Search", LiveView(study, views))


def print_lines(console: Console, lines: Sequence[str], style: str | None = None) -> None:
    """Print lines as they are, but empty ones."""
    for line in filter(None, lines):
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def run_verb(
    verb: Callable[[Phases], Result],
    show: Callable[[Console, Result], None],
    *,
    quiet: bool = False,
) -> Result:
    """Run a verb with progress bars, then print its result and the duration of its phases."""
    console = Console(quiet=quiet)
    with Phases(console) as phases:
        result = verb(phases)
    show(console, result)
    print_phases(console, phases)
    return result


def print_result(
    console: Console, result: FolderResult, table: Callable[[FolderResult], Table] | None = None
) -> None:
    """Print the main table of a result, its messages and its files."""
    if table is not None and (rows := table(result)).row_count:
        console.print(rows)
    page = f"Open in a browser: {result.path / 'report.html'}" * ("report.html" in result.files)
    files = f"Files in {result.path}: {' '.join(result.files)}"
    print_lines(console, [*result.messages, files, page])


def print_files(
    console: Console, storage: str | None, folder: RunFolder, names: Sequence[str]
) -> None:
    """Print the files of a search, and the next commands.

    Args:
        console: The console.
        storage: URL of the study's database; ``None``: a file in the folder.
        folder: The run folder.
        names: Names of files; missing files are left out.
    """
    run, study = str(folder.path), database.redact(storage or database.sqlite_url(folder.study))
    there = [name for name in names if (folder.path / name.partition(" ")[0]).exists()]
    page = [f"Open in a browser: {folder.path / 'report.html'}"] if "report.html" in there else []
    commands = {
        f"hwnas why {shlex.quote(f'run={run}')} id=front": "why these networks",
        f"hwnas compare {shlex.quote(f'runs=[{run}, OTHER]')}": "with another run",
        f"optuna-dashboard {shlex.quote(study)}": "all trials; pip install optuna-dashboard",
    }
    lines = [
        *page,
        f"Files in {run}: {' '.join(there)}",
        "To go on:",
        *(f"  {command}  # {words}" for command, words in commands.items()),
    ]
    print_lines(console, lines)


def print_phases(console: Console, phases: Phases) -> None:
    """Print the duration of each phase."""
    if not phases.seconds:
        return
    costs = ", ".join(f"{name.lower()} {s:.1f} s" for name, s in phases.seconds.items())
    total = sum(phases.seconds.values())
    console.print(f"Took {total:.1f} s: {costs}.", highlight=False, soft_wrap=True)
