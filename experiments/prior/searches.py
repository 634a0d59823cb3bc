"""Simulated searches on one data set, with and without a prior from the other data sets.

python -m experiments.prior.searches DIR NAME=FILE.csv ... [--target NAME ...] [--seeds 0 1 2]
    [--variants none feature front]

``DIR`` contains Fashion-MNIST. Each file is written by ``experiments.prior.networks``. A response
surface is fitted to each file, and to ``experiments/landscape/networks.csv`` (``fashion_mnist``).
Searches run on the surface of each ``--target``. The prior is the mean of the standardised log
errors that the other surfaces predict. Variants:

- ``none``: no prior.
- ``feature``: the prior is one more summary feature of the sampler's model, with a linear term.
- ``front``: that feature, and five of the ten initial candidates are on the prior's front.

Prints the hypervolume of the first 15, 30 and 60 completely trained networks, relative to that of
the best front of the surface. It is computed from logarithms of latency and true error.
"""

import argparse
import functools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from scipy.stats import spearmanr

from experiments.landscape.landscape import NETWORKS_CSV, Landscape
from experiments.landscape.searches import (
    Point,
    SearchSetup,
    evolve,
    load_setup,
    simulate_search,
)
from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.models.spaces import Genotype
from hwnas.nas.pareto.features import summary_features

#: Validation images of each data set with the default split.
N_IMAGES = {
    "fashion_mnist": 6000, "digits": 360, "oracle": 240, "sign_digits": 165, "pneumonia": 441,
}  # fmt: skip
VARIANTS = "none", "feature", "front"
BUDGETS = 15, 30, 60
_LIMIT_S = 1e9
_N_FRONT = 5  # initial candidates on the prior's front
_GENERATIONS = 30


class Prior:
    """Mean of the standardised log errors that several response surfaces predict."""

    def __init__(self, landscapes: Sequence[Landscape]):
        self._landscapes = landscapes
        self.error = functools.cache(self._error)

    def _error(self, genotype: Genotype) -> float:
        """Return the standardised log error of a network; higher is worse."""
        features = self._landscapes[0].features(genotype)  # equal for all data sets
        return statistics.fmean(
            (landscape.predict_features(features) - landscape.mean) / landscape.std
            for landscape in self._landscapes
        )


def main() -> None:
    """Search with each variant and seed, and print relative hypervolumes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("files", nargs="+", metavar="NAME=FILE.csv")
    parser.add_argument("--target", nargs="+", default=["fashion_mnist"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*range(10)])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    setup = load_setup(arguments.data)
    paths = {"fashion_mnist": NETWORKS_CSV}
    paths |= {name: Path(path) for name, path in (text.split("=") for text in arguments.files)}
    landscapes = {
        name: Landscape(setup.networks, setup.space, (path,), N_IMAGES[name])
        for name, path in paths.items()
    }
    for name, landscape in landscapes.items():
        print(
            f"{name}: residual {landscape.residual:.3f}, of which validation "
            f"{landscape.validation_std:.3f}",
            flush=True,
        )
    _print_correlations(setup, landscapes)
    for target in arguments.target:
        landscape = landscapes[target]
        prior = Prior([other for name, other in landscapes.items() if name != target])
        best = _true_points(setup, landscape)
        first = _front_assignments(setup, prior)
        for seed in arguments.seeds:
            for variant in arguments.variants:
                points = _search(setup, landscape, prior, first, seed, variant)
                fractions = [_volume(points[:n], best) / _volume(best, best) for n in BUDGETS]
                text = ", ".join(f"{fraction:.4f}" for fraction in fractions)
                print(f"{target}, seed {seed}, {variant}: {text}", flush=True)


def _true_points(setup: SearchSetup, landscape: Landscape) -> list[Point]:
    """Return latencies and true log errors of the networks of an evolutionary search."""

    def log_error(genotype: Genotype) -> float:
        return math.log(landscape.evaluate(genotype)[1])

    return [point for point, _ in evolve(setup, log_error, _GENERATIONS)]


def _search(
    setup: SearchSetup,
    landscape: Landscape,
    prior: Prior,
    first: Sequence[Mapping[str, Any]],
    seed: int,
    variant: str,
) -> list[Point]:
    """Return latency and true log error of each completely trained network, in order."""
    graph_features = summary_features(setup.space, setup.networks.lower)

    def summary(assignment: Mapping[str, Any]) -> Sequence[float]:
        features = graph_features(assignment)
        if variant == "none":
            return features
        return [*features, prior.error(setup.space.genotype(assignment))]

    initial = first if variant == "front" else ()
    trainings = simulate_search(setup, landscape, seed, _LIMIT_S, summary, initial, max(BUDGETS))
    return [(float(t.costs[0]), math.log(t.true_error)) for t in trainings if t.is_complete]


def _volume(points: Sequence[Point], best: Sequence[Point]) -> float:
    """Return the hypervolume in logarithms; the reference point is the worst of the best front."""
    rows = np.array([[math.log(latency), error] for latency, error in points])
    front = np.array([[math.log(latency), error] for latency, error in best])
    reference = front[non_dominated(front, [False, False])].max(axis=0)
    inside = rows[(rows < reference).all(axis=1)]
    return hypervolume(inside, reference.tolist(), [False, False]) if len(inside) else 0.0


def _front_assignments(setup: SearchSetup, prior: Prior) -> list[Mapping[str, Any]]:
    """Return assignments of the prior's front, evenly spaced in the logarithm of latency."""
    pool = evolve(setup, prior.error, _GENERATIONS)
    points = np.array([[math.log(latency), error] for (latency, error), _ in pool])
    rows = np.flatnonzero(non_dominated(points, [False, False]))
    rows = rows[np.argsort(points[rows, 0])]
    log_latencies = points[rows, 0]
    grid = np.linspace(log_latencies[0], log_latencies[-1], _N_FRONT)
    nearest = [int(rows[np.abs(log_latencies - value).argmin()]) for value in grid]
    return [pool[row][1] for row in dict.fromkeys(nearest)]


def _print_correlations(setup: SearchSetup, landscapes: Mapping[str, Landscape]) -> None:
    """Print Spearman's correlations of the predicted log errors of random networks."""
    rng = random.Random(0)
    genotypes = [setup.space.sample(rng) for _ in range(300)]
    predictions = {name: landscape.predict(genotypes) for name, landscape in landscapes.items()}
    for name, predicted in predictions.items():
        correlations = {
            other: spearmanr(predicted, values).statistic
            for other, values in predictions.items()
            if other != name
        }
        text = ", ".join(f"{other} {value:.2f}" for other, value in correlations.items())
        print(f"{name}: {text}", flush=True)


if __name__ == "__main__":
    main()
