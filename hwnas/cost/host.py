"""Figures of networks that run on a CPU or GPU, beside their latency."""

from dataclasses import replace

from hwnas.cost.base import Cost
from hwnas.figure import Figure
from hwnas.graph import Graph, fuse, n_macs, n_params
from hwnas.memory import peak_activation_bytes, weight_bytes
from hwnas.metering import Energy
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
    energy, details = target.power.energy(latency, target.threads)
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
    }
    return Cost(figures, details)


def as_run(lowered: Graph, target: Target) -> Graph:
    """Return a network's operators as a target runs them: fused, in its dtype and batch size."""
    if target.dtype == "int8":  # sums have a scale of their own: they are not fused
        as_int8 = (replace(n, op=replace(n.op, dtype="int8", batch=target.batch)) for n in lowered)
        return replace(lowered, nodes=tuple(as_int8))
    return fuse(lowered, target.dtype, target.batch)
