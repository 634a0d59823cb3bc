"""Terminal output: one progress line with rate and time left, and the duration of phases.

Without a terminal (a log file, a pipe), a line is printed every 10 to 60 seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from hwnas.cli.output import DISPLAY, Terminal, print_json, print_lines
from hwnas.workflows.reporter import FinishedTrials, LaterWork, Stopwatch

if TYPE_CHECKING:
    from hwnas.core.run_folder import Row
    from hwnas.nas.search_progress import SearchView

Result = TypeVar("Result")

_FRAMES = 4  # drawings per second; one takes milliseconds
_LOOK_S = 0.5  # minimum interval between two updates of a note
_LOOKS = 0.01  # maximum fraction of the time for updates of notes
# Without a terminal: fraction of a phase, minimum and maximum seconds between two lines.
_PART, _LINE_S, _QUIET_S = 0.1, 10.0, 60.0
_UNLIMITED = 1_000_000  # steps that only a time limit ends: no total is shown
_EXPECTED = 0.25  # weight of the expected duration of a phase, relative to all its steps
_SHOWN, _SHOWN_S = 0.01, 0.05  # minimum fraction of the total time, and seconds, of a phase
_SPEED_S = 300.0  # over which time left is estimated: steps may take minutes


class LiveNote(Protocol):
    """Further information that is shown while a phase runs."""

    def look(self) -> bool:
        """Update the information; return whether it has changed."""
        ...

    def line(self) -> str:
        """Return the information as one line of text."""
        ...

    def panel(self) -> RenderableType:
        """Return the information for the terminal, shown below the progress bar."""
        ...


@final
class StepRate(ProgressColumn):
    """Column with the steps per second, or the seconds per step if a step takes longer than 1 s."""

    def render(self, task: Task) -> Text:
        """Return the rate of a phase as text; empty before the first step."""
        return Text(_rate(task), style="cyan")


@final
class TimeLeft(ProgressColumn):
    """Column with the estimated time left.

    Args:
        left: Returns the text of the column.
    """

    max_refresh = 0.5

    def __init__(self, left: Callable[[Task], str]):
        super().__init__()
        self._left = left

    def render(self, task: Task) -> Text:
        """Return the time left as text; empty if it is unknown."""
        return Text(self._left(task), style="cyan")


def _estimate(task: Task) -> None:
    """Update the time left of a phase that has advanced."""
    fields = task.fields
    fields["n_updates"] += 1
    fields["at"] = task.get_time()
    fields["step_s"] = (task.elapsed or 0.0) / fields["n_updates"]
    if task.total is not None and (speed := _speed(task)):
        step_s = 1 / speed
        if math.isfinite(fields["expected_s"]):  # it counts as a part of the steps
            n = task.completed - fields["done"] + _EXPECTED * (task.total - fields["done"])
            step_s = ((task.elapsed or 0.0) + _EXPECTED * fields["expected_s"]) / n
        fields["left_s"] = (task.total - task.completed) * step_s


def _left_s(task: Task) -> float:
    """Return the seconds left in a phase; infinite if they are unknown.

    They are estimated when the phase advances, and counted down for one step at most.
    """
    fields, now = task.fields, task.get_time()
    since_s = min(now - fields["at"], fields["step_s"])
    seconds: float = min(fields["ends"] - now, fields["left_s"] - since_s)
    return seconds if math.isinf(seconds) else max(0.0, seconds)


def _steps(task: Task, separator: str) -> str:
    total = "" if task.total is None else f"{separator}{task.total:.0f}"
    return f"{task.completed:.0f}{total}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _rate(task: Task) -> str:
    if not (speed := _speed(task)):
        return ""
    return f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"


def _speed(task: Task) -> float:
    """Return the steps per second of a phase; 0 before the first one."""
    steps = task.completed - task.fields["done"]
    return task.finished_speed or task.speed or (steps / task.elapsed if task.elapsed else 0.0)


@final
class Phases:
    """Shows the running phases of a command in one line, and records their durations.

    The line shows the outermost phase that advanced, else the innermost one. Without a terminal, a
    line is printed every 10 to 60 seconds.

    Args:
        console: The console to print to.
        clock: Returns the time in seconds.
        stages: For each stage of the command, how the names of its phases begin.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        stages: Sequence[Sequence[str]] = (),
    ):
        self._console, self._clock, self._stages = console, clock, stages
        self._watch = Stopwatch(clock)
        self._notes: dict[str, LiveNote] = {}
        self._work: LaterWork | None = None
        self._active: list[Task] = []
        self._last: Task | None = None
        self._bars = Progress(
            TextColumn("{task.fields[stage]}{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            StepRate(),
            TimeLeft(self._left),
            get_time=clock,
            speed_estimate_period=_SPEED_S,
            expand=True,
        )
        self._live = Live(self._bars, console=console, refresh_per_second=_FRAMES, transient=True)

    def __enter__(self) -> Phases:
        if self._console.is_interactive:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def note(self, name: str, note: LiveNote) -> None:
        """Show a note below the phase ``name`` while it runs."""
        self._notes[name] = note

    def expect(self, work: LaterWork) -> None:
        """Show the time left of the whole command, with the phases of ``work``.

        See :meth:`Reporter.expect`.
        """
        self._work = work

    @property
    def position(self) -> str:
        """The latest phase and its steps, as ``Search, 8 of 60``; empty before the first one."""
        if (task := self._active[0] if self._active else self._last) is None:
            return ""
        return f"{task.description}, {_steps(task, ' of ')}"

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Show a phase within the context, and yield ``advance(n_steps)``.

        The recorded duration does not include nested phases.
        """
        now = self._clock()
        left_s = (
            self._work.begin(name, total - done) if self._work and not self._active else math.inf
        )
        known = None if total >= _UNLIMITED else total
        bar = self._bars.add_task(
            name, total=known, completed=done, done=done, ends=now + remaining_s, at=now,
            left_s=left_s, step_s=math.inf, expected_s=left_s, n_updates=0, stage=self._stage(name),
        )  # fmt: skip
        task = next(task for task in self._bars.tasks if task.id == bar)
        self._active.append(task)
        tell = self._in_terminal(task) if self._console.is_interactive else self._in_log(task)
        self._show_one()

        def advance(n: int) -> None:
            is_first = task.completed == done
            self._bars.advance(bar, n)
            if n and known is not None:
                _estimate(task)
            if is_first:
                self._show_one()
            tell()

        with self.timed(name):
            try:
                yield advance
            finally:
                self._look(name)
                self._close(task)

    def _close(self, task: Task) -> None:
        self._last = self._active[0]
        self._active.remove(task)
        self._bars.remove_task(task.id)
        if task.description in self._notes:
            self._live.update(self._bars)
        self._show_one()

    def _stage(self, name: str) -> str:
        """Return the number of the stage of a phase."""
        numbers = [i for i, names in enumerate(self._stages, 1) if any(map(name.startswith, names))]
        if not numbers and self._active:
            return str(self._active[-1].fields["stage"])
        return f"[{numbers[0]}/{len(self._stages)}] " if numbers else ""

    def _show_one(self) -> None:
        """Show the outermost phase that advanced, else the innermost one."""
        if not self._active:
            return
        advanced = (task for task in self._active if task.completed > task.fields["done"])
        visible = next(advanced, self._active[-1])
        for task in self._active:
            self._bars.update(task.id, visible=task is visible)

    def _left(self, task: Task) -> str:
        """Return the time left of the command as text, or of the phase if nothing else is known."""
        if self._work is None or not self._active:
            return f"{_clock(seconds)} left" if math.isfinite(seconds := _left_s(task)) else ""
        seconds = _left_s(self._active[0])
        if (all_s := self._work.left_s(seconds)) is not None and math.isfinite(all_s):
            return f"{_clock(all_s)} left"
        return f"{_clock(seconds)} left in this phase" if math.isfinite(seconds) else ""

    def _in_terminal(self, task: Task) -> Callable[[], None]:
        """Return a function that updates the note of a phase, seldom enough to cost little."""
        name, due = task.description, -math.inf

        def tell() -> None:
            nonlocal due
            if name in self._notes and (start := self._clock()) >= due:
                self._look(name)
                ended = self._clock()
                due = ended + max(_LOOK_S, (ended - start) / _LOOKS)

        tell()
        return tell

    def _in_log(self, task: Task) -> Callable[[], None]:
        """Return a function that prints a line about a phase if the last one is old enough."""
        printed, print_time = task.completed, self._clock()

        def tell() -> None:
            nonlocal printed, print_time
            total = math.inf if task.total is None else task.total
            is_far = printed + _PART * total <= task.completed
            due = print_time + (_LINE_S if is_far else _QUIET_S)
            if printed < task.completed < total and self._clock() >= due:
                printed, print_time = task.completed, self._clock()
                self._print(task)

        if task.completed and task.description in self._notes:
            self._print(task)
        return tell

    def _print(self, task: Task) -> None:
        done = f"{task.fields['stage']}{task.description} {_steps(task, '/')}"
        parts = [done, _rate(task), self._left(task)]
        if task.description in self._notes:
            self._look(task.description)
            parts.append(self._notes[task.description].line())
        line = ", ".join(filter(None, parts))
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _look(self, name: str) -> None:
        if name in self._notes and self._notes[name].look():
            self._live.update(Group(self._bars, self._notes[name].panel()))

    @property
    def seconds(self) -> Mapping[str, float]:
        """Duration of each phase so far in seconds, by name of the phase."""
        return self._watch.seconds

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Return a context that adds its duration to ``seconds[name]``; no progress is shown."""
        return self._watch.timed(name)

    def say(self, lines: Sequence[str], *, alarming: bool = False) -> None:
        """Print messages, in red if ``alarming``; empty ones are left out."""
        print_lines(self._console, lines, style="red" if alarming else None)

    def follow(self, study: FinishedTrials, views: Sequence[SearchView]) -> None:
        """Show the state of a search below the progress bar of the phase ``Search``.

        Args:
            study: The candidates of the search.
            views: Objectives and limits of each target.
        """
        from hwnas.cli.live_view import LiveView  # verbs without a study start without pyarrow

        self.note("Search", LiveView(study, views))


def run_verb(
    verb: Callable[[Phases], Result],
    show: Callable[[Console, Result], None],
    as_row: Callable[[Result], Row],
    *,
    quiet: bool = False,
    stages: Sequence[Sequence[str]] = (),
) -> Result:
    """Run a verb with a progress line, print and return its result, and print durations of phases.

    Args:
        verb: The function of the verb.
        show: Prints the result.
        as_row: Returns the result as the JSON object that ``json=true`` prints instead.
        quiet: Print nothing.
        stages: For each stage of the command, how the names of its phases begin.

    Raises:
        KeyboardInterrupt: the user stopped it; the message, if any, names the phase, its steps and
            the command that continues.
    """
    as_json = DISPLAY.get().as_json
    console = Terminal(quiet=quiet, stderr=as_json)
    with Phases(console, stages=stages) as phases:
        try:
            result = verb(phases)
        except KeyboardInterrupt as interrupt:
            if not interrupt.args:
                raise
            position = f" ({phases.position})" if phases.position else ""
            raise KeyboardInterrupt(f"Stopped{position}. {interrupt.args[0]}") from None
    if as_json and not quiet:
        print_json({**as_row(result), "seconds": dict(phases.seconds)})
    else:
        show(console, result)
    print_phases(console, phases)
    return result


def print_phases(console: Console, phases: Phases) -> None:
    """Print the duration of all phases together, and of each phase of at least 1 % of it."""
    if not phases.seconds:
        return
    total = sum(phases.seconds.values())
    shown = {name: s for name, s in phases.seconds.items() if s >= max(_SHOWN_S, _SHOWN * total)}
    costs = ", ".join(f"{name.lower()} {s:.1f} s" for name, s in shown.items())
    print_lines(console, [f"Took {total:.1f} s{f': {costs}' if len(shown) > 1 else ''}."])
