"""The backend of Arm Ethos-U NPUs: int8 TFLite files, compiled by Vela."""

from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np

from hwnas.hardware.backends.base import (
    Batches,
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
    """Backend of one target with an Arm Ethos-U NPU; see ``base.Backend``.

    Raises:
        ConfigError: the target's settings do not suit Vela, see ``compiler.check_target``.
    """

    def __init__(self, target: Target):
        check_target(target)
        self._target = target

    @property
    def cost_models(self) -> CostModels:
        """Functions that create the cost models ``vela`` and ``roofline``, by name."""
        return {"vela": _estimates, "roofline": roofline}

    def check(self, graph: Graph) -> None:
        """Check that a network can be written as int8 TFLite.

        Raises:
            CompileError: it cannot; the message names the operator.
        """
        tflite.check_writable(graph)

    def estimate(self, graph: Graph, cost: str | None = None) -> Cost:
        """Return Vela's estimate for a network with random weights, with the latency of each layer.

        Raises:
            CompileError: the network cannot be written as int8 TFLite, or Vela cannot compile it.
        """
        tflite.check_writable(graph)
        return layers_in_ms(estimate(graph, self._target), self._target)

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network, loaded here by LiteRT, whose results are close to the NPU's."""
        return LiteRTSession(tflite.write_tflite(network))

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> "VelaArtefacts":
        """Return the object that writes TFLite files and estimates their cost by Vela."""
        return VelaArtefacts(self._target)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return an empty string: LiteRT runs the files on this machine."""
        return ""

    def user_file(self) -> Path | None:
        """Return the user's own Vela configuration file; ``None`` for a shipped one."""
        path = Path(self._target.section(VelaSettings).config)
        return path if path.is_file() else None


_LIMIT_S = 600.0  #: time limit for a file from an unknown source; large networks take a minute


@final
class VelaArtefacts:
    """Int8 TFLite files, before and after compilation by Vela."""

    def __init__(self, target: Target):
        self._target = target

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the TFLite file, ``.tflite``, and the one that Vela compiled, ``_vela.tflite``.

        Raises:
            CompileError: Vela cannot compile the network.
        """
        assert network.int8 is not None
        tflite_file = tflite.write_tflite(network.int8)
        compiled = compile_tflite(tflite_file, network.graph, self._target)
        return {".tflite": tflite_file, "_vela.tflite": compiled.artefact}

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of ``build``: an export has them in addition."""
        return self.build(network)

    def evaluate(self, files: Files, graph: Graph, batches: Batches) -> tuple[Floats, Cost]:
        """Return the outputs ``(n_images, n_outputs)`` by LiteRT on this machine, and Vela's cost.

        Raises:
            CompileError: LiteRT cannot load the file, or Vela cannot compile it.
        """
        content = files[".tflite"].read_bytes()
        session = LiteRTSession(content)
        outputs = np.concatenate([session.run(images) for images in batches])
        return outputs, compile_tflite(content, graph, self._target).cost

    def remeasure(self, files: Files, graph: Graph, images: Floats) -> RemeasuredCost:
        """Compile ``.tflite`` again by Vela; return the estimated cost and the compiled file.

        Vela runs in another process for at most 600 s, as the source of the file is unknown.

        Raises:
            CompileError: Vela cannot compile the file, crashes, or exceeds the limit.
        """
        content = files[".tflite"].read_bytes()
        compiled = compile_tflite(content, graph, self._target, _LIMIT_S)
        return RemeasuredCost(compiled.cost, {"_vela.tflite": compiled.artefact})

    def interleaved(self, files: Files, other: Files) -> None:
        """Return ``None``: nothing is measured."""


def _estimates(context: CostContext) -> CostModel:
    return VelaCostModel(context.target, context.lower)
