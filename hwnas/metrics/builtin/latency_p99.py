"""The time within which 99 of 100 inferences end, of a whole batch each, one after another.

What is verified on a device is measured there. Before that it is modelled: latency, a median, times
how much longer the slowest hundredth takes on the target, which ``profile`` says. That is what else
runs on a machine as much as the network, so that it is stated, and one number for all networks.
"""

from dataclasses import replace

from hwnas.figure import Figure, Figures
from hwnas.metrics.base import Metric, times
from hwnas.target import Target

FACT = "p99_over_p50"


def _tail(figures: Figures, target: Target) -> Figure:
    return replace(times(figures["latency_ms"], target.facts[FACT]), source="modelled")


METRIC = Metric(
    "latency_p99_ms",
    "p99 latency",
    "ms",
    derive=_tail,
    needs=("latency_ms",),
    facts={FACT: "how many times its median the latency of the slowest hundredth is"},
)
