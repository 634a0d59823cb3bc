"""Networks on hardware that does not exist: an ONNX file, of which only accuracy is measured."""

from pathlib import Path
from typing import final

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import CostModels, TimingBench, roofline
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.costs.measured_cost import dtype_of, fused_graph
from hwnas.hardware.costs.roofline_cost import network_cost
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.target import Remote, Target
from hwnas.models.graph import Graph
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.onnx import writer


@final
class ModelledBackend:
    """A roofline, and an ONNX file that runs on this host."""

    def __init__(self, target: Target):
        self._target = target

    @property
    def cost_models(self) -> CostModels:
        """The one that every target has which gives a roofline."""
        return {"roofline": roofline}

    def check(self, lowered: Graph) -> None:
        """Refuse a network that cannot be written in int8, where the target computes it so."""
        if dtype_of(lowered, self._target) == "int8":
            writer.check_int8(lowered)

    def estimate(self, lowered: Graph) -> Cost:
        """Return what the roofline says."""
        assert self._target.roofline is not None
        return network_cost(fused_graph(lowered, self._target), self._target, self._target.roofline)

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network as this machine runs its ONNX file."""
        return onnx_files.int8_session(network)

    def artefacts(
        self, bench: TimingBench | None, cost: str | None = None
    ) -> onnx_files.ModelledArtefacts:
        """Return what makes an ONNX file and judges it."""
        words = f"Target '{self._target.name}' does not exist: nothing can be measured on it."
        return onnx_files.ModelledArtefacts(self._target, self.estimate, words)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return that there is no device to be away from."""
        return ""

    def user_file(self) -> Path | None:
        """Return nothing: there is none."""
        return None
