"""Duration of ``compare`` and of its page for many runs with many candidates.

python -m benchmarks.compare_scale [n_runs] [n] [--keep FOLDER] creates folders of completed
searches (20 of 5,000 candidates of ``mbconv_small`` with generated figures), compares them with the
verb, with 2 and with 3 objectives, and prints the seconds of both, the size of the page and, if
Chromium is installed, the seconds until the page is rendered. Nothing is verified: members have
their search figures. The studies contain only times, which are all that is read from the studies of
completed searches.
"""

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import optuna
from optuna.trial import TrialState, create_trial
from playwright.sync_api import sync_playwright

from benchmarks.report_scale import OBJECTIVES, as_searched, drawn
from hwnas.__main__ import run
from hwnas.core import processes
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import SearchSpace, find, load_space
from hwnas.nas import storage as storages
from hwnas.nas import trials
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.options import NAME
from hwnas.tasks.intervals import proportion
from hwnas.tasks.metrics.budget import Budget


def make(path: Path, space: SearchSpace, n_runs: int, n: int) -> None:
    """Create folders of searches with different seeds and samplers."""
    times = path / "times.db"
    storage = storages.open_file(times)
    kept = trials.create(storage, NAME, space, OBJECTIVES)
    start = datetime(2026, 1, 1)
    for number in range(n):
        trial = create_trial(state=TrialState.COMPLETE, values=[0.0] * len(OBJECTIVES))
        trial.datetime_start = start + timedelta(seconds=number)
        trial.datetime_complete = start + timedelta(seconds=number + 1)
        kept.add_trial(trial)
    storage.engine.dispose()
    for number in range(n_runs):
        folder = RunFolder(path / f"run_{number:02}")
        folder.path.mkdir()
        shutil.copy(times, folder.study)
        _write(folder, space, [_read(c) for c in drawn(space, n, seed=number)], number)


def _read(candidate: Candidate) -> Candidate:
    """Return a candidate with an accuracy measured on 10,000 images and its interval."""
    accuracy = proportion(round(10_000 * candidate.figures["accuracy"].value), 10_000)
    return replace(candidate, figures={**candidate.figures, "accuracy": accuracy})


def _write(folder: RunFolder, space: SearchSpace, candidates: list[Candidate], seed: int) -> None:
    folder.write_parquet("candidates.parquet", [c.row(space, "accuracy") for c in candidates])
    members = [as_searched(c) for c in pareto_front(candidates, OBJECTIVES)]
    folder.write_json("front.json", {"members": [member.row(space) for member in members]})
    config = {
        "search_space": space.name,
        "objectives": OBJECTIVES,
        "budget": Budget().digested(),
        "target": {"name": "npu"},
        "sampler": {"name": ("random", "nsga2")[seed % 2]},
        "seed": seed // 2,
        "n_trials": len(candidates),
        "study": {"storage": None},
    }
    manifest = {"verb": "search", "status": "finished", "arguments": [], "config": config}
    folder.write_json("manifest.json", manifest)


def compared(path: Path, name: str, *arguments: str) -> None:
    """Compare the runs, open the page, and print the durations."""
    wall, processor = time.perf_counter(), time.process_time()
    out = path / name
    given = ["compare", f"runs={path}/run_*", f"run.dir={out}", *arguments]
    assert run(given) == 0
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    page = out / "report.html"
    print(
        f"\n{name:<14} compare {wall:6.1f} s, {processor:6.1f} s of a processor; report.html "
        f"{page.stat().st_size / 1e6:.1f} MB, opened in {_opened(page)}",
        flush=True,
    )


def _opened(page: Path) -> str:
    """Return the seconds until a browser has rendered a page: the median of five times."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return "(no Chromium installed)"
    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(5):
            tab = browser.new_page(viewport={"width": 1280, "height": 1400})
            tab.goto(page.absolute().as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=60_000, state="attached")
            seconds.append(float(tab.evaluate("document.documentElement.dataset.ready")) / 1000)
            tab.close()
        browser.close()
    return f"{sorted(seconds)[2]:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def main() -> None:
    processes.tune_process()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("n_runs", nargs="?", type=int, default=20)
    parser.add_argument("n", nargs="?", type=int, default=5_000)
    parser.add_argument("--keep", type=Path, help="folder for the files; existing files are reused")
    arguments = parser.parse_args()
    sys.argv = ["hwnas"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        if not (folder / "times.db").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(folder, load_space(find("mbconv_small")), arguments.n_runs, arguments.n)
        pair = "objectives={accuracy: max, latency_ms: min}"
        compared(folder, "2 objectives", pair)
        compared(folder, "3 objectives", "group_by=sampler")


if __name__ == "__main__":
    main()
