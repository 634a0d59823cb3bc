"""Effect of zero-cost scores as features of the sampler on a search.

    python -m experiments.zero_cost.searches --data DIR --cache DIR --seeds 10

A search selects among the networks of ``experiments.zero_cost.networks`` in ``--cache``, with the
model and the acquisition of ``sampler=pareto``. No network is evaluated. The searches in the
complete space (``space.csv``) used the former option ``sampler.features``.
"""

import argparse
import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments import evaluations
from experiments.evaluations import volume
from experiments.zero_cost.networks import (
    FEATURE_SETS,
    choice_features,
    choice_features_of,
    columns_by_name,
    pool_file,
    read_networks,
)
from experiments.zero_cost.scores import NAMES
from hwnas.nas.pareto.expectation import CostedCandidates, History, Learner
from hwnas.nas.pareto.features import Assignment

_N_EVALUATIONS = (50, 100, 150)
_STARTUP, _SHORTLIST = 16, 40  # as in sampler=pareto
_OBJECTIVES = ("accuracy", "latency_ms")
Array = NDArray[np.float64]
Row = dict[str, Any]


def main() -> None:
    """Run the searches, and print a comparison with searches without scores."""
    arguments = _parse_arguments()
    rows = _run_searches(arguments)
    baseline = {row["seed"]: row for row in rows if row["features"] == "none"}
    for name, n in itertools.product(dict.fromkeys(r["features"] for r in rows), _N_EVALUATIONS):
        pairs = [
            (row[f"volume_{n}"], baseline[row["seed"]][f"volume_{n}"])
            for row in rows
            if row["features"] == name and row["seed"] in baseline
        ]
        if len(pairs) > 1:
            volumes, baseline_volumes = np.array(pairs).T
            comparison = _paired_test(volumes - baseline_volumes)
            print(f"{name} at {n}, {len(pairs)} seeds: {volumes.mean():.4f}, {comparison}")
    if arguments.out:
        with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


@dataclass(frozen=True)
class _Pool:
    """All networks that a search can select: encoded choices, and columns by name."""

    choices: Array
    columns: Mapping[str, Array]

    @property
    def points(self) -> Array:
        """Accuracy and latency, ``(n, 2)``."""
        return np.column_stack([self.columns[name] for name in _OBJECTIVES])

    def history(self, indices: Sequence[int]) -> History:
        """Return networks as evaluated trials, in this order."""
        candidates, errors = self.candidates(indices), 1 - self.columns["accuracy"][list(indices)]
        exact, unknown = np.zeros(len(errors)), np.full(len(errors), np.nan)
        return History(
            indices,
            candidates.assignments,
            candidates.features,
            errors,
            candidates.costs,
            exact,
            unknown,
            unknown,
            [],
        )

    def candidates(self, indices: Sequence[int]) -> CostedCandidates:
        """Return networks as candidates before evaluation; assignments contain only the index."""
        chosen = list(indices)
        costs = self.columns["latency_ms"][chosen, None]
        return CostedCandidates([{"row": index} for index in indices], self.choices[chosen], costs)


def _run_searches(arguments: argparse.Namespace) -> list[Row]:
    """Run all searches in the pool of known networks; return a row for each."""
    networks = read_networks(pool_file(arguments))
    pool = _Pool(choice_features_of(networks), columns_by_name(networks))
    pool_volume, rows = volume(pool.points, _OBJECTIVES), []
    print(f"{len(networks)} networks, hypervolume {pool_volume:.5g}")
    variants = [*((names, False) for names in FEATURE_SETS), (NAMES, True)]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for (names, without_shortlist), seed in itertools.product(variants, seeds):
        points = pool.points[_select(pool, names, without_shortlist, seed, arguments.trials)]
        title = " ".join(names) or "none"
        row: Row = {"features": title + " (of all)" * without_shortlist, "seed": seed}
        volumes = {n: volume(points[:n], _OBJECTIVES) / pool_volume for n in _N_EVALUATIONS}
        rows.append(row | {f"volume_{n}": round(value, 5) for n, value in volumes.items()})
    return rows


def _select(
    pool: _Pool, names: Sequence[str], without_shortlist: bool, seed: int, n_trials: int
) -> list[int]:
    """Return the indices of the networks that a search selects, in order.

    Args:
        pool: All networks.
        names: Features of the error model in addition to choices and latency.
        without_shortlist: Whether to compute them for all networks instead of a shortlist.
        seed: Seed of the first networks, which are spread over the range of latencies.
        n_trials: Number of selected networks.
    """
    rng = np.random.default_rng(seed)
    by_latency = np.argsort(pool.columns["latency_ms"], kind="stable")
    selected = [int(rng.choice(part)) for part in np.array_split(by_latency, _STARTUP)]
    scores = np.column_stack([pool.columns[name] for name in names]) if names else None

    def extra_features(assignments: Sequence[Assignment]) -> Array:
        assert scores is not None
        return np.asarray(scores[[a["row"] for a in assignments]])

    learner = Learner(_STARTUP, choice_features().n_shares)
    costs = pool.columns["latency_ms"][:, None]
    while len(selected) < n_trials:
        history = pool.history(selected)
        remaining = np.setdiff1d(np.arange(len(costs)), selected).tolist()
        if not without_shortlist:
            expectation = learner.expectation(history, [], None, costs)
            order = np.argsort(-expectation.gains(pool.candidates(remaining)), kind="stable")
            remaining = [remaining[i] for i in order[:_SHORTLIST]]
        if names:
            expectation = learner.expectation(history, [], None, costs, extra_features)
            order = np.argsort(-expectation.gains(pool.candidates(remaining)), kind="stable")
            remaining = [remaining[i] for i in order]
        selected.append(remaining[0])
    return selected


def _paired_test(differences: Array) -> str:
    """Return a paired test of differences on the same seeds, as text."""
    means = np.random.default_rng(0).choice(differences, (10_000, len(differences))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    p = stats.ttest_1samp(differences, 0.0).pvalue if differences.any() else 1.0
    n_better = (differences > 0).sum()
    return (
        f"{differences.mean():+.5f}, bootstrap 95 % ({low:+.5f}, {high:+.5f}), "
        f"better on {n_better}, paired t test p = {p:.2f}"
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    evaluations.add_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first search")
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--out", help="CSV file with a row for each search")
    parser.set_defaults(objectives=list(_OBJECTIVES))
    return parser.parse_args()


if __name__ == "__main__":
    main()
