"""Costs modelled from peak rates and bandwidths, for hardware that does not exist.

An operator takes the longest of its arithmetic, its on-chip and its off-chip traffic, plus its
start. Optimisations between operators (fusing, staging weights during computation) are not
modelled.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009, https://doi.org/10.1145/1498765.1498785.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, final

from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost, LayerCost, cost_by_segment
from hwnas.hardware.memory import (
    activation_bytes,
    parameter_bytes,
    peak_activation_bytes,
    read_shapes,
    weight_bytes,
)
from hwnas.hardware.target import Roofline, Target
from hwnas.models.graph import NATIVE_BITS, Graph, OpSpec, n_macs, n_macs_of_batch, n_params
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import builtin

Limit = Literal["compute", "memory", "launch"]

_PEAK_TOLERANCE = 0.01  # of rates, relative to multiply-accumulates a cycle times the clock


@dataclass(frozen=True)
class OperatorTime:
    """Times of one operator for its whole batch, in ms, and its limiting resource."""

    compute_ms: float  #: arithmetic: the longer of multiply-accumulates and elementwise operations
    on_chip_ms: float  #: traffic of on-chip memory
    off_chip_ms: float  #: traffic of off-chip memory
    launch_ms: float  #: start of the operator

    @property
    def memory_ms(self) -> float:
        """The longer of ``on_chip_ms`` and ``off_chip_ms``."""
        return max(self.on_chip_ms, self.off_chip_ms)

    @property
    def busy_ms(self) -> float:
        """The longer of ``compute_ms`` and ``memory_ms``."""
        return max(self.compute_ms, self.memory_ms)

    @property
    def latency_ms(self) -> float:
        """Latency of the operator, the sum of ``launch_ms`` and ``busy_ms``."""
        return self.launch_ms + self.busy_ms

    @property
    def limit(self) -> Limit:
        """The longest of ``compute_ms``, ``memory_ms`` and ``launch_ms``, as a word.

        It is ``compute``, ``memory`` or ``launch``.
        """
        if self.launch_ms >= self.busy_ms:
            return "launch"
        return "compute" if self.compute_ms >= self.memory_ms else "memory"


def operator_bound(
    op: OpSpec, roofline: Roofline, weights_off_chip: bool = True, bits: float = NATIVE_BITS
) -> OperatorTime:
    """Return the times of an operator by the roofline, for its whole batch.

    Args:
        op: The operator.
        roofline: Peak rates and memory sizes.
        weights_off_chip: True if weights are read from off-chip memory, False: from on-chip memory.
        bits: Mean number of bits of an int8 weight in memory.

    Raises:
        ConfigError: the roofline has no peak rate for the operator's dtype.
    """
    if op.dtype not in roofline.peak_gmacs:
        raise ConfigError(
            f"target.roofline.peak_gmacs has no rate of {op.dtype}, only of "
            f"{', '.join(sorted(roofline.peak_gmacs))}. Add the rate of {op.dtype}, in 10^9 "
            "multiply-accumulates per second."
        )
    giga_to_ms = 1e-6  # for counts divided by 10^9 per second
    macs_ms = _tiled_macs(op, roofline) / roofline.peak_gmacs[op.dtype] * giga_to_ms
    elements_ms = 0.0
    if roofline.element_gops is not None:
        elements_ms = _n_elements(op) / roofline.element_gops * giga_to_ms
    on_chip, off_chip = traffic_bytes(op, roofline, weights_off_chip, bits)
    return OperatorTime(
        compute_ms=max(macs_ms, elements_ms),
        on_chip_ms=on_chip / roofline.on_chip_gbps * giga_to_ms,
        off_chip_ms=off_chip / roofline.off_chip_gbps * giga_to_ms,
        launch_ms=roofline.launch_us * 1e-3,
    )


def traffic_bytes(
    op: OpSpec, roofline: Roofline, weights_off_chip: bool, bits: float = NATIVE_BITS
) -> tuple[int, int]:
    """Return the bytes that an operator moves for its whole batch: on-chip, and off-chip.

    If its activations together exceed ``on_chip_kib``, they are also moved off chip. The arguments
    are those of ``operator_bound``.
    """
    activations, weights = activation_bytes(op), parameter_bytes(op, bits)
    spilled = activations if activations > roofline.on_chip_kib * 1024 else 0
    if weights_off_chip:
        return activations, spilled + weights
    return activations + weights, spilled


def _tiled_macs(op: OpSpec, roofline: Roofline) -> float:
    """Return the multiply-accumulates, with partly used tiles counted as full."""
    tile_pixels, tile_out, tile_in = roofline.tile
    channels, height, width = op.out_shape
    pixels = height * width
    if op.base == "attention":
        depth = channels // op.groups
        scores = _up(pixels, tile_out) * _up(depth, tile_in)
        values = _up(depth, tile_out) * _up(pixels, tile_in)
        return op.batch * op.groups * _up(pixels, tile_pixels) * (scores + values)
    if not op.weight_shape:
        return 0
    n_windows = _up(op.batch * pixels, tile_pixels) * op.kernel**2
    c_in = op.weight_shape[1]
    if op.depthwise and c_in == 1:
        return n_windows * _up(channels, tile_out) / roofline.depthwise
    return n_windows * op.groups * _up(channels // op.groups, tile_out) * _up(c_in, tile_in)


def _n_elements(op: OpSpec) -> int:
    """Return the number of elements that are scaled, compared, summed or activated."""
    written = math.prod(op.out_shape)
    if op.base in ("conv2d", "linear"):
        n = written * (2 if "add" in op.fused else 1)
    elif op.base == "attention":
        n = written + op.groups * (op.out_shape[1] * op.out_shape[2]) ** 2  # softmax
    elif op.base == "max_pool2d":
        n = written * op.kernel**2
    else:  # each input has its own scale
        n = written + sum(map(math.prod, read_shapes(op)))
    return op.batch * n


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


@final
class RooflineCostModel:
    """Costs by the roofline of a target.

    Args:
        target: The target.
        lower: Returns the graph of a genotype, fused and in the target's dtype.

    Raises:
        ConfigError: the target has no roofline, or one of another clock or accelerator.
    """

    max_cost_queries: int | None = None

    def __init__(self, target: Target, lower: Callable[[Genotype], Graph]):
        if target.roofline is None:
            raise ConfigError(
                f"Target '{target.name}' has no target.roofline. Add it to the target's file: "
                "peak_gmacs, on_chip_gbps, off_chip_gbps, on_chip_kib and tile, as in "
                "conf/target/sketch.yaml."
            )
        self._target, self._roofline, self._lower = target, target.roofline, lower
        _check_peak(target, target.roofline)

    def cost(self, genotype: Genotype) -> Cost:
        """Return the modelled cost of one genotype, see ``network_cost``.

        Raises:
            ConfigError: see ``network_cost``.
        """
        return cost_by_segment(
            self._lower(genotype), lambda graph: network_cost(graph, self._target, self._roofline)
        )


def _check_peak(target: Target, roofline: Roofline) -> None:
    """Refuse a roofline of another clock or accelerator than the target's."""
    if target.clock_mhz is None or target.peak_macs_per_cycle is None:
        return
    peak = target.clock_mhz * target.peak_macs_per_cycle / 1e3
    if abs((rate := max(roofline.peak_gmacs.values())) / peak - 1) > _PEAK_TOLERANCE:
        raise ConfigError(
            f"Target '{target.name}': target.peak_macs_per_cycle={target.peak_macs_per_cycle:g} at "
            f"target.clock_mhz={target.clock_mhz:g} are {peak:g} billion multiply-accumulates a "
            f"second, but the largest target.roofline.peak_gmacs is {rate:g}. Correct one of them; "
            "bandwidths and tile of the roofline may change as well."
        )


