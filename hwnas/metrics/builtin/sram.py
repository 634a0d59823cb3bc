"""The memory that activations take at once."""

from hwnas.metrics.base import Metric

METRIC = Metric("sram_kib", "SRAM", "KiB")
