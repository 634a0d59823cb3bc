"""Time to compute a front and write a report of many candidates.

    python -m benchmarks.report_scale [n] [--keep FOLDER]

The script samples n genotypes of ``mbconv_small`` (default 100,000) and generates their figures. It
prints the time for computing the front of three objectives, for writing ``candidates.parquet``, for
drawing the picture and for rendering the page. Members are not verified; they have the figures of
the search.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.search_scale import SyntheticAccuracy
from hwnas.analysis import search_page
from hwnas.analysis.figures import front_png
from hwnas.analysis.page.html import render
from hwnas.core import processes
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import SearchSpace, find, load_space
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.member import Member, verified_names
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import Budget

Result = TypeVar("Result")
OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")


def random_candidates(space: SearchSpace, n: int, seed: int = 0) -> list[Candidate]:
    """Return random candidates whose costs and accuracy increase with size, with noise."""
    rng, accuracy, candidates = random.Random(seed), SyntheticAccuracy(space), []
    for trial in range(n):
        genotype = space.sample(rng)
        figures = {"accuracy": accuracy.score(genotype).figure}
        size = sum(space.choices[name].index(option) for name, option in genotype.options)
        for name in metrics.BASE_COSTS:
            value = 0.01 * math.exp(0.06 * size) * rng.uniform(0.7, 1.3)
            figures[name] = Quantity(value, "modelled", 0.95 * value, 1.05 * value)
        candidates.append(Candidate(trial, genotype, figures))
    return candidates


def unverified_member(candidate: Candidate) -> Member:
    """Return a member whose verified figures are its search figures."""
    accuracy = candidate.figures["accuracy"]
    figures = {name: candidate.figures.get(name, accuracy) for name in verified_names("accuracy")}
    return Member(candidate, figures, {}, {})


@dataclass
class Stopwatch:
    """Prints the wall-clock and processor seconds of each step, and sums them."""

    wall: float = 0.0
    processor: float = 0.0

    def run(self, name: str, step: Callable[[], Result]) -> Result:
        """Run a step, print its times, and return its result."""
        wall, processor = time.perf_counter(), time.process_time()
        result = step()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        self.wall, self.processor = self.wall + wall, self.processor + processor
        print(f"{name:<22}{wall:6.2f} s  {processor:6.2f} s processor time", flush=True)
        return result


def time_report(candidates: list[Candidate], space: SearchSpace, path: Path) -> None:
    """Compute the front, write all files, and print the time of each step."""
    stopwatch, folder, budget = Stopwatch(), RunFolder(path), Budget()
    members = stopwatch.run(
        "front", lambda: [unverified_member(c) for c in pareto_front(candidates, OBJECTIVES)]
    )
    stopwatch.run(
        "candidates.parquet",
        lambda: folder.write_parquet(
            "candidates.parquet", [candidate.row(space, "accuracy") for candidate in candidates]
        ),
    )
    title = f"{len(candidates):,} candidates, {len(members)} on the front"
    front = search_page.FrontData(candidates, members, OBJECTIVES, budget, title=title)
    picture = stopwatch.run("front.png", lambda: front_png(front))
    page = stopwatch.run(
        "report.html", lambda: render(search_page.single(title, front, [])).encode()
    )
    folder.write_bytes("front.png", picture)
    folder.write_bytes("report.html", page)
    print(f"{'total':<22}{stopwatch.wall:6.2f} s  {stopwatch.processor:6.2f} s processor time")
    print(f"front of {len(members)}; report.html of {len(page) / 1e6:.1f} MB")


def main() -> None:
    processes.tune_process()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("n", nargs="?", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder for the files")
    arguments = parser.parse_args()
    space = load_space(find("mbconv_small"))
    candidates = random_candidates(space, arguments.n)
    with tempfile.TemporaryDirectory() as folder:
        time_report(candidates, space, arguments.keep or Path(folder))


if __name__ == "__main__":
    main()
