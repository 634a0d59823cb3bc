"""The energy of one inference, that is, of a whole batch."""

from hwnas.metrics.base import Metric

METRIC = Metric("energy_mj", "energy", "mJ")
