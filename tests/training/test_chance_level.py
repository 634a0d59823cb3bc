from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hwnas.core.quantity import Quantity
from hwnas.tasks.base import Task
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.intervals import mean, proportion
from hwnas.tasks.regression import RegressionTask
from hwnas.training.data import ImageData, InMemorySplit
from hwnas.training.inference import at_chance_level, chance_level_messages

RNG = np.random.default_rng(0)
TEN = ClassificationTask(tuple("0123456789"), (40,) * 10)
RARE = ClassificationTask(("defect", "normal"), (22, 410))
ANGLES = RegressionTask.of(("angle",), np.linspace(-60, 60, 500, dtype=np.float32)[:, None])


def _data(task: Task, targets: np.ndarray[Any, Any]) -> ImageData:
    split = InMemorySplit(torch.zeros(len(targets), 1, 1, 1), torch.from_numpy(targets))
    return ImageData("made", split, split, split, task, (0.0,), (1.0,))


TEN_DATA = _data(TEN, np.arange(360) % 10)
RARE_DATA = _data(RARE, (np.arange(120) >= 6).astype(np.int64))
ANGLE_DATA = _data(ANGLES, np.linspace(-60, 60, 361, dtype=np.float32)[:, None])


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (TEN_DATA, 0.1),
        (RARE_DATA, 0.95),
        (RARE_DATA.with_metric("balanced_accuracy"), 0.5),
        (RARE_DATA.with_metric("macro_f1"), 0.95 / 1.95),
        (ANGLE_DATA, 30.0),
    ],
)
def test_constant_prediction_is_that_of_training_split(data: ImageData, value: float) -> None:
    assert data.constant("test").value == pytest.approx(value, abs=0.1 if value > 1 else 1e-9)


def test_majority_class_is_that_of_training_split() -> None:
    data = _data(ClassificationTask(("a", "b"), (10, 90)), np.array([0, 0, 0, 1]))
    assert data.constant("test").value == 0.25


@pytest.mark.parametrize(
    ("data", "constant", "better"),
    [
        (TEN_DATA, proportion(40, 360), proportion(72, 360)),
        (RARE_DATA, proportion(114, 120), proportion(120, 120)),
        (RARE_DATA, proportion(115, 120), proportion(120, 120)),
        (ANGLE_DATA, mean(RNG.uniform(0, 59, 361)), mean(RNG.uniform(0, 40, 361))),
    ],
)
def test_networks_at_chance_level_are_named(
    data: ImageData, constant: Quantity, better: Quantity
) -> None:
    figures = {"a": constant, "b": better}
    assert at_chance_level(data.task.metric, figures, data.constant("test")) == {"a": constant}
    (line,) = chance_level_messages(data, "test", figures, "train.epochs")
    assert line.startswith(f"Not significantly better than {data.task.description.constant} (")
    assert "test images), at 95 % corrected for 2 networks: a (" in line
    assert line.endswith("Train longer: train.epochs.")
    assert chance_level_messages(data, "test", {"b": better}, "train.epochs") == []


def test_intervals_are_adjusted_for_number_of_networks() -> None:
    interval = proportion(52, 360)
    assert interval.lower > 0.1
    assert not at_chance_level("accuracy", {"a": interval}, TEN_DATA.constant("test"))
    many = {str(i): interval for i in range(20)}
    assert len(at_chance_level("accuracy", many, TEN_DATA.constant("test"))) == 20


def test_noise_is_rarely_above_chance_level() -> None:
    n_fronts = 0
    for _ in range(200):
        truth = RNG.random(120) < 0.5
        answers = RNG.random((7, 120)) < 0.5
        figures = {str(i): proportion(int((a == truth).sum()), 120) for i, a in enumerate(answers)}
        n_fronts += len(at_chance_level("accuracy", figures, Quantity(0.5, "measured"))) < 7
    assert n_fronts <= 12  # 2.5 % of 200 on average


def test_majority_class_is_not_a_collapse() -> None:
    """Imbalanced data may be hard: only results below random guesses are a collapse."""
    assert RARE.for_training(is_balanced=False).has_learned(0.95 * 25600, 25600)
    task = RARE.for_training(is_balanced=True)
    targets = (RNG.random(25600) < 410 / 432).astype(np.int64)
    for answer, learned in ((targets, True), (np.ones_like(targets), False)):
        outputs = np.eye(2)[answer]
        results = task.per_sample(outputs, targets)
        assert results.mean() == pytest.approx(1.0 if learned else 0.5, abs=0.03)
        assert task.has_learned(float(results.sum()), len(results)) is learned


def test_class_weights_balance_the_loss() -> None:
    task = RARE.for_training(is_balanced=True)
    targets = torch.tensor([0] * 22 + [1] * 410)
    rows = task.loss_targets(targets)
    assert rows.sum(dim=0).tolist() == pytest.approx([216.0, 216.0], rel=1e-6)
    outputs = torch.zeros(432, 2)
    assert float(task.loss(outputs, rows)) == pytest.approx(float(np.log(2)))
    # Smoothing has the weights, too: always answering one class costs each class the same.
    sure = torch.tensor([[9.0, 0.0]]).expand(432, 2)
    swapped = sure.flip(1)
    losses = [float(task.loss(answer, rows, smoothing=0.1)) for answer in (sure, swapped)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    distilled = task.distillation_targets(outputs)
    assert torch.equal(distilled.sum(dim=1), torch.ones(432)), (
        "the teacher already has class weights"
    )


def test_class_weights_require_classification() -> None:
    with pytest.raises(Exception, match=r"train\.class_weights=balanced: task=regression"):
        ANGLES.for_training(is_balanced=True)
    setup: Any = SimpleNamespace(task=ANGLES)
    assert setup.task.for_training(is_balanced=False) == ANGLES