def full_load_ms(graph: Graph, roofline: Roofline) -> float:
    """Return the latency of a fused network without the starts of its operators, in ms.

    Raises:
        ConfigError: the roofline has no rate for the dtype.
    """
    off_chip_weights = _weights_off_chip(graph, roofline)
    bounds = (operator_bound(n.op, roofline, off_chip_weights, n.packed_bits) for n in graph)
    return sum(bound.busy_ms for bound in bounds)


def _weights_off_chip(graph: Graph, roofline: Roofline) -> bool:
    n_bytes = peak_activation_bytes(graph) + weight_bytes(graph)
    return not roofline.weights_stay or n_bytes > roofline.on_chip_kib * 1024


def network_cost(graph: Graph, target: Target, roofline: Roofline) -> Cost:
    """Return the modelled cost of a fused network on a target, with the cost of each operator.

    ``Cost.details`` has the parts of the energy, and ``compute_bound_ms``, ``memory_bound_ms`` and
    ``launch_bound_ms``, the total latency of the operators with each ``OperatorTime.limit``.

    Raises:
        ConfigError: the target has neither energy nor power, or no rate for the dtype.
    """
    peak, weights = peak_activation_bytes(graph), weight_bytes(graph)
    off_chip_weights = _weights_off_chip(graph, roofline)
    bounds = [operator_bound(n.op, roofline, off_chip_weights, n.packed_bits) for n in graph]
    latency = Quantity(sum(bound.latency_ms for bound in bounds), "modelled")
    traffic = [traffic_bytes(n.op, roofline, off_chip_weights, n.packed_bits) for n in graph]
    on_chip, off_chip = (sum(column) for column in zip(*traffic, strict=True))
    energy, components = _energy(graph, target, latency, (on_chip, off_chip))
    details = {f"{limit}_bound_ms": 0.0 for limit in ("compute", "memory", "launch")}
    for bound in bounds:
        details[f"{bound.limit}_bound_ms"] += bound.latency_ms
    figures = {
        "latency_ms": latency,
        "energy_mj": energy,
        "sram_kib": Quantity(peak / 1024, "modelled"),
        "flash_kib": Quantity(weights / 1024, "modelled"),
        "macs_m": Quantity(n_macs(graph) / 1e6, "modelled"),
        "params_m": Quantity(n_params(graph) / 1e6, "modelled"),
        **builtin.throughput_of_batch(latency, graph.batch),
    }
    return Cost(figures, {**components, **details}, _layers(graph, bounds, target))


