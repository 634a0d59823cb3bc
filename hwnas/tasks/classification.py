"""Classification: cross entropy, metrics of classes with their intervals, and class labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import DataError
from hwnas.core.quantity import NORMAL_95, Quantity
from hwnas.core.schema import SchemaError, validate
from hwnas.tasks import early_stopping, metrics
from hwnas.tasks.base import (
    Confusion,
    Incumbent,
    Index,
    MetricLoss,
    Outputs,
    PerImageResults,
    Score,
    Targets,
    TaskDescription,
    normalised_label,
)
from hwnas.tasks.intervals import ClassScores, largest_probability, proportion
from hwnas.tasks.labels import check_labels

if TYPE_CHECKING:
    from torch import Tensor

METRIC = "accuracy"
METRICS = (METRIC, "balanced_accuracy", "macro_f1")

_SIGMAS = 3.0  # standard deviations above random answers that count as having learned
_DRAWS = 500  # bootstrap samples of the difference of two networks

_PRINTING = """\
labels = (here / "labels.txt").read_text(encoding="utf-8").splitlines()
lines = [labels[i] for i in outputs.argmax(1)]
if photos:
    odds = np.exp(outputs - outputs.max(1, keepdims=True))
    confidences = odds.max(1) / odds.sum(1)
    lines = [f"{p}: {line} {c:.1%}" for p, line, c in zip(photos, lines, confidences)]
