"""The time of one inference, that is, of a whole batch."""

from hwnas.metrics.base import Metric

METRIC = Metric("latency_ms", "latency", "ms")
