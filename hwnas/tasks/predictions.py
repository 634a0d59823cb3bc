"""Predictions per image of several networks, from which cascades and early exits are evaluated.

A search writes the file ``models/ID.answers.npz`` for each verified network, from its compiled
artefact: ``models`` (n,), named ``ID-int8`` or ``ID-float32`` as in plans, ``correct`` and
``confidence`` ``(n, images)`` of the validation split, and ``test_correct`` and ``test_confidence``
of the test split. A network with early exits also has ``models/ID.exits.npz`` with the same arrays
for each exit and the end.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, RunError
from hwnas.core.quantity import Quantity
from hwnas.core.safe_read import CorruptFileError, read_npz
from hwnas.tasks.base import Outputs, Targets, Task
from hwnas.tasks.intervals import fraction

NEVER = 2.0  #: an exit threshold that no probability reaches
#: Fractions of requests that a cascade may escalate.
ESCALATED_FRACTIONS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
_MIN_IMAGES = 50  # for plans
PREDICTIONS_FILE = "models/{}.answers.npz"  #: in a run folder, by the id of a network
EXITS_FILE = "models/{}.exits.npz"  #: of a network with early exits
_PREFIXES = {"validation": "", "test": "test_"}  # of arrays, by split
_MAX_BYTES = 1 << 30  # of the arrays of a file


@dataclass(frozen=True)
class PredictionSet:
    """Correctness and confidence of several models on the same images."""

    models: tuple[str, ...]  #: names
    correct: NDArray[np.bool_]  #: ``(models, images)``
    confidence: NDArray[np.float64]  #: ``(models, images)``; higher is more confident
    left_out: tuple[str, ...] = ()  #: models whose only predictions are of other weights

    def cascade(self, first: str, second: str, share: float) -> tuple[Quantity, float] | None:
        """Return the accuracy of a cascade with its 95 % interval, and its confidence threshold.

        ``None`` if the set lacks a model.

        Args:
            first: The model that sees all images.
            second: The model that answers the images on which the first is least confident, below
                the threshold.
            share: Fraction of images that the second model answers, in [0, 1].
        """
        if first not in self.models or second not in self.models:
            return None
        a, b = self.models.index(first), self.models.index(second)
        order = np.argsort(self.confidence[a], kind="stable")
        n = order.size
        cut = round(share * n)
        right = np.concatenate([self.correct[b, order[:cut]], self.correct[a, order[cut:]]])
        return fraction(right), float(self.confidence[a, order[min(cut, n - 1)]])


@dataclass(frozen=True)
class Predictions:
    """Predictions of one network on the images of one split."""

    correct: NDArray[np.bool_]  #: whether each image is classified correctly, ``(images,)``
    confidence: NDArray[np.float64]  #: ``(images,)``; higher is more confident


def score_outputs(task: Task, outputs: Outputs, targets: Targets) -> list[Predictions]:
    """Return correctness and confidence of each output of a network, the final one last.

    Args:
        task: A task with confidences.
        outputs: ``(images, n_exits + 1, n_outputs)``.
        targets: Targets of the images.
    """
    confidence = task.confidence
    assert confidence is not None
    exit_outputs = (outputs[:, i] for i in range(outputs.shape[1]))
    return [
        Predictions(task.per_sample(o, targets).astype(np.bool_), confidence(o))
        for o in exit_outputs
    ]


def exit_indices(confidence: NDArray[np.float64], thresholds: Sequence[float]) -> NDArray[np.intp]:
    """Return the index of the exit that each image takes, ``(images,)``.

    Images that take no exit have the number of exits as index.

    Args:
        confidence: Confidences of the exits, ``(exits, images)``.
        thresholds: Threshold of each exit: an image leaves at the first exit whose confidence
            reaches it.
    """
    leaves = confidence >= np.asarray(thresholds)[:, None]
    index: NDArray[np.intp] = np.vstack([leaves, np.ones(leaves.shape[1], np.bool_)]).argmax(axis=0)
    return index


def pack_predictions(model: str, splits: Mapping[str, Predictions]) -> bytes:
    """Return the content of a file of a network's predictions (``.npz``).

    Args:
        model: Name of the network, such as ``ID-int8``.
        splits: Predictions on ``validation`` and ``test``.
    """
    return pack_exit_predictions([model], {split: [known] for split, known in splits.items()})


def pack_exit_predictions(
    models: Sequence[str], splits: Mapping[str, Sequence[Predictions]]
) -> bytes:
    """Return the content of a file of predictions of several models (``.npz``).

    ``splits`` has the predictions of each model, in their order, on ``validation`` and ``test``.
    """
    arrays = {"models": np.array(models)}
    for split, predictions in splits.items():
        arrays[f"{_PREFIXES[split]}correct"] = np.stack([p.correct for p in predictions])
        confidence = np.stack([p.confidence for p in predictions]).astype(np.float32)
        arrays[f"{_PREFIXES[split]}confidence"] = confidence
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_predictions(run: Path, genotype_id: str) -> dict[str, Predictions] | None:
    """Return the predictions of a network on ``validation`` and ``test``.

    ``None`` if the run has no file of them.

    Raises:
        RunError: if the file is corrupt.
    """
    splits = _read_splits(run / PREDICTIONS_FILE.format(genotype_id))
    return None if splits is None else {split: models[0] for split, models in splits.items()}


def read_exit_predictions(run: Path, genotype_id: str) -> dict[str, list[Predictions]] | None:
    """Return the predictions of each exit of a network, and last those of its end, by split.

    Splits are ``validation`` and ``test``. ``None`` if the run has no file of them, as for networks
    without exits.

    Raises:
        RunError: if the file is corrupt.
    """
    return _read_splits(run / EXITS_FILE.format(genotype_id))


def _read_splits(path: Path) -> dict[str, list[Predictions]] | None:
    """Return the predictions of each model of a file, by split."""
    try:
        splits = {split: _arrays(path, prefix) for split, prefix in _PREFIXES.items()}
    except FileNotFoundError:
        return None
    except CorruptFileError as problem:
        raise RunError(
            f"{path} cannot be read: {problem}; delete it to continue without it."
        ) from None
    return {
        split: [Predictions(*model) for model in zip(a.correct, a.confidence, strict=True)]
        for split, a in splits.items()
    }


def read_prediction_files(
    paths: Sequence[Path], runs: Mapping[str, Path] | None = None
) -> PredictionSet:
    """Return the predictions of all models in files or runs, on validation images.

    It has no models if no file has any.

    Args:
        paths: Files, or folders of runs.
        runs: The run that trained each model, by name. Predictions of a model in other runs
            belong to other weights; they are skipped, see ``PredictionSet.left_out``.

    Raises:
        ConfigError: if a file cannot be read, has fewer than 50 images or another number of them
            than the other files, or contradicts another file, or a folder has no predictions.
    """
    known: dict[str, tuple[Path, Predictions]] = {}
    others: set[str] = set()
    for file in (file for path in paths for file in _files(path)):
        for name, predictions in _read(file):
            if (run := (runs or {}).get(name)) and _run_of(file) not in (None, run.resolve()):
                others.add(name)
            elif name in known:
                _check_same(name, predictions, file, *known[name])
            else:
                _check_images(name, predictions, file, known)
                known[name] = file, predictions
    left_out = tuple(sorted(others - {*known}))
    if not known:
        return PredictionSet((), np.zeros((0, 0), np.bool_), np.zeros((0, 0)), left_out)
    return PredictionSet(
        tuple(known),
        np.stack([predictions.correct for _, predictions in known.values()]),
        np.stack([predictions.confidence for _, predictions in known.values()]),
        left_out,
    )


def _run_of(file: Path) -> Path | None:
    """Return the run that wrote a file; ``None`` for files outside of runs."""
    path = file.resolve()
    return path.parent.parent if path.match(PREDICTIONS_FILE.format("*")) else None


def _check_same(
    name: str, predictions: Predictions, file: Path, other: Path, known: Predictions
) -> None:
    correct = np.array_equal(predictions.correct, known.correct)
    if not (correct and np.array_equal(predictions.confidence, known.confidence)):
        raise ConfigError(
            f"answers: {other} and {file} have different predictions of model '{name}', so one is "
            "of other weights: remove that file from answers."
        )


def _check_images(
    name: str,
    predictions: Predictions,
    file: Path,
    known: Mapping[str, tuple[Path, Predictions]],
) -> None:
    if not known:
        return
    other, (path, first) = next(iter(known.items()))
    if first.correct.size != predictions.correct.size:
        raise ConfigError(
            f"answers: {path} has predictions of '{other}' on {first.correct.size} images, {file} "
            f"of '{name}' on {predictions.correct.size}; all must be of the same images. Remove "
            "one of the files from answers."
        )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    pattern = PREDICTIONS_FILE.format("*")
    if not (files := sorted(path.glob(pattern))):
        raise ConfigError(
            f"answers: {path} has no {pattern}: it is not the folder of a finished search. Give "
            "one, or a file."
        )
    return files


def _read(path: Path) -> Iterator[tuple[str, Predictions]]:
    """Yield the models of a file with their predictions."""
    try:
        arrays = _arrays(path, "")
    except FileNotFoundError:
        raise ConfigError(
            f"answers: {path} does not exist. Give files models/ID.answers.npz of a search, or its "
            "folder."
        ) from None
    except CorruptFileError as problem:
        raise ConfigError(
            f"answers: {path} cannot be read: {problem}. Remove it from answers."
        ) from None
    if arrays.correct.shape[1] < _MIN_IMAGES:
        raise ConfigError(
            f"answers: {path} has predictions on {arrays.correct.shape[1]} images; cascades need "
            f"{_MIN_IMAGES} images or more. Remove it from answers, or search with more "
            "validation images."
        )
    for i, name in enumerate(arrays.models):
        yield name, Predictions(arrays.correct[i], arrays.confidence[i])


def _arrays(path: Path, prefix: str) -> PredictionSet:
    """Return the predictions of a file on one split.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if its content is invalid.
    """
    names = ("models", f"{prefix}correct", f"{prefix}confidence")
    arrays = read_npz(path, names, _MAX_BYTES)
    if missing := [name for name in names if name not in arrays]:
        raise CorruptFileError(f"it has no array '{missing[0]}'")
    models = tuple(map(str, np.atleast_1d(arrays["models"])))
    correct, confidence = (arrays[name] for name in names[1:])
    if correct.ndim != 2 or correct.shape != confidence.shape or len(correct) != len(models):
        raise CorruptFileError(
            f"arrays '{names[1]}' and '{names[2]}' must be of the shape ({len(models)}, images)"
        )
    if correct.dtype.kind not in "biu" or confidence.dtype.kind not in "fiu":
        raise CorruptFileError(
            f"array '{names[1]}' must be true or false, and '{names[2]}' must be numbers"
        )
    confidence = confidence.astype(np.float64)
    if not np.isfinite(confidence).all():
        raise CorruptFileError(f"array '{names[2]}' must be finite")
    return PredictionSet(models, correct.astype(np.bool_), confidence)
