"""What a million inferences cost, an image each, on a device that is paid by the hour."""

from hwnas.figure import Figure, Figures
from hwnas.metrics.base import Metric, over
from hwnas.metrics.builtin import throughput
from hwnas.target import Target

_INFERENCES = 1e6
_S_PER_H = 3600.0


def _cost(figures: Figures, target: Target) -> Figure:
    price_usd_per_s = target.facts["price_usd_per_h"] / _S_PER_H
    return over(_INFERENCES * price_usd_per_s, figures[throughput.NAME])


METRIC = Metric(
    "cost_usd_per_m",
    "cost",
    "USD/million",
    derive=_cost,
    needs=(throughput.NAME,),
    facts={"price_usd_per_h": "US dollars that an hour of the device costs"},
)
