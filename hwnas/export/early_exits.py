"""What an export says of early exits, and what it must show; needs no torch.

``exits.json`` has the thresholds that its runner leaves at, ``exits.npz`` what torch answers at
each exit to the images that the export holds.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ProofError
from hwnas.core.quantity import Quantity
from hwnas.core.safe_arrays import read_npz
from hwnas.core.safe_read import CorruptFileError
from hwnas.export import runtimes
from hwnas.export.checks import FP32_ERROR, TRAINED, Check, Floats, agreement
from hwnas.hardware import backends
from hwnas.hardware.backends.artefact_wrappers import file_names, load_segments, select_segment
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.target import Target
from hwnas.tasks.base import PerImageResults, Task
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.predictions import NEVER, exit_indices

EXITS, ANSWERS = "exits.json", "exits.npz"
_KEY, _MOST = "expected", 1 << 30  # array of ANSWERS, and bytes that it may have


@final
@dataclass(frozen=True)
class LoadedSegments:
    """The loaded segments of an export, run one after the other."""

    session: Session  #: to ``(N, n_exits + 1, n_outputs)``
    folder: Path
    target: Target
    task: Task

    def left(self, images: Floats, thresholds: Sequence[float]) -> "ExitPredictions":
        """Return what images were answered that left as soon as an exit was sure."""
        outputs = self.session.run(images)
        assert self.task.confidence is not None
        sure = np.stack([self.task.confidence(outputs[:, i]) for i in range(len(thresholds))])
        at = exit_indices(sure, thresholds)
        return ExitPredictions(outputs[np.arange(len(at)), at], at)

    def checks(self, images: Floats, expected: Floats, trained: bool) -> list[Check]:
        """Return that they answer as the whole network does, and exits as in torch.

        Args:
            images: Normalised, ``(N, C, R, R)``.
            expected: Torch's answers, ``(n_exits + 1, N, n_outputs)``.
            trained: Whether these are of a simulation of int8.

        Raises:
            ProofError: they are of other images.
        """
        outputs = self.session.run(images)
        if outputs.shape != expected.transpose(1, 0, 2).shape:
            raise ProofError(f"{self.folder / ANSWERS} is not of the images of the export.")
        dtype, reference = self.target.dtype, TRAINED if trained else "float32"
        whole = runtimes.session(self.folder, _own(self.target), None).run(images)
        found = [_as_whole(outputs[:, -1], whole, dtype)]
        for i, wanted in enumerate(expected[:-1]):
            near = agreement(self.task, outputs[:, i], wanted, reference)
            found.append(near.check(f"exits.{i}", dtype))
        return found


@dataclass(frozen=True)
class ExitPredictions:
    """What images were answered."""

    outputs: PerImageResults  #: ``(N, n_outputs)``
    at: NDArray[np.intp]  #: of which output, ``(N,)``


def paths(folder: Path, target: Target, n_segments: int) -> dict[str, Path]:
    """Return the files of segments, and of the whole network, by suffix."""
    names = backends.file_names(target.runtime, target.dtype)
    return {n: folder / name for n, name in file_names(names, n_segments).items()}


def open_segments(folder: Path, target: Target, task: Task, n_segments: int) -> LoadedSegments:
    """Return the segments of an export as something that runs."""
    session = load_segments(paths(folder, target, n_segments), n_segments, _own(target))
    return LoadedSegments(session, folder, target, task)


def _own(target: Target) -> str:
    """Return which artefact whole networks of a target are."""
    return backends.get(target.runtime).dtypes[target.dtype]


def segment_files(folder: Path, target: Target, n_segments: int) -> list[list[str]]:
    """Return the names of the files of each segment."""
    there = paths(folder, target, n_segments)
    return [[path.name for path in select_segment(there, i).values()] for i in range(n_segments)]


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
    except (OSError, KeyError, CorruptFileError) as error:
        raise ProofError(f"{path} cannot be read: {error}.") from None
    if found.dtype != np.float32 or found.ndim != 3 or not np.isfinite(found).all():
        raise ProofError(f"{path} must hold numbers (outputs, images, values) in float32.")
    return found


def _as_whole(found: PerImageResults, whole: PerImageResults, dtype: str) -> Check:
    """Return that segments in a row answer as the whole network does."""
    if dtype == "int8":
        differing = int((found != whole).any(axis=1).sum())
        words = "images that segments in a row answer otherwise than the whole network"
        return Check("exits.whole", differing, 0, words)
    error = float(np.abs(found - whole).max() / np.abs(whole).max())
    words = "largest error of segments in a row against the whole network, of its largest output"
    return Check("exits.whole", error, FP32_ERROR, words)


# What the card of an export says of early exits.

Row = dict[str, Any]

#: What files are, in words.
ABOUT = {
    "exits.json": "thresholds of the exits, those that were chosen and others, and the segments",
    "exits.npz": "what torch answers at each exit and at the end to the images of `images.npz`",
}


def about(leaving: Row) -> dict[str, str]:
    """Return what the files of segments are, in words."""
    return ABOUT | {
        name: f"of segment {i}, as `{name.replace(f'segment{i}', 'model', 1)}`"
        for i, names in enumerate(leaving["segments"])
        for name in names
    }


def section(leaving: Row) -> str:
    """Return what leaving early comes to."""
    lines = ["| | foreseen | test split |", "| --- | --- | --- |"]
    foreseen, found = leaving["foreseen"], leaving["found"]
    for i, threshold in enumerate(leaving["thresholds"]):
        where = "never" if threshold >= NEVER else f"from {threshold:.4f} on"
        shares = (_told(each["left"][i], ".1%") for each in (foreseen, found))
        lines.append(f"| leaves at exit {i} ({where}) | {' | '.join(shares)} |")
    rows = [("accuracy", *(_told(each["accuracy"], ".4f") for each in (foreseen, found)))]
    for name in foreseen["costs"]:
        title = f"expected {metric_of(name.removeprefix('expected_')).title}"
        rows.append((title, *(_told(each["costs"][name], ".4g") for each in (foreseen, found))))
    lines += [f"| {' | '.join(row)} |" for row in rows]
    worst = Quantity(*leaving["worst"]["latency_ms"])
    return (
        "\n".join(lines) + "\n\n`python run_exits.py images.npy` runs the segments one after the "
        "other; an image leaves at the first exit whose largest probability reaches its threshold. "
        f"Thresholds were chosen on one half of the validation split, to lose at most "
        f"{leaving['max_drop']:g} points there; the other half foresaw what they come to. An image "
        f"that runs to the end takes {worst.value:.4g} ms ({worst.source}); it is answered as by "
        "the whole network. Other thresholds, with what they come to, are in "
        "`exits.json`."
    )


def _told(row: list[Any], form: str) -> str:
    figure = Quantity(*row)
    ends = "" if figure.low is None else f" ({figure.low:{form}} to {figure.high:{form}})"
    return f"{figure.value:{form}}{ends}"
