"""Networks on a device out of reach: its figures are modelled, accuracy is found on this host."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.core.errors import TableError
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import CostContext, CostModels, TimingBench
from hwnas.hardware.backends.offline import COST, OfflineSettings
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.costs.measured_cost import fused_graph, host_cost
from hwnas.hardware.costs.roofline_cost import RooflineCostModel, network_cost
from hwnas.hardware.device_models import device_file
from hwnas.hardware.device_models.device_file import MeasuredDevice
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.suggested_commands import command
from hwnas.hardware.target import Remote, Target
from hwnas.models.graph import Graph
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.onnx import writer
from hwnas.models.spaces import Genotype


def setting(target: Target) -> str:
    """Return what else decides latencies of a target, in a word."""
    return f"{target.dtype}-{target.threads}t-b{target.batch}"


def settings(target: Target) -> OfflineSettings:
    """Return the section of a target, or what it is without one."""
    return target.offline or OfflineSettings()  # type: ignore[attr-defined]


def path(target: Target) -> Path:
    """Return the file of what was measured on a target."""
    return Path(settings(target).file or f"measured/{target.name}-{setting(target)}.json")


def load_device(target: Target) -> MeasuredDevice:
    """Return what was measured on a target.

    Raises:
        TableError: nothing was, or with another batch, dtype or number of threads.
    """
    if not path(target).exists():
        raise TableError(
            f"Nothing was measured on target '{target.name}' ({setting(target)}): no "
            f"{path(target)}. Make a kit with: {command('profile', target, 'kit=DIR')}   or say "
            "cost=roofline, which ranks networks by the data sheet alone."
        )
    found = device_file.load_device_file(path(target))
    if found.setting != setting(target):
        raise TableError(f"{path(target)} is of {found.setting}, not of {setting(target)}.")
    return found


@final
class OfflineBackend:
    """A device as a file of measurements or a roofline, and an ONNX file that runs on this host."""

    def __init__(self, target: Target):
        self._target = target

    @cached_property
    def _device(self) -> MeasuredDevice:
        return load_device(self._target)

    @property
    def cost_models(self) -> CostModels:
        """From measurements, the default; from the data sheet."""
        return {COST: self._measured, "roofline": self._roofline}

    def _measured(self, costed: CostContext) -> CostModel:
        if others := [space for space in costed.spaces if space not in self._device.spaces]:
            raise TableError(
                f"{path(self._target)} knows networks of {', '.join(self._device.spaces)}, none of "
                f"{', '.join(others)}. Make a kit with: {costed.command} kit=DIR   or say "
                "cost=roofline, which ranks networks by the data sheet alone."
            )
        _ = self._device.predictor  # better now than after the data are read
        return _Lowering(costed, self._by_measurements)

    def _roofline(self, costed: CostContext) -> CostModel:
        RooflineCostModel(self._target, costed.fused_graph)  # refuses a target without one
        return _Lowering(costed, self._by_sheet)

    def _by_measurements(self, lowered: Graph) -> Cost:
        latency = self._device.latency(lowered)
        return host_cost(fused_graph(lowered, self._target), self._target, latency)

    def _by_sheet(self, lowered: Graph) -> Cost:
        assert self._target.roofline is not None
        fused, known = fused_graph(lowered, self._target), settings(self._target)
        cost = network_cost(fused, self._target, self._target.roofline)
        ms = cost.figures["latency_ms"].value
        low, high = ms * known.slower_low, ms * known.slower_high
        latency = Quantity(math.sqrt(low * high), "modelled", low, high)
        return replace(cost, figures=host_cost(fused, self._target, latency).figures)

    def check(self, lowered: Graph) -> None:
        """Refuse a network that cannot be written in int8, where the target computes in it."""
        if self._target.dtype == "int8":
            writer.check_int8(lowered)

    def estimate(self, lowered: Graph) -> Cost:
        """Return what measurements say; where there are none, what the data sheet does."""
        if path(self._target).exists() or self._target.roofline is None:
            return self._by_measurements(lowered)
        return self._by_sheet(lowered)

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network as this machine runs its ONNX file."""
        return onnx_files.int8_session(network)

    def artefacts(
        self, bench: TimingBench | None, cost: str | None = None
    ) -> onnx_files.ModelledArtefacts:
        """Return what makes an ONNX file and judges it, by the cost model of the search."""
        words = f"Target '{self._target.name}' is out of reach: measure its networks by a kit."
        # What was measured may be of other spaces, where the search was by the data sheet.
        estimate = self._by_sheet if cost == "roofline" else self.estimate
        return onnx_files.ModelledArtefacts(self._target, estimate, words)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return nothing: files run here, if not as fast."""
        return ""

    def user_file(self) -> Path | None:
        """Return the file of measurements, if there is one."""
        return path(self._target) if path(self._target).exists() else None


@final
class _Lowering:
    """Costs of lowered networks as those of genotypes."""

    max_cost_queries: int | None = None

    def __init__(self, costed: CostContext, of: Callable[[Graph], Cost]):
        self._lower, self._of = costed.lower, of

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype."""
        return self._of(self._lower(genotype))
