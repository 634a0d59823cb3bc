"""Prediction error of the sampler's model with few observed networks.

python -m experiments.landscape.prediction_error DIR [--known 10 20 40] [--draws 24]

Some of the trained networks of ``networks.csv`` are observed, in random order, and the model
predicts the others: from choices and costs only, and with graph features as well. Prints the root
mean square error of the predicted log errors, and the coverage of the 95 % intervals.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from experiments.landscape.landscape import read_networks
from experiments.landscape.searches import load_setup
from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.nas.pareto.expectation import CLIP, REFERENCE, CostedCandidates, Inputs
from hwnas.nas.pareto.features import ChoiceFeatures, summary_features

_N_IMAGES = 6_000
_N_INITIAL = 10
_BASELINE = "choices, costs"


def main() -> None:
    """Print a row for each number of observed networks, with and without graph features."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument(
        "--known", nargs="+", type=int, default=[10, 20, 40], help="numbers of observed networks"
    )
    parser.add_argument("--draws", type=int, default=24, help="number of random orders")
    arguments = parser.parse_args()
    setup = load_setup(arguments.data)
    genotypes, columns = read_networks(setup.space)
    y = columns["after_3"]
    errors = np.exp(y)
    stds = np.sqrt((1 - errors) / errors / _N_IMAGES)
    costs = np.column_stack([columns["latency_ms"], columns["energy_mj"]])
    assignments = [setup.space.assignment(genotype) for genotype in genotypes]
    choices, optional = setup.space.choices, setup.space.optional()
    summaries = {
        _BASELINE: None,
        "and graph features": summary_features(setup.space, setup.networks.lower),
    }
    rng = np.random.default_rng(0)
    for n in arguments.known:
        orders = [rng.permutation(len(y)) for _ in range(arguments.draws)]
        results = {}
        for name, summary in summaries.items():
            features = ChoiceFeatures(choices, optional, summary)
            x = features(assignments)
            rows = []
            for order in orders:
                known, others = order[:n], order[n:]
                initial = known[:_N_INITIAL]
                inputs = Inputs(
                    CostedCandidates([], x[initial], costs[initial]), None, features.n_shares
                )
                model_inputs = inputs(CostedCandidates([], x, costs))
                # As in the sampler: large errors are clipped.
                limit = np.log(np.quantile(errors[initial], REFERENCE)) + CLIP
                clipped = np.minimum(y, limit)
                rows.append(_evaluate(model_inputs, clipped, stds, known, others, inputs.n_summary))
            results[name] = np.array(rows)
        for name, result in results.items():
            rmse, coverage = result.mean(axis=0)
            difference = result[:, 0] - results[_BASELINE][:, 0]
            std_error = difference.std() / np.sqrt(arguments.draws)
            print(f"{n} known, {name}: {rmse:.4f} ({difference.mean():+.4f} +- {std_error:.4f}), "
                  f"coverage {coverage:.1%}", flush=True)  # fmt: skip


def _evaluate(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    stds: NDArray[np.float64],
    known: NDArray[np.intp],
    others: NDArray[np.intp],
    n_summary: int,
) -> tuple[float, float]:
    """Return the root mean square error and the coverage for the other networks."""
    hyperparameters = fit_hyperparameters(x[known], y[known], stds[known], n_summary)
    model = Surrogate(x[known], y[known], hyperparameters, stds[known])
    mean, std = model.predict(x[others])
    std = np.sqrt(std**2 + model.noise**2 + stds[others] ** 2)
    errors = mean - y[others]
    return float(np.sqrt((errors**2).mean())), float((np.abs(errors) < 1.96 * std).mean())


if __name__ == "__main__":
    main()
