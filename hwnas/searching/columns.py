"""Columns that finishing adds to candidates, and what those of accuracies mean then."""

from hwnas.accuracy.options import ENOUGH

READ = "accuracy_read"  #: what search itself read, by column
FINISHED = "accuracy_finished"  #: after finishing, on the validation split
ON_FRONT = "front_probability"  #: that no other candidate dominates it


def is_enough(n_finished: int) -> bool:
    """Return whether what is believed is of accuracies after finishing, not of those read."""
    return n_finished >= ENOUGH
