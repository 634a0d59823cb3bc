"""Shared code of backends without a device: costs are estimated, outputs are computed here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import (
    Batches,
    CostModels,
    Files,
    Floats,
    RemeasuredCost,
    TimingBench,
    TrainedNetwork,
)
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.costs.measured_cost import dtype_of
from hwnas.hardware.target import Remote, Target
from hwnas.models.graph import Graph


@final
@dataclass(frozen=True)
class EstimatedBackend:
    """A backend whose costs are estimated, and whose ONNX files run on this host."""

    target: Target
    cost_models: CostModels  #: functions that create the cost models, by name
    default_estimate: Callable[[Graph], Cost]  #: for a network that is not fused
    not_measurable: str  #: message of the error that ``remeasure`` raises
    #: Functions used instead of ``default_estimate``, by the name of the search's cost model.
    by_cost_model: Mapping[str, Callable[[Graph], Cost]] = field(default_factory=dict)
    measurements: Path | None = None  #: file that the estimates are based on

    int8_session = staticmethod(onnx_files.int8_session)

    def check(self, graph: Graph) -> None:
        """Check that a network can be written in int8, if the target computes it in int8.

        Raises:
            CompileError: it cannot; the message names the operator.
        """
        onnx_files.check_int8(graph, self.target)

    def estimate(self, graph: Graph, cost: str | None = None) -> Cost:
        """Return the cost of a network by the cost model ``cost``; see ``Backend.estimate``."""
        return self.by_cost_model.get(cost or "", self.default_estimate)(graph)

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> "EstimatedArtefacts":
        """Return the object that writes ONNX files and estimates their costs.

        The cost model ``cost`` estimates, by default ``default_estimate``; ``bench`` is not used.
        """
        estimate = partial(self.estimate, cost=cost)
        return EstimatedArtefacts(self.target, estimate, self.not_measurable)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return an empty string: ONNX files run on this host."""
        return ""

    def user_file(self) -> Path | None:
        """Return the file that the estimates are based on; ``None`` if there is none."""
        return self.measurements


@final
@dataclass(frozen=True)
class EstimatedArtefacts:
    """Writes ONNX files for a device that is not connected; they run here, costs are estimated."""

    target: Target
    estimate: Callable[[Graph], Cost]  #: estimate of a network that is not fused
    not_measurable: str  #: message of the error that ``remeasure`` raises

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return ``{".onnx": content}``: an int8 file if the target computes in int8, else float32.

        float16 and bfloat16 targets get a float32 file.
        """
        dtype = dtype_of(network.graph, self.target)
        return {".onnx": onnx_files.write_onnx(network, network.graph, dtype)}

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return an empty dict: every export contains the ONNX files."""
        return {}

    def evaluate(self, files: Files, graph: Graph, batches: Batches) -> tuple[Floats, Cost]:
        """Return the outputs ``(n_images, n_outputs)`` on this host, and the estimated cost."""
        session = onnx_files.session(files[".onnx"].read_bytes())
        outputs = np.concatenate([session.run(images) for images in batches])
        return outputs, self.estimate(graph)

    def remeasure(self, files: Files, graph: Graph, images: Floats) -> RemeasuredCost:
        """Raise ``ConfigError``: there is no device to measure on."""
        raise ConfigError(self.not_measurable)

    def interleaved(self, files: Files, other: Files) -> None:
        """Return ``None``: nothing is measured."""