def _energy(
    graph: Graph, target: Target, latency: Quantity, traffic: tuple[int, int]
) -> tuple[Quantity, Mapping[str, float]]:
    if target.energy is not None and target.power is not None:
        raise ConfigError(
            f"Target '{target.name}' has both target.energy and target.power. Keep one: write "
            "energy: null or power: null into its file."
        )
    if target.energy is not None:
        return target.energy.energy(n_macs_of_batch(graph), *traffic)
    if target.power is not None:
        assert target.roofline is not None
        busy_ms = full_load_ms(graph, target.roofline)
        return target.power.energy(latency, target.threads, busy_ms)
    raise ConfigError(
        f"Target '{target.name}' has neither target.energy (picojoules per multiply-accumulate and "
        "per byte) nor target.power (watts while it computes); cost=roofline needs one of them: "
        "add it to the target's file."
    )


def _layers(graph: Graph, bounds: list[OperatorTime], target: Target) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(
            name=node.name,
            operator=str(node.op),
            placement="",
            cycles=bound.latency_ms * 1e3 * (target.clock_mhz or 0.0),
            macs=node.op.batch * node.op.n_macs,
            latency_ms=bound.latency_ms,
            bound=bound.limit,
        )
        for node, bound in zip(graph, bounds, strict=True)
    )
