"""What an export must show of its own files, with the limits that it is held against.

An artefact is compared with torch on images that the export holds, read over the whole test split,
and held against the budget. What was trained for int8 has weights of its own: int8 files are then
compared with that network, as torch simulates it. Nothing here needs torch: ``verify`` repeats it
without.
"""

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas import tasks
from hwnas.errors import ProofError, RunError, why
from hwnas.export.folder import PROOF
from hwnas.export.running import kinds
from hwnas.figure import Figure, Figures
from hwnas.metrics import column
from hwnas.op import Lowered, Node, OpSpec
from hwnas.target import Target, from_facts
from hwnas.tasks.base import Found, Targets, Task

Row = dict[str, Any]
Floats = NDArray[np.float32]

FORMAT = 2
IMAGES = "images.npz"  #: pixels, targets and torch's outputs
N_IMAGES = 256
TRAINED = "simulated int8"  #: reference of what was trained for int8

#: Largest error of a float32 artefact, as a fraction of torch's largest output. Runtimes add up in
#: another order, which moves the last digits: by 6e-7 at most on 60 random networks of four spaces;
#: networks for larger images add up more.
FP32_ERROR = 1e-4
#: Largest mean error of an int8 artefact, likewise. Each layer rounds to 256 steps: 0.008 at most
#: on 45 random and 8 trained networks; one that answers for other images is off by more than 0.1.
INT8_ERROR = 0.05
#: Likewise of one that was trained for int8, against what it was trained as. Only ties are rounded
#: otherwise: 0.0004 at most on two networks, about 0.001 on random ones.
TRAINED_ERROR = 0.01
#: Largest error of an artefact of shorter floats, as a fraction of torch's largest output.
_SHORT_FLOATS = {"float16": 0.01, "bfloat16": 0.05}

TOLERANCES = {
    "float32": {
        "max_error": FP32_ERROR,
        "reason": "the order of summation moves the last digits of float32; a fraction of torch's "
        "largest output",
    },
    "int8": {
        "mean_error": INT8_ERROR,
        "reason": "each layer rounds to 256 steps; a fraction of torch's largest output. What it "
        "costs is judged by the metric on the whole test split",
    },
    TRAINED: {
        "mean_error": TRAINED_ERROR,
        "reason": "only ties are rounded otherwise; a fraction of the simulation's largest output",
    },
}


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    found: float
    allowed: float  #: at most
    words: str  #: what is compared, for people
    is_least: bool = False  #: ``allowed`` is at least, not at most

    @property
    def holds(self) -> bool:
        """Whether it does; not a number never holds."""
        return self.found >= self.allowed if self.is_least else self.found <= self.allowed

    def to_json(self) -> Row:
        """Return it with its outcome."""
        content = {**asdict(self), "holds": self.holds}
        return content if self.is_least else {k: v for k, v in content.items() if k != "is_least"}


@dataclass(frozen=True)
class Agreement:
    """How near the outputs of an artefact are to torch's."""

    reference: str  #: what torch computed: the network in float32, or int8 as it was trained
    n_images: int
    max_error: float  #: absolute
    mean_error: float
    largest_output: float  #: of torch, absolute
    same: float  #: fraction of images to which both give the same answer

    def check(self, name: str, dtype: str) -> Check:
        """Return what must hold of an artefact that computes in ``dtype``."""
        if dtype == "int8":
            error, kind = self.mean_error, "mean"
            allowed = TRAINED_ERROR if self.reference == TRAINED else INT8_ERROR
        else:
            error, kind = self.max_error, "largest"
            allowed = _SHORT_FLOATS.get(dtype, FP32_ERROR)
        words = f"{kind} error against torch, of its largest output"
        return Check(f"{name}.error", error / self.largest_output, allowed, words)


def agreement(task: Task, found: Floats, expected: Floats, reference: str = "float32") -> Agreement:
    """Return how near outputs ``(N, n_outputs)`` are to torch's."""
    errors = np.abs(found.astype(np.float64) - expected)
    return Agreement(
        reference=reference,
        n_images=len(expected),
        max_error=float(errors.max()),
        mean_error=float(errors.mean()),
        largest_output=float(np.abs(expected).max()),
        same=float(task.same(found, expected).mean()),
    )


def drop(task: Task, name: str, found: Found, reference: Found, points: float) -> Check:
    """Return the check of how much worse an artefact answers, image by image.

    What is held against the limit is the lower end of the 95 % interval of the paired difference:
    a loss that chance explains is none.
    """
    loss = task.loss_of(found, reference)
    words = f"{task.words.points} lost by int8 (test split: {loss.points:.2f}; lower end, 95 %)"
    return Check(f"{name}.drop", loss.low, points, words)


def within_budget(limits: Mapping[str, float], figures: Figures) -> list[Check]:
    """Return a check for each limit: the worse end of a figure's interval must meet it."""
    found = []
    for name, limit in limits.items():
        if name in figures:
            metric, figure = column(name), figures[name]
            words = f"{name}, {figure.source}"
            value = metric.binding(figure)
            found.append(Check(f"budget.{name}", value, limit, words, is_least=metric.maximise))
    return found


