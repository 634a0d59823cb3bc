"""Progress bars in a terminal and lines in a log, with a fake clock."""

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
class CountingNote:
    """A note that counts its updates; each update takes some time."""

    clock: Clock
    update_s: float = 0.0
    update_times: list[float] = field(default_factory=list)

    def look(self) -> bool:
        self.update_times.append(self.clock.now)
        self.clock.now += self.update_s
        return True

    def line(self) -> str:
        return f"update {len(self.update_times)}"

    def panel(self) -> RenderableType:
        return f"panel {len(self.update_times)}"


def _run_phase(
    clock: Clock, note: CountingNote | None, n: int, each_s: float, *, terminal: bool, done: int = 0
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


def test_log_has_a_line_per_tenth() -> None:
    clock = Clock()
    lines = _run_phase(clock, CountingNote(clock), 10_000, 0.05, terminal=False).splitlines()
    assert [line.split(",")[0] for line in lines] == [f"Search {i}000/10000" for i in range(1, 10)]
    assert lines[0] == "Search 1000/10000, 20.0/s, 0:07:30 left, update 1"


def test_phase_with_time_limit_logs_remaining_time_each_minute() -> None:
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


def test_phase_without_step_limit_has_no_total() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=100)
    with Phases(console, clock) as phases, phases.phase("Search", 1_000_000, 0, 90.0) as advance:
        for _ in range(4):
            clock.now += 20.0
            advance(1)
    assert isinstance(console.file, io.StringIO)
    (first,) = console.file.getvalue().splitlines()
    assert first == "Search 3, 20.0 s each, 0:00:30 left"


def test_log_of_short_phase_is_empty() -> None:
    assert _run_phase(Clock(), None, 100, 0.01, terminal=False) == ""


def test_resumed_phase_logs_its_position_first() -> None:
    clock = Clock()
    first, *_ = _run_phase(
        clock, CountingNote(clock), 40, 0.1, terminal=False, done=25
    ).splitlines()
    assert first == "Search 25/40, update 1"


@pytest.mark.parametrize(("update_s", "min_gap_s"), [(0.001, 0.5), (0.1, 10.0)])
def test_terminal_updates_cost_about_one_percent(update_s: float, min_gap_s: float) -> None:
    clock = Clock()
    note = CountingNote(clock, update_s)
    _run_phase(clock, note, 20_000, 0.01, terminal=True)
    gaps = [
        later - earlier
        for earlier, later in zip(note.update_times, note.update_times[1:], strict=False)
    ]
    assert min(gaps[:-1]) >= min_gap_s  # the last update is at the end, at any time
    assert len(note.update_times) * update_s < 0.02 * clock.now
    assert len(note.update_times) > 10


def _screen(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().rpartition("\x1b[2K")[2]
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", last).strip()


class FakeEstimate:
    """30 s follow the search; fine-tuning takes 20 s of them."""

    def begin(self, name: str, n_steps: int) -> float:
        self.later_s = {"Search": 30.0, "Fine-tune": 10.0}[name]
        return 20.0 if name == "Fine-tune" else math.inf

    def left_s(self, phase_s: float) -> float | None:
        return phase_s + self.later_s


def test_line_shows_outermost_phase_and_total_remaining_time() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), force_terminal=True, width=80)
    with Phases(console, clock, stages=[("Search",), ("Fine-tune",)]) as phases:
        phases.expect(FakeEstimate())
        with phases.phase("Search", 4) as advance:
            with phases.phase("Train supernet", 2) as step:
                step(1)
                phases._live.refresh()
                assert _screen(console).startswith("[1/2] Train supernet")
                step(1)
            clock.now += 6.0
            advance(2)
            phases._live.refresh()
            screen = _screen(console)
            assert screen.startswith("[1/2] Search")
            assert screen.endswith("2/4 3.0 s each 0:00:36 left")  # 2 trials, and later phases
            assert phases.position == "Search, 2 of 4"
        with phases.phase("Fine-tune", 5):
            clock.now += 5.0  # before the first step, the expected duration counts
            phases._live.refresh()
            assert _screen(console).startswith("[2/2] Fine-tune")
            assert _screen(console).endswith("0:00:25 left")
    assert phases.seconds["Search"] == 6.0


def test_first_line_of_resumed_phase_shows_total_remaining_time() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=200)
    with Phases(console, clock, stages=[("Search",), ("Fine-tune",)]) as phases:
        phases.expect(FakeEstimate())
        phases.note("Search", CountingNote(clock))
        with phases.phase("Search", 40, 25, remaining_s=60.0):
            pass
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith("[1/2] Search 25/40, 0:01:30 left, update 1")


def test_interrupted_phase_is_closed() -> None:
    phases = Phases(Console(file=io.StringIO()))
    with contextlib.suppress(ValueError), phases.phase("Export", 3) as advance:
        advance(1)
        raise ValueError
    assert phases.position == "Export, 1 of 3"
    with phases.phase("Export", 3):
        assert phases.position == "Export, 0 of 3"


def test_remaining_time_counts_down_at_most_one_step() -> None:
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


def test_short_phases_are_omitted_from_durations() -> None:
    clock, console = Clock(), Console(file=io.StringIO(), width=200)
    phases = Phases(console, clock)
    for name, seconds in (("Search", 90.0), ("Verify front", 9.9), ("Count exits", 0.1)):
        with phases.timed(name):
            clock.now += seconds
    print_phases(console, phases)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "Took 100.0 s: search 90.0 s, verify front 9.9 s.\n"
