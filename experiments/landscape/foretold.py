"""Prediction error of the sampler's model for networks, given a few others.

python -m experiments.landscape.foretold DIR [--known 10 20 40] [--draws 24]

Random networks of ``networks.csv``, which were trained, are observed and the others are predicted:
from choices and costs only, and with graph features. Prints the root mean square error of the
logarithm of errors, and the coverage of the 95 % intervals.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from experiments.landscape.landscape import read
from experiments.landscape.searches import opened
from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.nas.pareto.expectation import CLIP, REFERENCE, CostedCandidates, Inputs
from hwnas.nas.pareto.features import ChoiceFeatures, summary_features

_N_IMAGES = 6_000


def main() -> None:
    """Print a row for each number of observed networks, with and without graph features."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--known", nargs="+", type=int, default=[10, 20, 40])
    parser.add_argument("--draws", type=int, default=24)
    asked = parser.parse_args()
    world = opened(asked.data)
    genotypes, columns = read(world.space)
    y = columns["after_3"]
    errors = np.exp(y)
    stds = np.sqrt((1 - errors) / errors / _N_IMAGES)
    costs = np.column_stack([columns["latency_ms"], columns["energy_mj"]])
    assignments = [world.space.assignment(genotype) for genotype in genotypes]
    choices, optional = world.space.choices, world.space.optional()
    sums = {
        "choices, costs": None,
        "and graph features": summary_features(world.space, world.networks.lower),
    }
    rng = np.random.default_rng(0)
    for n in asked.known:
        orders = [rng.permutation(len(y)) for _ in range(asked.draws)]
        missed = {}
        for name, summed in sums.items():
            features = ChoiceFeatures(choices, optional, summed)
            x = features(assignments)
            found = []
            for order in orders:
                known, rest = order[:n], order[n:]
                first = CostedCandidates([], x[known[:10]], costs[known[:10]])
                inputs = Inputs(first, None, features.n_shares)
                read_of = inputs(CostedCandidates([], x, costs))
                # As in the sampler: large errors are clipped.
                limit = np.log(np.quantile(errors[known[:10]], REFERENCE)) + CLIP
                told = np.minimum(y, limit)
                found.append(_missed(read_of, told, stds, known, rest, inputs.n_summary))
            missed[name] = np.array(found)
        for name, (error, held) in ((name, m.mean(axis=0)) for name, m in missed.items()):
            less = missed[name][:, 0] - missed["choices, costs"][:, 0]
            spread = less.std() / np.sqrt(asked.draws)
            print(f"{n} known, {name}: {error:.4f} ({less.mean():+.4f} +- {spread:.4f}), "
                  f"{held:.1%} within", flush=True)  # fmt: skip


def _missed(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    stds: NDArray[np.float64],
    known: NDArray[np.intp],
    rest: NDArray[np.intp],
    n_summary: int,
) -> tuple[float, float]:
    fitted = fit_hyperparameters(x[known], y[known], stds[known], n_summary)
    model = Surrogate(x[known], y[known], fitted, stds[known])
    mean, std = model.predict(x[rest])
    std = np.sqrt(std**2 + model.noise**2 + stds[rest] ** 2)
    away = mean - y[rest]
    return float(np.sqrt((away**2).mean())), float((np.abs(away) < 1.96 * std).mean())


if __name__ == "__main__":
    main()
