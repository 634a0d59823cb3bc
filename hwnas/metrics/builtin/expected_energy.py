"""The energy of one image on the average, of networks that images leave early."""

from hwnas.metrics.base import Metric

METRIC = Metric("expected_energy_mj", "expected energy", "mJ", mean_of="energy_mj")
