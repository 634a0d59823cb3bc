"""The mean absolute error of answers, in the unit of the targets."""

from hwnas.metrics.base import Metric

METRIC = Metric("mae", "mean absolute error", perfect=0.0)
