"""What networks answer to the same images, and how sure they are: cascades are counted on them.

A search writes a file for each network that it verifies, ``models/ID.answers.npz``, of the artefact
itself: ``models`` (n,), named ``ID-int8`` or ``ID-float32`` as in plans, ``correct`` and
``confidence`` ``(n, images)`` of the validation split, and ``test_correct`` and ``test_confidence``
of the test split. Beside it, of a network with exits, ``models/ID.exits.npz``: the same of each
exit and of the end.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, RunError
from hwnas.core.quantity import Quantity
from hwnas.core.safe_arrays import read_npz
from hwnas.core.safe_read import CorruptFileError
from hwnas.tasks.base import PerImageResults, Targets, Task
from hwnas.tasks.intervals import share_of

NEVER = 2.0  #: an exit threshold that no probability reaches
#: Shares of requests that a cascade may escalate.
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
_LEAST = 50  # images: fewer say next to nothing
FILES = "models/{}.answers.npz"  #: of a network by its id, in the folder of a run
EXITS = "models/{}.exits.npz"  #: likewise, of a network with exits
_PREFIXES = {"validation": "", "test": "test_"}  # of arrays, by split
_MOST = 1 << 30  # bytes of a file's arrays


@dataclass(frozen=True)
class PredictionSet:
    """Whether models are right, and how sure, image by image."""

    models: tuple[str, ...]  #: their names
    correct: NDArray[np.bool_]  #: ``(models, images)``
    confidence: NDArray[np.float64]  #: ``(models, images)``; only its order counts
    left_out: tuple[str, ...] = ()  #: models of which only other weights' are known

    def cascade(self, first: str, second: str, share: float) -> tuple[Quantity, float] | None:
        """Return accuracy where the least sure ``share`` is escalated, and the threshold.

        ``None`` where the answers of one are not known.
        """
        if first not in self.models or second not in self.models:
            return None
        a, b = self.models.index(first), self.models.index(second)
        order = np.argsort(self.confidence[a], kind="stable")
        n = order.size
        cut = round(share * n)
        right = np.concatenate([self.correct[b, order[:cut]], self.correct[a, order[cut:]]])
        return share_of(right), float(self.confidence[a, order[min(cut, n - 1)]])


@dataclass(frozen=True)
class ExitPredictionRecord:
    """What one network answered to the images of one split."""

    correct: NDArray[np.bool_]  #: ``(images,)``
    confidence: NDArray[np.float64]  #: ``(images,)``


def heard(task: Task, outputs: PerImageResults, targets: Targets) -> ExitPredictionRecord:
    """Return what outputs ``(N, n_outputs)`` are worth, of a task that says how sure they are."""
    assert task.confidence is not None
    return ExitPredictionRecord(
        task.per_sample(outputs, targets).astype(np.bool_), task.confidence(outputs)
    )


def leaving(confidence: NDArray[np.float64], thresholds: Sequence[float]) -> NDArray[np.intp]:
    """Return at which output each image leaves, ``(images,)``; the last is the end.

    Args:
        confidence: Of the exits, ``(exits, images)``.
        thresholds: One for each exit.
    """
    sure = confidence >= np.asarray(thresholds)[:, None]
    found: NDArray[np.intp] = np.vstack([sure, np.ones(sure.shape[1], np.bool_)]).argmax(axis=0)
    return found


def packed(model: str, splits: Mapping[str, ExitPredictionRecord]) -> bytes:
    """Return what a network answered as the bytes of a file.

    Args:
        model: Its name, as ``ID-int8``.
        splits: By ``validation`` and ``test``.
    """
    return packed_each([model], {split: [heard] for split, heard in splits.items()})


def packed_each(
    models: Sequence[str], splits: Mapping[str, Sequence[ExitPredictionRecord]]
) -> bytes:
    """Return what several models answered to the same images as the bytes of a file."""
    arrays = {"models": np.array(models)}
    for split, each in splits.items():
        arrays[f"{_PREFIXES[split]}correct"] = np.stack([heard.correct for heard in each])
        confidence = np.stack([heard.confidence for heard in each]).astype(np.float32)
        arrays[f"{_PREFIXES[split]}confidence"] = confidence
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_heard(run: Path, genotype_id: str) -> dict[str, ExitPredictionRecord] | None:
    """Return what a network of a run answered, by split; ``None`` where it was not kept.

    Raises:
        RunError: the file is damaged.
    """
    found = _read_splits(run / FILES.format(genotype_id))
    return None if found is None else found[0]


def read_exits(run: Path, genotype_id: str) -> list[dict[str, ExitPredictionRecord]] | None:
    """Return what each exit of a network answered, and its end; ``None`` where it has none.

    Raises:
        RunError: the file is damaged.
    """
    return _read_splits(run / EXITS.format(genotype_id))


def _read_splits(path: Path) -> list[dict[str, ExitPredictionRecord]] | None:
    """Return what each model of a file answered, by split."""
    try:
        splits = {split: _arrays(path, prefix) for split, prefix in _PREFIXES.items()}
    except FileNotFoundError:
        return None
    except CorruptFileError as problem:
        raise RunError(f"{path} cannot be read: {problem}; delete it to do without.") from None
    return [
        {
            split: ExitPredictionRecord(found.correct[i], found.confidence[i])
            for split, found in splits.items()
        }
        for i in range(min(len(found.models) for found in splits.values()))
    ]


def read_answers(paths: Sequence[Path], runs: Mapping[str, Path] | None = None) -> PredictionSet:
    """Return what files of answers say, or the files of runs: of their validation images.

    Args:
        paths: The files, or the folders of the runs.
        runs: Of models, by name, as far as they are of runs: what other runs kept of networks of
            the same name is of other weights, and left out.

    Raises:
        ConfigError: one cannot be read, files are not of the same images, or do not say the same
            of a model.
    """
    found: dict[str, tuple[Path, ExitPredictionRecord]] = {}
    others: set[str] = set()
    for file in (file for path in paths for file in _files(path)):
        for name, own in _read(file):
            if (run := (runs or {}).get(name)) and _run_of(file) not in (None, run.resolve()):
                others.add(name)
            elif name in found:
                _check_same(name, own, file, *found[name])
            else:
                _check_images(name, own, file, found)
                found[name] = file, own
    if not found:
        return PredictionSet(
            (), np.zeros((0, 0), np.bool_), np.zeros((0, 0)), tuple(sorted(others))
        )
    return PredictionSet(
        tuple(found),
        np.stack([own.correct for _, own in found.values()]),
        np.stack([own.confidence for _, own in found.values()]),
        tuple(sorted(others - {*found})),
    )


def _run_of(file: Path) -> Path | None:
    """Return the run that kept a file of answers; ``None``: it may be of any weights."""
    name = file.resolve()
    return name.parent.parent if name.match(FILES.format("*")) else None


def _check_same(
    name: str, own: ExitPredictionRecord, file: Path, other: Path, known: ExitPredictionRecord
) -> None:
    same = np.array_equal(own.correct, known.correct) and np.array_equal(
        own.confidence, known.confidence
    )
    if not same:
        raise ConfigError(
            f"answers: {other} and {file} say other things of model '{name}': leave out of answers "
            "what is not of the weights that run."
        )


def _check_images(
    name: str,
    own: ExitPredictionRecord,
    file: Path,
    found: Mapping[str, tuple[Path, ExitPredictionRecord]],
) -> None:
    if not found:
        return
    other, (place, known) = next(iter(found.items()))
    if known.correct.size != own.correct.size:
        raise ConfigError(
            f"answers: {place} has those of '{other}' to {known.correct.size} images, {file} "
            f"of '{name}' to {own.correct.size}; all must be to the same."
        )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    pattern = FILES.format("*")
    if not (found := sorted(path.glob(pattern))):
        raise ConfigError(f"answers: {path} has no {pattern}: it is no run that kept answers.")
    return found


def _read(path: Path) -> Iterator[tuple[str, ExitPredictionRecord]]:
    """Yield the models of a file with their answers."""
    try:
        found = _arrays(path, "")
    except FileNotFoundError:
        raise ConfigError(f"answers: {path}: there is no such file.") from None
    except CorruptFileError as problem:
        raise ConfigError(f"answers: {path} cannot be read: {problem}.") from None
    if found.correct.shape[1] < _LEAST:
        raise ConfigError(f"answers: {path}: plans need {_LEAST} images or more.")
    for i, name in enumerate(found.models):
        yield name, ExitPredictionRecord(found.correct[i], found.confidence[i])


def _arrays(path: Path, prefix: str) -> PredictionSet:
    """Return what a file says of one split.

    Raises:
        FileNotFoundError: there is none.
        CorruptFileError: it says something else.
    """
    names = ("models", f"{prefix}correct", f"{prefix}confidence")
    arrays = read_npz(path, names, _MOST)
    if missing := [name for name in names if name not in arrays]:
        raise CorruptFileError(f"it has no array '{missing[0]}'")
    models = tuple(map(str, np.atleast_1d(arrays["models"])))
    correct, confidence = (arrays[name] for name in names[1:])
    if correct.ndim != 2 or correct.shape != confidence.shape or len(correct) != len(models):
        raise CorruptFileError(f"{names[1]} and {names[2]} must be (models, images)")
    if correct.dtype.kind not in "biu" or confidence.dtype.kind not in "fiu":
        raise CorruptFileError(f"{names[1]} must be true or false, {names[2]} numbers")
    confidence = confidence.astype(np.float64)
    if not np.isfinite(confidence).all():
        raise CorruptFileError(f"{names[2]} must be finite")
    return PredictionSet(models, correct.astype(np.bool_), confidence)
