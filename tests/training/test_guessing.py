from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwnas.tasks.base import Task
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.regression import RegressionTask
from hwnas.training.inference import at_chance_level, chance_level_messages

TEN = ClassificationTask(tuple("0123456789"))
ANGLES = RegressionTask.of(("angle",), np.linspace(-60, 60, 500, dtype=np.float32)[:, None])


@pytest.mark.parametrize(
    ("task", "guess", "learned"), [(TEN, 0.1, 0.2), (ANGLES, 30.0, 20.0), (TEN, 0.0, 1.0)]
)
def test_what_is_no_better_than_guessing_is_told(task: Task, guess: float, learned: float) -> None:
    data: Any = SimpleNamespace(task=task, validation=range(360))
    assert at_chance_level(task, {"a": guess, "b": learned}, 360) == {"a": guess}
    (line,) = chance_level_messages(data, {"a": guess, "b": learned}, "train.epochs")
    assert f"chance level on 360 validation images: a ({'' if task is TEN else 'mean '}" in line
    assert line.endswith("Train longer: train.epochs.")
    assert chance_level_messages(data, {"b": learned}, "train.epochs") == []


def test_few_images_tell_less() -> None:
    assert at_chance_level(TEN, {"a": 0.2}, 20)
    assert not at_chance_level(replace(TEN, classes=("x", "y")), {"a": 0.95}, 20)
