"""The lowest error that models see: what they model is its logarithm, and no error has none."""

import numpy as np
from numpy.typing import NDArray

_LEAST = 1e-9  #: of shares; of errors in a unit, in errors of the usual size


def least(errors: NDArray[np.float64], is_share: bool) -> float:
    """Return the lowest error.

    Args:
        errors: All that are known, which say what is little where they have a unit.
        is_share: Whether they are shares of answers.
    """
    usual = errors[np.isfinite(errors) & (errors > 0)]
    return _LEAST if is_share or len(usual) == 0 else _LEAST * float(np.median(usual))
