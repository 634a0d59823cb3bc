"""The time of one image on the average, of networks that images leave early."""

from hwnas.metrics.base import Metric

METRIC = Metric("expected_latency_ms", "expected latency", "ms", mean_of="latency_ms")
