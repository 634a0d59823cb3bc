"""Regression of values of images: a Huber loss, and the mean absolute error.

Networks answer in standard deviations of the training targets, from their mean; answers, errors and
the metric ``mae`` are in the unit of the targets. With several values an image, its error is the
mean over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import DataError
from hwnas.core.quantity import Quantity
from hwnas.core.schema import NumberBounds, Positive, SchemaError, validate
from hwnas.tasks import early_stopping
from hwnas.tasks.base import (
    Incumbent,
    Index,
    MetricLoss,
    PerImageResults,
    Score,
    Targets,
    TaskDescription,
)
from hwnas.tasks.intervals import half_width, mean

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
class RegressionTask:
    """The task of saying values. Outputs are values in standard deviations from the mean."""

    values: tuple[str, ...]  #: names
    mean: tuple[float, ...]  #: of the training targets, by value
    std: tuple[float, ...]
    guess_mae: float  #: of always answering the median of the training targets
    guess_std: float  #: of that answer's errors over images
    name: ClassVar[str] = "regression"
    metric: ClassVar[str] = METRIC

    @staticmethod
    def of(names: tuple[str, ...], targets: Targets) -> RegressionTask:
        """Return the task of training targets ``(N, n)``."""
        exact = targets.astype(np.float64)
        guess = np.abs(exact - np.median(exact, axis=0)).mean(axis=1)
        return RegressionTask(
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
    def words(self) -> TaskDescription:
        """What people are told of it."""
        n = len(self.values)
        return TaskDescription(
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

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return targets ``(N, n)`` in standard deviations from the mean."""
        return (targets - targets.new_tensor(self.mean)) / targets.new_tensor(self.std)

    def mixup_targets(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return the targets of both images, mixed as they are."""
        targets = share * first + (1 - share) * second
        return targets, self.loss_targets(targets)

    def loss(self, outputs: Tensor, loss_targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the Huber loss, scaled so that far from the goal it is the absolute error.

        ``smoothing`` is of answers that exclude each other, which values do not.

        Source: Huber, "Robust Estimation of a Location Parameter", 1964,
        https://doi.org/10.1214/aoms/1177703732; scaled as in Girshick, "Fast R-CNN", ICCV 2015,
        https://arxiv.org/abs/1504.08083, section 2.3.
        """
        from torch.nn.functional import smooth_l1_loss

        return smooth_l1_loss(outputs, loss_targets, beta=_BETA)

    def distillation_targets(self, outputs: Tensor) -> Tensor:
        """Return what another network answers: it is learned as targets are."""
        return outputs

    def answers(self, outputs: PerImageResults) -> PerImageResults:
        """Return values ``(N, n)`` in the unit of the targets."""
        scaled: PerImageResults = outputs * np.array(self.std, np.float32) + np.array(
            self.mean, np.float32
        )
        return scaled

    def per_sample(self, outputs: PerImageResults, targets: Targets) -> PerImageResults:
        """Return how far each image's answer is off, ``(N,)``, in the unit of the targets."""
        errors: PerImageResults = np.abs(self.answers(outputs) - targets).mean(axis=1)
        return errors

    def score(self, found: PerImageResults) -> Quantity:
        """Return the mean absolute error, with its interval by Student's t."""
        return mean(found)

    @property
    def confidence(self) -> None:
        """Return nothing: values don't say how sure they are."""
        return

    def of_mean(self, mean: float, n: int) -> Quantity:
        """Return a mean error without an interval: how errors vary is not known."""
        return Quantity(mean, "measured")

    def has_learned(self, total: float, n: int) -> bool:
        """Return whether errors are below those of answering the median, beyond chance."""
        return total / n < self.guess_mae - _SIGMAS * self.guess_std / float(np.sqrt(n))

    def guessed(self, mean: float) -> str:
        """Return how large the error is, in words."""
        return (
            f"has a mean absolute error of {mean:.4g} on its training images, no less than "
            "answering their median has"
        )

    def whole(self, found: PerImageResults) -> Score:
        """Return the error on all images, and that on each."""
        return early_stopping.score_of_all_errors(found)

    def read(
        self,
        per_sample: Callable[[Index], PerImageResults],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return the error; predicted, where reading stopped early."""
        return early_stopping.read_error(per_sample, n, incumbent, confidence, rng)

    def points(self, better: float, worse: float) -> float:
        """Return how much larger the error is, in hundredths of that of answering the median.

        Source: Hyndman & Koehler, "Another look at measures of forecast accuracy", 2006,
        https://doi.org/10.1016/j.ijforecast.2006.03.001 (errors scaled by those of a naive answer).
        """
        return 100 * (worse - better) / self.guess_mae

    def loss_of(self, found: PerImageResults, reference: PerImageResults) -> MetricLoss:
        """Return how much larger errors are, by the mean of paired differences (Student's t)."""
        differences = found.astype(np.float64) - reference
        scale = 100 / self.guess_mae
        points = scale * float(differences.mean())
        return MetricLoss(points, points - scale * half_width(differences))

    def same(self, outputs: PerImageResults, expected: PerImageResults) -> PerImageResults:
        """Return for each image whether all outputs are nearly alike."""
        same: PerImageResults = (np.abs(outputs - expected) <= _SAME).all(axis=1)
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


# Values as a source has them become arrays.

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


def target_names(
    where: str, found: Mapping[str, Exact], said: Sequence[str] | None
) -> tuple[str, ...]:
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
    for i, (average, std) in enumerate(zip(*_spread(found["train"]), strict=True)):
        said = f"value {i + 1} of training images has a standard deviation of {std:.3g}"
        if std < _LEAST:
            yield f"{said}, which float32 can hardly hold: give it in a smaller unit."
        rounded = max(float(_rounding(rows[:, i]).max(initial=0.0)) for rows in found.values())
        if rounded > _ROUNDED * std:
            yield (
                f"{said} around {average:.10g}, and float32, in which networks compute, rounds it "
                f"by up to {rounded:.3g}: subtract its mean first."
            )


def _spread(rows: Exact) -> tuple[list[float], list[float]]:
    """Return means and standard deviations by value."""
    return rows.mean(axis=0).tolist(), rows.std(axis=0).tolist()


def _rounding(values: Exact) -> Exact:
    return np.abs(values.astype(np.float32) - values)


# Regression: an image has one value or several.


class _Said(TypedDict):
    name: str
    values: Annotated[list[str], NumberBounds(1)]
    mean: list[float]
    std: list[Positive]
    guess_mae: Annotated[float, NumberBounds(0)]
    guess_std: Annotated[float, NumberBounds(0)]


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
        found = {split: array(f"{where}: split '{split}'", v) for split, v in said.items()}
        called = target_names(where, found, names)
        return {**in_float32(where, found)}, called

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64] | None:
        """Return nothing: splits are drawn without regard to values."""
        return None

    def task(self, names: Sequence[str], targets: Targets) -> RegressionTask:
        """Return the task of these values, in the scale of those trained on."""
        return RegressionTask.of(tuple(names), targets)

    def from_json(self, raw: Mapping[str, Any]) -> RegressionTask:
        """Return the task that ``Values.to_json`` described."""
        said: _Said = validate(_Said, dict(raw), "task")
        if not len(said["values"]) == len(said["mean"]) == len(said["std"]):
            raise SchemaError("'task' has not as many values as means and deviations")
        return RegressionTask(
            tuple(said["values"]),
            tuple(said["mean"]),
            tuple(said["std"]),
            said["guess_mae"],
            said["guess_std"],
        )
