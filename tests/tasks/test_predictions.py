"""Files of predictions: written by searches, read by them and by plans."""

from pathlib import Path

import numpy as np
import pytest

from hwnas.core.errors import ConfigError, RunError
from hwnas.tasks.predictions import (
    PREDICTIONS_FILE,
    Predictions,
    pack_predictions,
    read_prediction_files,
    read_predictions,
)


def _predictions(seed: int, n: int) -> Predictions:
    rng = np.random.default_rng(seed)
    return Predictions(rng.random(n) < 0.8, rng.random(n).astype(np.float32).astype(np.float64))


def _write_predictions(run: Path, model: str, seed: int = 0) -> dict[str, Predictions]:
    splits = {"validation": _predictions(seed, 60), "test": _predictions(seed + 1, 70)}
    path = run / PREDICTIONS_FILE.format(model)
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(pack_predictions(model, splits))
    return splits


def test_predictions_round_trip(tmp_path: Path) -> None:
    splits = _write_predictions(tmp_path, "abc")
    stored = read_predictions(tmp_path, "abc")
    assert stored is not None
    assert stored.keys() == splits.keys()
    for split, predictions in splits.items():
        assert (stored[split].correct == predictions.correct).all()
        assert (stored[split].confidence == predictions.confidence).all()
    assert read_predictions(tmp_path, "other") is None


def test_plan_requires_more_images_than_search(tmp_path: Path) -> None:
    path = tmp_path / PREDICTIONS_FILE.format("a")
    path.parent.mkdir()
    path.write_bytes(
        pack_predictions("a", {"validation": _predictions(0, 49), "test": _predictions(1, 3)})
    )
    stored = read_predictions(tmp_path, "a")
    assert stored is not None
    assert len(stored["test"].correct) == 3
    with pytest.raises(ConfigError, match="50 images or more"):
        read_prediction_files([path])


def test_equal_predictions_have_equal_bytes() -> None:
    splits = {"validation": _predictions(0, 60)}
    assert pack_predictions("a", splits) == pack_predictions("a", splits)


def test_plan_reads_predictions_of_run(tmp_path: Path) -> None:
    first, second = _write_predictions(tmp_path, "a"), _write_predictions(tmp_path, "b", seed=5)
    answers = read_prediction_files([tmp_path])
    assert answers.models == ("a", "b")
    for i, splits in enumerate((first, second)):
        assert (answers.correct[i] == splits["validation"].correct).all()
    cascade = answers.cascade("a", "b", 0.25)
    assert cascade is not None
    order = np.argsort(first["validation"].confidence, kind="stable")
    right = first["validation"].correct.copy()
    right[order[:15]] = second["validation"].correct[order[:15]]
    assert cascade[0].value == pytest.approx(right.mean())


def test_predictions_of_chosen_run_are_used(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in "ab"]
    written = [_write_predictions(run, "x", seed) for run, seed in zip(runs, (0, 5), strict=True)]
    _write_predictions(runs[1], "y", seed=9)
    with pytest.raises(ConfigError, match=r"x\.answers\.npz and .* different predictions"):
        read_prediction_files(runs)
    result = read_prediction_files(runs, {"x": runs[1], "y": tmp_path / "c"})
    assert result.models == ("x",)
    assert (result.correct[0] == written[1]["validation"].correct).all()
    assert result.left_out == ("y",)  # its run was not read
    assert read_prediction_files([*runs, runs[1]], {"x": runs[1]}).models == (
        "x",
        "y",
    )  # the same twice


def test_predictions_on_other_images_are_refused(tmp_path: Path) -> None:
    _write_predictions(tmp_path, "x")
    path = tmp_path / PREDICTIONS_FILE.format("y")
    path.write_bytes(pack_predictions("y", {"validation": _predictions(0, 61)}))
    with pytest.raises(ConfigError, match=r"'x' on 60 images, .* of 'y' on 61"):
        read_prediction_files([tmp_path])


def test_run_without_predictions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no models/\*\.answers\.npz"):
        read_prediction_files([tmp_path])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"models": np.array(["a"])}, "no array 'correct'"),
        ({"correct": np.ones((2, 60), bool)}, "must be of the shape"),
        ({"correct": np.ones((1, 60))}, "true or false"),
        ({"confidence": np.full((1, 60), np.nan)}, "finite"),
        ({"confidence": np.full((1, 60), "x")}, "numbers"),
    ],
)
def test_damaged_predictions_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    valid = {
        "models": np.array(["a"]),
        "correct": np.ones((1, 60), bool),
        "confidence": np.ones((1, 60)),
    }
    path = tmp_path / PREDICTIONS_FILE.format("a")
    path.parent.mkdir()
    written = arrays if "models" in arrays else {**valid, **arrays}
    np.savez(path, allow_pickle=False, **written)
    with pytest.raises(RunError, match=words):
        read_predictions(tmp_path, "a")
    with pytest.raises(ConfigError, match=words):
        read_prediction_files([path])
    path.write_bytes(b"no archive")
    with pytest.raises(RunError, match="delete it to continue without"):
        read_predictions(tmp_path, "a")
