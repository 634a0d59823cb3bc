"""The images a second that a target gets through, one batch after another."""

from hwnas.figure import Figure, Figures
from hwnas.metrics.base import Metric, over
from hwnas.target import Target


def _throughput(figures: Figures, target: Target) -> Figure:
    return over(1e3 * target.batch, figures["latency_ms"])


METRIC = Metric(
    "throughput_ips",
    "throughput",
    "images/s",
    maximise=True,
    derive=_throughput,
    needs=("latency_ms",),
)
