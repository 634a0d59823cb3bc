"""Figures of networks that run on a CPU or GPU, beside their latency."""

from dataclasses import replace

from hwnas import backends
from hwnas.cost.base import Cost
from hwnas.figure import Figure
from hwnas.graph import Graph, Node, fuse, n_macs, n_params
from hwnas.memory import peak_activation_bytes, weight_bytes
from hwnas.metering import Energy
from hwnas.metrics.builtin import throughput
from hwnas.target import Target


def host_cost(
    lowered: Graph, target: Target, latency: Figure, measured: Energy | None = None
) -> Cost:
    """Return the cost of a fused network from its latency, and its energy if that was measured.

    Latency and energy are those of one inference, that is, of a whole batch. ``sram_kib`` is what
    activations take at once, ``flash_kib`` what weights take: on these targets both are modelled,
    from shapes.
    """
    assert target.power is not None
    energy, details = target.power.energy(latency, lowered.threads or target.threads)
    if measured is not None:
        energy = measured.figure
        details = {"power_active_w": measured.active_w, "power_idle_w": measured.idle_w}
    figures = {
        "latency_ms": latency,
        "energy_mj": energy,
        "sram_kib": Figure(peak_activation_bytes(lowered) / 1024, "modelled"),
        "flash_kib": Figure(weight_bytes(lowered) / 1024, "modelled"),
        "macs_m": Figure(n_macs(lowered) / 1e6, "modelled"),
        "params_m": Figure(n_params(lowered) / 1e6, "modelled"),
        **throughput.of_batch(latency, lowered.batch),
    }
    return Cost(figures, details)


def dtype_of(lowered: Graph, target: Target) -> str:
    """Return in which dtype a target runs a network: in the network's own, if it has one."""
    return lowered.dtype or target.dtype


def as_run(lowered: Graph, target: Target) -> Graph:
    """Return a network's operators as a target runs them: fused, in dtype, batch size, threads."""
    dtype, batch = dtype_of(lowered, target), lowered.batch or target.batch
    if dtype != "int8" or backends.get(target.runtime).sums:
        found = fuse(lowered, dtype, batch)
    else:
        nodes = (  # sums have a scale of their own: they are not fused
            replace(n, op=replace(n.op, dtype=_of_node(n), batch=batch)) for n in lowered
        )
        found = replace(lowered, nodes=tuple(nodes))
    if not lowered.threads:
        return found
    on = (replace(n, op=replace(n.op, threads=lowered.threads)) for n in found)
    return replace(found, nodes=tuple(on))


def _of_node(node: Node) -> str:
    return "float32" if node.in_float else "int8"
