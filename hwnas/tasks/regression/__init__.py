"""Regression: an image has one value or several."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.records.schema import Bound, Positive, Unfit, fitted
from hwnas.tasks.base import Targets
from hwnas.tasks.regression import values
from hwnas.tasks.regression.task import METRIC, Values


class _Said(TypedDict):
    name: str
    values: Annotated[list[str], Bound(1)]
    mean: list[float]
    std: list[Positive]
    guess_mae: Annotated[float, Bound(0)]
    guess_std: Annotated[float, Bound(0)]


@final
class Regression:
    """Images with values, of any unit."""

    metric = METRIC
    categorical = False
    columns = ("value", "values", "target", "targets")

    def targets(
        self, where: str, said: Mapping[str, Sequence[Any]], names: Sequence[str] | None
    ) -> tuple[dict[str, Targets], tuple[str, ...]]:
        """Return values ``(N, n)`` in float32 by split, and their names.

        Raises:
            DataError: a value is missing or no number, all are the same, or float32 can hardly
                tell them apart.
        """
        found = {split: values.array(f"{where}: split '{split}'", v) for split, v in said.items()}
        called = values.names(where, found, names)
        return {**values.in_float32(where, found)}, called

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64] | None:
        """Return nothing: splits are drawn without regard to values."""
        return None

    def task(self, names: Sequence[str], targets: Targets) -> Values:
        """Return the task of these values, in the scale of those trained on."""
        return Values.of(tuple(names), targets)

    def from_json(self, raw: Mapping[str, Any]) -> Values:
        """Return the task that ``Values.to_json`` described."""
        said: _Said = fitted(_Said, dict(raw), "task")
        if not len(said["values"]) == len(said["mean"]) == len(said["std"]):
            raise Unfit("'task' has not as many values as means and deviations")
        return Values(
            tuple(said["values"]),
            tuple(said["mean"]),
            tuple(said["std"]),
            said["guess_mae"],
            said["guess_std"],
        )
