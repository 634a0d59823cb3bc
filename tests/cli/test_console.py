"""Bars in a terminal and lines in a log, by a clock of the test's."""

import contextlib
import io
import math
import re
from dataclasses import dataclass, field

import pytest
from rich.console import Console, RenderableType

from hwnas.cli.console import Phases, print_phases


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Looks:
    """A note that counts; each look takes a while."""

    clock: Clock
    takes: float = 0.0
    at: list[float] = field(default_factory=list)

    def look(self) -> bool:
        self.at.append(self.clock.now)
        self.clock.now += self.takes
        return True

    def line(self) -> str:
        return f"look {len(self.at)}"

    def panel(self) -> RenderableType:
        return f"panel {len(self.at)}"


def _ran(
    clock: Clock, note: Looks | None, n: int, each_s: float, *, terminal: bool, done: int = 0
) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with Phases(console, clock) as phases:
        if note is not None:
            phases.note("Search", note)
        with phases.phase("Search", n, done) as advance:
            for _ in range(n - done):
                clock.now += each_s
                advance(1)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_log_has_a_line_each_tenth() -> None:
    clock = Clock()
    lines = _ran(clock, Looks(clock), 10_000, 0.05, terminal=False).splitlines()
    assert [line.split(",")[0] for line in lines] == [f"Search {i}000/10000" for i in range(1, 10)]
    assert lines[0] == "Search 1000/10000, 20.0/s, 0:07:30 left, look 1"


def test_phase_whose_time_ends_first_says_each_minute_what_is_left_of_it() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=100)
    with Phases(console, clock) as phases, phases.phase("Search", 1000, 0, 150.0) as advance:
        for _ in range(10):
            clock.now += 20.0
            advance(1)
    assert isinstance(console.file, io.StringIO)
    first, second, third = console.file.getvalue().splitlines()
    assert first == "Search 3/1000, 20.0 s each, 0:01:30 left"
    assert second == "Search 6/1000, 20.0 s each, 0:00:30 left"
    assert third == "Search 9/1000, 20.0 s each, 0:00:00 left"


def test_phase_that_only_its_time_limit_ends_has_no_total() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=100)
    with Phases(console, clock) as phases, phases.phase("Search", 1_000_000, 0, 90.0) as advance:
        for _ in range(4):
            clock.now += 20.0
            advance(1)
    assert isinstance(console.file, io.StringIO)
    (first,) = console.file.getvalue().splitlines()
    assert first == "Search 3, 20.0 s each, 0:00:30 left"


def test_log_of_a_short_phase_is_empty() -> None:
    assert _ran(Clock(), None, 100, 0.01, terminal=False) == ""


def test_resumed_phase_says_at_once_where_it_stands() -> None:
    clock = Clock()
    first, *_ = _ran(clock, Looks(clock), 40, 0.1, terminal=False, done=25).splitlines()
    assert first == "Search 25/40, look 1"


@pytest.mark.parametrize(("takes", "between"), [(0.001, 0.5), (0.1, 10.0)])
def test_looks_in_a_terminal_are_so_seldom_that_they_cost_one_per_cent(
    takes: float, between: float
) -> None:
    clock = Clock()
    note = Looks(clock, takes)
    _ran(clock, note, 20_000, 0.01, terminal=True)
    gaps = [later - earlier for earlier, later in zip(note.at, note.at[1:], strict=False)]
    assert min(gaps[:-1]) >= between  # the last look is at the end, whenever that is
    assert len(note.at) * takes < 0.02 * clock.now
    assert len(note.at) > 10


def _screen(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().rpartition("\x1b[2K")[2]
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", last).strip()


class Work:
    """30 s after the search; the fine-tuning takes 20 s of them."""

    def begin(self, name: str, n_steps: int) -> float:
        self.later_s = {"Search": 30.0, "Fine-tune": 10.0}[name]
        return 20.0 if name == "Fine-tune" else math.inf

    def left_s(self, phase_s: float) -> float | None:
        return phase_s + self.later_s


def test_one_line_shows_the_outermost_phase_that_advanced_and_all_remaining_time() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), force_terminal=True, width=80)
    with Phases(console, clock, stages=[("Search",), ("Fine-tune",)]) as phases:
        phases.expect(Work())
        with phases.phase("Search", 4) as advance:
            with phases.phase("Train supernet", 2) as step:
                step(1)
                phases._live.refresh()
                assert _screen(console).startswith("[1/2] Train supernet")
                step(1)
            clock.now += 6.0
            advance(2)
            phases._live.refresh()
            shown = _screen(console)
            assert shown.startswith("[1/2] Search")
            assert shown.endswith("2/4 3.0 s each 0:00:36 left")  # 2 trials, and later phases
            assert phases.position == "Search, 2 of 4"
        with phases.phase("Fine-tune", 5):
            clock.now += 5.0  # before the first step, the expected duration counts
            phases._live.refresh()
            assert _screen(console).startswith("[2/2] Fine-tune")
            assert _screen(console).endswith("0:00:25 left")
    assert phases.seconds["Search"] == 6.0


def test_interrupted_phase_is_closed() -> None:
    phases = Phases(Console(file=io.StringIO()))
    with contextlib.suppress(ValueError), phases.phase("Export", 3) as advance:
        advance(1)
        raise ValueError
    assert phases.position == "Export, 1 of 3"
    with phases.phase("Export", 3):
        assert phases.position == "Export, 0 of 3"


def test_time_left_is_counted_down_between_steps_for_one_step_at_most() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=100)
    phases = Phases(console, clock)
    with phases.phase("Finish members", 10) as advance:
        clock.now += 10.0
        advance(2)
        (task,) = phases._active
        assert phases._left(task) == "0:00:40 left"
        clock.now += 5.0
        assert phases._left(task) == "0:00:35 left"
        clock.now += 100.0
        assert phases._left(task) == "0:00:30 left"


def test_short_phases_are_left_out_of_the_durations() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=200)
    phases = Phases(console, clock)
    for name, seconds in (("Search", 90.0), ("Verify front", 9.9), ("Count exits", 0.1)):
        with phases.timed(name):
            clock.now += seconds
    print_phases(console, phases)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "Took 100.0 s: search 90.0 s, verify front 9.9 s.\n"
