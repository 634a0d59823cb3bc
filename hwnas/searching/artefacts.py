"""What becomes of a front member: the files that go onto the device, and what those files show."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hwnas.cost.base import Cost
from hwnas.cost.host import host_cost
from hwnas.cost.roofline import network_cost
from hwnas.cost.vela import compile_tflite
from hwnas.families.blocks import weights_of
from hwnas.int8.network import QuantisedNetwork
from hwnas.int8.tflite import write
from hwnas.metrics.deriving import Deriving
from hwnas.op import Lowered, OpSpec
from hwnas.runtimes.base import Session
from hwnas.runtimes.litert import LiteRTSession
from hwnas.runtimes.onnx_writer import write_fp32, write_int8
from hwnas.runtimes.ort import OrtSession
from hwnas.runtimes.pool import Retrying
from hwnas.target import Target

Files = Mapping[str, Path]  #: by suffix


class Artefacts(Protocol):
    """Makes the files of a network for one target, and judges them."""

    def build(
        self, network: nn.Module, lowered: Lowered, int8: QuantisedNetwork | None
    ) -> Mapping[str, bytes]:
        """Return the files of a network by suffix.

        Args:
            network: Plain, its batch norm folded.
            lowered: Its operators as the family lowers them.
            int8: The same in int8, for targets that compute in it.
        """
        ...

    def judge(
        self, files: Files, lowered: Lowered, batches: Iterable[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], Cost]:
        """Return the outputs for all images and the cost, both from the files.

        Shapes:
            Batches ``(N, C, R, R)``, one at least; outputs ``(sum of N, n_classes)``.
        """
        ...


@final
class VelaArtefacts:
    """Int8 TFLite, and what Vela makes of it."""

    def __init__(self, target: Target):
        self._target = target

    def build(
        self, network: nn.Module, lowered: Lowered, int8: QuantisedNetwork | None
    ) -> Mapping[str, bytes]:
        """Return the TFLite file before and after Vela."""
        assert int8 is not None
        tflite = write(int8)
        compiled = compile_tflite(tflite, lowered, self._target)
        return {".tflite": tflite, "_vela.tflite": compiled.artefact}

    def judge(
        self, files: Files, lowered: Lowered, batches: Iterable[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], Cost]:
        """Run the TFLite file on this host; have Vela estimate it."""
        tflite = files[".tflite"].read_bytes()
        outputs = _run(LiteRTSession(tflite), batches)
        return outputs, compile_tflite(tflite, lowered, self._target).cost


@final
class MeasuredArtefacts:
    """A TVM library or an ONNX file, loaded from disk and timed whole on its device."""

    def __init__(
        self,
        target: Target,
        worker: Retrying,
        fused: Callable[[Lowered], Lowered],
        plan: Callable[[OpSpec], str],
    ):
        self._target, self._worker = target, worker
        self._fused, self._plan = fused, plan

    def build(
        self, network: nn.Module, lowered: Lowered, int8: QuantisedNetwork | None
    ) -> Mapping[str, bytes]:
        """Return an ONNX file, and for TVM the library and its weights."""
        if self._target.dtype == "int8":
            assert int8 is not None
            return {".onnx": write_int8(int8)}
        fused = self._fused(lowered)
        weights = weights_of(network, fused)
        files = {".onnx": write_fp32(fused, weights)}
        if self._target.runtime == "tvm":
            plans = {node.op: self._plan(node.op) for node in fused}
            parts = self._worker.export(fused, plans, weights)
            files |= {suffix: parts[suffix] for suffix in (".so", ".safetensors")}
        return files

    def judge(
        self, files: Files, lowered: Lowered, batches: Iterable[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], Cost]:
        """Run the file over the images on its device, and time it."""
        left = iter(batches)
        judged = self._worker.judge(files, next(left))
        others = [self._worker.run(files, images) for images in left]
        fused, timing = self._fused(lowered), judged.timing
        cost = host_cost(fused, self._target, timing.figure, judged.energy)
        details = {**cost.details, "drifted": float(timing.drifted)}
        return np.concatenate([judged.outputs, *others]), Cost(cost.figures, details)


@final
class ModelledArtefacts:
    """An ONNX file, for hardware that does not exist: only its accuracy can be measured."""

    def __init__(self, target: Target, fused: Callable[[Lowered], Lowered]):
        self._target, self._fused = target, fused

    def build(
        self, network: nn.Module, lowered: Lowered, int8: QuantisedNetwork | None
    ) -> Mapping[str, bytes]:
        """Return an ONNX file: int8 for targets that compute in int8, else float32."""
        if self._target.dtype == "int8":
            assert int8 is not None
            return {".onnx": write_int8(int8)}
        return {".onnx": write_fp32(lowered, weights_of(network, lowered))}

    def judge(
        self, files: Files, lowered: Lowered, batches: Iterable[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], Cost]:
        """Run the file on this host; model its cost."""
        session: Session = OrtSession(files[".onnx"].read_bytes())
        assert self._target.roofline is not None
        cost = network_cost(self._fused(lowered), self._target, self._target.roofline)
        return _run(session, batches), cost


@final
class DerivedArtefacts:
    """Files as others make and judge them, with what is derived from their costs."""

    def __init__(self, artefacts: Artefacts, deriving: Deriving):
        self._artefacts, self._deriving = artefacts, deriving

    def build(
        self, network: nn.Module, lowered: Lowered, int8: QuantisedNetwork | None
    ) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return self._artefacts.build(network, lowered, int8)

    def judge(
        self, files: Files, lowered: Lowered, batches: Iterable[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], Cost]:
        """Return the outputs for all images and the cost, both from the files."""
        outputs, cost = self._artefacts.judge(files, lowered, batches)
        return outputs, replace(cost, figures=self._deriving(cost.figures))


def _run(session: Session, batches: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([session.run(images) for images in batches])
