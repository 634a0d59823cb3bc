"""Prediction error on networks of real searches, with and without a kernel for summary features.

    python experiments/sampler/prediction_error.py RUN [RUN ...]

A RUN is a run folder of ``search``. Each network after the first ten is predicted from the earlier
ones by two models (``hwnas/core/gaussian_process.py``):

- ``one``: a Gaussian process with one kernel over all features
- ``two``: a Gaussian process with an additional kernel over summary features

Prints the root mean square error and the log likelihood of the predicted log errors, the coverage
of the 95 % intervals, and the root mean square error of log costs predicted from choices only.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.nas.front_probability import scored
from hwnas.nas.pareto.expectation import CLIP, REFERENCE, CostedCandidates, Inputs
from hwnas.nas.pareto.features import ChoiceFeatures
from hwnas.nas.study import study_in_file
from hwnas.tasks.metrics import costs_in

Array = NDArray[np.float64]

_N_INITIAL, _N_PREDICTED = 10, 3  # networks before the first model, and predicted by each model
_MODELS = ("one", "two")


def main() -> None:
    """Print the errors of both models, for each run and for all runs together."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of searches")
    runs = parser.parse_args().runs
    results = [_evaluate(run) for run in runs]
    for run, (errors, costs) in zip(runs, results, strict=True):
        _print(str(run), errors, costs)
    _print("all", *(np.concatenate(part, axis=1) for part in zip(*results, strict=True)))


def _evaluate(run: Path) -> tuple[Array, Array]:
    """Return the results of ``_predict`` for errors and for costs, by model, ``(2, n, 2)``."""
    source = study_in_file(run / "study.db")
    record, space = source.read(), source.summary().space
    candidates = scored(record.candidates, record.objectives)
    assignments = [space.assignment(candidate.genotype) for candidate in candidates]
    features = ChoiceFeatures(space.choices, space.optional())
    figures = [candidate.figures for candidate in candidates]
    costs = np.array([[f[name].value for name in costs_in(record.objectives)] for f in figures])
    stds = np.array([f["accuracy"].std for f in figures])
    errors = np.maximum(
        1 - np.array([f["accuracy"].value for f in figures]), np.maximum(stds, 1e-4)
    )
    known = CostedCandidates(assignments, features(assignments), costs)
    first = CostedCandidates(
        assignments[:_N_INITIAL], known.features[:_N_INITIAL], costs[:_N_INITIAL]
    )
    inputs = Inputs(first, None, features.n_shares)
    limit = math.log(float(np.quantile(errors[:_N_INITIAL], REFERENCE))) + CLIP
    y = np.minimum(np.log(errors), limit)
    error_results = [_predict(inputs(known), y, stds / errors, n) for n in (0, inputs.n_summary)]
    exact = np.zeros(len(y))
    cost_results = [
        np.concatenate([_predict(known.features, np.log(c), exact, n) for c in costs.T])
        for n in (0, features.n_shares)
    ]
    return np.array(error_results), np.array(cost_results)


def _predict(x: Array, y: Array, stds: Array, n_summary: int) -> Array:
    """Return the error of each prediction, and its predicted standard deviation, ``(n, 2)``."""
    results: list[Array] = []
    for n in range(_N_INITIAL, len(y), _N_PREDICTED):
        hyperparameters = fit_hyperparameters(x[:n], y[:n], stds[:n], n_summary)
        model = Surrogate(x[:n], y[:n], hyperparameters, stds[:n])
        next_ = slice(n, n + _N_PREDICTED)
        mean, std = model.predict(x[next_])
        std = np.sqrt(std**2 + model.noise**2 + stds[next_] ** 2)
        results.append(np.column_stack([mean - y[next_], std]))
    return np.concatenate(results)


def _print(title: str, errors: Array, costs: Array) -> None:
    print(title)
    for name, (error, std), (cost_error, _) in zip(
        _MODELS, errors.transpose(0, 2, 1), costs.transpose(0, 2, 1), strict=True
    ):
        likelihood = -np.mean(0.5 * (error / std) ** 2 + np.log(std))
        coverage = np.mean(np.abs(error) < 1.96 * std)
        print(
            f"  {name}: error {_rms(error):.3f}, log likelihood {likelihood:.3f}, "
            f"coverage {coverage:.0%}; costs {_rms(cost_error):.3f}"
        )


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


if __name__ == "__main__":
    main()
