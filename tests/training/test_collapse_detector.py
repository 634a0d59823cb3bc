from hwnas.tasks.classification import ClassificationTask
from hwnas.training.checkpoints import WINDOW, CollapseDetector

TEN = ClassificationTask(tuple("0123456789"))


def _accuracies(rate: float, n_steps: int) -> list[float | None]:
    watch = CollapseDetector(TEN, n_steps)
    return [watch.count(step + 1, round(rate * 100), 100) for step in range(n_steps)]


def test_chance_level_is_detected_after_warmup() -> None:
    result = _accuracies(0.1, 2000)
    assert [i + 1 for i, accuracy in enumerate(result) if accuracy] == list(
        range(800, 2001, WINDOW)  # windows that begin after step 500
    )
    assert set(result) == {None, 0.1}


def test_learning_and_short_trainings_pass() -> None:
    assert set(_accuracies(0.13, 2000)) == {None}
    assert set(_accuracies(0.1, WINDOW - 1)) == {None}
    assert set(_accuracies(0.1, WINDOW + 60)) == {None}, "the window includes the warm-up"


def test_restored_detector_continues_counting() -> None:
    uninterrupted, interrupted = CollapseDetector(TEN, 400), CollapseDetector(TEN, 400)
    for step in range(130):
        uninterrupted.count(step + 1, 50, 100)
        interrupted.count(step + 1, 50, 100)
    resumed = CollapseDetector(TEN, 400)
    resumed.restore(interrupted.to_json())
    for step in range(130, 260):
        uninterrupted.count(step + 1, 50, 100)
        resumed.count(step + 1, 50, 100)
    assert resumed.to_json() == uninterrupted.to_json() == [60 * 50, 60 * 100, 200]
