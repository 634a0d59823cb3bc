"""Prediction error on networks of real searches, with and without a kernel for summary features.

    python experiments/sampler/foretold.py RUN [RUN ...]

For run folders of ``search``: each network after the first ten is predicted from the earlier ones,
by one Gaussian process over all features, and by the sum of two
(``hwnas/core/gaussian_process.py``). Prints root mean square errors and likelihoods of the
logarithm of the measured error, the coverage of 95 % intervals, and root mean square errors of
costs predicted from choices only.
"""

import argparse
import math
from collections.abc import Sequence
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

_FIRST, _AT_ONCE = 10, 3  # networks before the first model; networks predicted by each model
_KINDS = ("one", "two")


def main() -> None:
    """Print the errors of both models, for each run and in total."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of searches")
    runs = parser.parse_args().runs
    told = [_run(run) for run in runs]
    for run, (errors, costs) in zip(runs, told, strict=True):
        _say(str(run), errors, costs)
    _say("all", *(np.concatenate(part, axis=1) for part in zip(*told, strict=True)))


def _run(run: Path) -> tuple[Array, Array]:
    """Return errors and standard deviations of both models, ``(2, n, 2)``; errors of costs."""
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
    first = CostedCandidates(assignments[:_FIRST], known.features[:_FIRST], costs[:_FIRST])
    inputs = Inputs(first, None, features.n_shares)
    limit = math.log(float(np.quantile(errors[:_FIRST], REFERENCE))) + CLIP
    y = np.minimum(np.log(errors), limit)
    of_errors = [
        _foretold(inputs(known), y, stds / errors, n) for n in (0, inputs.n_summary)
    ]  # fmt: skip
    exact = np.zeros(len(y))
    of_costs = [
        np.concatenate([_foretold(known.features, np.log(c), exact, n) for c in costs.T])
        for n in (0, features.n_shares)
    ]
    return np.array(of_errors), np.array(of_costs)


def _foretold(x: Array, y: Array, stds: Array, n_summary: int) -> Array:
    """Return the error of each prediction, and its predicted standard deviation, ``(n, 2)``."""
    found: list[Array] = []
    for n in range(_FIRST, len(y), _AT_ONCE):
        model = Surrogate(
            x[:n], y[:n], fit_hyperparameters(x[:n], y[:n], stds[:n], n_summary), stds[:n]
        )
        next_ = slice(n, n + _AT_ONCE)
        mean, std = model.predict(x[next_])
        std = np.sqrt(std**2 + model.noise**2 + stds[next_] ** 2)
        found.append(np.column_stack([mean - y[next_], std]))
    return np.concatenate(found)


def _say(title: str, errors: Array, costs: Array) -> None:
    print(title)
    for kind, (missed, std), (of_cost, _) in zip(
        _KINDS, errors.transpose(0, 2, 1), costs.transpose(0, 2, 1), strict=True
    ):
        likelihood = -np.mean(0.5 * (missed / std) ** 2 + np.log(std))
        print(
            f"  {kind}: error {_square(missed):.3f}, likelihood {likelihood:.3f}, "
            f"coverage {np.mean(np.abs(missed) < 1.96 * std):.0%}; costs {_square(of_cost):.3f}"
        )


def _square(missed: Sequence[float] | Array) -> float:
    return float(np.sqrt(np.mean(np.square(missed))))


if __name__ == "__main__":
    main()
