"""Which points are on the Pareto front, and how much they dominate."""

from collections.abc import Sequence

import moocore
import numpy as np
from numpy.typing import NDArray


def non_dominated(points: NDArray[np.float64], maximise: Sequence[bool]) -> NDArray[np.bool_]:
    """Return which rows of ``points`` ``(n, objectives)`` no other row dominates.

    Of equal rows the first is kept.
    """
    if len(points) == 0:
        return np.zeros(0, np.bool_)
    mask: NDArray[np.bool_] = moocore.is_nondominated(points, maximise=list(maximise))
    return mask


def hypervolume(
    points: NDArray[np.float64], reference: Sequence[float], maximise: Sequence[bool]
) -> float:
    """Return the volume that ``points`` dominate up to ``reference``."""
    sign = np.where(np.asarray(maximise), -1.0, 1.0)
    return float(moocore.hypervolume(points * sign, ref=np.asarray(reference) * sign))
