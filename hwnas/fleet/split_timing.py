"""Timing of the parts of split networks on their targets."""

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
    check_close,
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
    """A part of a split network to be timed, or the whole network for comparison."""

    id: str  #: id in plans, without the precision
    place: str  #: folder of its files, ``cut1/head``; empty: the whole network
    network: TrainedNetwork
    model: bytes  #: content of the ONNX file
    read: Array  #: input of the ONNX file ``(N, C, H, W)``
    real: Floats  #: input as real numbers: ``read``, dequantised if it is int8
    wanted: Floats  #: expected output, dequantised if it is int8

    @property
    def file(self) -> str:
        """Name of the ONNX file, ``model.fp32.onnx`` or ``model.int8.onnx``."""
        return onnx_files.FLOAT32 if self.network.int8 is None else onnx_files.INT8


def timed_parts(
    whole: ExportedNetwork,
    splits: Sequence[ExportSplit],
    results: Sequence[SplitOutputs],
    images: Floats,
) -> Iterator[TimedPart]:
    """Yield the whole network, then head and tail of each split, with inputs and expected outputs.

    ``results`` are those of ``run_split`` for ``splits`` and normalised ``images``.
    """
    outputs = results[0].outputs
    yield TimedPart(whole.id, "", whole.network, whole.model, images, images, outputs)
    for split, result in zip(splits, results, strict=True):
        for side in SIDES:
            inputs, real = (images, images) if side == "head" else (result.sent, result.real)
            expected = result.real if side == "head" else result.outputs
            name, place = split.part_id(side, whole), f"{split.name}/{side}"
            yield TimedPart(
                name, place, split.parts[side], split.files[side], inputs, real, expected
            )


@dataclass(frozen=True)
class PartTiming:
    """Cost of a part on a target."""

    part: TimedPart
    target: Target
    cost: Cost
    files: Mapping[str, bytes]  #: content of target-specific files by name; empty if ONNX is run


def time_parts(
    parts: Sequence[TimedPart], config: SplitConfig, target: Target, advance: Callable[[int], None]
) -> Iterator[PartTiming]:
    """Time each part at each batch size on the target, and yield its cost.

    A target that is not measured gives estimates of its compiler.

    Args:
        parts: Parts.
        config: Settings of the measurement.
        target: Target.
        advance: Receives the number of finished parts.

    Raises:
        CompileError: the target cannot run a part; the message names it.
        ProofError: a part's outputs differ from those of its ONNX file.
        DeviceError: the device does not respond in time.
    """
    for batch in batch_sizes(config, target):
        batch_target = replace(target, batch=batch)
        with _timing_device(config, batch_target) as bench:
            for part in parts:
                try:
                    yield _time_part(part, batch_target, bench)
                except CompileError as error:
                    place = f"{part.id} on target '{batch_target.name}', {batch} images at once"
                    raise CompileError(f"{place}: {error}") from error
                advance(1)


def check_runs_parts(target: Target) -> None:
    """Check that the target's runtime can run heads, whose outputs have the shape (C, H, W).

    Raises:
        ConfigError: it cannot; the message names runtimes that can.
    """
    if target.artefact in _ONNX or backends.get(target.runtime).exits:
        return
    able = [
        backend.name
        for backend in backends.known()
        if backend.measured and (backend.exits or {*backend.dtypes.values()} & {*_ONNX})
    ]
    raise ConfigError(
        f"Target '{target.name}': target.runtime={target.runtime} cannot run parts of networks: "
        f"add +target={target.name} target.runtime={' or '.join(able)}."
    )


def batch_sizes(config: SplitConfig, target: Target) -> list[int]:
    """Return the batch sizes to time, ascending; only 1 if the runtime supports no others."""
    return sorted({*config.batches}) if backends.get(target.runtime).batched else [1]


@contextlib.contextmanager
def _timing_device(config: SplitConfig, target: Target) -> Iterator[TimingDevice | None]:
    if not backends.get(target.runtime).measured:
        yield None
        return
    with DevicePool(target, config.timing, config.rpc, config.limit_s) as pool:
        yield TimingDevice(target, RetryingPool(pool))


def _time_part(part: TimedPart, target: Target, bench: TimingDevice | None) -> PartTiming:
    """Return the cost of a part, as ONNX or as compiled by the target."""
    artefacts, is_onnx = base.backend_of(target).artefacts(bench), target.artefact in _ONNX
    compiled = {".onnx": part.model} if is_onnx else artefacts.build(part.network)
    inputs = part.read if is_onnx else part.real
    with tempfile.TemporaryDirectory() as folder:
        files = {suffix: Path(folder) / f"part{suffix}" for suffix in compiled}
        for suffix, path in files.items():
            path.write_bytes(compiled[suffix])
        outputs, cost = artefacts.evaluate(files, part.network.graph, [inputs])
    if not is_onnx:
        allowed = INT8_ERROR if target.dtype == "int8" else FP32_ERROR
        check_close(f"{part.id} on target '{target.name}'", outputs, part.wanted, allowed)
    names = backends.file_names(target.runtime, target.dtype)
    named = {} if is_onnx else {names[suffix]: content for suffix, content in compiled.items()}
    return PartTiming(part, target, cost, named)
