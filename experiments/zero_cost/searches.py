"""Effect of zero-cost scores as features of the sampler on a search.

    python -m experiments.zero_cost.searches --data DIR --cache DIR --seeds 10

A search selects among the networks of ``experiments.zero_cost.networks`` in ``--cache``, with the
model and the acquisition of ``sampler=pareto``: nothing is evaluated. Searches in the complete
space, with results in ``space.csv``, used the former option ``sampler.features``.
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
from experiments.zero_cost.networks import SETS, choices, columns_of, features, pool, read
from experiments.zero_cost.scores import NAMES
from hwnas.nas.pareto.expectation import CostedCandidates, History, Learner
from hwnas.nas.pareto.features import Assignment

_MARKS = (50, 100, 150)
_STARTUP, _SHORTLIST = 16, 40  # as sampler=pareto has them
_OBJECTIVES = ("accuracy", "latency_ms")
Array = NDArray[np.float64]
Row = dict[str, Any]


def main() -> None:
    """Search, and print a comparison of the searches."""
    arguments = _parse()
    rows = _in_pool(arguments)
    base = {row["seed"]: row for row in rows if row["features"] == "none"}
    for name, n in itertools.product(dict.fromkeys(row["features"] for row in rows), _MARKS):
        own = [row for row in rows if row["features"] == name and row["seed"] in base]
        if len(own) > 1:
            volumes = np.array([row[f"volume_{n}"] for row in own])
            before = np.array([base[row["seed"]][f"volume_{n}"] for row in own])
            more = _paired(volumes - before)
            print(f"{name} at {n}, {len(own)} seeds: {volumes.mean():.4f}, {more}")
    if arguments.out:
        with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


@dataclass(frozen=True)
class _Pool:
    """Networks with their features before, and their results after evaluation."""

    choices: Array
    columns: Mapping[str, Array]

    @property
    def points(self) -> Array:
        """Accuracy and latency, ``(n, 2)``."""
        return np.column_stack([self.columns[name] for name in _OBJECTIVES])

    def history(self, rows: Sequence[int]) -> History:
        """Return these networks as evaluated, in this order."""
        known, errors = self.known(rows), 1 - self.columns["accuracy"][list(rows)]
        exact, unknown = np.zeros(len(errors)), np.full(len(errors), np.nan)
        return History(
            rows,
            known.assignments,
            known.features,
            errors,
            known.costs,
            exact,
            unknown,
            unknown,
            [],
        )

    def known(self, rows: Sequence[int]) -> CostedCandidates:
        """Return these networks as candidates; the assignment holds only the index."""
        chosen = list(rows)
        costs = self.columns["latency_ms"][chosen, None]
        return CostedCandidates([{"row": row} for row in rows], self.choices[chosen], costs)


def _in_pool(arguments: argparse.Namespace) -> list[Row]:
    """Search among known networks."""
    networks = read(pool(arguments))
    within = _Pool(choices(networks), columns_of(networks))
    whole, rows = volume(within.points, _OBJECTIVES), []
    print(f"{len(networks)} networks, hypervolume {whole:.5g}")
    variants = [*((names, False) for names in SETS), (NAMES, True)]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for (names, everywhere), seed in itertools.product(variants, seeds):
        found = within.points[_chosen(within, names, everywhere, seed, arguments.trials)]
        title = " ".join(names) or "none"
        row: Row = {"features": title + " (of all)" * everywhere, "seed": seed}
        volumes = {n: volume(found[:n], _OBJECTIVES) / whole for n in _MARKS}
        rows.append(row | {f"volume_{n}": round(value, 5) for n, value in volumes.items()})
    return rows


def _chosen(
    within: _Pool, names: Sequence[str], everywhere: bool, seed: int, n_trials: int
) -> list[int]:
    """Return the networks selected by a search, in order.

    Args:
        within: All networks.
        names: Features of the error model in addition to choices and latency.
        everywhere: Whether to compute them for all networks, or only for a shortlist.
        seed: Of the first networks, which are spread over the range of latencies.
        n_trials: Number of selected networks.
    """
    rng = np.random.default_rng(seed)
    by_latency = np.argsort(within.columns["latency_ms"], kind="stable")
    taken = [int(rng.choice(part)) for part in np.array_split(by_latency, _STARTUP)]
    scores = np.column_stack([within.columns[name] for name in names]) if names else None

    def knowledge(assignments: Sequence[Assignment]) -> Array:
        assert scores is not None
        return np.asarray(scores[[a["row"] for a in assignments]])

    learner, costs = Learner(_STARTUP, features().n_shares), within.columns["latency_ms"][:, None]
    while len(taken) < n_trials:
        history = within.history(taken)
        free = np.setdiff1d(np.arange(len(costs)), taken).tolist()
        if not everywhere:
            plain = learner.expectation(history, [], None, costs)
            order = np.argsort(-plain.gains(within.known(free)), kind="stable")
            free = [free[i] for i in order[:_SHORTLIST]]
        if names:
            informed = learner.expectation(history, [], None, costs, knowledge)
            order = np.argsort(-informed.gains(within.known(free)), kind="stable")
            free = [free[i] for i in order]
        taken.append(free[0])
    return taken


def _paired(differences: Array) -> str:
    """Return a paired test of differences on the same seeds as text."""
    means = np.random.default_rng(0).choice(differences, (10_000, len(differences))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    p = stats.ttest_1samp(differences, 0.0).pvalue if differences.any() else 1.0
    better = (differences > 0).sum()
    return (
        f"{differences.mean():+.5f}, bootstrap 95 % ({low:+.5f}, {high:+.5f}), better on {better}, "
        f"paired t p={p:.2f}"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    evaluations.add_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="of searches in the pool")
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--out", help="a CSV file, a row for each search")
    parser.set_defaults(objectives=list(_OBJECTIVES))
    return parser.parse_args()


if __name__ == "__main__":
    main()
