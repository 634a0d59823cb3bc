"""Values as a source has them become arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import DataError

Array = NDArray[np.float32]


def array(where: str, said: Sequence[Any]) -> Array:
    """Return numbers, or lists of as many numbers each, as ``(N, n)``.

    Raises:
        DataError: a value is missing, no number or not finite, or they are not as many each.
    """
    rows = [value if isinstance(value, list | tuple) else [value] for value in said]
    for row, numbers in enumerate(rows):
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise DataError(
                    f"{where}, row {row} has the value {number!r}: regression needs numbers. For "
                    "classes say task=classification."
                )
            if not np.isfinite(number):
                raise DataError(f"{where}, row {row} has the value {number}: must be finite.")
        if len(numbers) != len(rows[0]) or not numbers:
            raise DataError(
                f"{where}, row {row} has {len(numbers)} values, the first has {len(rows[0])}: all "
                "need as many, one at least."
            )
    return np.array(rows, np.float32)


def names(where: str, found: Mapping[str, Array], said: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the values: as said, else numbered.

    Raises:
        DataError: a value is the same for all images, or splits have other numbers of values.
    """
    train = found["train"]
    for split, rows in found.items():
        if rows.shape[1] != train.shape[1]:
            raise DataError(
                f"{where}: split '{split}' has {rows.shape[1]} values an image, split 'train' has "
                f"{train.shape[1]}."
            )
    if (constant := np.flatnonzero(np.ptp(train, axis=0) == 0)).size:
        raise DataError(
            f"{where}: value {constant[0] + 1} of every training image is "
            f"{train[0, constant[0]]:g}: there is nothing to learn."
        )
    n = train.shape[1]
    return tuple(said) if said else ("value",) if n == 1 else tuple(f"value_{i}" for i in range(n))
