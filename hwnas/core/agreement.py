"""Error and rank correlation of predictions against measurements."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_TOLERANCES = (5, 10, 20)


def agreement(
    predicted: Sequence[float] | NDArray[np.float64],
    measured: Sequence[float] | NDArray[np.float64],
) -> dict[str, float]:
    """Return error and rank correlation of predictions against positive measurements.

    Keys: ``mape``, the mean absolute relative error; ``bias``, the mean signed one (above 0:
    predictions are too high); ``within_5``, ``within_10``, ``within_20``, the fraction of pairs
    with an error of at most 5, 10 or 20 %; ``spearman`` and ``kendall`` (tau-b), rank
    correlations in [-1, 1], NaN if either side is constant. Errors are fractions: 0.1 is 10 %.

    Raises:
        ValueError: if there are fewer than two pairs, lengths differ, a value is not finite, or a
            measurement is not positive.
    """
    values, truth = np.asarray(predicted, float), np.asarray(measured, float)
    if values.shape != truth.shape or values.ndim != 1 or len(values) < 2:
        raise ValueError(
            "agreement() needs predictions and measurements of one shape (n,), n at least 2; got "
            f"{values.shape} and {truth.shape}."
        )
    if not (np.isfinite(values).all() and np.isfinite(truth).all() and truth.min() > 0):
        raise ValueError(
            "agreement() needs finite predictions, and finite measurements above 0; got "
            f"predictions from {values.min():g} to {values.max():g} and measurements from "
            f"{truth.min():g} to {truth.max():g}."
        )
    errors = values / truth - 1.0
    tolerance = 1e-12  # 1.05 / 1 - 1 is a little more than 0.05
    within = {
        f"within_{percent}": float(np.mean(np.abs(errors) <= percent / 100 + tolerance))
        for percent in _TOLERANCES
    }
    ranked = bool(np.ptp(values) > 0 and np.ptp(truth) > 0)
    return {
        "mape": float(np.abs(errors).mean()),
        "bias": float(errors.mean()),
        **within,
        "spearman": float(stats.spearmanr(values, truth).statistic) if ranked else float("nan"),
        "kendall": float(stats.kendalltau(values, truth).statistic) if ranked else float("nan"),
    }
