"""What an export says of early exits, and what it must show; needs no torch.

``exits.json`` has the thresholds that its runner leaves at, ``exits.npz`` what torch answers at
each exit to the images that the export holds.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas import backends
from hwnas.answers import leaving
from hwnas.backends.exits import file_names, loaded, of_segment
from hwnas.errors import ProofError
from hwnas.export import running
from hwnas.export.proof import INT8_ERROR, TRAINED_ERROR, Check, Floats
from hwnas.records.arrays import read_npz
from hwnas.records.bounded import Damaged
from hwnas.runtimes.base import Session
from hwnas.target import Target
from hwnas.tasks.base import Found, Task

EXITS, ANSWERS = "exits.json", "exits.npz"
_KEY, _MOST = "expected", 1 << 30  # array of ANSWERS, and bytes that it may have


@final
@dataclass(frozen=True)
class Segments:
    """The loaded segments of an export."""

    session: Session  #: to ``(N, n_exits + 1, n_outputs)``

    def left(self, task: Task, images: Floats, thresholds: Sequence[float]) -> "Left":
        """Return what images were answered that left as soon as an exit was sure."""
        outputs = self.session.run(images)
        assert task.confidence is not None
        sure = np.stack([task.confidence(outputs[:, i]) for i in range(len(thresholds))])
        at = leaving(sure, thresholds)
        return Left(outputs[np.arange(len(at)), at], at)


@dataclass(frozen=True)
class Left:
    """What images were answered."""

    outputs: Found  #: ``(N, n_outputs)``
    at: NDArray[np.intp]  #: of which output, ``(N,)``


def paths(folder: Path, target: Target, n_segments: int) -> dict[str, Path]:
    """Return the files of segments, and of the whole network, by suffix."""
    names = backends.file_names(target.runtime, target.dtype)
    return {n: folder / name for n, name in file_names(names, n_segments).items()}


def opened(folder: Path, target: Target, n_segments: int) -> Segments:
    """Return the segments of an export as something that runs."""
    own = backends.get(target.runtime).dtypes[target.dtype]
    return Segments(loaded(paths(folder, target, n_segments), n_segments, own))


def segment_files(folder: Path, target: Target, n_segments: int) -> list[list[str]]:
    """Return the names of the files of each segment."""
    there = paths(folder, target, n_segments)
    return [[path.name for path in of_segment(there, i).values()] for i in range(n_segments)]


def answers(expected: Floats) -> bytes:
    """Return what torch answers, ``(n_exits + 1, N, n_outputs)``, as the bytes of a file."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **{_KEY: expected})
    return file.getvalue()


def read_answers(folder: Path) -> Floats:
    """Return what ``answers`` wrote.

    Raises:
        ProofError: it cannot be read.
    """
    path = folder / ANSWERS
    try:
        found: Floats = read_npz(path, [_KEY], _MOST)[_KEY]
    except (OSError, KeyError, Damaged) as error:
        raise ProofError(f"{path} cannot be read: {error}.") from None
    if found.dtype != np.float32 or found.ndim != 3 or not np.isfinite(found).all():
        raise ProofError(f"{path} must hold numbers (outputs, images, values) in float32.")
    return found


def same_bits(
    segments: Segments,
    folder: Path,
    target: Target,
    images: Floats,
    expected: Floats,
    trained: bool,
) -> list[Check]:
    """Return that segments in a row are the whole network, and that exits answer as in torch.

    Args:
        segments: Loaded.
        folder: Of the export, with the file of the whole network.
        target: What it is for.
        images: Normalised, ``(N, C, R, R)``.
        expected: Torch's answers, ``(n_exits + 1, N, n_outputs)``.
        trained: Whether these are of a simulation of int8.

    Raises:
        ProofError: they are of other images.
    """
    outputs = segments.session.run(images)
    if outputs.shape != expected.transpose(1, 0, 2).shape:
        raise ProofError(f"{folder / ANSWERS} is not of the images of the export.")
    own = backends.get(target.runtime).dtypes[target.dtype]
    whole = running.session(folder, own, None).run(images)
    differing = int((outputs[:, -1] != whole).any(axis=1).sum())
    found = [Check("exits.bits", differing, 0, "images that segments in a row answer otherwise")]
    allowed = TRAINED_ERROR if trained else INT8_ERROR
    words = "mean error of an exit against torch, of its largest output"
    for i, wanted in enumerate(expected[:-1]):
        error = float(np.abs(outputs[:, i].astype(np.float64) - wanted).mean())
        found.append(Check(f"exits.{i}.error", error / float(np.abs(wanted).max()), allowed, words))
    return found
