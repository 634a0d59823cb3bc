"""Cost of the live view of a search in a terminal.

    python -m benchmarks.live_view [TRIALS]

The script runs one search of 10,000 trials with ``sampler=random`` in the table of
``search_scale``, where an evaluation costs almost nothing. The study is a file. Blocks of 250
trials with the view (bars, hypervolume, front) and without it alternate.

The script prints the ratio of their processor times, which other processes disturb less than
wall-clock times: the median over pairs of blocks, with quartiles, for the first and the last half
of the search. It also prints the time of a refresh and of a frame at the end of the search.
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


def _seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(n_trials: int, folder: Path) -> None:
    """Print the results."""
    problem = table_problem(folder)
    study = LocalStudy(folder / "study.db", problem.space, OBJECTIVES)
    search_view = SearchView("", OBJECTIVES, {})
    live_view = LiveView(study, [search_view])
    with_view, without_view = [], []

    def search(n: int, progress: Phases | NullProgress) -> Callable[[], object]:
        return lambda: loop.run_trials(problem, study, SamplerConfig("random"), 0, n, progress)

    for i, n in enumerate(range(BLOCK, n_trials + 1, BLOCK)):
        if i % 2:
            without_view.append(_seconds(search(n, NullProgress())))
            continue
        with Phases(Console(file=io.StringIO(), force_terminal=True, width=80)) as phases:
            phases.note("Search", live_view)
            with_view.append(_seconds(search(n, phases)))
    ratios = np.divide(with_view[: len(without_view)], without_view)
    half = len(ratios) // 2
    for name, part in (("first half", ratios[:half]), ("last half", ratios[half:])):
        low, middle, high = np.percentile(part, [25, 50, 75])
        print(f"{name:<15}with / without view  {middle:.3f} ({low:.3f} to {high:.3f})")
    total = sum(with_view[: len(without_view)]) / sum(without_view)
    print(f"complete       with / without view  {total:.3f}")
    trial_s = sum(without_view) / len(without_view) / BLOCK
    print(f"trial          {1e3 * trial_s:.2f} ms of processor time")
    refreshes = [_seconds(LiveView(study, [search_view]).look) for _ in range(5)]
    print(f"first refresh  {1e3 * np.median(refreshes):.2f} ms at {len(study.candidates)} trials")
    refreshes = [_seconds(live_view.look) for _ in range(50)]
    print(f"refresh        {1e3 * np.median(refreshes):.2f} ms")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    frames = [_seconds(lambda: console.print(live_view.panel())) for _ in range(50)]
    print(f"frame          {1e3 * np.median(frames):.2f} ms in addition to the bars")
    study.close()


def main() -> None:
    processes.tune_process()
    with tempfile.TemporaryDirectory() as folder:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, Path(folder))


if __name__ == "__main__":
    main()
