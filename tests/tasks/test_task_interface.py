"""Modules outside hwnas.tasks are independent of the task."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hwnas
from hwnas import tasks
from hwnas.core.errors import ConfigError
from hwnas.tasks.base import Incumbent, PerImageResults, Task
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.regression import RegressionTask

ROOT = Path(hwnas.__file__).parent
WORDS = re.compile(r"n_classes|cross_entropy|one_hot|\.softmax\(|Wilson's interval|proportion\(")
ARGMAX = re.compile(r"(outputs|logits|answers|expected|found)\.argmax")
VALUES = RegressionTask.of(
    ("a", "b"), np.random.default_rng(0).normal(5, 3, (400, 2)).astype(np.float32)
)
ALL: list[Task] = [ClassificationTask(("x", "y", "z"), (5, 3, 2)), VALUES]


def test_other_modules_do_not_handle_classes() -> None:
    files = [p for p in ROOT.rglob("*.py") if "tasks" not in p.relative_to(ROOT).parts]
    assert len(files) > 200
    result = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in files
        for line in path.read_text().splitlines()
        if WORDS.search(line) or ARGMAX.search(line)
    ]
    assert result == []


def test_other_modules_import_no_specific_task() -> None:
    kinds = "|".join(("classification", "regression"))
    importing = re.compile(rf"hwnas\.tasks(\.| import .*)\b({kinds})\b")
    assert importing.search("from hwnas.tasks.classification import METRIC")
    files = [p for p in ROOT.rglob("*.py") if "tasks" not in p.relative_to(ROOT).parts]
    assert [path for path in files if importing.search(path.read_text())] == []


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_task_round_trips_through_json(task: Task) -> None:
    assert tasks.from_json(task.to_json()) == task
    for metric in tasks.get(task.name).metrics:
        other = task.with_metric(metric)
        assert tasks.from_json(other.to_json()) == other
        assert other.metric == metric


def test_error_for_unknown_task_suggests_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'regression'"):
        tasks.get("regresion")


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_score_is_mean_of_per_image_results(task: Task) -> None:
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(60, task.n_outputs)).astype(np.float32)
    targets = rng.integers(0, 3, 60) if task.name == "classification" else 5 + 3 * outputs[::-1]
    results = task.per_sample(outputs, targets)
    figure = task.score(results)
    assert results.shape == (60,)
    assert figure.value == pytest.approx(results.mean())
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < figure.value < figure.high
    assert task.degradation(results, results).points == 0
    assert task.same_answers(outputs, outputs).all()
    assert task.score_all(results).figure == figure


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_distillation_loss_is_lowest_at_teacher_outputs(task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(16, task.n_outputs, generator=generator)
    other = torch.randn(16, task.n_outputs, generator=generator)
    loss_targets = task.distillation_targets(teacher)
    assert task.loss(teacher, loss_targets) < task.loss(other, loss_targets)


@pytest.mark.parametrize("name", ["classification", "regression"])
def test_early_stopping_stops_only_worse_networks(name: str) -> None:
    task = next(task for task in ALL if task.name == name)
    rng, n = np.random.default_rng(2), 2000
    difficulty = rng.random(n)

    def network(quality: float) -> PerImageResults:
        noise = rng.random(n)
        if name == "classification":
            return np.asarray(noise * difficulty < quality)
        return np.asarray((1 - quality) * (difficulty + noise), np.float32)

    earlier = [network(0.5) for _ in range(6)]
    packed = [task.score_all(result).per_image for result in earlier]
    incumbent = Incumbent(packed[0], tuple(packed))

    def is_stopped(results: PerImageResults) -> bool:
        order = np.random.default_rng(3)
        return task.score_early(lambda index: results[index], n, incumbent, 0.99, order).stopped

    assert is_stopped(network(0.2))
    assert not is_stopped(network(0.6))
    assert not is_stopped(earlier[0])
