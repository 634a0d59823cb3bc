"""Which candidates come first, before there is a model: spread over costs, choices and branches."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.searching.choices import Assignment, Choices

Array = NDArray[np.float64]


def of_branch(
    space: Choices, assignments: Sequence[Assignment], free: Sequence[int], number: int
) -> tuple[int, list[int]]:
    """Return which of the first trials of its branch a trial is, and what is free there.

    Branches take turns; where nothing is left of one, the next has its turn.
    """
    branches = space.branches()
    for branch in (branches[(number + i) % len(branches)] for i in range(len(branches))):
        if own := [i for i in free if space.branch(assignments[i]) == branch]:
            return number // len(branches), own
    raise AssertionError("nothing is free")


def logarithmic(costs: Array, share: float, width: int) -> int:
    """Return where in ascending costs those are that lie so far up their range, in logarithms.

    Costs below zero are of something maximised: logarithms of that.
    """
    signs = np.where(costs < 0, -1.0, 1.0)
    logs = signs * np.log(np.maximum(np.abs(costs), 1e-300))
    at = int(np.searchsorted(logs, logs[0] + share * (logs[-1] - logs[0])))
    return max(0, min(at - width // 2, len(costs) - width))


def least_alike(rows: Array, before: Array) -> int:
    """Return which of rows is farthest from all before; where there are none, the most usual."""
    if len(before) == 0:
        distances = -((rows - rows.mean(axis=0)) ** 2).sum(axis=1)
    else:
        distances = ((rows[:, None] - before[None]) ** 2).sum(axis=2).min(axis=1)
    return int(np.argmax(distances))


def share(number: int) -> float:
    """Return how far up a range the first trials are: its ends, then what halves the widest gap."""
    return float(number) if number < 2 else radical_inverse(number - 1)


def radical_inverse(n: int) -> float:
    """Return the n-th of numbers that fill [0, 1) evenly, whenever they are cut off."""
    value, digit = 0.0, 0.5
    while n:
        value, n, digit = value + digit * (n & 1), n >> 1, digit / 2
    return value
