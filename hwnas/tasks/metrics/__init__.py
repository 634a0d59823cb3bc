"""Metrics of networks: searched for, limited, listed and plotted.

The metrics of hwnas are in ``hwnas.tasks.metrics.builtin``. A package can add others: an entry
point of the group ``hwnas.metrics`` has the name of the metric and refers to a ``Metric``.
"""

from hwnas.tasks.metrics.metric import Metric
from hwnas.tasks.metrics.registry import (
    BASE_COSTS,
    all_metrics,
    cost_names,
    costs_in,
    expected_costs,
    format_interval,
    format_value,
    is_better,
    is_metric,
    maximise_flags,
    metric_of,
    perfect_value,
    quality_in,
    quality_names,
)

__all__ = [
    "BASE_COSTS",
    "Metric",
    "all_metrics",
    "cost_names",
    "costs_in",
    "expected_costs",
    "format_interval",
    "format_value",
    "is_better",
    "is_metric",
    "maximise_flags",
    "metric_of",
    "perfect_value",
    "quality_in",
    "quality_names",
]
