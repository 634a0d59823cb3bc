"""Overhead of a trial without its evaluation, after 1,000 trials and after 10,000.

    python -m benchmarks.search_scale [--settings table,space] [--samplers random,nsga2,...]

The script runs searches with a study file, where computing an accuracy costs almost nothing. It
times the proposal, the cost evaluation and the storage of a candidate. First, ``nsga2`` fills a
study, which is copied 60 trials before it has 1,000 and 10,000 trials. From these copies, each
sampler runs 60 trials, interleaved, three times. The script prints the lowest of the medians in
milliseconds, and the ratio of 10,000 to 1,000 trials, for wall-clock time and for processor time.
Other processes disturb the processor time less.

- ``table``: a synthetic benchmark table of the shape of NAS-Bench-201, six edges of five operators.
- ``space``: ``mbconv_small``, costs from the roofline of ``sketch``, a synthetic accuracy.

``gp`` is omitted: it uses all trials, and its time grows with the third power of their number.
"""

import argparse
import hashlib
import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hwnas.core import processes
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.roofline_cost import RooflineCostModel
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import benchmark_table, loop
from hwnas.nas.options import BenchmarkConfig, SamplerConfig
from hwnas.nas.study import LocalStudy
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics.budget import Budget
from tests.conftest import target

SAMPLERS = ("random", "nsga2", "pareto", "tpe")
Array = NDArray[np.float64]
N_TRIALS, WINDOW, ROUNDS = (1_000, 10_000), 60, 3
_OPERATOR_SIZES = {
    "none": 0.0,
    "skip_connect": 0.05,
    "avg_pool_3x3": 0.1,
    "conv_1x1": 0.4,
    "conv_3x3": 1.0,
}


@dataclass
class Clock:
    """A ``Progress`` that records the time at the end of each trial."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Yield an ``advance`` that reads the clocks."""

        def advance(n: int) -> None:
            self.wall.append(time.perf_counter())
            self.processor.append(time.process_time())

        advance(0)
        yield advance


@final
class SyntheticAccuracy:
    """An accuracy that saturates with the size of the options, with noise by genotype."""

    def __init__(self, space: SearchSpace):
        self._space = space

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the accuracy of a genotype; it is always the same."""
        options = genotype.to_dict()
        sizes = [
            choice.index(options[n]) for n, choice in self._space.choices.items() if n in options
        ]
        noise = int(genotype.id[:4], 16) / 0xFFFF
        value = 0.95 - 0.4 * math.exp(-0.08 * sum(sizes)) - 0.03 * noise
        return Score(Quantity(value, "modelled"))


def table_problem(folder: Path) -> loop.SearchProblem:
    """Return a search in a table of 15,625 rows."""
    rows = []
    for cell in itertools.product(_OPERATOR_SIZES, repeat=6):
        size = sum(_OPERATOR_SIZES[operator] * (1 + 0.1 * i) for i, operator in enumerate(cell))
        noise = int(hashlib.sha256("".join(cell).encode()).hexdigest()[:4], 16) / 0xFFFF
        accuracy = 94 - 60 * math.exp(-0.8 * size) - 2 * cell.count("none") - 2 * noise
        latency = 1 + size + 0.3 * cell.count("avg_pool_3x3")
        edges = {f"edge_{i}": operator for i, operator in enumerate(cell)}
        rows.append({**edges, "accuracy": accuracy, "latency_ms": latency})
    path = folder / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    genotype = [f"edge_{i}" for i in range(6)]
    config = BenchmarkConfig(str(path), genotype, costs={"latency_ms": "latency_ms"})
    benchmark = benchmark_table.load_benchmark(config)
    return loop.SearchProblem(benchmark.space, Budget(), benchmark, benchmark)


def space_problem(folder: Path) -> loop.SearchProblem:
    """Return a search in a space of 4e11 genotypes."""
    space = spaces.load_space(spaces.find("mbconv_small"))
    family, signature, sketch = families.get(space.family), Signature(1, 10), target("sketch")

    def graph(genotype: Genotype) -> Graph:
        return fused_graph(family.lower(space, genotype, signature), sketch)

    cost_model = RooflineCostModel(sketch, graph)
    return loop.SearchProblem(space, Budget(), cost_model, SyntheticAccuracy(space))


SETTINGS = {
    "table": (table_problem, ("accuracy", "latency_ms")),
    "space": (space_problem, ("accuracy", "latency_ms", "energy_mj")),
}


def measure(setting: str, samplers: Sequence[str], folder: Path) -> None:
    """Run all samplers in one setting, and print a line for each."""
    create_problem, objectives = SETTINGS[setting]
    problem = create_problem(folder)

    def search(path: Path, name: str, n_trials: int) -> Clock:
        clock, study = Clock(), LocalStudy(path, problem.space, objectives)
        loop.run_trials(problem, study, SamplerConfig(name), 0, n_trials, clock)
        study.close()
        return clock

    filled = folder / "study.db"
    for n_trials in N_TRIALS:
        search(filled, "nsga2", n_trials - WINDOW)
        shutil.copy(filled, folder / f"{n_trials}.db")
    for name in samplers:
        medians: dict[int, list[Array]] = {n_trials: [] for n_trials in N_TRIALS}
        for _ in range(ROUNDS):
            for n_trials in N_TRIALS:
                path = Path(shutil.copy(folder / f"{n_trials}.db", folder / "copy.db"))
                clock = search(path, name, n_trials)
                steps = np.diff([clock.wall, clock.processor], axis=1) * 1e3
                medians[n_trials].append(np.median(steps, axis=1))
        few, many = (np.min(medians[n_trials], axis=0) for n_trials in N_TRIALS)
        columns = [f"{a:8.1f}{b:8.1f}{b / a:6.2f}" for a, b in zip(few, many, strict=True)]
        print(f"{setting:<8}{name:<8}{'  '.join(columns)}", flush=True)


def main() -> None:
    processes.tune_process()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    arguments = parser.parse_args()
    print(f"{'':16}{'clock: 1,000  10,000 ratio':<24}  processor: 1,000  10,000 ratio")
    for setting in arguments.settings.split(","):
        with tempfile.TemporaryDirectory() as folder:
            measure(setting, arguments.samplers.split(","), Path(folder))


if __name__ == "__main__":
    main()
