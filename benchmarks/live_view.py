"""Cost of the live view of a search in a terminal.

python -m benchmarks.live_view [TRIALS] runs one search in the table of ``search_scale``, of 10,000
trials by ``random`` into a study file, with an evaluation of no cost. Blocks of 250 trials with
(bars, hypervolume, front) and without the view alternate. Prints the ratio of both in processor
time, which other processes disturb less: the median over pairs of blocks, with quartiles, for the
first and the last half of the search. Also prints the cost of a refresh and of a frame at the end.
"""

import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.search_scale import table_problem
from hwnas.cli.console import Phases
from hwnas.cli.live_view import LiveView
from hwnas.core import processes
from hwnas.core.progress import NullProgress
from hwnas.nas import loop
from hwnas.nas.options import SamplerConfig
from hwnas.nas.search_progress import SearchView
from hwnas.nas.study import LocalStudy

BLOCK = 250
OBJECTIVES = ("accuracy", "latency_ms")


def _seconds(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return time.process_time() - start


def measure(n_trials: int, folder: Path) -> None:
    """Print the results."""
    problem = table_problem(folder)
    study = LocalStudy(folder / "study.db", problem.space, OBJECTIVES)
    view = SearchView("", OBJECTIVES, {})
    watch = LiveView(study, [view])
    shown, silent = [], []

    def search(n: int, progress: Phases | NullProgress) -> Callable[[], object]:
        return lambda: loop.run_trials(problem, study, SamplerConfig("random"), 0, n, progress)

    for i, n in enumerate(range(BLOCK, n_trials + 1, BLOCK)):
        if i % 2:
            silent.append(_seconds(search(n, NullProgress())))
            continue
        with Phases(Console(file=io.StringIO(), force_terminal=True, width=80)) as phases:
            phases.note("Search", watch)
            shown.append(_seconds(search(n, phases)))
    ratios = np.divide(shown[: len(silent)], silent)
    half = len(ratios) // 2
    for name, part in (("first half", ratios[:half]), ("last half", ratios[half:])):
        low, middle, high = np.percentile(part, [25, 50, 75])
        print(f"{name:<12}shown / silent  {middle:.3f} ({low:.3f} to {high:.3f})")
    print(f"in all      shown / silent  {sum(shown[: len(silent)]) / sum(silent):.3f}")
    print(f"a trial     {1e3 * sum(silent) / len(silent) / BLOCK:.2f} ms of a processor")
    looks = [_seconds(LiveView(study, [view]).look) for _ in range(5)]
    print(f"first look  {1e3 * np.median(looks):.2f} ms at {len(study.candidates)} trials")
    looks = [_seconds(watch.look) for _ in range(50)]
    print(f"a look      {1e3 * np.median(looks):.2f} ms")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    frames = [_seconds(lambda: console.print(watch.panel())) for _ in range(50)]
    print(f"a frame     {1e3 * np.median(frames):.2f} ms more than the bars alone")
    study.close()


def main() -> None:
    processes.tune_process()
    with tempfile.TemporaryDirectory() as folder:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, Path(folder))


if __name__ == "__main__":
    main()
