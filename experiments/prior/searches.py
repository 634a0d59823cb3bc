"""Simulated searches on one data set, with and without a prior from the other data sets.

python -m experiments.prior.searches DIR NAME=FILE.csv ... [--target fashion_mnist]
    [--seeds 0 1 2 3] [--minutes 20] [--variants none feature front5 front10]

``DIR`` contains Fashion-MNIST. Each file is written by ``experiments.prior.networks``. Searches run
on a response surface of ``--target``: that of its file, or for ``fashion_mnist`` that of
``experiments/landscape`` with the networks of two searches. The prior is a Gaussian process on the
summary features of the sampler, fitted to the standardised log errors of all other files. Variants:

- ``none``: no prior.
- ``feature``: the prior is one more summary feature of the sampler's model, with a linear term.
- ``front5``, ``front10``: that feature, and five or ten initial candidates on the prior's front.

Prints the hypervolume of the first 15, 30 and 60 completely trained networks, relative to that of
the best front of the surface, and the slowdown of the 25 networks that are most probably on the
front after a quarter, a half and all of the simulated time (``experiments.landscape.searches``).
"""

import argparse
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.stats import spearmanr

from experiments.landscape.landscape import NETWORKS_CSV, SEARCHED_CSV, Landscape, read_networks
from experiments.landscape.searches import (
    Point,
    SearchSetup,
    evolve,
    finetuned,
    format_slowdown,
    load_setup,
    log_slowdowns,
    simulate_search,
)
from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.models.spaces import Genotype
from hwnas.nas.pareto.features import anatomy, summary_features

Array = NDArray[np.float64]

#: Validation images of each data set with the default split.
N_IMAGES = {
    "fashion_mnist": 6000, "digits": 360, "oracle": 240, "sign_digits": 165, "pneumonia": 441,
}  # fmt: skip
VARIANTS = "none", "feature", "front5", "front10"
BUDGETS = 15, 30, 60
_GENERATIONS, _N_FINETUNED = 30, 25


class Prior:
    """Standardised log error, learned from the networks of several data sets.

    Args:
        setup: Space and graphs of the networks.
        files: Networks of each data set, by name.
    """

    def __init__(self, setup: SearchSetup, files: Mapping[str, Path]):
        self._lower = setup.networks.lower
        rows, values, stds = [], [], []
        for name, path in files.items():
            genotypes, columns = read_networks(setup.space, (path,))
            log_error = columns["after_3"]
            variance = (1 - np.exp(log_error)) / np.exp(log_error) / N_IMAGES[name]
            # The spread of true errors: without that of the validation split.
            spread = math.sqrt(max(log_error.var() - variance.mean(), 0.05 * log_error.var()))
            rows += [anatomy(self._lower(genotype)) for genotype in genotypes]
            values.append((log_error - log_error.mean()) / spread)
            stds.append(np.sqrt(variance) / spread)
        x, y, std = np.array(rows), np.concatenate(values), np.concatenate(stds)
        self._mean, self._scale = x.mean(axis=0), 4 * (x.std(axis=0) + 1e-9)
        features = self._features(x)
        parameters = fit_hyperparameters(features, y, std, x.shape[1])
        self._model = Surrogate(features, y, parameters, std)
        self.error = functools.cache(self._error)

    def _features(self, rows: Array) -> Array:
        scaled = (rows - self._mean) / self._scale
        return np.hstack([scaled, scaled])  # the kernels of all and of summary features

    def _error(self, genotype: Genotype) -> float:
        """Return the standardised log error of a network; higher is worse."""
        row = np.array([anatomy(self._lower(genotype))])
        return float(self._model.predict(self._features(row))[0][0])


def main() -> None:
    """Search with each variant and seed, and print hypervolumes and slowdowns."""
    arguments = _parse_arguments()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    setup = load_setup(arguments.data)
    files = {name: Path(path) for name, path in (text.split("=") for text in arguments.files)}
    target = arguments.target
    paths = (files[target],) if target in files else (NETWORKS_CSV, SEARCHED_CSV)
    landscape = Landscape(setup.networks, setup.space, paths, N_IMAGES[target])
    prior = Prior(setup, {name: path for name, path in files.items() if name != target})
    genotypes, columns = read_networks(setup.space, paths)
    correlation = spearmanr([*map(prior.error, genotypes)], columns["after_3"]).statistic
    print(f"{target}: rank correlation of the prior with the errors {correlation:.2f}", flush=True)
    best = evolve(setup, lambda genotype: landscape.evaluate(genotype)[1], _GENERATIONS)
    best_points = [point for point, _ in best]
    for seed in arguments.seeds:
        for variant in arguments.variants:
            text = _search(setup, landscape, prior, best_points, seed, variant, arguments.minutes)
            print(f"{target}, seed {seed}, {variant}: {text}", flush=True)


def _search(  # noqa: PLR0913, PLR0917
    setup: SearchSetup,
    landscape: Landscape,
    prior: Prior,
    best: Sequence[Point],
    seed: int,
    variant: str,
    minutes: float,
) -> str:
    """Return the results of a simulated search as text."""
    graph_features = summary_features(setup.space, setup.networks.lower)

    def summary(assignment: Mapping[str, Any]) -> Sequence[float]:
        features = graph_features(assignment)
        if variant == "none":
            return features
        return [*features, prior.error(setup.space.genotype(assignment))]

    n_first = int(variant.removeprefix("front")) if variant.startswith("front") else 0
    first = _front_assignments(setup, prior, n_first) if n_first else ()
    trainings = simulate_search(setup, landscape, seed, 60 * minutes, summary, first)
    complete = [(float(t.costs[0]), t.true_error) for t in trainings if t.is_complete]
    fractions = [_volume(complete[:n], best) / _volume(best, best) for n in BUDGETS]
    slowdowns = []
    for share in (0.25, 0.5, 1.0):
        ended = [t for t in trainings if t.end_s <= 60 * minutes * share]
        points = finetuned(setup, ended, _N_FINETUNED)
        slowdowns.append(format_slowdown(log_slowdowns(points, best)))
    volumes = ", ".join(f"{fraction:.3f}" for fraction in fractions)
    return f"{len(trainings)} candidates; {volumes}; {'; '.join(slowdowns)}"


def _volume(points: Sequence[Point], best: Sequence[Point]) -> float:
    """Return the hypervolume in logarithms; the reference point is the worst of the best front."""
    rows, front = np.log(np.array(points)), np.log(np.array(best))
    reference = front[non_dominated(front, [False, False])].max(axis=0)
    inside = rows[(rows < reference).all(axis=1)]
    return hypervolume(inside, reference.tolist(), [False, False]) if len(inside) else 0.0


def _front_assignments(setup: SearchSetup, prior: Prior, n: int) -> list[Mapping[str, Any]]:
    """Return ``n`` assignments of the prior's front, evenly spaced in the logarithm of latency."""
    pool = evolve(setup, prior.error, _GENERATIONS)
    points = np.array([[math.log(latency), error] for (latency, error), _ in pool])
    rows = np.flatnonzero(non_dominated(points, [False, False]))
    rows = rows[np.argsort(points[rows, 0])]
    log_latencies = points[rows, 0]
    grid = np.linspace(log_latencies[0], log_latencies[-1], n)
    nearest = [int(rows[np.abs(log_latencies - value).argmin()]) for value in grid]
    return [pool[row][1] for row in dict.fromkeys(nearest)]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("files", nargs="+", metavar="NAME=FILE.csv")
    parser.add_argument("--target", choices=N_IMAGES, default="fashion_mnist")
    parser.add_argument("--seeds", nargs="+", type=int, default=[*range(4)])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
