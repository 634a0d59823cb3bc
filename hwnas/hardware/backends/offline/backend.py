"""The backend of devices that are not connected: costs from measurements or a data sheet."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.core.errors import TableError
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends.base import CostContext
from hwnas.hardware.backends.estimated_backend import EstimatedBackend
from hwnas.hardware.backends.offline import COST, OfflineSettings
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.costs.measured_cost import fused_graph, host_cost
from hwnas.hardware.costs.roofline_cost import RooflineCostModel, network_cost
from hwnas.hardware.device_models import device_file
from hwnas.hardware.device_models.device_file import MeasuredDevice
from hwnas.hardware.suggested_commands import suggested_command
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph
from hwnas.models.spaces import Genotype

_USE_ROOFLINE = "or set cost=roofline, which ranks networks by the data sheet alone."


def backend(target: Target) -> EstimatedBackend:
    """Return the backend of a target.

    By default it estimates from the device file; from the roofline if the file does not exist and
    the target has a roofline.
    """
    costs = _OfflineCosts(target)
    path = device_path(target)
    has_measurements = path.exists() or target.roofline is None
    return EstimatedBackend(
        target,
        {COST: costs.device_model, "roofline": costs.roofline_model},
        costs.from_measurements if has_measurements else costs.from_data_sheet,
        f"Target '{target.name}' is not connected: measure networks on it with a kit "
        f"(hwnas profile +target={target.name} kit=DIR).",
        # By the cost model of the search: a device file may be missing now, or be of other spaces.
        {COST: costs.from_measurements, "roofline": costs.from_data_sheet},
        path if path.exists() else None,
    )


def device_setting(target: Target) -> str:
    """Return dtype, threads and batch size of a target as in device files: ``int8-4t-b1``."""
    return f"{target.dtype}-{target.threads}t-b{target.batch}"


def device_path(target: Target) -> Path:
    """Return the path of a target's device file, which may not exist.

    It is ``target.offline.file``, or ``measured/TARGET-SETTING.json`` with ``device_setting``.
    """
    file = _settings(target).file
    return Path(file or f"measured/{target.name}-{device_setting(target)}.json")


def load_device(target: Target, command: str = "") -> MeasuredDevice:
    """Return the measured device of a target, read from ``device_path``.

    Args:
        target: The target.
        command: Command that makes a kit, without ``kit=DIR``, for messages; default: that of
            ``suggested_command``.

    Raises:
        TableError: the device file is missing or damaged, has a newer format, or was measured with
            another batch size, dtype or number of threads.
    """
    path, setting = device_path(target), device_setting(target)
    if not path.exists():
        raise TableError(
            f"Target '{target.name}' ({setting}) has no measurements: {path} is missing. Make a "
            f"kit with: {command or suggested_command('profile', target)} kit=DIR   "
            f"{_USE_ROOFLINE}"
        )
    device = device_file.load_device_file(path)
    if device.setting != setting:
        raise TableError(
            f"{path} was measured with {device.setting} (dtype, threads, batch), but the target is "
            f"set to {setting}. Set target.dtype, target.threads and target.batch to the values of "
            "the file, or measure again with a kit."
        )
    return device


def _settings(target: Target) -> OfflineSettings:
    return target.offline or OfflineSettings()  # type: ignore[attr-defined]


@final
class _OfflineCosts:
    """Costs of networks, not fused, on one target."""

    def __init__(self, target: Target):
        self._target = target

    @cached_property
    def _device(self) -> MeasuredDevice:
        return load_device(self._target)

    def device_model(self, context: CostContext) -> CostModel:
        """Return the cost model that is fitted to measurements."""
        known = load_device(self._target, context.command).spaces
        if others := [space for space in context.spaces if space not in known]:
            raise TableError(
                f"{device_path(self._target)} has networks of {', '.join(known)}, none of "
                f"{', '.join(others)}. Make a kit with: {context.command} kit=DIR   {_USE_ROOFLINE}"
            )
        _ = self._device.predictor  # errors are raised before the data set is loaded
        return _GraphCostModel(context.lower, self.from_measurements)

    def roofline_model(self, context: CostContext) -> CostModel:
        """Return the cost model of the data sheet."""
        RooflineCostModel(self._target, context.fused_graph)  # refuses a target without a roofline
        return _GraphCostModel(context.lower, self.from_data_sheet)

    def from_measurements(self, graph: Graph) -> Cost:
        """Return the cost that the device model predicts."""
        latency = self._device.latency(graph)
        return host_cost(fused_graph(graph, self._target), self._target, latency)

    def from_data_sheet(self, graph: Graph) -> Cost:
        """Return the cost by the roofline; the interval is ``slower_low`` to ``slower_high``."""
        assert self._target.roofline is not None
        fused, settings = fused_graph(graph, self._target), _settings(self._target)
        cost = network_cost(fused, self._target, self._target.roofline)
        ms = cost.figures["latency_ms"].value
        low, high = ms * settings.slower_low, ms * settings.slower_high
        latency = Quantity(math.sqrt(low * high), "modelled", low, high)
        host, factor = host_cost(fused, self._target, latency), latency.value / ms
        layers = tuple(
            replace(layer, latency_ms=layer.latency_ms and factor * layer.latency_ms)
            for layer in cost.layers
        )
        scaled = {
            name: factor * value if name.endswith("_bound_ms") else value
            for name, value in cost.details.items()
        }
        details = {**scaled, **host.details}
        return replace(cost, figures=host.figures, details=details, layers=layers)


@final
@dataclass
class _GraphCostModel:
    """The cost of a genotype from that of its graph."""

    lower: Callable[[Genotype], Graph]
    graph_cost: Callable[[Graph], Cost]
    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype."""
        return self.graph_cost(self.lower(genotype))
