"""The memory that weights take."""

from hwnas.metrics.base import Metric

METRIC = Metric("flash_kib", "flash", "KiB")
