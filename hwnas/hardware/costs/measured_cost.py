"""Costs of networks on CPUs and GPUs, from measured or predicted latencies."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, final

from hwnas.core.quantity import Quantity
from hwnas.hardware import backends
from hwnas.hardware.costs.cost_model import Cost, cost_by_segment
from hwnas.hardware.memory import peak_activation_bytes, weight_bytes
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph, Node, OpSpec, fuse, n_macs, n_params
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import builtin

if TYPE_CHECKING:
    from hwnas.hardware.meters.meter import MeasuredEnergy
    from hwnas.hardware.runtimes.pool import RetryingPool
    from hwnas.hardware.timing import InterleavedTimings


def host_cost(
    graph: Graph, target: Target, latency: Quantity, measured: "MeasuredEnergy | None" = None
) -> Cost:
    """Return the cost of a fused network on a CPU or GPU.

    ``sram_kib`` is the peak size of activations and ``flash_kib`` the size of weights, both
    modelled from shapes.

    Args:
        graph: The fused network.
        target: The target, with ``power``.
        latency: Latency of a batch in ms.
        measured: Measured energy of a batch; ``None``: it is modelled as power times latency.

    Raises:
        ConfigError: the roofline of a target whose power is per device has no rate for the dtype.
    """
    assert target.power is not None
    load_ms = None
    if target.power.per_device and target.roofline is not None:
        from hwnas.hardware.costs.roofline_cost import full_load_ms

        load_ms = full_load_ms(graph, target.roofline)
    energy, details = target.power.energy(latency, graph.threads or target.threads, load_ms)
    if measured is not None:
        energy = measured.figure
        active_w = measured.active_w - measured.idle_w
        details = {"power_active_w": active_w, "power_idle_w": measured.idle_w}
    figures = {
        "latency_ms": latency,
        "energy_mj": energy,
        "sram_kib": Quantity(peak_activation_bytes(graph) / 1024, "modelled"),
        "flash_kib": Quantity(weight_bytes(graph) / 1024, "modelled"),
        "macs_m": Quantity(n_macs(graph) / 1e6, "modelled"),
        "params_m": Quantity(n_params(graph) / 1e6, "modelled"),
        **builtin.throughput_of_batch(latency, graph.batch),
    }
    return Cost(figures, details)


def dtype_of(graph: Graph, target: Target) -> str:
    """Return the dtype in which a target runs a network: the graph's own, else the target's."""
    return graph.dtype or target.dtype


def fused_graph(graph: Graph, target: Target) -> Graph:
    """Return a graph as a target executes it: with fused additions, dtype and batch size.

    Dtype, batch size and threads of the graph take precedence over the target's. Operators have a
    number of threads only if the graph has one. In int8, additions are fused only for backends with
    ``fuses_add``, and operators marked ``in_float`` stay in float32.
    """
    dtype, batch = dtype_of(graph, target), graph.batch or target.batch
    if dtype != "int8" or backends.get(target.runtime).fuses_add:
        fused = fuse(graph, dtype, batch)
    else:
        nodes = (  # int8 adds have their own scale: they are not fused
            replace(n, op=replace(n.op, dtype=_node_dtype(n), batch=batch)) for n in graph
        )
        fused = replace(graph, nodes=tuple(nodes))
    if not graph.threads:
        return fused
    on = (replace(n, op=replace(n.op, threads=graph.threads)) for n in fused)
    return replace(fused, nodes=tuple(on))


def _node_dtype(node: Node) -> str:
    return "float32" if node.in_float else "int8"


@final
class MeasuredCostModel:
    """A cost model that compiles and times every candidate on its device.

    ``lower`` returns the graph of a genotype, fused and in the target's dtype; ``plan`` returns the
    compilation plan of an operator.
    """

    max_cost_queries: int | None = 0  # it measures every network

    def __init__(
        self,
        worker: "RetryingPool",
        target: Target,
        lower: Callable[[Genotype], Graph],
        plan: Callable[[OpSpec], str],
    ):
        self._worker, self._target, self._lower, self._plan = worker, target, lower, plan

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype; the latency of each segment is measured.

        ``Cost.details`` has ``latency_drifted``: 1 if the speed of the device changed meanwhile.

        Raises:
            CompileError: the compiler cannot compile the network, crashes or hangs.
            DeviceError: no device answers.
        """
        return cost_by_segment(self._lower(genotype), self._time_graph)

    def _time_graph(self, graph: Graph) -> Cost:
        plans = {node.op: self._plan(node.op) for node in graph}
        timing = self._worker.time_network(graph, plans)
        cost = host_cost(graph, self._target, timing.figure)
        return Cost(cost.figures, {**cost.details, "latency_drifted": float(timing.drifted)})

    def interleaved(self, genotype: Genotype, other: Genotype) -> "InterleavedTimings":
        """Return the latencies of two genotypes, timed in turns.

        Raises:
            CompileError: the compiler cannot compile one of them, crashes or hangs, or the runtime
                needs compilation plans.
            DeviceError: no device answers.
        """
        return self._worker.interleaved_networks(self._lower(genotype), self._lower(other))
