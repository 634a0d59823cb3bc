"""The power that a target takes above idle while it computes: the energy over the latency."""

from hwnas.figure import Figure, Figures
from hwnas.metrics.base import Metric
from hwnas.target import Target


def _power(figures: Figures, target: Target) -> Figure:
    """Return mJ over ms, with an interval that holds whatever the two have in common."""
    energy, latency = figures["energy_mj"], figures["latency_ms"]
    source = latency.source if energy.source == "measured" else energy.source
    low, high = (
        energy.lower / latency.upper,
        energy.upper / latency.lower if latency.lower else None,
    )
    known = energy.low is not None or latency.low is not None
    value = energy.value / latency.value
    return Figure(value, source, low, high) if known else Figure(value, source)


METRIC = Metric("power_w", "power", "W", derive=_power, needs=("energy_mj", "latency_ms"))
