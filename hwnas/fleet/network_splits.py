"""Networks of exports cut in two, to run on two devices: where, and as which files; no torch."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, ProofError, RunError
from hwnas.core.schema import Fraction, NumberBounds
from hwnas.core.typed_files import read_json
from hwnas.export.checks import FP32_ERROR, Floats
from hwnas.export.proof_file import Proof, name_of, operators_from_json, target_of
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TrainedNetwork
from hwnas.models.graph import INPUT, Graph, fuse, n_macs
from hwnas.models.partition import GraphSplit, cuts

Array = NDArray[Any]
_LEAST = 0.01  # of the work: a part that does less need not be apart
SIDES = ("head", "tail")


@dataclass(frozen=True)
class ExportedNetwork:
    """The network of an export, as its ONNX file says it."""

    id: str
    precision: str
    network: TrainedNetwork
    model: bytes  #: the file

    @property
    def name(self) -> str:
        """What it is called in plans."""
        return f"{self.id}-{self.precision}"


@dataclass(frozen=True)
class ExportSplit:
    """A way to cut it, with the parts as anything else that is compiled and served."""

    name: str  #: ``cut2``
    cut: GraphSplit
    parts: dict[str, TrainedNetwork]  #: by ``SIDES``
    files: dict[str, bytes]  #: ONNX, any number of images; in int8 bytes go from one to the other
    share: float  #: of the multiply-accumulates that are the head's

    def part_id(self, side: str, whole: ExportedNetwork) -> str:
        """Return what a part is called in plans, but for the precision: ``ID-cut2-head``."""
        return f"{whole.id}-{self.name}-{side}"


def whole_of(folder: Path, recorded: Proof) -> ExportedNetwork:
    """Return the network of an export.

    Args:
        folder: The export.
        recorded: Its proof.

    Raises:
        CompileError: its ONNX file is of another network.
        ConfigError: it computes in neither int8 nor float32.
    """
    from hwnas.models.onnx.subgraphs import read_fp32, read_int8

    lowered, target = operators_from_json(recorded["model"]["operators"]), target_of(recorded)
    files = {"int8": onnx_files.INT8, "float32": onnx_files.FLOAT32}
    if target.dtype not in files:
        raise ConfigError(
            f"{folder} computes in {target.dtype}; networks are cut in {' and '.join(files)}."
        )
    weights = read_fp32((folder / onnx_files.FLOAT32).read_bytes(), lowered)
    model = (folder / files[target.dtype]).read_bytes()
    int8 = read_int8(model, lowered) if target.dtype == "int8" else None
    network = TrainedNetwork(lowered, weights, int8)
    return ExportedNetwork(name_of(recorded), target.dtype, network, model)


def splits(whole: ExportedNetwork, n: int) -> list[ExportSplit]:
    """Return at most ``n`` ways to cut a network, the shortest head first.

    Only those count of which no shorter head sends as little: such a one would do less work, too.

    Raises:
        ConfigError: there is none.
    """
    found, least = list[GraphSplit](), float("inf")
    for cut in cuts(whole.network.graph):
        share, size = _share(cut, whole), prod(cut.shape)
        # Of one pixel: what is left is the classifier.
        if size < least and _LEAST <= share <= 1 - _LEAST and cut.shape[1:] != (1, 1):
            found.append(cut)
            least = size
    if not found:
        raise ConfigError(f"{whole.name} cannot be cut: no tensor alone crosses it anywhere.")
    kept = np.unique(np.linspace(0, len(found) - 1, min(n, len(found))).round().astype(int))
    return [_split(f"cut{i + 1}", found[k], whole) for i, k in enumerate(kept.tolist())]


def _share(cut: GraphSplit, whole: ExportedNetwork) -> float:
    return n_macs(cut.head) / n_macs(whole.network.graph)


def _split(name: str, cut: GraphSplit, whole: ExportedNetwork) -> ExportSplit:
    parts = {"head": _part(whole.network, cut.head), "tail": _part(whole.network, cut.tail)}
    as_bytes = whole.precision == "int8" and _is_in_int8(cut)
    files = {side: _written(side, part, as_bytes=as_bytes) for side, part in parts.items()}
    return ExportSplit(name, cut, parts, files, _share(cut, whole))


def _part(network: TrainedNetwork, lowered: Graph) -> TrainedNetwork:
    weights = {n.name: network.weights[n.name] for n in lowered if n.name in network.weights}
    return TrainedNetwork(
        lowered, weights, None if network.int8 is None else network.int8.part(lowered)
    )


def _is_in_int8(cut: GraphSplit) -> bool:
    """Return whether what goes from one part to the other was computed and is read in int8."""
    readers = [node for node in cut.tail if INPUT in node.inputs]
    return not cut.head.output.in_float and not all(node.in_float for node in readers)


def _written(side: str, part: TrainedNetwork, *, as_bytes: bool) -> bytes:
    from hwnas.models.onnx import subgraphs

    lowered = part.graph if part.int8 is not None else fuse(part.graph, "float32")
    dtype = "float32" if part.int8 is None else "int8"
    model = onnx_files.write_onnx(part, lowered, dtype, any_batch=True)
    if as_bytes and side == "head":
        model = subgraphs.answering_bytes(model)
    elif as_bytes:
        model = subgraphs.reading_bytes(model)
    return subgraphs.passing(model, answers=side == "head")


@dataclass(frozen=True)
class SplitOutputs:
    """What parts in a row did."""

    sent: Array  #: what the head's file answers, ``(N, C, H, W)``
    real: Floats  #: the same as numbers
    outputs: Floats  #: of the tail, which are those of the whole network

    @property
    def sent_kib(self) -> float:
        """What went from one to the other for an image."""
        return self.sent.nbytes / len(self.sent) / 1024


def seen(split: ExportSplit, whole: ExportedNetwork, images: Floats) -> SplitOutputs:
    """Run both parts in a row, and hold them against the whole.

    Args:
        split: The parts.
        whole: The network.
        images: Normalised, ``(N, C, H, W)``.

    Raises:
        ProofError: they answer otherwise: in int8 by a bit, in float32 by more than rounding.
    """
    head, tail = (onnx_files.session(split.files[side]) for side in SIDES)
    sent = head.run(images)
    outputs, wanted = tail.run(sent), onnx_files.session(whole.model).run(images)
    allowed = 0.0 if whole.precision == "int8" else FP32_ERROR
    near(f"{whole.name}, {split.name}", outputs, wanted, allowed)
    return SplitOutputs(sent, _real(split, sent), outputs)


def near(name: str, found: Floats, wanted: Floats, allowed: float) -> None:
    """Refuse answers whose largest error, of the largest one, is above a limit.

    Raises:
        ProofError: it is.
    """
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    if not error <= allowed:
        raise ProofError(
            f"{name} answers otherwise than it should: the largest error is {error:.2g} of the "
            f"largest answer; at most {allowed:g}."
        )


def _real(split: ExportSplit, sent: Array) -> Floats:
    """Return what was sent as numbers."""
    int8 = split.parts["head"].int8
    if int8 is None or sent.dtype != np.uint8:
        return sent
    scale = int8.ops[-1].out
    whole = sent.astype(np.float32) - (scale.zero_point + 128)
    return np.asarray(whole * np.float32(scale.scale), np.float32)


# ``split.json``: where a network was cut, and what its parts are called.

FILE, PROFILE = "split.json", "profile.csv"
FORMAT = 1

_Name = Annotated[str, NumberBounds(1, 200)]


class SplitPoint(TypedDict):
    """A way to cut a network."""

    name: _Name  #: of the folder with its parts
    model: _Name  #: as plans call it
    head: _Name
    tail: _Name
    activation_kib: Annotated[float, NumberBounds(0, 1e6)]  #: from one to the other, an image
    after: _Name  #: the operator whose result that is
    shape: Annotated[list[int], NumberBounds(3, 3)]
    dtype: _Name
    head_macs: Fraction  #: of the work that is the head's


class _SplitFile(TypedDict):
    format: int
    export: str
    cuts: Annotated[list[SplitPoint], NumberBounds(1, 100)]


def read_cuts(folder: Path) -> list[SplitPoint]:
    """Return the cuts of a folder that ``split`` made.

    Raises:
        RunError: it is none, or damaged.
    """
    try:
        return read_json(_SplitFile, folder / FILE, RunError, newest=FORMAT)["cuts"]
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder} is no folder of a split: make one with: python -m hwnas split EXPORT"
        ) from None
