"""Networks on hardware that does not exist: an ONNX file, of which only accuracy is measured."""

from pathlib import Path
from typing import final

from hwnas.backends import portable
from hwnas.backends.base import Bench, CostModels, roofline
from hwnas.cost.base import Cost
from hwnas.cost.host import as_run, dtype_of
from hwnas.cost.roofline import network_cost
from hwnas.graph import Graph
from hwnas.int8.network import QuantisedNetwork
from hwnas.runtimes import onnx_writer
from hwnas.runtimes.base import Session
from hwnas.target import Remote, Target


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
            onnx_writer.check_int8(lowered)

    def estimate(self, lowered: Graph) -> Cost:
        """Return what the roofline says."""
        assert self._target.roofline is not None
        return network_cost(as_run(lowered, self._target), self._target, self._target.roofline)

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network as this machine runs its ONNX file."""
        return portable.int8_session(network)

    def artefacts(self, bench: Bench | None, cost: str | None = None) -> portable.ModelledArtefacts:
        """Return what makes an ONNX file and judges it."""
        words = f"Target '{self._target.name}' does not exist: nothing can be measured on it."
        return portable.ModelledArtefacts(self._target, self.estimate, words)

    def elsewhere(self, artefact: str, remote: Remote) -> str:
        """Return that there is no device to be away from."""
        return ""

    def user_file(self) -> Path | None:
        """Return nothing: there is none."""
        return None
