"""How wide the sampler's 95 % intervals must be to hold for 95 % of what it proposes.

What is proposed was chosen for what the model expects of it, so that it falls short of the
expectation more often, and further, than the model's standard deviation says. How far earlier
proposals did is known: the ends of an interval are quantiles of that, as in conformal prediction.
Before there are many, a prior stands in for them.

Source: Papadopoulos et al., "Inductive confidence machines for regression", ECML 2002,
https://doi.org/10.1007/3-540-36755-1_29; the prior was chosen in ``experiments/sampler``.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

_ENDS = (0.025, 0.975)
# The prior: so many surprises, of Student's t distribution with so many degrees of freedom.
_N, _FREEDOM = 20, 3


def calibrated(surprises: Array) -> tuple[float, float]:
    """Return the ends of the next interval of 95 %, in standard deviations from the mean.

    Args:
        surprises: How far values lay from what was expected of them, in the standard deviations
            that the model said, ``(n,)``.
    """
    prior = stats.t.ppf((np.arange(_N) + 0.5) / _N, _FREEDOM)
    low, high = np.quantile(np.concatenate([prior, surprises]), _ENDS).tolist()
    return min(low, 0.0), max(high, 0.0)
