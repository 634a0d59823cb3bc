"""Metrics: what is said of a network, searched for, limited, listed and drawn.

Those of hwnas are the modules of ``hwnas.tasks.metrics.builtin``, a file each. A package may bring
others: its entry point in the group ``hwnas.metrics`` has the metric's name, and leads to a
``Metric``.
"""

from hwnas.tasks.metrics.metric import Metric
from hwnas.tasks.metrics.registry import (
    GIVEN,
    better,
    column,
    costs,
    is_known,
    known,
    maximised,
    means,
    paid,
    perfect,
    qualities,
    quality,
    shown,
)

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
