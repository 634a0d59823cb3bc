"""What a task must offer: what networks are for, and how good their answers are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity

if TYPE_CHECKING:
    from torch import Tensor

# What is known of how well a network answers, and what it is held against.


@dataclass(frozen=True)
class Incumbent:
    """The network that a candidate must not be worse than, and what is known of others.

    Bytes say what was found of each validation image, packed by the task.
    """

    per_image: bytes  #: of the network to be beaten, which costs no more than the candidate
    earlier: tuple[bytes, ...]  #: of networks that were read whole, two at least
    value: float = math.nan  #: of the metric, of the network to be beaten
    details: tuple[Mapping[str, float], ...] = ()  #: what else is known of earlier networks


@dataclass(frozen=True)
class Score:
    """What is known of how well a genotype's network answers, and from how many images."""

    figure: Quantity  #: of the task's metric
    n_images: int | None = None  #: ``None`` where no images were read
    per_image: bytes = b""  #: what was found of each, packed by the task, where all were read
    stopped: bool = False  #: the figure is predicted: it is worse than the incumbent's
    details: Mapping[str, float] = field(default_factory=dict)  #: what else was found, by column


Targets = NDArray[Any]  #: what a data set says of each image, ``(N,)`` or ``(N, n)``
PerImageResults = NDArray[Any]  #: what was found of each image, ``(N,)``: its mean is the metric
Index = NDArray[np.intp]


@dataclass(frozen=True)
class TaskDescription:
    """What people are told of a task."""

    kind: str  #: as Hugging Face calls it
    network: str  #: what a network is: "An image classifier"
    outputs: str  #: what it chooses from or says, with the number: "10 classes"
    answer: str  #: what is printed of an image: "a label"
    same: str  #: when two answers to an image are the same, as the head of a column
    interval: str  #: which interval the metric has
    points: str  #: what ``Task.points`` counts
    files: Mapping[str, str]  #: files that an export has for the task, and what they hold
    limits: tuple[str, ...]  #: of the answers, in sentences


@dataclass(frozen=True)
class MetricLoss:
    """How much worse one network answers than another on the same images, in points.

    A point is a hundredth of what lies between no error and the error of guessing, or between all
    wrong and all right.
    """

    points: float
    low: float  #: lower end of the 95 % interval, paired image by image


class Task(Protocol):
    """What networks are for, with the targets of one data set.

    Needs torch in what training calls alone: a proof is repeated without it.
    """

    @property
    def name(self) -> str:
        """What it is chosen by."""
        ...

    @property
    def metric(self) -> str:
        """Return the column of the figure that says how good answers are."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """What networks answer: classes, or values."""
        ...

    @property
    def n_outputs(self) -> int:
        """Numbers that a network answers for an image."""
        ...

    @property
    def words(self) -> TaskDescription:
        """What people are told of it."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return what ``Kind.from_json`` needs."""
        ...

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return what ``loss`` compares outputs with."""
        ...

    def mixup_targets(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return targets and loss targets of images mixed as ``share * a + (1 - share) * b``.

        Source: Zhang et al., "mixup", ICLR 2018, https://arxiv.org/abs/1710.09412.
        """
        ...

    def loss(self, outputs: Tensor, loss_targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return what training minimises, averaged over images.

        Args:
            outputs: ``(N, n_outputs)``.
            loss_targets: From ``loss_targets``, ``mixup_targets`` or ``distillation_targets``.
            smoothing: Label smoothing, of tasks with classes.
        """
        ...

    def distillation_targets(self, outputs: Tensor) -> Tensor:
        """Return loss targets from the outputs of a teacher."""
        ...

    def per_sample(self, outputs: PerImageResults, targets: Targets) -> PerImageResults:
        """Return what is found of each image, ``(N,)``, given outputs ``(N, n_outputs)``."""
        ...

    def score(self, found: PerImageResults) -> Quantity:
        """Return the metric with its 95 % interval, from what was found of all images."""
        ...

    @property
    def confidence(self) -> Callable[[PerImageResults], PerImageResults] | None:
        """Return what says how sure outputs ``(N, n_outputs)`` are, ``(N,)``, where they say it.

        A cascade passes on the images whose answers are the least sure.
        """
        ...

    def of_mean(self, mean: float, n: int) -> Quantity:
        """Return the metric of ``n`` images of which its value alone is known."""
        ...

    def has_learned(self, total: float, n: int) -> bool:
        """Return whether answers are surely better than guessing.

        Args:
            total: Sum of what was found of images.
            n: How many.
        """
        ...

    def guessed(self, mean: float) -> str:
        """Return in words that a network with this mean is no better than guessing."""
        ...

    def whole(self, found: PerImageResults) -> Score:
        """Return what reading all images said; others can be read against it."""
        ...

    def read(
        self,
        per_sample: Callable[[Index], PerImageResults],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return what reading images says, stopping as soon as the incumbent cannot be reached.

        Args:
            per_sample: Reads the images of places, and says what it finds of each.
            n: The number of images of the split.
            incumbent: The network to be beaten, with others that were read whole.
            confidence: A candidate that is as good as the incumbent is stopped with a probability
                of at most ``1 - confidence``.
            rng: Decides the order of reading.
        """
        ...

    def points(self, better: float, worse: float) -> float:
        """Return how many points the second value of the metric is worse than the first."""
        ...

    def loss_of(self, found: PerImageResults, reference: PerImageResults) -> MetricLoss:
        """Return how much worse one network is than another, from what was found of each image."""
        ...

    def same(self, outputs: PerImageResults, expected: PerImageResults) -> PerImageResults:
        """Return for each image whether two networks' outputs are the same answer."""
        ...

    def files(self) -> Mapping[str, bytes]:
        """Return files that an export has for the task."""
        ...

    def preprocessing(self) -> Mapping[str, Any]:
        """Return what a runner must know, beside how images are normalised."""
        ...

    def printing(self) -> str:
        """Return Python that prints the answers to images, one a line.

        It knows ``outputs`` (numpy, ``(N, n_outputs)``), ``np``, ``here`` (the folder) and ``said``
        (``preprocessing.json``).
        """
        ...


class TaskType(Protocol):
    """A kind of task, whatever the data: what an entry point of ``hwnas.tasks`` leads to."""

    @property
    def metric(self) -> str:
        """Return the column of the figure that says how good answers are."""
        ...

    @property
    def categorical(self) -> bool:
        """Whether targets are of finitely many kinds, whose names a source may say."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Usual names of the column of targets in a table."""
        ...

    def targets(
        self, where: str, said: Mapping[str, Sequence[Any]], names: Sequence[str] | None
    ) -> tuple[dict[str, Targets], tuple[str, ...]]:
        """Return targets by split, and the names of what networks answer.

        Args:
            where: What errors begin with.
            said: What a source says of each image, by split.
            names: Of classes, where the source says them.

        Raises:
            DataError: these are no targets of such a task.
        """
        ...

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64] | None:
        """Return the groups that every split has its share of; ``None``: there are none.

        Args:
            where: What errors begin with.
            targets: Of images that are split.
            names: Of what networks answer.
            n_parts: Splits that there will be.

        Raises:
            DataError: a group is too small to be split.
        """
        ...

    def task(self, names: Sequence[str], targets: Targets) -> Task:
        """Return the task of a data set.

        Args:
            names: Of what networks answer.
            targets: Of the training split.
        """
        ...

    def from_json(self, raw: Mapping[str, Any]) -> Task:
        """Return the task that ``Task.to_json`` described."""
        ...
