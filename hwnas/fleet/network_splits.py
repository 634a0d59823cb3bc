"""Networks of exports split into two parts for two devices; without torch."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, ConfigError, ProofError, RunError
from hwnas.core.schema import Fraction, NumberBounds
from hwnas.core.typed_files import read_json
from hwnas.export.checks import FP32_ERROR, Floats
from hwnas.export.proof_file import Proof, name_of, operators_from_json, target_of
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TrainedNetwork
from hwnas.models.graph import INPUT, Graph, GraphSplit, fuse, iter_splits, n_macs

Array = NDArray[Any]
_MIN_FRACTION = 0.01  # of the multiply-accumulates: smaller parts are not worth a split
SIDES = ("head", "tail")


@dataclass(frozen=True)
class ExportedNetwork:
    """The network of an export, read from its ONNX file."""

    id: str  #: id of the exported network, see ``proof_file.name_of``
    precision: str  #: ``float32`` or ``int8``
    network: TrainedNetwork
    model: bytes  #: content of the ONNX file in this precision

    @property
    def name(self) -> str:
        """Name in plans, ``ID-PRECISION``."""
        return f"{self.id}-{self.precision}"


@dataclass(frozen=True)
class ExportSplit:
    """A network split into ``head`` and ``tail``, which can be compiled for different devices."""

    name: str  #: ``cut1``, ``cut2``, ...
    cut: GraphSplit  #: operators of both parts, and shape of the tensor between them
    parts: dict[str, TrainedNetwork]  #: operators and weights, by ``head`` and ``tail``
    #: content of ONNX files with a free batch size, by ``head`` and ``tail``; int8 parts exchange
    #: uint8 tensors
    files: dict[str, bytes]
    share: float  #: head's fraction of the multiply-accumulates

    def part_id(self, side: str, whole: ExportedNetwork) -> str:
        """Return the id of a part in plans, without the precision, as ``ID-cut2-head``.

        ``side`` is ``head`` or ``tail``.
        """
        return f"{whole.id}-{self.name}-{side}"


def read_exported_network(folder: Path, recorded: Proof) -> ExportedNetwork:
    """Return the network of an export with its weights, read from its ONNX files.

    Args:
        folder: Folder of the export.
        recorded: Its ``proof.json``.

    Raises:
        CompileError: an ONNX file is invalid or of another network.
        ConfigError: the precision is neither int8 nor float32.
    """
    from hwnas.models.onnx.subgraphs import read_fp32, read_int8

    graph, target = operators_from_json(recorded["model"]["operators"]), target_of(recorded)
    files = {"int8": onnx_files.INT8, "float32": onnx_files.FLOAT32}
    if target.dtype not in files:
        raise ConfigError(
            f"{folder} computes in {target.dtype}, but split supports {' and '.join(files)}: give "
            "an export in one of these precisions."
        )
    path = folder / onnx_files.FLOAT32
    try:
        weights = read_fp32(path.read_bytes(), graph)
        path = folder / files[target.dtype]
        model = path.read_bytes()
        int8 = read_int8(model, graph) if target.dtype == "int8" else None
    except CompileError as error:
        raise CompileError(f"{path}: {error}") from None
    network = TrainedNetwork(graph, weights, int8)
    return ExportedNetwork(name_of(recorded), target.dtype, network, model)


def find_splits(whole: ExportedNetwork, n: int) -> list[ExportSplit]:
    """Return at most ``n`` splits of a network, evenly chosen, the smallest head first.

    A split is left out if a smaller head has an output of at most as many bytes, if a part has
    less than 1 % of the multiply-accumulates, or if the output of the head is a single pixel.

    Raises:
        ConfigError: no split is left.
    """
    result, least = list[GraphSplit](), float("inf")
    for cut in iter_splits(whole.network.graph):
        is_int8 = whole.precision == "int8" and _passes_int8(cut)
        share, size = _share(cut, whole), prod(cut.shape) * (1 if is_int8 else 4)  # bytes
        # At one pixel only the classifier remains.
        if size < least and _MIN_FRACTION <= share <= 1 - _MIN_FRACTION and cut.shape[1:] != (1, 1):
            result.append(cut)
            least = size
    if not result:
        raise ConfigError(
            f"{whole.name} cannot be split: between no two of its operators a single tensor passes "
            "that is smaller than those before, with at least 1 % of the computation on each side. "
            "Give another export."
        )
    indices = np.unique(np.linspace(0, len(result) - 1, min(n, len(result))).round().astype(int))
    return [_split(f"cut{i + 1}", result[k], whole) for i, k in enumerate(indices.tolist())]


def _share(cut: GraphSplit, exported: ExportedNetwork) -> float:
    return n_macs(cut.head) / n_macs(exported.network.graph)


def _split(name: str, cut: GraphSplit, exported: ExportedNetwork) -> ExportSplit:
    parts = {"head": _part(exported.network, cut.head), "tail": _part(exported.network, cut.tail)}
    as_bytes = exported.precision == "int8" and _passes_int8(cut)
    files = {side: _part_onnx(side, part, as_bytes=as_bytes) for side, part in parts.items()}
    return ExportSplit(name, cut, parts, files, _share(cut, exported))


def _part(network: TrainedNetwork, graph: Graph) -> TrainedNetwork:
    weights = {n.name: network.weights[n.name] for n in graph if n.name in network.weights}
    return TrainedNetwork(
        graph, weights, None if network.int8 is None else network.int8.subnetwork(graph)
    )


def _passes_int8(cut: GraphSplit) -> bool:
    """Return True if the boundary tensor is written and read in int8."""
    readers = [node for node in cut.tail if INPUT in node.inputs]
    return not cut.head.output.in_float and not all(node.in_float for node in readers)


def _part_onnx(side: str, part: TrainedNetwork, *, as_bytes: bool) -> bytes:
    from hwnas.models.onnx import subgraphs

    graph = part.graph if part.int8 is not None else fuse(part.graph, "float32")
    dtype = "float32" if part.int8 is None else "int8"
    model = onnx_files.write_onnx(part, graph, dtype, any_batch=True)
    if as_bytes and side == "head":
        model = subgraphs.with_uint8_output(model)
    elif as_bytes:
        model = subgraphs.with_uint8_input(model)
    return subgraphs.rename_boundary(model, is_head=side == "head")


@dataclass(frozen=True)
class SplitOutputs:
    """Outputs of both parts for ``N`` images."""

    sent: Array  #: output of the head, as sent to the tail ``(N, C, H, W)``
    real: Floats  #: the same as real numbers: dequantised if it is int8
    outputs: Floats  #: output of the tail, equal to that of the whole network ``(N, classes)``

    @property
    def sent_kib(self) -> float:
        """Size in KiB of the tensor that is sent for one image."""
        return self.sent.nbytes / len(self.sent) / 1024


def run_split(split: ExportSplit, whole: ExportedNetwork, images: Floats) -> SplitOutputs:
    """Return the outputs of head and tail for normalised images ``(N, C, H, W)``.

    Raises:
        ProofError: the tail's outputs differ from those of the whole network: in int8 at all, in
            float32 by more than rounding.
    """
    head, tail = (onnx_files.session(split.files[side]) for side in SIDES)
    sent = head.run(images)
    outputs, expected = tail.run(sent), onnx_files.session(whole.model).run(images)
    allowed = 0.0 if whole.precision == "int8" else FP32_ERROR
    check_close(f"{whole.name}, {split.name}", outputs, expected, allowed)
    return SplitOutputs(sent, _as_numbers(split, sent), outputs)


def check_close(name: str, outputs: Floats, expected: Floats, allowed: float) -> None:
    """Check the largest absolute error, relative to the largest absolute output.

    Args:
        name: Name of the network, for the message.
        outputs: Outputs of a part.
        expected: Outputs of the whole network, of the same shape.
        allowed: Maximum relative error.

    Raises:
        ProofError: the error exceeds ``allowed``.
    """
    error = float(np.abs(outputs - expected).max() / np.abs(expected).max())
    if not error <= allowed:
        raise ProofError(
            f"{name}: outputs differ from those of the whole network by {error:.2g} of the largest "
            f"output; allowed: {allowed:g}. This is an error in hwnas or the runtime; please "
            "report it."
        )


def _as_numbers(split: ExportSplit, sent: Array) -> Floats:
    """Return the boundary tensor dequantised."""
    int8 = split.parts["head"].int8
    if int8 is None or sent.dtype != np.uint8:
        return sent
    scale = int8.ops[-1].out
    centred = sent.astype(np.float32) - (scale.zero_point + 128)
    return np.asarray(centred * np.float32(scale.scale), np.float32)


# ``split.json``: the splits of a network, and the names of their parts.

FILE, PROFILE = "split.json", "profile.csv"
FORMAT = 1

_Name = Annotated[str, NumberBounds(1, 200)]


class SplitPoint(TypedDict):
    """A split of a network, as in ``split.json``."""

    name: _Name  #: folder of the parts, as ``cut1``
    model: _Name  #: name of the whole network in plans, ``ID-PRECISION``
    head: _Name  #: name of the first part in plans
    tail: _Name  #: name of the second part in plans
    activation_kib: Annotated[float, NumberBounds(0, 1e6)]  #: KiB that are sent per image
    after: _Name  #: last operator of the head
    shape: Annotated[list[int], NumberBounds(3, 3)]  #: shape of the sent tensor: (C, H, W)
    dtype: _Name  #: dtype of the sent tensor
    head_macs: Fraction  #: head's fraction of the multiply-accumulates


class _SplitFile(TypedDict):
    format: int
    export: str
    cuts: Annotated[list[SplitPoint], NumberBounds(1, 100)]


def read_cuts(folder: Path) -> list[SplitPoint]:
    """Return the splits in ``split.json`` of a folder that ``hwnas split`` wrote.

    Raises:
        RunError: the folder has no valid ``split.json``.
    """
    try:
        return read_json(_SplitFile, folder / FILE, RunError, newest=FORMAT)["cuts"]
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder} has no {FILE}: create a folder of split networks with hwnas split EXPORT."
        ) from None
