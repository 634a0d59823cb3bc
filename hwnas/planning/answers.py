"""What models answer to the same validation images: cascades are counted on them jointly."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import ConfigError
from hwnas.figure import Figure
from hwnas.records.arrays import read_npz
from hwnas.records.bounded import Damaged
from hwnas.tasks.classification.task import Classes

#: Shares of requests that a cascade may escalate.
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
_LEAST = 50  # images: fewer say next to nothing
_TASK = Classes(("wrong", "right"))  # which classes there are is all the same here
_NAMES = ("models", "correct", "confidence")


@dataclass(frozen=True)
class Answers:
    """Whether models are right, and how sure, image by image."""

    models: tuple[str, ...]  #: their names
    correct: NDArray[np.bool_]  #: ``(models, images)``
    confidence: NDArray[np.float64]  #: ``(models, images)``; only its order counts

    def cascade(self, first: str, second: str, share: float) -> tuple[Figure, float] | None:
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
        return _TASK.score(right), float(self.confidence[a, order[min(cut, n - 1)]])


def read_answers(paths: list[Path]) -> Answers:
    """Return what files of answers say: ``.npz`` with ``models``, ``correct``, ``confidence``.

    Raises:
        ConfigError: one cannot be read, or files are not of the same images.
    """
    parts = [_read(path) for path in paths]
    if not parts:
        return Answers((), np.zeros((0, 0), np.bool_), np.zeros((0, 0)))
    sizes = {part.correct.shape[1] for part in parts}
    if len(sizes) > 1:
        raise ConfigError(f"answers: files are of {sorted(sizes)} images; all must be the same.")
    names = tuple(name for part in parts for name in part.models)
    if len({*names}) < len(names):
        raise ConfigError("answers: a model is there twice.")
    return Answers(
        names,
        np.concatenate([part.correct for part in parts]),
        np.concatenate([part.confidence for part in parts]),
    )


def _read(path: Path) -> Answers:
    try:
        arrays = read_npz(path, _NAMES, 1 << 30)
        models = tuple(map(str, arrays["models"]))
        correct, confidence = arrays["correct"].astype(np.bool_), arrays["confidence"]
    except FileNotFoundError:
        raise ConfigError(f"answers: {path}: there is no such file.") from None
    except KeyError as error:
        raise ConfigError(f"answers: {path} has no array {error}.") from None
    except Damaged as problem:
        raise ConfigError(f"answers: {path} cannot be read: {problem}.") from None
    if correct.ndim != 2 or correct.shape != confidence.shape or len(correct) != len(models):
        raise ConfigError(f"answers: {path}: correct and confidence must be (models, images).")
    if correct.shape[1] < _LEAST or not np.isfinite(confidence.astype(np.float64)).all():
        raise ConfigError(
            f"answers: {path} needs {_LEAST} images or more, with finite confidences."
        )
    return Answers(models, correct, confidence.astype(np.float64))
