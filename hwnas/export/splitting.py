"""Networks of exports cut in two, to run on two devices: where, and as which files; no torch."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.backends import portable
from hwnas.backends.base import Trained
from hwnas.errors import ConfigError, ProofError
from hwnas.export.proof import FP32_ERROR, Floats
from hwnas.export.recorded import Proof, name_of, operators_from_json, target_of
from hwnas.graph import INPUT, Graph, fuse, n_macs
from hwnas.segments import Cut, cuts

Array = NDArray[Any]
_LEAST = 0.01  # of the work: a part that does less need not be apart
SIDES = ("head", "tail")


@dataclass(frozen=True)
class Whole:
    """The network of an export, as its ONNX file says it."""

    id: str
    precision: str
    network: Trained
    model: bytes  #: the file

    @property
    def name(self) -> str:
        """What it is called in plans."""
        return f"{self.id}-{self.precision}"


@dataclass(frozen=True)
class Split:
    """A way to cut it, with the parts as anything else that is compiled and served."""

    name: str  #: ``cut2``
    cut: Cut
    parts: dict[str, Trained]  #: by ``SIDES``
    files: dict[str, bytes]  #: ONNX, any number of images; in int8 bytes go from one to the other
    share: float  #: of the multiply-accumulates that are the head's

    def part_id(self, side: str, whole: Whole) -> str:
        """Return what a part is called in plans, but for the precision: ``ID-cut2-head``."""
        return f"{whole.id}-{self.name}-{side}"


def whole_of(folder: Path, recorded: Proof) -> Whole:
    """Return the network of an export.

    Args:
        folder: The export.
        recorded: Its proof.

    Raises:
        CompileError: its ONNX file is of another network.
        ConfigError: it computes in neither int8 nor float32.
    """
    from hwnas.runtimes.onnx_parts import read_fp32, read_int8

    lowered, target = operators_from_json(recorded["model"]["operators"]), target_of(recorded)
    files = {"int8": portable.INT8, "float32": portable.FLOAT32}
    if target.dtype not in files:
        raise ConfigError(
            f"{folder} computes in {target.dtype}; networks are cut in {' and '.join(files)}."
        )
    weights = read_fp32((folder / portable.FLOAT32).read_bytes(), lowered)
    model = (folder / files[target.dtype]).read_bytes()
    int8 = read_int8(model, lowered) if target.dtype == "int8" else None
    network = Trained(lowered, weights, int8)
    return Whole(name_of(recorded), target.dtype, network, model)


def splits(whole: Whole, n: int) -> list[Split]:
    """Return at most ``n`` ways to cut a network, the shortest head first.

    Only those count of which no shorter head sends as little: such a one would do less work, too.

    Raises:
        ConfigError: there is none.
    """
    found, least = list[Cut](), float("inf")
    for cut in cuts(whole.network.lowered):
        share, size = _share(cut, whole), prod(cut.shape)
        # Of one pixel: what is left is the classifier.
        if size < least and _LEAST <= share <= 1 - _LEAST and cut.shape[1:] != (1, 1):
            found.append(cut)
            least = size
    if not found:
        raise ConfigError(f"{whole.name} cannot be cut: no tensor alone crosses it anywhere.")
    kept = np.unique(np.linspace(0, len(found) - 1, min(n, len(found))).round().astype(int))
    return [_split(f"cut{i + 1}", found[k], whole) for i, k in enumerate(kept.tolist())]


def _share(cut: Cut, whole: Whole) -> float:
    return n_macs(cut.head) / n_macs(whole.network.lowered)


def _split(name: str, cut: Cut, whole: Whole) -> Split:
    parts = {"head": _part(whole.network, cut.head), "tail": _part(whole.network, cut.tail)}
    as_bytes = whole.precision == "int8" and _is_in_int8(cut)
    files = {side: _written(side, part, as_bytes=as_bytes) for side, part in parts.items()}
    return Split(name, cut, parts, files, _share(cut, whole))


def _part(network: Trained, lowered: Graph) -> Trained:
    weights = {n.name: network.weights[n.name] for n in lowered if n.name in network.weights}
    return Trained(lowered, weights, None if network.int8 is None else network.int8.part(lowered))


def _is_in_int8(cut: Cut) -> bool:
    """Return whether what goes from one part to the other was computed and is read in int8."""
    readers = [node for node in cut.tail if INPUT in node.inputs]
    return not cut.head.output.in_float and not all(node.in_float for node in readers)


def _written(side: str, part: Trained, *, as_bytes: bool) -> bytes:
    from hwnas.runtimes import onnx_parts

    lowered = part.lowered if part.int8 is not None else fuse(part.lowered, "float32")
    dtype = "float32" if part.int8 is None else "int8"
    model = portable.write(part, lowered, dtype, any_batch=True)
    if as_bytes and side == "head":
        model = onnx_parts.answering_bytes(model)
    elif as_bytes:
        model = onnx_parts.reading_bytes(model)
    return onnx_parts.passing(model, answers=side == "head")


@dataclass(frozen=True)
class Seen:
    """What parts in a row did."""

    sent: Array  #: what the head's file answers, ``(N, C, H, W)``
    real: Floats  #: the same as numbers
    outputs: Floats  #: of the tail, which are those of the whole network

    @property
    def sent_kib(self) -> float:
        """What went from one to the other for an image."""
        return self.sent.nbytes / len(self.sent) / 1024


def seen(split: Split, whole: Whole, images: Floats) -> Seen:
    """Run both parts in a row, and hold them against the whole.

    Args:
        split: The parts.
        whole: The network.
        images: Normalised, ``(N, C, H, W)``.

    Raises:
        ProofError: they answer otherwise: in int8 by a bit, in float32 by more than rounding.
    """
    head, tail = (portable.session(split.files[side]) for side in SIDES)
    sent = head.run(images)
    outputs, wanted = tail.run(sent), portable.session(whole.model).run(images)
    allowed = 0.0 if whole.precision == "int8" else FP32_ERROR
    near(f"{whole.name}, {split.name}", outputs, wanted, allowed)
    return Seen(sent, _real(split, sent), outputs)


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


def _real(split: Split, sent: Array) -> Floats:
    """Return what was sent as numbers."""
    int8 = split.parts["head"].int8
    if int8 is None or sent.dtype != np.uint8:
        return sent
    scale = int8.ops[-1].out
    whole = sent.astype(np.float32) - (scale.zero_point + 128)
    return np.asarray(whole * np.float32(scale.scale), np.float32)
