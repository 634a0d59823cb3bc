"""Vela as a backend: int8 TFLite, and what Vela makes of it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

import numpy as np

from hwnas.hardware.backends.base import (
    CostContext,
    CostModels,
    Files,
    Floats,
    RemeasuredCost,
    TimingBench,
    TrainedNetwork,
    roofline,
)
from hwnas.hardware.backends.vela import VelaSettings
from hwnas.hardware.backends.vela.compiler import (
    VelaCostModel,
    check_target,
    compile_tflite,
    estimate,
    layers_in_ms,
)
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.target import Remote, Target
from hwnas.models.graph import Graph
from hwnas.models.int8 import tflite
from hwnas.models.int8.quantised_network import QuantisedNetwork


@final
class VelaBackend:
    """Networks for an Arm Ethos-U NPU.

    Raises:
        ConfigError: Vela does not know the target's settings, or its facts are not those of them.
    """

    def __init__(self, target: Target):
        check_target(target)
        self._target = target

    @property
    def cost_models(self) -> CostModels:
        """Vela's estimate, and the model of all targets."""
        return {"vela": _estimates, "roofline": roofline}

    def check(self, lowered: Graph) -> None:
        """Refuse a network that cannot be written as int8 TFLite."""
        tflite.check_writable(lowered)

    def estimate(self, lowered: Graph) -> Cost:
        """Return what Vela says of a network with stand-in weights."""
        tflite.check_writable(lowered)
        return layers_in_ms(estimate(lowered, self._target), self._target)

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return a network in LiteRT, whose kernels Ethos-U follows bit by bit."""
        return LiteRTSession(tflite.write_tflite(network))

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> "VelaArtefacts":
        """Return what makes TFLite files and judges them."""
        return VelaArtefacts(self._target)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return nothing: LiteRT runs on this host."""
        return ""

    def user_file(self) -> Path | None:
        """Return a configuration of the user's own; Vela's come with its version."""
        path = Path(self._target.section(VelaSettings).config)
        return path if path.is_file() else None


_LIMIT_S = 600.0  #: of a file that may be anybody's; large networks take a minute


@final
class VelaArtefacts:
    """Int8 TFLite, and what Vela makes of it."""

    def __init__(self, target: Target):
        self._target = target

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the TFLite file before and after Vela."""
        assert network.int8 is not None
        before = tflite.write_tflite(network.int8)
        compiled = compile_tflite(before, network.lowered, self._target)
        return {".tflite": before, "_vela.tflite": compiled.artefact}

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the same: what is verified is delivered."""
        return self.build(network)

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[Floats]
    ) -> tuple[Floats, Cost]:
        """Run the TFLite file on this host; have Vela estimate it."""
        content = files[".tflite"].read_bytes()
        session = LiteRTSession(content)
        outputs = np.concatenate([session.run(images) for images in batches])
        return outputs, compile_tflite(content, lowered, self._target).cost

    def remeasure(self, files: Files, lowered: Graph, images: Floats) -> RemeasuredCost:
        """Have Vela compile the TFLite file again, in a process of its own: it may be anybody's."""
        content = files[".tflite"].read_bytes()
        compiled = compile_tflite(content, lowered, self._target, _LIMIT_S)
        return RemeasuredCost(compiled.cost, {"_vela.tflite": compiled.artefact})

    def interleaved(self, files: Files, other: Files) -> None:
        """Return nothing: nothing is measured."""


def _estimates(costed: CostContext) -> CostModel:
    return VelaCostModel(costed.target, costed.lower)
