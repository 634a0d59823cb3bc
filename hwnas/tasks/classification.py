"""Classification of images into given classes: cross entropy, and the share of right answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import DataError
from hwnas.core.quantity import NORMAL_95, Quantity
from hwnas.core.schema import validate
from hwnas.tasks import early_stopping
from hwnas.tasks.base import Incumbent, MetricLoss, PerImageResults, Score, Targets, TaskDescription
from hwnas.tasks.base import Index as PerImageIndex
from hwnas.tasks.intervals import proportion

if TYPE_CHECKING:
    from torch import Tensor

METRIC = "accuracy"

_SIGMAS = 3.0  # above guessing that count as having learned

_PRINTING = """\
labels = (here / "labels.txt").read_text(encoding="utf-8").splitlines()
print(*(labels[i] for i in outputs.argmax(1)), sep="\\n")
"""


@final
@dataclass(frozen=True)
class ClassificationTask:
    """The task of telling classes apart. Outputs are logits, one a class."""

    classes: tuple[str, ...]
    name: ClassVar[str] = "classification"
    metric: ClassVar[str] = METRIC

    @property
    def names(self) -> tuple[str, ...]:
        """The classes."""
        return self.classes

    @property
    def n_outputs(self) -> int:
        """One for each class."""
        return len(self.classes)

    @property
    def words(self) -> TaskDescription:
        """What people are told of it."""
        return TaskDescription(
            kind="image-classification",
            network="An image classifier",
            outputs=f"{len(self.classes)} classes",
            answer="a label",
            same="same class",
            interval="Wilson's interval",
            points="points of accuracy",
            files={"labels.txt": "the classes in order, one a line"},
            limits=(
                "It always answers one of its classes; that an image shows none of them it cannot "
                "say.",
                "Its outputs are logits; their softmax was not calibrated as a probability.",
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the classes."""
        return {"name": self.name, "classes": list(self.classes)}

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return labels ``(N,)`` as they are."""
        return targets

    def mixup_targets(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return labels of what images show most of, and probabilities ``(N, n_classes)``."""
        from torch.nn.functional import one_hot

        n = len(self.classes)
        loss_targets = share * one_hot(first, n).float() + (1 - share) * one_hot(second, n).float()
        return (first if share >= 0.5 else second), loss_targets

    def loss(self, outputs: Tensor, loss_targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the cross entropy with labels ``(N,)`` or probabilities ``(N, n_classes)``."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, loss_targets, label_smoothing=smoothing)

    def distillation_targets(self, outputs: Tensor) -> Tensor:
        """Return the probabilities that another network says, at a temperature of 1."""
        return outputs.softmax(dim=1)

    def per_sample(self, outputs: PerImageResults, targets: Targets) -> PerImageResults:
        """Return which images are classified rightly, ``(N,)``."""
        correct: PerImageResults = outputs.argmax(axis=1) == targets
        return correct

    def score(self, found: PerImageResults) -> Quantity:
        """Return the share of right answers, with its Wilson interval."""
        return proportion(int(found.sum()), len(found))

    @property
    def confidence(self) -> Callable[[PerImageResults], PerImageResults]:
        """Return what says the largest probability that a network gives a class."""
        return _largest_probability

    def of_mean(self, mean: float, n: int) -> Quantity:
        """Return a share of right answers with its Wilson interval."""
        return proportion(round(mean * n), n)

    def has_learned(self, total: float, n: int) -> bool:
        """Return whether more images are right than guessing gets, beyond chance."""
        p = 1 / len(self.classes)
        return total / n > p + _SIGMAS * math.sqrt(p * (1 - p) / n)

    def guessed(self, mean: float) -> str:
        """Return how many images are right, in words."""
        return f"is right on {mean:.1%} of its training images, no more than by guessing"

    def whole(self, found: PerImageResults) -> Score:
        """Return the accuracy on all images, and which of them were right."""
        return early_stopping.score_of_all_bits(found)

    def read(
        self,
        per_sample: Callable[[PerImageIndex], PerImageResults],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return the accuracy; predicted, where reading stopped early."""
        return early_stopping.read_accuracy(per_sample, n, incumbent, confidence, rng)

    def points(self, better: float, worse: float) -> float:
        """Return the percentage points of accuracy that are lost."""
        return 100 * (better - worse)

    def loss_of(self, found: PerImageResults, reference: PerImageResults) -> MetricLoss:
        """Return the percentage points that are lost, by the difference of paired proportions.

        Source: Agresti, Categorical Data Analysis, 2013, section 11.1.1 (Wald's interval).
        """
        n = len(found)
        lost, won = int((reference & ~found).sum()), int((found & ~reference).sum())
        difference = (lost - won) / n
        deviation = math.sqrt(max(lost + won - (lost - won) ** 2 / n, 0.0)) / n
        return MetricLoss(100 * difference, 100 * (difference - NORMAL_95 * deviation))

    def same(self, outputs: PerImageResults, expected: PerImageResults) -> PerImageResults:
        """Return for each image whether both networks answer the same class."""
        same: PerImageResults = outputs.argmax(axis=1) == expected.argmax(axis=1)
        return same

    def files(self) -> Mapping[str, bytes]:
        """Return the classes, one a line."""
        lines = (f"{' '.join(name.split())}\n" for name in self.classes)
        return {"labels.txt": "".join(lines).encode()}

    def preprocessing(self) -> Mapping[str, Any]:
        """Return nothing: ``labels.txt`` says it."""
        return {}

    def printing(self) -> str:
        """Return Python that prints a label for each image."""
        return _PRINTING


def _largest_probability(logits: PerImageResults) -> PerImageResults:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True).astype(np.float64))
    probabilities: PerImageResults = 1 / exponents.sum(axis=1)
    return probabilities


# Labels as a source has them, words or numbers, become indices of classes.

Index = NDArray[np.int64]


def indexed(
    where: str, labels: Mapping[str, Sequence[Any]], names: Sequence[str] | None
) -> tuple[dict[str, Index], tuple[str, ...]]:
    """Return labels as indices, and the names of the classes.

    Args:
        where: What errors begin with.
        labels: By split: words or whole numbers, which count from 0 where ``names`` are given.
        names: Of the classes; none: the labels that there are.

    Raises:
        DataError: a label is missing or out of range, there are fewer than two classes, or a split
            has classes that training has not.
    """
    for split, values in labels.items():
        _check(f"{where}: split '{split}'", values, names)
    found = set().union(*map(set, labels.values()))
    ordered = list(range(len(names))) if names else sorted(found, key=lambda v: (str(type(v)), v))
    shown = list(map(str, names or ordered))
    known = set(labels["train"])
    if len(known) < 2:
        (only,) = known
        raise DataError(
            f"{where} holds one class only, '{shown[ordered.index(only)]}'; classification needs "
            "two or more."
        )
    for split, values in labels.items():
        if strange := sorted(map(ordered.index, set(values) - known)):
            listed = ", ".join(f"'{shown[i]}'" for i in strange[:5])
            raise DataError(
                f"{where}: split '{split}' has {len(strange)} classes without any image in split "
                f"'train': {listed}. Splits must have the same classes."
            )
    index = {value: i for i, value in enumerate(ordered)}
    return {
        split: np.array([index[value] for value in values], np.int64)
        for split, values in labels.items()
    }, tuple(shown)


def _check(where: str, labels: Sequence[Any], names: Sequence[str] | None) -> None:
    """Refuse labels that are missing, of a wrong kind or out of range."""
    first: dict[Any, int] = {}
    for i, value in enumerate(labels):
        if not isinstance(value, int | str | None):
            raise DataError(
                f"{where}, row {i} has the label {str(value)[:60]}: must be a whole number or a "
                "word."
            )
        first.setdefault(value, i)
    for value, i in first.items():
        row = f"{where}, row {i}"
        if value is None:
            raise DataError(f"{row} has no label. Every image needs one.")
        if isinstance(value, str):
            continue
        if value < 0:
            cure = "; if the test split has no labels, give dataset.test_split=validation."
            raise DataError(f"{row} has the label {value}: must not be negative{cure}")
        if names is not None and value >= len(names):
            allowed = f"must lie in 0 to {len(names) - 1}, as there are {len(names)} classes."
            raise DataError(f"{row} has the label {value}: {allowed}")


def strata(where: str, labels: Index, classes: Sequence[str], n_parts: int) -> Index:
    """Return the labels, of which every split has its share.

    Raises:
        DataError: a class has fewer images than there are parts.
    """
    counts = np.bincount(labels, minlength=len(classes))
    few = [f"'{name}'" for name, n in zip(classes, counts.tolist(), strict=True) if 0 < n < n_parts]
    if few:
        raise DataError(
            f"{where} is too small to split: it takes at least {n_parts} images of a class, and "
            f"there are fewer of {', '.join(few[:5])}."
        )
    return labels


# Classification: an image shows one of several classes.


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
        index, classes = indexed(where, said, names)
        return {**index}, classes

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64]:
        """Return the labels: every split has its share of each class.

        Raises:
            DataError: a class has fewer images than there are parts.
        """
        return strata(where, targets, names, n_parts)

    def task(self, names: Sequence[str], targets: Targets) -> ClassificationTask:
        """Return the task of these classes."""
        return ClassificationTask(tuple(names))

    def from_json(self, raw: Mapping[str, Any]) -> ClassificationTask:
        """Return the task that ``Classes.to_json`` described."""
        said: _Said = validate(_Said, dict(raw), "task")
        return ClassificationTask(tuple(said["classes"]))
