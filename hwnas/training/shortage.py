"""What happens where memory is too small for a batch."""

from collections.abc import Callable

import torch

_WORDS = (
    "not enough memory",
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "could not create a memory",  # of oneDNN, as is the next
    "could not create a primitive",
)


def is_shortage(error: Exception) -> bool:
    """Return whether an error means that memory is too small; torch has many words for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def largest_fitting(batch_size: int, attempt: Callable[[int], object]) -> int | None:
    """Return the largest half, quarter, eighth... of a batch that fits; ``None`` if none does."""
    while batch_size >= 4:
        batch_size //= 2
        if _fits(batch_size, attempt):
            return batch_size
    return None


def _fits(batch_size: int, attempt: Callable[[int], object]) -> bool:
    try:
        attempt(batch_size)
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        return False
    return True
