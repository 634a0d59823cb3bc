"""Values as a source has them become arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import DataError

Exact = NDArray[np.float64]
Array = NDArray[np.float32]

#: Largest size of values, and least standard deviation: sums of errors and small errors have room.
_MOST, _LEAST = 1e36, 1e-36
_ROUNDED = 1e-3  #: standard deviations that rounding to float32 may move a value by


def array(where: str, said: Sequence[Any]) -> Exact:
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
            if not abs(number) <= _MOST:  # nor is NaN
                raise DataError(
                    f"{where}, row {row} has the value {number}: must be finite, and of at most "
                    f"{_MOST:g} in size, as networks compute in float32."
                )
        if len(numbers) != len(rows[0]) or not numbers:
            raise DataError(
                f"{where}, row {row} has {len(numbers)} values, the first has {len(rows[0])}: all "
                "need as many, one at least."
            )
    return np.array(rows, np.float64)


def names(where: str, found: Mapping[str, Exact], said: Sequence[str] | None) -> tuple[str, ...]:
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


def in_float32(where: str, found: Mapping[str, Exact]) -> dict[str, Array]:
    """Return values as networks are trained on them.

    Raises:
        DataError: in float32 they could hardly be told apart.
    """
    for problem in _problems(found):
        raise DataError(f"{where}: {problem}")
    return {split: rows.astype(np.float32) for split, rows in found.items()}


def _problems(found: Mapping[str, Exact]) -> Iterator[str]:
    """Yield what is wrong with values in float32, and what cures it."""
    for i, (mean, std) in enumerate(zip(*_spread(found["train"]), strict=True)):
        said = f"value {i + 1} of training images has a standard deviation of {std:.3g}"
        if std < _LEAST:
            yield f"{said}, which float32 can hardly hold: give it in a smaller unit."
        rounded = max(float(_rounding(rows[:, i]).max(initial=0.0)) for rows in found.values())
        if rounded > _ROUNDED * std:
            yield (
                f"{said} around {mean:.10g}, and float32, in which networks compute, rounds it by "
                f"up to {rounded:.3g}: subtract its mean first."
            )


def _spread(rows: Exact) -> tuple[list[float], list[float]]:
    """Return means and standard deviations by value."""
    return rows.mean(axis=0).tolist(), rows.std(axis=0).tolist()


def _rounding(values: Exact) -> Exact:
    return np.abs(values.astype(np.float32) - values)
