"""Regression: Huber loss, and mean absolute error with its interval.

Outputs are standardised by mean and standard deviation of the training targets; predictions, errors
and the metric ``mae`` are in the unit of the targets. The error of an image with several values is
their mean error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, DataError
from hwnas.core.quantity import Quantity
from hwnas.core.schema import NumberBounds, Positive, SchemaError, validate
from hwnas.tasks import early_stopping
from hwnas.tasks.base import (
    Incumbent,
    Index,
    MetricLoss,
    Outputs,
    PerImageResults,
    Score,
    Targets,
    TaskDescription,
)
from hwnas.tasks.intervals import half_width, mean

if TYPE_CHECKING:
    from torch import Tensor

METRIC = "mae"

#: Standard deviations of targets up to which the loss is quadratic. Beyond, it is the absolute
#: error, which is the metric; below, its gradient falls with the error, so that training settles.
_BETA = 0.1
_SIGMAS = 3.0  # standard deviations below the chance-level error that count as having learned
_SAME = 0.05  # largest difference of equal answers, in standard deviations of targets
_MAX_VALUE, _MIN_STD = 1e36, 1e-36  # so that sums of errors and small errors fit into float32
_MAX_ROUNDING = 1e-3  #: by float32, in standard deviations
_NEEDS = "regression needs numbers. For classes set task=classification."

_PRINTING = """\
targets = spec["targets"]
values = outputs * np.array(targets["std"]) + np.array(targets["mean"])
lines = [" ".join(f"{v:.9g}" for v in row) for row in values]
print(*(map(": ".join, zip(photos, lines)) if photos else lines), sep="\\n")
"""


@final
@dataclass(frozen=True)
class RegressionTask:
    """Regression of one or more values per image. Outputs are standardised values."""

    values: tuple[str, ...]  #: names of the values
    mean: tuple[float, ...]  #: of the training targets, by value, in their unit
    std: tuple[float, ...]  #: of the training targets, by value, in their unit
    guess_mae: float  #: mean absolute error of always predicting the median, in the same unit
    guess_std: float  #: standard deviation of that error over images
    median: tuple[float, ...] = ()  #: of the training targets, by value; empty in older files
    name: ClassVar[str] = "regression"
    metric: ClassVar[str] = METRIC

    @staticmethod
    def of(names: tuple[str, ...], targets: Targets) -> RegressionTask:
        """Return the task of training targets ``(N, n)``; ``names`` are those of the n values."""
        exact = targets.astype(np.float64)
        median = np.median(exact, axis=0)
        guess = np.abs(exact - median).mean(axis=1)
        return RegressionTask(
            names,
            tuple(exact.mean(axis=0).tolist()),
            tuple(exact.std(axis=0).tolist()),
            float(guess.mean()),
            float(guess.std()),
            tuple(median.tolist()),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values."""
        return self.values

    @property
    def n_outputs(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def description(self) -> TaskDescription:
        """Texts about the task for model cards, tables and generated code."""
        n = len(self.values)
        return TaskDescription(
            kind="other",
            network="A regression network",
            outputs=f"{n} value{'s' * (n > 1)}: {', '.join(self.values)}",
            answer="the value" if n == 1 else "the values",
            same=f"within {_SAME:g} sd",
            interval="Student's t interval, in the unit of the targets; always predicting their "
            f"median has an error of {self.guess_mae:.4g}",
            points="% of the error of always predicting the median",
            constant="the median",
            files={},
            limits=(
                "It always predicts values, also for unrelated images, and gives no confidence.",
                "Its outputs are standardised by mean and standard deviation of the training "
                "targets, which `preprocessing.json` has; runners print values in the targets' "
                "unit.",
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the class by name, and ``name``."""
        return {
            "name": self.name,
            "values": list(self.values),
            "mean": list(self.mean),
            "std": list(self.std),
            "guess_mae": self.guess_mae,
            "guess_std": self.guess_std,
            **({"median": list(self.median)} if self.median else {}),
        }

    def with_metric(self, metric: str) -> RegressionTask:
        """Return the task itself: there is one metric."""
        return self

    def for_training(self, *, is_balanced: bool) -> RegressionTask:
        """Return the task itself.

        Raises:
            ConfigError: ``is_balanced`` is set.
        """
        if is_balanced:
            raise ConfigError(
                "train.class_weights=balanced: task=regression has no classes. Remove it, or set "
                "task=classification."
            )
        return self

    def loss_targets(self, targets: Tensor) -> Tensor:
        """Return targets ``(N, n)`` minus their mean, divided by their standard deviation."""
        return (targets - targets.new_tensor(self.mean)) / targets.new_tensor(self.std)

    def mixup_targets(self, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return the mixed targets ``(N, n)``, in the targets' unit and standardised."""
        targets = share * first + (1 - share) * second
        return targets, self.loss_targets(targets)

    def loss(self, outputs: Tensor, loss_targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the Huber loss, scaled to the absolute error for large errors.

        ``smoothing`` has no effect. Source: Huber, "Robust Estimation of a Location Parameter",
        1964, https://doi.org/10.1214/aoms/1177703732; scaled as in Girshick, "Fast R-CNN", ICCV
        2015, https://arxiv.org/abs/1504.08083, section 2.3.
        """
        from torch.nn.functional import smooth_l1_loss

        return smooth_l1_loss(outputs, loss_targets, beta=_BETA)

    def distillation_targets(self, outputs: Tensor) -> Tensor:
        """Return a teacher's outputs ``(N, n)``."""
        return outputs

    def per_sample(self, outputs: Outputs, targets: Targets) -> PerImageResults:
        """Return the mean absolute error of each image's values, ``(N,)``, in the targets' unit."""
        std, offset = np.array(self.std, np.float32), np.array(self.mean, np.float32)
        errors: PerImageResults = np.abs(outputs * std + offset - targets).mean(axis=1)
        return errors

    def constant_results(self, targets: Targets) -> PerImageResults:
        """Return the errors ``(N,)`` of always predicting the median, in the targets' unit."""
        median = np.array(self.median, np.float64)
        errors: PerImageResults = np.abs(targets - median).mean(axis=1)
        return errors

    def confusion(self, outputs: Outputs, targets: Targets) -> None:
        """Return ``None``: there are no classes."""
        return

    def score(self, results: PerImageResults) -> Quantity:
        """Return the mean absolute error with its Student's t interval, in the targets' unit."""
        return mean(results)

    @property
    def confidence(self) -> None:
        """``None``, as values have no confidence."""
        return

    def score_of_mean(self, mean: float, n: int) -> Quantity:
        """Return a mean error without an interval, as the variance of errors is unknown."""
        return Quantity(mean, "measured")

    def has_learned(self, total: float, n: int) -> bool:
        """Return True if ``total / n`` is over 3 standard errors below the error of the median."""
        return total / n < self.guess_mae - _SIGMAS * self.guess_std / float(np.sqrt(n))

    def chance_level_message(self, mean: float) -> str:
        """Return a message that a network with this error is at chance level."""
        return (
            f"has a mean absolute error of {mean:.4g} on its training images, not below that of "
            "always predicting their median"
        )

    def score_all(self, results: PerImageResults) -> Score:
        """Return the mean error of all images, with packed errors per image."""
        return early_stopping.score_of_all_errors(results)

    def score_early(
        self,
        per_sample: Callable[[Index], PerImageResults],
        n: int,
        incumbent: Incumbent,
        confidence: float,
        rng: np.random.Generator,
    ) -> Score:
        """Return the mean error of all images, or a predicted one if evaluation stopped early."""
        return early_stopping.read_error(per_sample, n, incumbent, confidence, rng)

    def points(self, better: float, worse: float) -> float:
        """Return the increase of the error in per cent of the error of predicting the median.

        Source: Hyndman & Koehler, "Another look at measures of forecast accuracy", 2006,
        https://doi.org/10.1016/j.ijforecast.2006.03.001 (errors scaled by a naive forecast's).
        """
        return 100 * (worse - better) / self.guess_mae

    def degradation(self, results: PerImageResults, reference: PerImageResults) -> MetricLoss:
        """Return the mean error less that of ``reference``, in points, with a paired t bound."""
        differences = results.astype(np.float64) - reference
        scale = 100 / self.guess_mae
        points = scale * float(differences.mean())
        return MetricLoss(points, points - scale * half_width(differences))

    def same_answers(self, outputs: Outputs, expected: Outputs) -> NDArray[np.bool_]:
        """Return for each image, ``(N,)``, whether all outputs (standardised) agree within 0.05."""
        same: NDArray[np.bool_] = (np.abs(outputs - expected) <= _SAME).all(axis=1)
        return same

    def files(self) -> Mapping[str, bytes]:
        """Return an empty mapping: ``preprocessing.json`` has names and scale."""
        return {}

    def preprocessing(self) -> Mapping[str, Any]:
        """Return ``{"targets": ...}`` with ``names``, ``mean`` and ``std`` of the values."""
        scale = {"mean": list(self.mean), "std": list(self.std)}
        return {"targets": {"names": list(self.values), **scale}}

    def print_code(self) -> str:
        """Return Python code that prints the values of each image."""
        return _PRINTING


class _ScaleRecord(TypedDict):
    name: str
    values: Annotated[list[str], NumberBounds(1)]
    mean: list[float]
    std: list[Positive]
    guess_mae: Annotated[float, NumberBounds(0)]
    guess_std: Annotated[float, NumberBounds(0)]


class _RegressionRecord(_ScaleRecord, total=False):
    median: list[float]


@final
class Regression:
    """Regression of one or more values per image, in any unit."""

    metrics = (METRIC,)
    categorical = False
    columns = ("value", "values", "target", "targets")

    def targets(
        self, where: str, raw: Mapping[str, Sequence[Any]], names: Sequence[str] | None
    ) -> tuple[dict[str, Targets], tuple[str, ...]]:
        """Return float32 values ``(N, n)`` by split, and the names of the n values.

        Raises:
            DataError: if a value is missing, not a number, too large for float32 or the same for
                all training images, images have different numbers of values, names are not one
                per value, or float32 is not precise enough.
        """
        exact = {split: _to_array(f"{where}: split '{split}'", v) for split, v in raw.items()}
        train = exact["train"]
        for split, rows in exact.items():
            if rows.shape[1] != train.shape[1]:
                raise DataError(
                    f"{where}: split '{split}' has {rows.shape[1]} values per image, split 'train' "
                    f"has {train.shape[1]}. All images need the same number."
                )
        if (constant := np.flatnonzero(np.ptp(train, axis=0) == 0)).size:
            raise DataError(
                f"{where}: value {constant[0] + 1} of every training image is "
                f"{train[0, constant[0]]:g}: there is nothing to learn. Remove this target, or "
                "add training images with other values."
            )
        _check_precision(where, exact)
        n = train.shape[1]
        if names and len(names) != n:
            raise DataError(
                f"{where}: there are {len(names)} names for {n} values per image. Give one name "
                "for each value."
            )
        numbered = ("value",) if n == 1 else tuple(f"value_{i}" for i in range(n))
        targets: dict[str, Targets] = {s: rows.astype(np.float32) for s, rows in exact.items()}
        return targets, tuple(names) if names else numbered

    def strata(
        self, where: str, targets: Targets, names: Sequence[str], n_parts: int
    ) -> NDArray[np.int64] | None:
        """Return ``None``: splits are random."""
        return None

    def task(self, names: Sequence[str], targets: Targets) -> RegressionTask:
        """Return the task of training targets ``(N, n)``; ``DataError`` if a value is constant."""
        if (constant := np.flatnonzero(np.ptp(targets, axis=0) == 0)).size:
            raise DataError(
                f"'{names[constant[0]]}' is the same for all images of the training split. Other "
                "values are in the other splits: add images, or divide the data yourself."
            )
        return RegressionTask.of(tuple(names), targets)

    def from_json(self, raw: Mapping[str, Any]) -> RegressionTask:
        """Return the task that ``RegressionTask.to_json`` described.

        Raises:
            SchemaError: the content is invalid.
        """
        record: _RegressionRecord = validate(_RegressionRecord, dict(raw), "task")
        if not len(record["values"]) == len(record["mean"]) == len(record["std"]):
            raise SchemaError(
                f"'task' has {len(record['values'])} values, {len(record['mean'])} means and "
                f"{len(record['std'])} standard deviations; it needs one of each per value"
            )
        return RegressionTask(
            tuple(record["values"]),
            tuple(record["mean"]),
            tuple(record["std"]),
            record["guess_mae"],
            record["guess_std"],
            tuple(record.get("median", ())),
        )


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


def _to_array(where: str, raw: Sequence[Any]) -> NDArray[np.float64]:
    """Return numbers, or lists of equal length, as ``(N, n)``; raise ``DataError`` for others."""
    plain = [float(value) if isinstance(value, Decimal) else value for value in raw]
    rows = [value if isinstance(value, list | tuple) else [value] for value in plain]
    texts = [(row, n) for row, numbers in enumerate(rows) for n in numbers if isinstance(n, str)]
    if texts:  # one text makes texts of all values of a CSV file
        row, text = min(texts, key=lambda place: bool(_NUMBER.fullmatch(place[1])))
        raise DataError(f"{where}, row {row} (from 0) has the value {text!r}: {_NEEDS}")
    for row, numbers in enumerate(rows):
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise DataError(f"{where}, row {row} (from 0) has the value {number!r}: {_NEEDS}")
            if not abs(number) <= _MAX_VALUE:  # also true for NaN
                raise DataError(
                    f"{where}, row {row} (from 0) has the value {number}: must be finite and at "
                    f"most {_MAX_VALUE:g} in size, as networks compute in float32. Correct it, or "
                    "use another unit."
                )
        if len(numbers) != len(rows[0]) or not numbers:
            raise DataError(
                f"{where}, row {row} has {len(numbers)} values, row 0 has {len(rows[0])}: all "
                "images need the same number, at least one."
            )
    return np.array(rows, np.float64)


def _check_precision(where: str, exact: Mapping[str, NDArray[np.float64]]) -> None:
    """Raise ``DataError`` if float32 is not precise enough for a value."""
    train = exact["train"]
    scales = zip(train.mean(axis=0).tolist(), train.std(axis=0).tolist(), strict=True)
    for i, (average, std) in enumerate(scales):
        prefix = f"{where}: value {i + 1} of training images has a standard deviation of {std:.3g}"
        if std < _MIN_STD:
            raise DataError(f"{prefix}, too small for float32: give it in a smaller unit.")
        rounding = max(
            float(np.abs(rows[:, i].astype(np.float32) - rows[:, i]).max(initial=0.0))
            for rows in exact.values()
        )
        if rounding > _MAX_ROUNDING * std:
            raise DataError(
                f"{prefix} around {average:.10g}, and float32, in which networks compute, rounds "
                f"it by up to {rounding:.3g}: subtract its mean first."
            )
