"""The parameters of a network."""

from hwnas.metrics.base import Metric

METRIC = Metric("params_m", "parameters", "millions")