def prepared(pixels: NDArray[np.uint8], mean: list[float], std: list[float]) -> Floats:
    """Return normalised images ``(N, C, R, R)`` of uint8 ones ``(N, R, R, C)``.

    The same arithmetic as ``ImageData.prepare``, so that both round alike.
    """
    shift, scale = (np.array(values, np.float32) * 255 for values in (mean, std))
    normalised = (pixels.astype(np.float32) - shift) / scale
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class Kept:
    """The images that an export holds."""

    pixels: NDArray[np.uint8]  #: ``(N, R, R, C)``
    targets: Targets
    expected: Floats  #: torch's outputs, ``(N, n_outputs)``
    expected_int8: Floats | None = None  #: of the network that was trained for int8, if one was

    def agreement(self, task: Task, found: Floats, dtype: str) -> Agreement:
        """Return how near an artefact that computes in ``dtype`` is to the network it is of."""
        if dtype == "int8" and self.expected_int8 is not None:
            return agreement(task, found, self.expected_int8, TRAINED)
        return agreement(task, found, self.expected)

    def packed(self) -> bytes:
        """Return them as the bytes of a ``.npz`` file; equal content gives equal bytes."""
        file, parts = io.BytesIO(), {k: v for k, v in vars(self).items() if v is not None}
        np.savez_compressed(file, **parts)
        return file.getvalue()


def read_kept(folder: Path) -> Kept:
    """Return the images of an export.

    Raises:
        ProofError: they cannot be read.
    """
    try:
        with np.load(folder / IMAGES, allow_pickle=False) as content:
            trained = content.get("expected_int8")
            targets = content["targets"] if "targets" in content else content["labels"]
            kept = Kept(content["pixels"], targets, content["expected"], trained)
        n = len(kept.targets)
        answers = [kept.expected] if trained is None else [kept.expected, trained]
        if not n or kept.pixels.ndim != 4 or any(len(a) != n for a in (kept.pixels, *answers)):
            raise ValueError("pixels, targets and outputs are not of as many images")
        return kept
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ProofError(f"{folder / IMAGES} cannot be read: {why(error)}") from None


def read(folder: Path) -> Row:
    """Return the proof of an export.

    Raises:
        RunError: the folder is no export.
    """
    path = folder / PROOF
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(
                f"format {content['format']}, this version reads {FORMAT}; export the model again"
            )
        _check(content)
    except FileNotFoundError:
        raise RunError(f"{folder} is no export: there is no {PROOF}.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} cannot be read: {why(error)}") from None
    return dict(content)


def _check(content: Row) -> None:
    """Read all that ``verify`` reads; what is not as an export writes it raises something."""
    held = {name for name in kinds() if name in content["files"]}
    if {*content["artefacts"]} != held:
        raise ValueError(f"files are {', '.join(held)}, artefacts are others")
    ran = [row for row in content["artefacts"].values() if "not_run" not in row]
    metric = tasks.of_proof(content).metric
    numbers = [row[metric][0] for row in ran]
    numbers += [entry["limit"] for entry in content["budget"].values()]
    numbers += [figure.value for figure in figures_from_json(content["figures"]).values()]
    normalisation = content["dataset"]["normalisation"]
    numbers += [*normalisation["mean"], *normalisation["std"], content["model"]["input"][1]]
    for number in numbers:
        if not math.isfinite(number):
            raise ValueError(f"{number} is no figure")
    for check in content["checks"]:
        _ = f"{check['name']}: {check['holds']}"
    target_of(content)
    operators_from_json(content["model"]["operators"])
    _ = content["made"]["command"], content["made"]["versions"]


def target_of(recorded: Row) -> Target:
    """Return the target that an export was made for."""
    return from_facts(recorded["target"])


def operators_to_json(lowered: Lowered) -> list[Row]:
    """Return operators as JSON."""
    return [asdict(node) for node in lowered]


def operators_from_json(rows: list[Row]) -> Lowered:
    """Return the operators that ``operators_to_json`` described."""
    nodes = []
    for row in rows:
        c_in, h_in, w_in = row["op"]["in_shape"]
        c_out, h_out, w_out = row["op"]["out_shape"]
        shapes = {"in_shape": (c_in, h_in, w_in), "out_shape": (c_out, h_out, w_out)}
        nodes.append(Node(row["name"], OpSpec(**{**row["op"], **shapes}), tuple(row["inputs"])))
    return tuple(nodes)


def figures_to_json(figures: Figures) -> Row:
    """Return figures as value, source and interval, by name."""
    return {name: figure.to_json() for name, figure in figures.items()}


def figures_from_json(rows: Row) -> dict[str, Figure]:
    """Return the figures that ``figures_to_json`` described."""
    return {name: Figure(*values) for name, values in rows.items()}
