"""The multiply-accumulates of one image."""

from hwnas.metrics.base import Metric

METRIC = Metric("macs_m", "MACs", "millions")
