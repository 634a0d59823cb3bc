"""Parts of a network that was cut, on the targets where they may run: their files and costs."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.core.errors import CompileError, ConfigError
from hwnas.export.checks import FP32_ERROR, INT8_ERROR, Floats
from hwnas.export.measure import TimingDevice
from hwnas.export.options import SplitConfig
from hwnas.fleet.network_splits import (
    SIDES,
    Array,
    ExportedNetwork,
    ExportSplit,
    SplitOutputs,
    near,
)
from hwnas.hardware import backends
from hwnas.hardware.backends import base, onnx_files
from hwnas.hardware.backends.base import TrainedNetwork
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.target import Target

_ONNX = (onnx_files.FLOAT32, onnx_files.INT8)


@dataclass(frozen=True)
class TimedPart:
    """What is timed: a part, or the whole network beside them."""

    id: str  #: in plans, with the precision behind it
    place: str  #: of its files, ``cut1/head``; empty: it is the whole network
    network: TrainedNetwork
    model: bytes  #: ONNX
    read: Array  #: by the ONNX file
    real: Floats  #: the same as numbers
    wanted: Floats  #: what it answers to them

    @property
    def file(self) -> str:
        """The name of its ONNX file."""
        return onnx_files.FLOAT32 if self.network.int8 is None else onnx_files.INT8


def parts_of(
    whole: ExportedNetwork,
    found: Sequence[ExportSplit],
    seen: Sequence[SplitOutputs],
    images: Floats,
) -> Iterator[TimedPart]:
    """Yield the whole network and all parts, with what they read and answer.

    Args:
        whole: The network.
        found: The ways to cut it.
        seen: What the parts of each did with the images.
        images: Normalised, ``(N, C, H, W)``.
    """
    outputs = seen[0].outputs
    yield TimedPart(whole.id, "", whole.network, whole.model, images, images, outputs)
    for each, of in zip(found, seen, strict=True):
        for side in SIDES:
            read, real = (images, images) if side == "head" else (of.sent, of.real)
            wanted = of.real if side == "head" else of.outputs
            name, place = each.part_id(side, whole), f"{each.name}/{side}"
            yield TimedPart(name, place, each.parts[side], each.files[side], read, real, wanted)


@dataclass(frozen=True)
class PartTiming:
    """What a part costs on a target that reads so many images at once."""

    part: TimedPart
    target: Target
    cost: Cost
    files: Mapping[str, bytes]  #: that are the target's alone, by name


def timed(
    parts: Sequence[TimedPart], config: SplitConfig, target: Target, advance: Callable[[int], None]
) -> Iterator[PartTiming]:
    """Yield the cost of each part at each number of images.

    Args:
        parts: The parts.
        config: How they are measured, and with which numbers of images.
        target: On which.
        advance: Is told of each that is done.

    Raises:
        CompileError: the target refuses a part, by its name.
        ProofError: a part answers otherwise there than as ONNX.
    """
    for batch in batches(config, target):
        at = replace(target, batch=batch)
        with _bench(config, at) as bench:
            for part in parts:
                try:
                    yield _timed(part, at, bench)
                except CompileError as error:
                    where = f"{part.id} on target '{at.name}', {batch} images at once"
                    raise CompileError(f"{where}: {error}") from error
                advance(1)


def check_runs_parts(target: Target) -> None:
    """Refuse a target whose runtime answers rows alone: a head answers an image.

    Raises:
        ConfigError: it names the runtimes that will do.
    """
    if _is_onnx(target) or backends.get(target.runtime).exits:
        return
    able = [each.name for each in backends.known() if each.exits and each.measured]
    raise ConfigError(
        f"Target '{target.name}': parts of networks are not run by target.runtime="
        f"{target.runtime}: say target.runtime={' or '.join(able)}."
    )


def _is_onnx(target: Target) -> bool:
    """Return whether what a target runs is the ONNX file itself."""
    return backends.get(target.runtime).dtypes[target.dtype] in _ONNX


def batches(config: SplitConfig, target: Target) -> list[int]:
    """Return the numbers of images that are timed: one where an inference reads no more."""
    return sorted({*config.batches}) if backends.get(target.runtime).batched else [1]


@contextlib.contextmanager
def _bench(config: SplitConfig, target: Target) -> Iterator[TimingDevice | None]:
    if not backends.get(target.runtime).measured:
        yield None
        return
    with DevicePool(target, config.timing, config.rpc, config.limit_s) as pool:
        yield TimingDevice(target, RetryingPool(pool))


def _timed(part: TimedPart, target: Target, bench: TimingDevice | None) -> PartTiming:
    """Return what a part costs, as ONNX where the target runs that, else as it compiles it."""
    artefacts, is_onnx = base.backend_of(target).artefacts(bench), _is_onnx(target)
    made = {".onnx": part.model} if is_onnx else artefacts.build(part.network)
    read = part.read if is_onnx else part.real
    with tempfile.TemporaryDirectory() as folder:
        files = {suffix: Path(folder) / f"part{suffix}" for suffix in made}
        for suffix, path in files.items():
            path.write_bytes(made[suffix])
        outputs, cost = artefacts.evaluate(files, part.network.graph, [read])
    if not is_onnx:
        allowed = INT8_ERROR if target.dtype == "int8" else FP32_ERROR
        near(f"{part.id} on target '{target.name}'", outputs, part.wanted, allowed)
    names = backends.file_names(target.runtime, target.dtype)
    own = {} if is_onnx else {names[suffix]: content for suffix, content in made.items()}
    return PartTiming(part, target, cost, own)
