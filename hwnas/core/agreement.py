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

    ``mape`` is the mean absolute relative error, ``bias`` the mean signed one (above 0:
    predictions are too high), ``within_5`` the fraction of errors of at most 5 % (also 10 and
    20), all as fractions; ``spearman`` and ``kendall`` (tau-b) are rank correlations, NaN if
    either side is constant.

    Raises:
        ValueError: if there are fewer than two pairs, or lengths differ, or a measurement is not
            positive.
    """
    values, truth = np.asarray(predicted, float), np.asarray(measured, float)
    if values.shape != truth.shape or values.ndim != 1 or len(values) < 2:
        raise ValueError(f"Need two or more pairs, got shapes {values.shape} and {truth.shape}.")
    if not (np.isfinite(values).all() and np.isfinite(truth).all() and truth.min() > 0):
        raise ValueError("Predictions must be finite, measurements finite and positive.")
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
