"""Metrics: what is said of a network, searched for, limited, listed and drawn.

Those of hwnas are the modules of ``hwnas.metrics.builtin``, a file each. A package may bring
others: its entry point in the group ``hwnas.metrics`` has the metric's name, and leads to a
``Metric``.
"""

from hwnas.metrics.base import Metric
from hwnas.metrics.quality import better, maximised, paid, perfect, qualities, quality, shown
from hwnas.metrics.registry import GIVEN, column, costs, is_known, known, means

__all__ = [
    "GIVEN",
    "Metric",
    "better",
    "column",
    "costs",
    "is_known",
    "known",
    "maximised",
    "means",
    "paid",
    "perfect",
    "qualities",
    "quality",
    "shown",
]
