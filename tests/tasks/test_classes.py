"""Metrics of classes: balanced accuracy, macro-F1, recalls and confusion matrices."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as reference

from hwnas.core.errors import DataError
from hwnas.tasks.classification import METRICS, Classification, ClassificationTask
from hwnas.tasks.intervals import ClassScores, describe_classes

RNG = np.random.default_rng(0)
NAMES = ("a", "b", "c", "absent")
TASK = ClassificationTask(NAMES, (300, 80, 20, 5))
Labels = NDArray[np.int64]


def _draw(n: int) -> tuple[Labels, Labels, NDArray[np.float64]]:
    """Return classes, predictions and outputs; the last class does not occur."""
    truth = RNG.choice(3, n, p=(0.75, 0.2, 0.05))
    answers = np.where(RNG.random(n) < 0.7, truth, RNG.integers(0, 3, n))
    return truth, answers, np.eye(4)[answers]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", reference.accuracy_score),
        ("balanced_accuracy", reference.balanced_accuracy_score),
        ("macro_f1", lambda truth, answers: reference.f1_score(truth, answers, average="macro")),
    ],
)
def test_metrics_match_scikit_learn(metric: str, expected: object) -> None:
    task, (truth, answers, outputs) = TASK.with_metric(metric), _draw(300)
    figure = task.score(task.per_sample(outputs, truth))
    assert callable(expected)
    assert figure.value == pytest.approx(expected(truth, answers))
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < figure.value < figure.high


@pytest.mark.parametrize("metric", METRICS)
def test_intervals_cover_expected_value(metric: str) -> None:
    task = TASK.with_metric(metric)
    truth, _, outputs = _draw(400_000)
    expected, n_covered = task.score(task.per_sample(outputs, truth)).value, 0
    for _ in range(300):
        truth, _, outputs = _draw(300)
        figure = task.score(task.per_sample(outputs, truth))
        n_covered += figure.lower <= expected <= figure.upper
    assert n_covered >= 273  # 91 %: 95 % less three standard deviations


def test_perfect_network_has_interval() -> None:
    for metric in METRICS:
        task, truth = TASK.with_metric(metric), np.arange(60) % 3
        figure = task.score(task.per_sample(np.eye(4)[truth], truth))
        assert figure.value == figure.high == 1
        assert 0.8 < figure.lower < 1


def test_confusion_counts_classes_and_predictions() -> None:
    truth, answers = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 0])
    confusion = TASK.confusion(np.eye(4)[answers], truth)
    assert confusion == {"a": {"a": 2, "b": 1}, "b": {"b": 2}, "c": {"a": 1}, "absent": {}}
    scores = ClassScores.of(confusion)
    recalls = [None if recall is None else recall.value for recall in scores.recalls]
    assert recalls == [pytest.approx(2 / 3), 1.0, 0.0, None]
    assert scores.balanced_accuracy.value == pytest.approx(5 / 9)
    assert scores.macro_f1.value == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)


@pytest.mark.parametrize("metric", METRICS)
def test_large_degradation_is_significant(metric: str) -> None:
    task, (truth, _, outputs) = TASK.with_metric(metric), _draw(300)
    results = task.per_sample(outputs, truth)
    perfect = task.per_sample(np.eye(4)[truth], truth)
    loss = task.degradation(results, perfect)
    assert loss.points == pytest.approx(100 * (1 - task.score(results).value))
    assert 0 < loss.low < loss.points
    assert task.degradation(results, results).points == 0


@pytest.mark.parametrize(
    ("train", "names", "message"),
    [
        (["cat", "dog"], ["cat", "dog"], "has the label 'cat': must be 0 to 1"),
        ([0, 2], ["cat", "dog"], "row 1 has the label 2: must be 0 to 1"),
        ([1, 1], ["cat", "dog"], "split 'train' has only one class, 'dog'"),
    ],
)
def test_labels_are_indices_of_names(train: list[object], names: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Classification().targets("Data set 'x'", {"train": train, "test": [0, 1]}, names)


def test_points_name_the_metric() -> None:
    points = [TASK.with_metric(metric).description.points for metric in METRICS]
    assert points == [f"points of {name}" for name in ("accuracy", "balanced accuracy", "macro-F1")]


def test_class_description_counts_images() -> None:
    images = {"train": {"a": 5, "b": 2}, "test": {"a": 1, "b": 0}}
    assert describe_classes(images) == "2 classes (train+test images): 'a' (5+1), 'b' (2+0)."
    many = {"train": {str(i): i for i in range(100)}}
    assert describe_classes(many).endswith("'29' (29), and 70 more.")