print(*lines, sep="\\n")
"""


@final
@dataclass(frozen=True)
class ClassificationTask:
    """Classification of images into given classes. Outputs are logits, one per class.

    The result of an image is True if it is classified correctly. Metrics other than the accuracy
    need the classes, too: the result is ``true class * n_classes + predicted class``.
    """

    classes: tuple[str, ...]  #: names, in the order of the outputs
    counts: tuple[int, ...] = ()  #: training images of each class; empty in older files
    metric: str = METRIC  #: one of ``METRICS``
    is_balanced: bool = False  #: whether each class has the same weight in the loss
    name: ClassVar[str] = "classification"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.classes

    @property
    def n_outputs(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def description(self) -> TaskDescription:
        """Texts about the task for model cards, tables and generated code."""
        majority = f", '{self.classes[np.argmax(self.counts)]}'" if self.counts else ""
        return TaskDescription(
            kind="image-classification",
            network="An image classifier",
            outputs=f"{len(self.classes)} classes",
            answer="a label",
            same="same class",
            interval="Wilson's interval" + " of each class, combined" * (self.metric != METRIC),
            points=f"points of {metrics.metric_of(self.metric).label}",
            constant=f"the majority class{majority}",
            files={"labels.txt": "the classes in order, one per line"},
            limits=(
                "It always predicts one of its classes, also for images that show none of them.",
                "Its outputs are logits; their softmax was not calibrated as a probability.",
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return ``name``, ``classes``, their training images (``counts``), and ``metric``."""
        counts = {"counts": list(self.counts)} if self.counts else {}
        metric = {"metric": self.metric} if self.metric != METRIC else {}
        return {"name": self.name, "classes": list(self.classes), **counts, **metric}

    def with_metric(self, metric: str) -> ClassificationTask:
        """Return a copy of the task with a metric of ``METRICS``."""
        return replace(self, metric=metric)

    def for_training(self, *, is_balanced: bool) -> ClassificationTask:
        """Return the task whose mean result is the accuracy; balanced, the balanced accuracy."""
        return replace(self, metric=METRIC, is_balanced=is_balanced)

    @cached_property
    def _weights(self) -> Outputs:
        """Weights of images by class, ``(n_classes,)``; their mean over training images is 1."""
        counts = np.array(self.counts)
        weights: Outputs = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return weights.astype(np.float32)

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return the labels ``(N,)``; balanced, one-hot rows ``(N, n_classes)`` times weights."""
        return self._one_hot(targets) if self.is_balanced else targets

    def mixup_targets(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return labels ``(N,)`` of the larger parts, and rows ``(N, n_classes)`` for ``loss``."""
        loss_targets = share * self._one_hot(first) + (1 - share) * self._one_hot(second)
        return (first if share >= 0.5 else second), loss_targets

    def _one_hot(self, targets: Tensor) -> Tensor:
        from torch import from_numpy
        from torch.nn.functional import one_hot

        rows = one_hot(targets, len(self.classes)).float()
        return rows * from_numpy(self._weights).to(rows) if self.is_balanced else rows

    def loss(self, outputs: Tensor, loss_targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the cross entropy with labels ``(N,)`` or rows ``(N, n_classes)``, averaged."""
        from torch import lerp
        from torch.nn.functional import cross_entropy

        if self.is_balanced and loss_targets.dim() == 2:  # torch would smooth without weights
            weights = loss_targets.sum(1, keepdim=True)
            loss_targets = lerp(loss_targets, weights / len(self.classes), smoothing)
            smoothing = 0.0
        return cross_entropy(outputs, loss_targets, label_smoothing=smoothing)

    def distillation_targets(self, outputs: Tensor) -> Tensor:
        """Return the softmax of a teacher's outputs, at a temperature of 1, without weights."""
        return outputs.softmax(dim=1)

    def per_sample(self, outputs: Outputs, targets: Targets) -> PerImageResults:
        """Return the results ``(N,)``, see the class; balanced, times the weight of the class."""
        answers, n = outputs.argmax(axis=1), len(self.classes)
        results: PerImageResults = answers == targets
        if self.metric != METRIC:
            results = targets * n + answers
        return results * self._weights[targets] if self.is_balanced else results

    def constant_results(self, targets: Targets) -> PerImageResults:
        """Return the results ``(N,)`` of always answering the majority class of training."""
        outputs = np.eye(1, len(self.classes), int(np.argmax(self.counts)))
        return self.per_sample(outputs, targets)

    def score(self, results: PerImageResults) -> Quantity:
        """Return the metric, a fraction, with its 95 % interval."""
        if self.metric == METRIC:
            return proportion(int(results.sum()), len(results))
        truth, answers = np.divmod(results, len(self.classes))
        by_class = (truth[truth == answers], truth, answers)
        n = len(self.classes)
        scores = ClassScores(*(np.bincount(indices, minlength=n) for indices in by_class))
        figure: Quantity = getattr(scores, self.metric)
        return figure

    def confusion(self, outputs: Outputs, targets: Targets) -> Confusion:
        """Return the number of images by true class and predicted class, without zeros."""
        return _confusion(self.classes, outputs.argmax(axis=1), targets)

    @property
    def confidence(self) -> Callable[[Outputs], NDArray[Any]] | None:
        """Function from logits to the largest softmax probability; ``None`` unless for accuracy."""
        return largest_probability if self.metric == METRIC else None

    def score_of_mean(self, mean: float, n: int) -> Quantity:
        """Return the metric; an accuracy has its Wilson interval, other metrics have none."""
        is_proportion = self.metric == METRIC
        return proportion(round(mean * n), n) if is_proportion else Quantity(mean, "measured")

    def has_learned(self, total: float, n: int) -> bool:
        """Return True if ``total / n`` is over 3 standard deviations above random answers."""
        p = 1 / len(self.classes)
        squares = np.average(self._weights**2, weights=self.counts) if self.is_balanced else 1.0
        return total / n > p + _SIGMAS * math.sqrt((p * squares - p * p) / n)

    def chance_level_message(self, mean: float) -> str:
        """Return a message that a network with this accuracy is at chance level."""
        label = "a balanced accuracy" if self.is_balanced else "an accuracy"
        return f"has {label} of {mean:.1%} on its training images, which is chance level"

    def score_all(self, results: PerImageResults) -> Score:
        """Return the metric on all images; for the accuracy, with packed results per image."""
        if self.metric != METRIC:
            return Score(self.score(results), len(results))
        return early_stopping.score_of_all_bits(results)

    def score_early(
        self,
        per_sample: Callable[[Index], PerImageResults],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return the accuracy, predicted after an early stop; other metrics use all images."""
        if self.metric != METRIC:
            return self.score_all(per_sample(np.arange(n)))
        return early_stopping.read_accuracy(per_sample, n, incumbent, confidence, rng)

    def points(self, better: float, worse: float) -> float:
        """Return the loss from ``better`` to ``worse`` (fractions) in percentage points."""
        return 100 * (better - worse)

    def degradation(self, results: PerImageResults, reference: PerImageResults) -> MetricLoss:
        """Return the percentage points by which ``results`` are worse than ``reference``.

        Sources: Agresti, Categorical Data Analysis, 2013, section 11.1.1 (Wald's interval); for
        other metrics, Efron & Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.
        """
        n = len(results)
        if self.metric != METRIC:
            return _bootstrap(self, results, reference)
        lost, won = int((reference & ~results).sum()), int((results & ~reference).sum())
        difference = (lost - won) / n
        deviation = math.sqrt(max(lost + won - (lost - won) ** 2 / n, 0.0)) / n
        return MetricLoss(100 * difference, 100 * (difference - NORMAL_95 * deviation))

    def same_answers(self, outputs: Outputs, expected: Outputs) -> NDArray[np.bool_]:
        """Return for each image, ``(N,)``, whether both networks predict the same class."""
        same: NDArray[np.bool_] = outputs.argmax(axis=1) == expected.argmax(axis=1)
        return same

    def files(self) -> Mapping[str, bytes]:
        """Return ``labels.txt``, one class per line."""
        lines = (f"{' '.join(name.split())}\n" for name in self.classes)
        return {"labels.txt": "".join(lines).encode()}

    def preprocessing(self) -> Mapping[str, Any]:
        """Return an empty mapping: ``labels.txt`` has the classes."""
        return {}

    def print_code(self) -> str:
        """Return Python code that prints the label of each image, for photos with its softmax."""
        return _PRINTING


def _confusion(classes: Sequence[str], answers: Targets, targets: Targets) -> Confusion:
    n = len(classes)
    counts = np.bincount(targets * n + answers, minlength=n * n).reshape(n, n)
    return {
        name: {classes[i]: n for i, n in enumerate(row) if n}
        for name, row in zip(classes, counts.tolist(), strict=True)
    }


def _bootstrap(
    task: ClassificationTask, results: PerImageResults, reference: PerImageResults
) -> MetricLoss:
    """Return the degradation with a percentile interval over resampled images."""

    def loss(index: Index) -> float:
        before, after = (task.score(values[index]).value for values in (reference, results))
        return 100 * (before - after)

    rng, n = np.random.default_rng(0), len(results)
    drawn = [loss(rng.integers(0, n, n)) for _ in range(_DRAWS)]
    return MetricLoss(loss(np.arange(n)), float(np.quantile(drawn, 0.025)))


class _Classes(TypedDict, total=False):
    counts: list[int]
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1"]


class _ClassificationRecord(_Classes):
    name: str
    classes: list[str]


@final
class Classification:
    """Classification of images with one label each, of at least two classes."""

    metrics = METRICS
    categorical = True
    columns = ("label", "labels", "class")

    def targets(
        self, where: str, raw: Mapping[str, Sequence[Any]], names: Sequence[str] | None
    ) -> tuple[dict[str, Targets], tuple[str, ...]]:
        """Return class indices ``(N,)`` by split, and the names of the classes.

        Args:
            where: Prefix of error messages.
            raw: Labels by split: texts, or whole numbers; with ``names``, indices from 0.
            names: Names of the classes; default: the labels.

        Raises:
            DataError: if a label is missing, invalid or out of range, the training split has only
                one class, or another split has classes that it lacks.
        """
        raw = {split: list(map(normalised_label, labels)) for split, labels in raw.items()}
        for split, labels in raw.items():
            check_labels(f"{where}: split '{split}'", labels, names)
        values = set().union(*map(set, raw.values()))
        ordered = (
            list(range(len(names))) if names else sorted(values, key=lambda v: (str(type(v)), v))
        )
        classes = list(map(str, names or ordered))
        if len({*classes}) < len(classes):
            name = max(classes, key=classes.count)
            raise DataError(f"{where}: two classes have the name '{name}'. Rename one.")
        trained = set(raw["train"])
        if len(trained) < 2:
            (only,) = trained
            raise DataError(
                f"{where}: split 'train' has only one class, '{classes[ordered.index(only)]}'; "
                "classification needs two or more. Add training images of another class."
            )
        for split, labels in raw.items():
            if missing := sorted(map(ordered.index, set(labels) - trained)):
                listed = ", ".join(f"'{classes[i]}'" for i in missing[:5])
                raise DataError(
                    f"{where}: split '{split}' has classes without any image in split 'train' "
                    f"({len(missing)}): {listed}. Add training images of these classes, or remove "
                    f"their images from split '{split}'."
                )
        index = {value: i for i, value in enumerate(ordered)}
        targets: dict[str, Targets] = {
            split: np.array([index[label] for label in labels], np.int64)
            for split, labels in raw.items()
        }
        return targets, tuple(classes)

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64]:
        """Return the labels ``(N,)``: every split gets the same fraction of each class.

        Raises:
            DataError: if a class has fewer images than there are splits.
        """
        counts = np.bincount(targets, minlength=len(names)).tolist()
        few = [f"'{name}'" for name, n in zip(names, counts, strict=True) if 0 < n < n_parts]
        if few:
            raise DataError(
                f"{where} is too small to split: every class needs at least {n_parts} images, and "
                f"there are fewer of {', '.join(few[:5])}. Add images of these classes, or remove "
                "the classes."
            )
        return targets

    def task(self, names: Sequence[str], targets: Targets) -> ClassificationTask:
        """Return the task of these classes; ``targets`` are those of the training split."""
        counts = np.bincount(targets, minlength=len(names)).tolist()
        return ClassificationTask(tuple(names), tuple(counts))

    def from_json(self, raw: Mapping[str, Any]) -> ClassificationTask:
        """Return the task that ``ClassificationTask.to_json`` described, else ``SchemaError``."""
        record: _ClassificationRecord = validate(_ClassificationRecord, dict(raw), "task")
        counts, classes = record.get("counts", []), record["classes"]
        if len(counts) not in (0, len(classes)):
            raise SchemaError(
                f"'task' has {len(classes)} classes, but {len(counts)} counts of training images"
            )
        return ClassificationTask(tuple(classes), tuple(counts), record.get("metric", METRIC))
