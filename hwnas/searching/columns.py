"""Columns that finishing adds to candidates, and what that of the metric means then."""

from hwnas.accuracy.options import ENOUGH

ON_FRONT = "front_probability"  #: that no other candidate dominates it


def read(metric: str) -> str:
    """Return the column of what search itself read."""
    return f"{metric}_read"


def finished(metric: str) -> str:
    """Return the column of the metric after finishing, on the validation split."""
    return f"{metric}_finished"


def is_enough(n_finished: int) -> bool:
    """Return whether what is believed is of networks after finishing, not as they were read."""
    return n_finished >= ENOUGH
