"""How long trials take: where time is the limit, gains count by the second."""

import itertools
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hwnas.searching.choices import Assignment

Array = NDArray[np.float64]
#: Assignments to what the time of their trials grows with ``(n, k)``, none of it below 0.
Work = Callable[[Sequence[Assignment]], Array]

_ENOUGH = 5  # trials, before anything is said of others
_FOUND = 0.25  # of the seconds expected, below which nothing was trained


@final
class Pace:
    """The seconds that trials are expected to take: some for each, and more with their work.

    What a trial takes on this machine, with these data, is learned from those that ended: least
    squares of coefficients that are not negative. Of long trials it is the relative error that
    counts, and of short ones the absolute one. A trial that took far less than the others say had
    found its network trained: it is left out.

    Args:
        work: Computes what is known of trials before they begin.
        assignments: Of trials that ended.
        seconds: That these took ``(n,)``.
    """

    def __init__(self, work: Work, assignments: Sequence[Assignment], seconds: Array):
        self._work = work
        self.usual_s = float(np.median(seconds))  #: that a trial took
        rows = self._rows(assignments)
        self._scale = np.maximum(rows.max(axis=0), 1e-300)
        rows /= self._scale
        first = rows @ _fitted(rows, seconds)
        trained = seconds >= _FOUND * first
        self._coefficients = _fitted(rows[trained], seconds[trained])
        # Nothing is expected to be faster than all before: it would gain by that alone.
        self._shortest = max(float((rows @ self._coefficients).min()), 1e-9)

    def __call__(self, assignments: Sequence[Assignment]) -> Array:
        """Return the seconds that trials are expected to take, ``(n,)``."""
        found = self._rows(assignments) / self._scale @ self._coefficients
        return np.asarray(np.maximum(found, self._shortest))

    def _rows(self, assignments: Sequence[Assignment]) -> Array:
        return np.column_stack([np.ones(len(assignments)), self._work(assignments)])


def _fitted(rows: Array, seconds: Array) -> Array:
    weights = 1 / np.maximum(seconds, max(float(np.median(seconds)), 1e-9))
    return np.asarray(nnls(weights[:, None] * rows, weights * seconds)[0])


def learned(work: Work | None, assignments: Sequence[Assignment], seconds: Array) -> Pace | None:
    """Return what trials take, where that is asked and enough of them ended."""
    if work is None or np.isfinite(seconds).sum() < _ENOUGH:
        return None
    known = np.isfinite(seconds)
    return Pace(work, list(itertools.compress(assignments, known)), seconds[known])
