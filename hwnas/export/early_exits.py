"""Early exits of an export: its segments, their checks and the section of the card; no torch.

A segment is the part of the network from one exit to the next, with files of its own.
``exits.json`` has the thresholds of the runner, ``exits.npz`` the outputs of torch at each exit for
the images of the export.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ProofError, short_reason
from hwnas.core.quantity import Quantity
from hwnas.core.safe_read import CorruptFileError, read_npz
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
_KEY, _MAX_BYTES = "expected", 1 << 30  # of the array in ANSWERS
_REPAIR = "The file was changed or damaged: restore it, or export the network again."


@final
@dataclass(frozen=True)
class LoadedSegments:
    """The loaded segments of an export, run one after the other."""

    session: Session  #: returns outputs ``(N, n_exits + 1, n_outputs)``
    folder: Path  #: folder of the export
    target: Target
    task: Task

    def left(self, images: Floats, thresholds: Sequence[float]) -> "ExitPredictions":
        """Return the outputs of images, each of the exit at which it leaves.

        An image leaves at the first exit whose confidence is at least its threshold, else at the
        end. All segments run for all images.

        Args:
            images: Normalised images ``(N, C, R, R)``.
            thresholds: Threshold of each exit.
        """
        outputs = self.session.run(images)
        assert self.task.confidence is not None
        n = len(thresholds)
        confidences = np.stack([self.task.confidence(outputs[:, i]) for i in range(n)])
        exits = exit_indices(confidences, thresholds)
        return ExitPredictions(outputs[np.arange(len(exits)), exits], exits)

    def checks(self, images: Floats, expected: Floats, trained: bool) -> list[Check]:
        """Return a check of the last segment's outputs and one for each exit's, in this order.

        The last segment is compared with the file of the whole network, exits with torch.

        Args:
            images: Normalised images ``(N, C, R, R)``.
            expected: Outputs of torch ``(n_exits + 1, N, n_outputs)``.
            trained: Whether ``expected`` is from torch's simulation of the int8 network; else it is
                float32.

        Raises:
            ProofError: ``expected`` has another shape than the outputs.
            CompileError: the runtime cannot load the file of the whole network.
        """
        outputs = self.session.run(images)
        if outputs.shape != expected.transpose(1, 0, 2).shape:
            raise ProofError(
                f"{self.folder / ANSWERS} has outputs of shape {expected.shape}, but "
                f"{outputs.transpose(1, 0, 2).shape} is expected for the images of the export. "
                f"{_REPAIR}"
            )
        dtype, reference = self.target.dtype, TRAINED if trained else "float32"
        of_whole = runtimes.session(self.folder, self.target.artefact, None).run(images)
        checks = [_whole_network_check(outputs[:, -1], of_whole, dtype)]
        for i, of_exit in enumerate(expected[:-1]):
            near = agreement(self.task, outputs[:, i], of_exit, reference)
            checks.append(near.check(f"exits.{i}", dtype))
        return checks


@dataclass(frozen=True)
class ExitPredictions:
    """Outputs of images with early exits."""

    outputs: PerImageResults  #: outputs of the exit at which each image left ``(N, n_outputs)``
    at: NDArray[np.intp]  #: index of that exit ``(N,)``, from 0; at the end: the number of exits


def paths(folder: Path, target: Target, n_segments: int) -> dict[str, Path]:
    """Return the paths of the files of the segments and of the whole network, by suffix.

    Suffixes are as in ``artefact_wrappers.file_names``: ``.onnx``, ``.segment0.onnx``, ...
    """
    names = backends.file_names(target.runtime, target.dtype)
    return {n: folder / name for n, name in file_names(names, n_segments).items()}


def open_segments(folder: Path, target: Target, task: Task, n_segments: int) -> LoadedSegments:
    """Return the segments of an export, loaded so that they can be run.

    Raises:
        CompileError: the runtime cannot load a file.
        ConfigError: a required package is not installed.
    """
    session = load_segments(paths(folder, target, n_segments), n_segments, target.artefact)
    return LoadedSegments(session, folder, target, task)


def segment_files(folder: Path, target: Target, n_segments: int) -> list[list[str]]:
    """Return the names of the files of each segment: a list per segment, from input to output."""
    files = paths(folder, target, n_segments)
    return [[path.name for path in select_segment(files, i).values()] for i in range(n_segments)]


def answers(expected: Floats) -> bytes:
    """Return the content of ``exits.npz`` for outputs of torch ``(n_exits + 1, N, n_outputs)``."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **{_KEY: expected})
    return file.getvalue()


