"""The interface of tasks: targets, losses and scores of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity

if TYPE_CHECKING:
    from torch import Tensor

Targets = NDArray[Any]  #: targets of N images: class indices ``(N,)``, or n values each ``(N, n)``
Outputs = NDArray[Any]  #: outputs of a network, ``(N, n_outputs)``
PerImageResults = NDArray[Any]  #: result per image, ``(N,)``: for example correct or not, or error
Index = NDArray[np.intp]  #: indices of images, ``(n,)``
Confusion = Mapping[str, Mapping[str, int]]  #: number of images by true class, then predicted class


@dataclass(frozen=True)
class Incumbent:
    """The network that a candidate must beat, with the results of earlier networks.

    Results per image are those of ``Score.per_image``.
    """

    per_image: bytes  #: results of the network to beat, which costs no more than the candidate
    earlier: tuple[bytes, ...]  #: results of completely evaluated networks, at least two
    value: float = math.nan  #: metric of the network to beat, in the metric's unit
    details: tuple[Mapping[str, float], ...] = ()  #: ``Score.details`` of the earlier networks


@dataclass(frozen=True)
class Score:
    """The metric of a network, with the number of images that it is based on."""

    figure: Quantity  #: the metric of the task
    n_images: int | None = None  #: ``None`` if no images were evaluated
    #: results per image, packed by the task; empty if evaluation stopped early or the task does not
    #: pack them
    per_image: bytes = b""
    #: evaluation stopped early: the metric is predicted, and worse than the incumbent's
    stopped: bool = False
    details: Mapping[str, float] = field(default_factory=dict)  #: other results by column name


@dataclass(frozen=True)
class TaskDescription:
    """Texts about a task for model cards, tables and generated code."""

    kind: str  #: task name of Hugging Face
    network: str  #: kind of network: "An image classifier"
    outputs: str  #: outputs with their number: "10 classes"
    answer: str  #: printed result of an image: "a label"
    same: str  #: column header for the fraction of equal answers
    interval: str  #: type of the metric's interval
    points: str  #: unit of ``Task.points``
    constant: str  #: the best constant answer: "the median"
    files: Mapping[str, str]  #: descriptions of the files that the task adds to exports, by name
    limits: tuple[str, ...]  #: limitations of the outputs, in sentences


@dataclass(frozen=True)
class MetricLoss:
    """Degradation of one network relative to another on the same images, in points.

    A point is one percentage point of a metric of classes, or 1 % of the error of always predicting
    the median.
    """

    points: float  #: above 0 if the network is worse
    low: float  #: lower end of its paired 95 % interval, in points


class Task(Protocol):
    """What networks learn from one data set, and how their outputs are scored.

    Only methods for training need torch: ``verify`` runs without it.
    """

    @property
    def name(self) -> str:
        """Name of the task type."""
        ...

    @property
    def metric(self) -> str:
        """Name of the quality metric."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs, which are classes or predicted values."""
        ...

    @property
    def n_outputs(self) -> int:
        """Number of outputs per image."""
        ...

    @property
    def description(self) -> TaskDescription:
        """Texts about the task for model cards, tables and generated code."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that ``TaskType.from_json`` reads; it has the key ``name``."""
        ...

    def with_metric(self, metric: str) -> Task:
        """Return the task with a quality metric of ``TaskType.metrics``."""
        ...

    def for_training(self, *, is_balanced: bool) -> Task:
        """Return the task whose results per image, summed over batches, ``has_learned`` gets.

        Args:
            is_balanced: Whether all classes have the same weight in the loss.

        Raises:
            ConfigError: ``is_balanced`` is set for a task without classes.
        """
        ...

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return the targets in the form that ``loss`` compares with outputs."""
        ...

    def mixup_targets(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return targets and loss targets of mixed images.

        ``per_sample`` compares outputs with the targets, ``loss`` with the loss targets.

        Args:
            first: Targets of the first images.
            second: Targets of the second images.
            share: Weight of the first images in the mixture, in [0, 1].

        Source: Zhang et al., "mixup", ICLR 2018, https://arxiv.org/abs/1710.09412.
        """
        ...

    def loss(self, outputs: Tensor, loss_targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the training loss, averaged over images.

        Args:
            outputs: ``(N, n_outputs)``.
            loss_targets: From ``loss_targets``, ``mixup_targets`` or ``distillation_targets``.
            smoothing: Label smoothing, of tasks with classes.
        """
        ...

    def distillation_targets(self, outputs: Tensor) -> Tensor:
        """Return the loss targets that a teacher's outputs ``(N, n_outputs)`` give."""
        ...

    def per_sample(self, outputs: Outputs, targets: Targets) -> PerImageResults:
        """Return the result of each image, ``(N,)``, from which ``score`` computes the metric."""
        ...

    def constant_results(self, targets: Targets) -> PerImageResults:
        """Return the result of each image, ``(N,)``, for the best constant answer.

        That is the majority class, or the median, of the training targets.
        """
        ...

    def score(self, results: PerImageResults) -> Quantity:
        """Return the metric with its 95 % interval."""
        ...

    def confusion(self, outputs: Outputs, targets: Targets) -> Confusion | None:
        """Return the number of images by true class and predicted class.

        ``None`` for tasks without classes.
        """
        ...

    @property
    def confidence(self) -> Callable[[Outputs], NDArray[Any]] | None:
        """Function from outputs to confidences ``(N,)``; ``None`` if cascades are not possible.

        A cascade escalates the images with the lowest confidence.
        """
        ...

    def score_of_mean(self, mean: float, n: int) -> Quantity:
        """Return the metric from the mean result of ``n`` images.

        It has a 95 % interval only if the mean determines it.
        """
        ...

    def has_learned(self, total: float, n: int) -> bool:
        """Return True if results are significantly better than chance level.

        Chance level is that of random answers for classes, and of always predicting the median for
        values. The majority class is no criterion: on imbalanced data, trainings may never exceed
        it, or much later.

        Args:
            total: Sum of the results per image of ``for_training``.
            n: Number of images.
        """
        ...

    def chance_level_message(self, mean: float) -> str:
        """Return a message that a network with this mean result is at chance level.

        It follows the name of a network: ``has an accuracy of 10.0% ...``.
        """
        ...

    def score_all(self, results: PerImageResults) -> Score:
        """Return the score of a complete evaluation from the results of all images, ``(N,)``."""
        ...

    def score_early(
        self,
        per_sample: Callable[[Index], PerImageResults],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Evaluate images until the candidate is significantly worse than the incumbent.

        Return the score of all images, or a predicted one if evaluation stopped early.

        Args:
            per_sample: Evaluates the images at the given indices; returns ``per_sample`` of them.
            n: Number of images of the split.
            incumbent: The network to beat, with results of earlier networks.
            confidence: A candidate as good as the incumbent is stopped with a probability of at
                most ``1 - confidence``.
            rng: Determines the order of evaluation.
        """
        ...

    def points(self, better: float, worse: float) -> float:
        """Return the degradation from ``better`` to ``worse``, two values of the metric, in points.

        Points are those of ``MetricLoss``; below 0 if ``worse`` is better.
        """
        ...

    def degradation(self, results: PerImageResults, reference: PerImageResults) -> MetricLoss:
        """Return the degradation of a network relative to a reference on the same images.

        Both arguments are from ``per_sample``, ``(N,)``.
        """
        ...

    def same_answers(self, outputs: Outputs, expected: Outputs) -> NDArray[np.bool_]:
        """Return for each image, ``(N,)``, whether two networks give the same answer."""
        ...

    def files(self) -> Mapping[str, bytes]:
        """Return the files that the task adds to exports: contents by name."""
        ...

    def preprocessing(self) -> Mapping[str, Any]:
        """Return the fields that the task adds to ``preprocessing.json``; empty for none."""
        ...

    def print_code(self) -> str:
        """Return Python code that prints one line per image.

        It can use ``outputs`` (numpy, ``(N, n_outputs)``), ``photos`` (names of the images, or
        empty), ``np``, ``here`` (the folder) and ``spec`` (content of ``preprocessing.json``).
        """
        ...


class TaskType(Protocol):
    """A type of task for any data set: the object of an entry point of ``hwnas.tasks``."""

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the quality metrics; the first one is the default."""
        ...

    @property
    def categorical(self) -> bool:
        """True if targets are classes, which may have names in the source."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Usual names of the target column in tables."""
        ...

    def targets(
        self, where: str, raw: Mapping[str, Sequence[Any]], names: Sequence[str] | None
    ) -> tuple[dict[str, Targets], tuple[str, ...]]:
        """Return the targets by split, and the names of the outputs.

        Args:
            where: Prefix of error messages.
            raw: Targets of the images as in the data set, by split: ``train``, ``validation``,
                ``test``.
            names: Names of the classes or values in the source, if it has any.

        Raises:
            DataError: if the targets are invalid.
        """
        ...

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64] | None:
        """Return the stratum (a number) of each image, ``(N,)``; ``None`` for random splits.

        Args:
            where: Prefix of error messages.
            targets: Targets of the images to split.
            names: Names of the outputs.
            n_parts: Number of splits.

        Raises:
            DataError: if a stratum has fewer than ``n_parts`` images.
        """
        ...

    def task(self, names: Sequence[str], targets: Targets) -> Task:
        """Return the task of a data set.

        Args:
            names: Names of the outputs.
            targets: Targets of the training split.
        """
        ...

    def from_json(self, raw: Mapping[str, Any]) -> Task:
        """Return the task that ``Task.to_json`` described.

        Raises:
            SchemaError: the content is invalid.
        """
        ...


def normalised_label(label: Any) -> Any:
    """Return a label in its normal form.

    Texts lose outer spaces, floats that are whole numbers become ``int``, and NaN and empty texts
    become ``None``. Other labels are returned as they are.
    """
    if isinstance(label, str):
        return label.strip() or None
    if not isinstance(label, float | Decimal):
        return label
    if math.isnan(label):  # a missing value in a column of integers, which is read as floats
        return None
    return int(label) if math.isfinite(label) and label == int(label) else label
