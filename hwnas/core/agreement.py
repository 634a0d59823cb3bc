"""How well predictions agree with what they predict: size of the error, and order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_SHARES = (5, 10, 20)


def agreement(
    predicted: Sequence[float] | NDArray[np.float64],
    measured: Sequence[float] | NDArray[np.float64],
) -> dict[str, float]:
    """Return how well predictions agree with positive measurements, as fractions.

    ``mape`` is the mean absolute relative error, ``bias`` the mean signed one (above 0: predicted
    too high), ``within_5`` the share of errors of at most 5 %, and so on; ``spearman`` and
    ``kendall`` (tau-b) are rank correlations, NaN where either side is constant.

    Raises:
        ValueError: fewer than two pairs, unequal lengths, or a measurement that is not positive.
    """
    found, true = np.asarray(predicted, float), np.asarray(measured, float)
    if found.shape != true.shape or found.ndim != 1 or len(found) < 2:
        raise ValueError(f"Need two or more pairs, got shapes {found.shape} and {true.shape}.")
    if not (np.isfinite(found).all() and np.isfinite(true).all() and true.min() > 0):
        raise ValueError("Predictions must be finite, measurements finite and positive.")
    errors = found / true - 1.0
    tolerance = 1e-12  # 1.05 / 1 - 1 is a little more than 0.05
    shares = {
        f"within_{percent}": float(np.mean(np.abs(errors) <= percent / 100 + tolerance))
        for percent in _SHARES
    }
    ranked = bool(np.ptp(found) > 0 and np.ptp(true) > 0)
    return {
        "mape": float(np.abs(errors).mean()),
        "bias": float(errors.mean()),
        **shares,
        "spearman": float(stats.spearmanr(found, true).statistic) if ranked else float("nan"),
        "kendall": float(stats.kendalltau(found, true).statistic) if ranked else float("nan"),
    }
