"""Classification: an image shows one of several classes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.records.schema import fitted
from hwnas.tasks.base import Targets
from hwnas.tasks.classification import labels
from hwnas.tasks.classification.task import METRIC, Classes


class _Said(TypedDict):
    name: str
    classes: list[str]


@final
class Classification:
    """Images with labels, of two classes or more."""

    metric = METRIC
    categorical = True
    columns = ("label", "labels", "class")

    def targets(
        self, where: str, said: Mapping[str, Sequence[Any]], names: Sequence[str] | None
    ) -> tuple[dict[str, Targets], tuple[str, ...]]:
        """Return indices of classes by split, and the names of the classes.

        Raises:
            DataError: a label is missing or out of range, there are fewer than two classes, or a
                split has classes that training has not.
        """
        index, classes = labels.indexed(where, said, names)
        return {**index}, classes

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64]:
        """Return the labels: every split has its share of each class.

        Raises:
            DataError: a class has fewer images than there are parts.
        """
        return labels.strata(where, targets, names, n_parts)

    def task(self, names: Sequence[str], targets: Targets) -> Classes:
        """Return the task of these classes."""
        return Classes(tuple(names))

    def from_json(self, raw: Mapping[str, Any]) -> Classes:
        """Return the task that ``Classes.to_json`` described."""
        said: _Said = fitted(_Said, dict(raw), "task")
        return Classes(tuple(said["classes"]))
