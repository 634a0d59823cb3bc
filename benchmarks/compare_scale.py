"""Time of ``compare`` for many runs with many candidates, and time to open its page.

    python -m benchmarks.compare_scale [n_runs] [n] [--keep FOLDER]

The script creates folders of completed searches: 20 searches of 5,000 candidates of
``mbconv_small``, with generated figures. It compares them with ``hwnas compare``, with two and with
three objectives. It prints the time of each comparison and the size of the page. If Chromium is
installed, it also prints the time until the page is rendered.

Members are not verified; they have the figures of the search. The studies contain only the times of
the trials, because ``compare`` reads nothing else from the studies of completed searches.
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

from benchmarks.report_scale import OBJECTIVES, random_candidates, unverified_member
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


def create_runs(path: Path, space: SearchSpace, n_runs: int, n: int) -> None:
    """Create folders of searches with different seeds and samplers."""
    times = path / "times.db"
    storage = storages.open_file(times)
    study = trials.create(storage, NAME, space, OBJECTIVES)
    start = datetime(2026, 1, 1)
    for number in range(n):
        trial = create_trial(state=TrialState.COMPLETE, values=[0.0] * len(OBJECTIVES))
        trial.datetime_start = start + timedelta(seconds=number)
        trial.datetime_complete = start + timedelta(seconds=number + 1)
        study.add_trial(trial)
    storage.engine.dispose()
    for number in range(n_runs):
        folder = RunFolder(path / f"run_{number:02}")
        folder.path.mkdir()
        shutil.copy(times, folder.study)
        _write(
            folder,
            space,
            [_with_interval(c) for c in random_candidates(space, n, seed=number)],
            number,
        )


def _with_interval(candidate: Candidate) -> Candidate:
    """Return a candidate with an accuracy measured on 10,000 images and its interval."""
    accuracy = proportion(round(10_000 * candidate.figures["accuracy"].value), 10_000)
    return replace(candidate, figures={**candidate.figures, "accuracy": accuracy})


def _write(folder: RunFolder, space: SearchSpace, candidates: list[Candidate], seed: int) -> None:
    folder.write_parquet("candidates.parquet", [c.row(space, "accuracy") for c in candidates])
    members = [unverified_member(c) for c in pareto_front(candidates, OBJECTIVES)]
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


def time_compare(path: Path, name: str, *arguments: str) -> None:
    """Compare the runs, open the page, and print the times."""
    wall, processor = time.perf_counter(), time.process_time()
    out = path / name
    assert run(["compare", f"runs={path}/run_*", f"run.dir={out}", *arguments]) == 0
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    page = out / "report.html"
    print(
        f"\n{name:<14} compare {wall:6.1f} s, {processor:6.1f} s processor time; report.html "
        f"{page.stat().st_size / 1e6:.1f} MB, opened in {_time_to_open(page)}",
        flush=True,
    )


def _time_to_open(page: Path) -> str:
    """Return the time until a browser has rendered a page, as text: median and range of five."""
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
            create_runs(folder, load_space(find("mbconv_small")), arguments.n_runs, arguments.n)
        pair = "objectives={accuracy: max, latency_ms: min}"
        time_compare(folder, "2 objectives", pair)
        time_compare(folder, "3 objectives", "group_by=sampler")


if __name__ == "__main__":
    main()
