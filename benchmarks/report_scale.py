"""Duration of computing a front and a report of many candidates.

python -m benchmarks.report_scale [n] [--keep FOLDER] samples n genotypes of ``mbconv_small``
(100,000), generates their figures, and prints the seconds for computing the front of three
objectives, writing ``candidates.parquet``, drawing the picture and rendering the page. Nothing is
verified: members have their search figures.
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


def drawn(space: SearchSpace, n: int, seed: int = 0) -> list[Candidate]:
    """Return random candidates; cost and accuracy increase with size, with some noise."""
    rng, accuracy, found = random.Random(seed), SyntheticAccuracy(space), []
    for number in range(n):
        genotype = space.sample(rng)
        figures = {"accuracy": accuracy.score(genotype).figure}
        size = sum(space.choices[name].index(option) for name, option in genotype.options)
        for name in metrics.BASE_COSTS:
            value = 0.01 * math.exp(0.06 * size) * rng.uniform(0.7, 1.3)
            figures[name] = Quantity(value, "modelled", 0.95 * value, 1.05 * value)
        found.append(Candidate(number, genotype, figures))
    return found


def as_searched(candidate: Candidate) -> Member:
    """Return a member whose verified figures are its search figures."""
    accuracy = candidate.figures["accuracy"]
    seen = {name: candidate.figures.get(name, accuracy) for name in verified_names("accuracy")}
    return Member(candidate, seen, {}, {})


@dataclass
class Stopwatch:
    """Prints wall-clock and processor seconds of each step, and their sum."""

    wall: float = 0.0
    processor: float = 0.0

    def timed(self, name: str, step: Callable[[], Result]) -> Result:
        """Return the result of a step."""
        wall, processor = time.perf_counter(), time.process_time()
        result = step()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        self.wall, self.processor = self.wall + wall, self.processor + processor
        print(f"{name:<22}{wall:6.2f} s  {processor:6.2f} s of a processor", flush=True)
        return result


def report(candidates: list[Candidate], space: SearchSpace, path: Path) -> None:
    """Compute the front and write all files, with times."""
    watch, folder, budget = Stopwatch(), RunFolder(path), Budget()
    members = watch.timed(
        "front", lambda: [as_searched(c) for c in pareto_front(candidates, OBJECTIVES)]
    )
    watch.timed(
        "candidates.parquet",
        lambda: folder.write_parquet(
            "candidates.parquet", [candidate.row(space, "accuracy") for candidate in candidates]
        ),
    )
    title = f"{len(candidates):,} candidates, {len(members)} on the front"
    found = search_page.FrontData(candidates, members, OBJECTIVES, budget, title=title)
    picture = watch.timed("front.png", lambda: front_png(found))
    page = watch.timed("report.html", lambda: render(search_page.single(title, found, [])).encode())
    folder.write_bytes("front.png", picture)
    folder.write_bytes("report.html", page)
    print(f"{'total':<22}{watch.wall:6.2f} s  {watch.processor:6.2f} s of a processor")
    print(f"front of {len(members)}; report.html of {len(page) / 1e6:.1f} MB")


def main() -> None:
    processes.tune_process()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("n", nargs="?", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder for the files")
    arguments = parser.parse_args()
    small = load_space(find("mbconv_small"))
    candidates = drawn(small, arguments.n)
    with tempfile.TemporaryDirectory() as folder:
        report(candidates, small, arguments.keep or Path(folder))


if __name__ == "__main__":
    main()
