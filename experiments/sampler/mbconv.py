"""Compare samplers on the subnets of a supernet, compiled for an NPU.

    python -m experiments.sampler.mbconv --data DIR --cache DIR --samplers pareto nsga2 --seeds 5

Searches the default space with the Fashion-MNIST supernet within the budget ``edge``, as
``hwnas search +target=npu dataset=fashion_mnist`` does, with each sampler and seed. Evaluations and
searches are stored in ``--cache``; stored searches are not repeated. ``--report`` compares all
stored searches.
"""

import argparse
import csv
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.evaluations import Evaluations, add_arguments, opened, searched, volume
from hwnas.core.pareto import non_dominated
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics import metric_of

_CHECKPOINTS = (50, 100, 150)  # numbers of evaluations
_BASE = "pareto"  # the reference sampler of the comparison
Points = NDArray[np.float64]


@dataclass
class TimedEvaluations:
    """Evaluations that add up their seconds, to subtract them from those of a search."""

    evaluations: Evaluations
    seconds: float = 0.0
    n_costs: int = 0
    max_cost_queries: int | None = None

    def __post_init__(self) -> None:
        self.max_cost_queries = self.evaluations.max_cost_queries

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of a genotype."""
        self.n_costs += 1
        start = time.perf_counter()
        try:
            return self.evaluations.cost(genotype)
        finally:
            self.seconds += time.perf_counter() - start

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the accuracy on the complete validation split."""
        start = time.perf_counter()
        try:
            return self.evaluations.score(genotype)
        finally:
            self.seconds += time.perf_counter() - start


def main() -> None:
    """Run the missing searches, or compare the stored searches."""
    arguments = _parse()
    folder = Path(arguments.cache, "searches")
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        evaluations = opened(arguments, "+target=npu")
        for seed, name in itertools.product(range(arguments.seeds), arguments.samplers):
            path = folder / f"{len(arguments.objectives)}-{name}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(_search(evaluations, arguments, name, seed)))
            print(path, evaluations.seconds(), flush=True)
        return
    rows = _compare([json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))])
    if arguments.out:
        with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _search(
    evaluations: Evaluations, arguments: argparse.Namespace, name: str, seed: int
) -> dict[str, Any]:
    """Run a search; return its candidates in the order of evaluation, with its settings."""
    timed = TimedEvaluations(evaluations)
    start = time.perf_counter()
    candidates = searched(arguments, evaluations.parts, timed, timed, name=name, seed=seed)
    sampler_s = time.perf_counter() - start - timed.seconds
    return {
        "sampler": name,
        "seed": seed,
        "objectives": arguments.objectives,
        "seconds_a_proposal": sampler_s / arguments.trials,
        "costs_a_proposal": timed.n_costs / arguments.trials,
        "candidates": [
            {"id": c.id, **{n: f.value for n, f in c.figures.items()}}
            if c.state == "complete"
            else {"id": c.id}
            for c in candidates
        ],
    }


def _compare(searches: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Print a comparison for each set of objectives; return a row for each search."""
    rows = []
    for objectives in sorted({tuple(search["objectives"]) for search in searches}, key=len):
        matching = [s for s in searches if tuple(s["objectives"]) == objectives]
        maximise = [metric_of(name).maximise for name in objectives]
        union = np.vstack([_points(s, None) for s in matching])
        front = union[non_dominated(union, maximise)]
        front_volume = volume(front, objectives)
        new = [_row(search, front, front_volume) for search in matching]
        print(
            f"\n{', '.join(objectives)}: joint front of {len(front)} networks, hypervolume "
            f"{front_volume:.6g}"
        )
        _print(new)
        rows += new
    return rows


def _points(search: dict[str, Any], n: int | None) -> Points:
    """Return the objectives of the evaluated networks of the first ``n`` trials, ``(m, k)``."""
    objectives = search["objectives"]
    rows = [[c[o] for o in objectives] for c in search["candidates"][:n] if "accuracy" in c]
    return np.array(rows).reshape(-1, len(objectives))


def _row(search: dict[str, Any], front: Points, front_volume: float) -> dict[str, str]:
    members = {tuple(point) for point in front.tolist()}
    row = {"objectives": " ".join(search["objectives"])}
    row |= {name: str(search[name]) for name in ("sampler", "seed")}
    for n in _CHECKPOINTS:
        points = _points(search, n)
        row[f"volume_{n}"] = f"{volume(points, search['objectives']) / front_volume:.5f}"
        common = members & {tuple(point) for point in points.tolist()}
        row[f"front_{n}"] = f"{len(common) / len(members):.4f}"
    distinct = {candidate["id"] for candidate in search["candidates"]}
    row["distinct"] = str(len(distinct))
    row["infeasible"] = str(sum("accuracy" not in c for c in search["candidates"]))
    row |= {n: f"{search[n]:.3f}" for n in ("seconds_a_proposal", "costs_a_proposal")}
    return row


def _print(rows: Sequence[dict[str, str]]) -> None:
    names = sorted({row["sampler"] for row in rows}, key=lambda name: (name != _BASE, name))
    for name in names:
        matching = [row for row in rows if row["sampler"] == name]
        cells = [
            f"{_mean(matching, f'volume_{n}'):.4f} ({_mean(matching, f'front_{n}'):.3f})"
            for n in _CHECKPOINTS
        ]
        seconds = _mean(matching, "seconds_a_proposal")
        n_costs = _mean(matching, "costs_a_proposal")
        print(f"  {name:<8} {len(matching)} seeds  {'  '.join(cells)}  {seconds:.3f} s "
              f"{n_costs:.1f} costs")  # fmt: skip
    for name, n in itertools.product(names[1:], _CHECKPOINTS):
        print(f"  {_BASE} - {name} at {n}: {_paired(rows, name, f'volume_{n}')}")


def _paired(rows: Sequence[dict[str, str]], other: str, column: str) -> str:
    """Return a paired comparison of the base with another sampler as text, over common seeds."""
    values = {(row["sampler"], row["seed"]): float(row[column]) for row in rows}
    seeds = [seed for name, seed in values if name == other and (_BASE, seed) in values]
    a = np.array([values[_BASE, seed] for seed in seeds])
    b = np.array([values[other, seed] for seed in seeds])
    if len(a) < 2:
        return "too few seeds"
    means = np.random.default_rng(0).choice(a - b, (10_000, len(a))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    above = (a[:, None] > b).mean() + 0.5 * (a[:, None] == b).mean()
    wilcoxon = stats.wilcoxon(a, b).pvalue if (a != b).any() else 1.0
    return (
        f"{(a - b).mean():+.4f}, bootstrap 95 % ({low:+.4f}, {high:+.4f}), better on "
        f"{(a > b).sum()} of {len(a)} seeds, paired t p={stats.ttest_rel(a, b).pvalue:.4f}, "
        f"Wilcoxon p={wilcoxon:.4f}, A12={above:.2f}"
    )


def _mean(rows: Sequence[dict[str, str]], column: str) -> float:
    return float(np.mean([float(row[column]) for row in rows]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_arguments(parser)
    parser.add_argument("--samplers", nargs="+", default=["pareto", "nsga2", "tpe", "random"])
    parser.add_argument("--objectives", nargs="+", default=["accuracy", "latency_ms"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--report", action="store_true", help="compare the stored searches")
    parser.add_argument("--out", help="a CSV file for --report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
