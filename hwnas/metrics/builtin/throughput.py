"""The images a second that a target gets through, one batch after another."""

from hwnas.figure import Figure, Figures
from hwnas.metrics.base import Metric, over
from hwnas.target import Target

NAME = "throughput_ips"


def of_batch(latency_ms: Figure, batch: int) -> dict[str, Figure]:
    """Return the throughput of a network that says its batch; nothing where the target says it.

    Args:
        latency_ms: Of a batch.
        batch: Its images; 0: the target's, which ``METRIC`` knows.
    """
    return {NAME: _throughput(latency_ms, batch)} if batch else {}


def _throughput(latency_ms: Figure, batch: int) -> Figure:
    return over(1e3 * batch, latency_ms)


def _derived(figures: Figures, target: Target) -> Figure:
    return _throughput(figures["latency_ms"], target.batch)


METRIC = Metric(
    NAME,
    "throughput",
    "images/s",
    maximise=True,
    derive=_derived,
    needs=("latency_ms",),
)
