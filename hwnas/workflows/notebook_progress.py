"""Progress of a verb in a notebook: a bar per phase, which the notebook updates in place."""

import html
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.workflows.config.search import MAX_TRIALS
from hwnas.workflows.reporter import LaterWork

_UPDATE_S = 0.5  #: between two updates of a notebook
_PRINT_S = 60.0  #: between two lines of text, besides those at the start and end of a phase

#: A display of the caller, ``True``, ``False``, or ``None``: see :func:`progress_display`.
ProgressOption = Progress | bool | None


def progress_display(progress: ProgressOption) -> Progress | None:
    """Return the display of a verb's progress; ``None``: nothing is shown.

    ``True`` shows bars in notebooks and prints lines in scripts, ``None`` shows bars in notebooks
    only, and ``False`` shows nothing. Other objects are returned as they are.

    Raises:
        ConfigError: ``progress`` is neither a boolean, nor ``None``, nor a display.
    """
    if progress is False or (progress is None and not _in_notebook()):
        return None
    if progress is None or progress is True:
        if _in_notebook():
            return NotebookProgress(_notebook_display(), _UPDATE_S)
        return NotebookProgress(_print_line, _PRINT_S)
    if not hasattr(progress, "phase"):
        raise ConfigError(
            f"progress={progress!r} is not supported. Allowed: True, False, None (bars in "
            "notebooks only), or an object with the method phase (hwnas.core.progress.Progress)."
        )
    return progress


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    kernel = sys.modules.get("IPython")
    shell = kernel and kernel.get_ipython()
    return shell is not None and shell.__class__.__name__ != "TerminalInteractiveShell"


@dataclass
class _Phase:
    """A phase and its state."""

    name: str
    total: int
    done: int
    limit_s: float
    before: int  #: steps that an earlier run finished
    expected_s: float = math.inf  #: duration by the estimate of the verb
    start: float = field(default_factory=time.monotonic)
    end: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the phase, until its end."""
        return (self.end or time.monotonic()) - self.start

    @property
    def left_s(self) -> float:
        """Seconds until the end of the phase; infinite if they are unknown."""
        n, elapsed_s = self.done - self.before, self.elapsed_s
        seconds = self.expected_s - elapsed_s
        if n:
            seconds = (self.total - self.done) * elapsed_s / n
        return max(0.0, min(seconds, self.limit_s - elapsed_s))

    def text(self, left: str) -> str:
        """Return the state, the elapsed time and the time left."""
        total = f"/{self.total}" * (self.total < MAX_TRIALS)
        steps = f"{self.done}{total} " if self.total > 1 else ""
        if self.end is not None:
            return f"{self.name}: {steps}in {_clock(self.elapsed_s)}"
        return f"{self.name}: {steps}{_clock(self.elapsed_s)}{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


@final
class NotebookProgress:
    """Shows the phases of a verb.

    Args:
        show: Called with a line of text on the latest phase, and with all phases as HTML.
        update_s: Seconds between two calls, besides those at the start and end of a phase.
    """

    def __init__(self, show: Callable[[str, str], None], update_s: float):
        self._show, self._update_s = show, update_s
        self._phases, self._lock = list[_Phase](), threading.Lock()
        self._shown = -math.inf
        self._work: LaterWork | None = None

    def expect(self, work: LaterWork) -> None:
        """Show the time left for the whole command by ``work``, instead of that for a phase."""
        self._work = work

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Show a phase; yield a function that adds finished steps; see ``Progress.phase``."""
        is_outer = all(other.end is not None for other in self._phases)
        expected_s = self._work.begin(name, total - done) if self._work and is_outer else math.inf
        phase = _Phase(name, total, done, remaining_s, done, expected_s)
        with self._lock:
            self._phases.append(phase)
        self._update(at_once=True)

        def advance(n: int) -> None:
            phase.done += n
            self._update()

        try:
            yield advance
        finally:
            phase.end = time.monotonic()
            self._update(at_once=True)

    def _update(self, *, at_once: bool = False) -> None:
        with self._lock:
            if not at_once and time.monotonic() - self._shown < self._update_s:
                return
            self._shown = time.monotonic()
            texts = [phase.text(self._time_left(phase)) for phase in self._phases]
            self._show(texts[-1], "".join(map(_bar, self._phases, texts)))

    def _time_left(self, phase: _Phase) -> str:
        """Return the time left of the verb as text, or of the phase if nothing else is known."""
        outer = next(
            (running_phase for running_phase in self._phases if running_phase.end is None), phase
        )
        if self._work and outer.end is None:
            left_s = self._work.left_s(outer.left_s)
            if left_s is not None and math.isfinite(left_s):
                return f", {_clock(left_s)} left"
        left_s = phase.left_s
        return f", {_clock(left_s)} left in this phase" if math.isfinite(left_s) else ""


def _bar(phase: _Phase, text: str) -> str:
    bar = f'<progress value="{phase.done}" max="{max(phase.total, 1)}"></progress> '
    return f"<div>{bar * (phase.end is None)}{html.escape(text)}</div>"


def _notebook_display() -> Callable[[str, str], None]:
    """Return a function that replaces one output of the current cell."""
    display: Any = sys.modules["IPython"].display
    handle = display.display(display.HTML(""), display_id=True)

    def show(text: str, content: str) -> None:
        handle.update({"text/plain": text, "text/html": content}, raw=True)

    return show


def _print_line(text: str, _: str) -> None:
    print(text, flush=True)
