"""Classification of images into given classes: cross entropy, and the share of right answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from hwnas.figure import NORMAL_95, Figure
from hwnas.tasks.base import Found, Index, Loss, Targets, Words
from hwnas.tasks.classification import early_stopping
from hwnas.tasks.proportion import proportion
from hwnas.tasks.score import Incumbent, Score

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
class Classes:
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
    def words(self) -> Words:
        """What people are told of it."""
        return Words(
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

    def goals(self, targets: Tensor) -> Tensor:
        """Return labels ``(N,)`` as they are."""
        return targets

    def mixed(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return labels of what images show most of, and probabilities ``(N, n_classes)``."""
        from torch.nn.functional import one_hot

        n = len(self.classes)
        goals = share * one_hot(first, n).float() + (1 - share) * one_hot(second, n).float()
        return (first if share >= 0.5 else second), goals

    def loss(self, outputs: Tensor, goals: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the cross entropy with labels ``(N,)`` or probabilities ``(N, n_classes)``."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, goals, label_smoothing=smoothing)

    def taught(self, outputs: Tensor) -> Tensor:
        """Return the probabilities that another network says, at a temperature of 1."""
        return outputs.softmax(dim=1)

    def per_sample(self, outputs: Found, targets: Targets) -> Found:
        """Return which images are classified rightly, ``(N,)``."""
        correct: Found = outputs.argmax(axis=1) == targets
        return correct

    def score(self, found: Found) -> Figure:
        """Return the share of right answers, with its Wilson interval."""
        return proportion(int(found.sum()), len(found))

    @property
    def confidence(self) -> Callable[[Found], Found]:
        """Return what says the largest probability that a network gives a class."""
        return _largest_probability

    def of_mean(self, mean: float, n: int) -> Figure:
        """Return a share of right answers with its Wilson interval."""
        return proportion(round(mean * n), n)

    def has_learned(self, total: float, n: int) -> bool:
        """Return whether more images are right than guessing gets, beyond chance."""
        p = 1 / len(self.classes)
        return total / n > p + _SIGMAS * math.sqrt(p * (1 - p) / n)

    def guessed(self, mean: float) -> str:
        """Return how many images are right, in words."""
        return f"is right on {mean:.1%} of its training images, no more than by guessing"

    def whole(self, found: Found) -> Score:
        """Return the accuracy on all images, and which of them were right."""
        return early_stopping.whole(found)

    def read(
        self,
        per_sample: Callable[[Index], Found],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return the accuracy; predicted, where reading stopped early."""
        return early_stopping.read(per_sample, n, incumbent, confidence, rng)

    def points(self, better: float, worse: float) -> float:
        """Return the percentage points of accuracy that are lost."""
        return 100 * (better - worse)

    def loss_of(self, found: Found, reference: Found) -> Loss:
        """Return the percentage points that are lost, by the difference of paired proportions.

        Source: Agresti, Categorical Data Analysis, 2013, section 11.1.1 (Wald's interval).
        """
        n = len(found)
        lost, won = int((reference & ~found).sum()), int((found & ~reference).sum())
        difference = (lost - won) / n
        deviation = math.sqrt(max(lost + won - (lost - won) ** 2 / n, 0.0)) / n
        return Loss(100 * difference, 100 * (difference - NORMAL_95 * deviation))

    def same(self, outputs: Found, expected: Found) -> Found:
        """Return for each image whether both networks answer the same class."""
        same: Found = outputs.argmax(axis=1) == expected.argmax(axis=1)
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


def _largest_probability(logits: Found) -> Found:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True).astype(np.float64))
    probabilities: Found = 1 / exponents.sum(axis=1)
    return probabilities