def read_answers(folder: Path) -> Floats:
    """Return the outputs of torch in ``exits.npz`` ``(n_exits + 1, N, n_outputs)``.

    Raises:
        ProofError: the file cannot be read, or the array is not three-dimensional, finite float32.
    """
    path = folder / ANSWERS
    try:
        outputs: Floats = read_npz(path, [_KEY], _MAX_BYTES)[_KEY]
    except KeyError as error:
        raise ProofError(f"{path} cannot be read: array {error} is missing. {_REPAIR}") from None
    except (OSError, CorruptFileError) as error:
        raise ProofError(f"{path} cannot be read: {short_reason(error)}. {_REPAIR}") from None
    if outputs.dtype != np.float32 or outputs.ndim != 3 or not np.isfinite(outputs).all():
        raise ProofError(
            f"{path} holds {outputs.dtype} of shape {outputs.shape}; expected finite float32 of "
            f"shape (outputs, images, values). {_REPAIR}"
        )
    return outputs


def _whole_network_check(outputs: PerImageResults, expected: PerImageResults, dtype: str) -> Check:
    """Return the check that all segments together give the outputs of the whole network."""
    if dtype == "int8":
        differing = int((outputs != expected).any(axis=1).sum())
        description = "images with other outputs of the segments than of the whole network"
        return Check("exits.whole", differing, 0, description)
    error = float(np.abs(outputs - expected).max() / np.abs(expected).max())
    description = "error of the segments against the whole network, of its largest output"
    return Check("exits.whole", error, FP32_ERROR, description)


# The section of the model card.

Row = dict[str, Any]

#: Descriptions of files.
ABOUT = {
    "exits.json": "thresholds of the exits, the chosen ones and others, and the segments",
    "exits.npz": "torch's outputs at each exit and at the end for the images of `images.npz`",
}


def file_descriptions(exits: Row) -> dict[str, str]:
    """Return a description of each file on early exits, by name, for the model card."""
    return ABOUT | {
        name: f"of segment {i}, as `{name.replace(f'segment{i}', 'model', 1)}`"
        for i, names in enumerate(exits["segments"])
        for name in names
    }


def section(exits: Row) -> str:
    """Return the Markdown section of the model card for ``exits`` of ``proof.json``."""
    lines = ["| | predicted | test split |", "| --- | --- | --- |"]
    stages = exits["foreseen"], exits["found"]
    for i, threshold in enumerate(exits["thresholds"]):
        condition = "never" if threshold >= NEVER else f"from {threshold:.4f} on"
        fractions = (_text(stage["left"][i], ".1%") for stage in stages)
        lines.append(f"| leaves at exit {i} ({condition}) | {' | '.join(fractions)} |")
    rows = [("accuracy", *(_text(stage["accuracy"], ".4f") for stage in stages))]
    for name in exits["foreseen"]["costs"]:
        title = f"expected {metric_of(name.removeprefix('expected_')).title}"
        rows.append((title, *(_text(stage["costs"][name], ".4g") for stage in stages)))
    lines += [f"| {' | '.join(row)} |" for row in rows]
    worst = Quantity(*exits["worst"]["latency_ms"])
    return (
        "\n".join(lines) + "\n\n`python run_exits.py images.npy` runs one segment after the other; "
        "an image leaves at the first exit whose largest probability reaches its threshold. "
        "Thresholds were chosen on one half of the validation split, with a loss of at most "
        f"{exits['max_drop']:g} points there, and predictions are from the other half. An image "
        f"that runs to the end takes {worst.value:.4g} ms ({worst.source}) and has the outputs of "
        "the whole network. Other thresholds are in `exits.json`."
    )


def _text(row: list[Any], form: str) -> str:
    figure = Quantity(*row)
    ends = "" if figure.low is None else f" ({figure.low:{form}} to {figure.high:{form}})"
    return f"{figure.value:{form}}{ends}"
