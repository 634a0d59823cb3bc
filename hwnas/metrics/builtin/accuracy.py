"""The fraction of images that a network gets right."""

from hwnas.metrics.base import Metric

METRIC = Metric("accuracy", "accuracy", maximise=True, perfect=1.0, worst=0.0)
