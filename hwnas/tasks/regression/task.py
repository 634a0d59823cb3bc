"""Regression of values of images: a Huber loss, and the mean absolute error.

Networks answer in standard deviations of the training targets, from their mean; answers, errors and
the metric ``mae`` are in the unit of the targets. With several values an image, its error is the
mean over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from hwnas.figure import Figure
from hwnas.tasks.base import Found, Index, Loss, Targets, Words
from hwnas.tasks.regression import early_stopping
from hwnas.tasks.regression.mean import half_width, mean
from hwnas.tasks.score import Incumbent, Score

if TYPE_CHECKING:
    from torch import Tensor

METRIC = "mae"

#: Standard deviations of targets up to which the loss is quadratic. Beyond it is the absolute
#: error, which is the metric; within, its gradient falls with the error, so that training settles.
_BETA = 0.1
_SIGMAS = 3.0  # below the error of guessing that count as having learned
_SAME = 0.05  # standard deviations of targets

_PRINTING = """\
targets = said["targets"]
values = outputs * np.array(targets["std"]) + np.array(targets["mean"])
print(*(" ".join(f"{v:.9g}" for v in row) for row in values), sep="\\n")
"""


@final
@dataclass(frozen=True)
class Values:
    """The task of saying values. Outputs are values in standard deviations from the mean."""

    values: tuple[str, ...]  #: names
    mean: tuple[float, ...]  #: of the training targets, by value
    std: tuple[float, ...]
    guess_mae: float  #: of always answering the median of the training targets
    guess_std: float  #: of that answer's errors over images
    name: ClassVar[str] = "regression"
    metric: ClassVar[str] = METRIC

    @staticmethod
    def of(names: tuple[str, ...], targets: Targets) -> Values:
        """Return the task of training targets ``(N, n)``."""
        exact = targets.astype(np.float64)
        guess = np.abs(exact - np.median(exact, axis=0)).mean(axis=1)
        return Values(
            names,
            tuple(exact.mean(axis=0).tolist()),
            tuple(exact.std(axis=0).tolist()),
            float(guess.mean()),
            float(guess.std()),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the values."""
        return self.values

    @property
    def n_outputs(self) -> int:
        """One for each value."""
        return len(self.values)

    @property
    def words(self) -> Words:
        """What people are told of it."""
        n = len(self.values)
        return Words(
            kind="other",
            network="A regression network",
            outputs=f"{n} value{'s' * (n > 1)}: {', '.join(self.values)}",
            answer="the value" if n == 1 else "the values",
            same=f"within {_SAME:g} sd",
            interval="Student's t interval; in the unit of the targets, whose median, answered to "
            f"every image, has an error of {self.guess_mae:.4g}",
            points="hundredths of the error of answering the median",
            files={},
            limits=(
                "It always answers a value; that an image shows nothing of the kind it cannot say, "
                "nor how sure it is.",
                "Its outputs are in standard deviations of the training targets from their mean; "
                "`preprocessing.json` has both, and runners print values in the targets' unit.",
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return names and scale of the values."""
        return {
            "name": self.name,
            "values": list(self.values),
            "mean": list(self.mean),
            "std": list(self.std),
            "guess_mae": self.guess_mae,
            "guess_std": self.guess_std,
        }

    def goals(self, targets: Tensor) -> Tensor:
        """Return targets ``(N, n)`` in standard deviations from the mean."""
        return (targets - targets.new_tensor(self.mean)) / targets.new_tensor(self.std)

    def mixed(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return the targets of both images, mixed as they are."""
        targets = share * first + (1 - share) * second
        return targets, self.goals(targets)

    def loss(self, outputs: Tensor, goals: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the Huber loss, scaled so that far from the goal it is the absolute error.

        ``smoothing`` is of answers that exclude each other, which values do not.

        Source: Huber, "Robust Estimation of a Location Parameter", 1964,
        https://doi.org/10.1214/aoms/1177703732; scaled as in Girshick, "Fast R-CNN", ICCV 2015,
        https://arxiv.org/abs/1504.08083, section 2.3.
        """
        from torch.nn.functional import smooth_l1_loss

        return smooth_l1_loss(outputs, goals, beta=_BETA)

    def taught(self, outputs: Tensor) -> Tensor:
        """Return what another network answers: it is learned as targets are."""
        return outputs

    def answers(self, outputs: Found) -> Found:
        """Return values ``(N, n)`` in the unit of the targets."""
        scaled: Found = outputs * np.array(self.std, np.float32) + np.array(self.mean, np.float32)
        return scaled

    def per_sample(self, outputs: Found, targets: Targets) -> Found:
        """Return how far each image's answer is off, ``(N,)``, in the unit of the targets."""
        errors: Found = np.abs(self.answers(outputs) - targets).mean(axis=1)
        return errors

    def score(self, found: Found) -> Figure:
        """Return the mean absolute error, with its interval by Student's t."""
        return mean(found)

    @property
    def confidence(self) -> None:
        """Return nothing: values don't say how sure they are."""
        return

    def of_mean(self, mean: float, n: int) -> Figure:
        """Return a mean error without an interval: how errors vary is not known."""
        return Figure(mean, "measured")

    def has_learned(self, total: float, n: int) -> bool:
        """Return whether errors are below those of answering the median, beyond chance."""
        return total / n < self.guess_mae - _SIGMAS * self.guess_std / float(np.sqrt(n))

    def guessed(self, mean: float) -> str:
        """Return how large the error is, in words."""
        return (
            f"has a mean absolute error of {mean:.4g} on its training images, no less than "
            "answering their median has"
        )

    def whole(self, found: Found) -> Score:
        """Return the error on all images, and that on each."""
        return early_stopping.whole(found)

    def read(
        self,
        per_sample: Callable[[Index], Found],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return the error; predicted, where reading stopped early."""
        return early_stopping.read(per_sample, n, incumbent, confidence, rng)

    def points(self, better: float, worse: float) -> float:
        """Return how much larger the error is, in hundredths of that of answering the median.

        Source: Hyndman & Koehler, "Another look at measures of forecast accuracy", 2006,
        https://doi.org/10.1016/j.ijforecast.2006.03.001 (errors scaled by those of a naive answer).
        """
        return 100 * (worse - better) / self.guess_mae

    def loss_of(self, found: Found, reference: Found) -> Loss:
        """Return how much larger errors are, by the mean of paired differences (Student's t)."""
        differences = found.astype(np.float64) - reference
        scale = 100 / self.guess_mae
        points = scale * float(differences.mean())
        return Loss(points, points - scale * half_width(differences))

    def same(self, outputs: Found, expected: Found) -> Found:
        """Return for each image whether all outputs are nearly alike."""
        same: Found = (np.abs(outputs - expected) <= _SAME).all(axis=1)
        return same

    def files(self) -> Mapping[str, bytes]:
        """Return nothing: ``preprocessing.json`` says it."""
        return {}

    def preprocessing(self) -> Mapping[str, Any]:
        """Return names and scale of the values."""
        scale = {"mean": list(self.mean), "std": list(self.std)}
        return {"targets": {"names": list(self.values), **scale}}

    def printing(self) -> str:
        """Return Python that prints the values of each image."""
        return _PRINTING
