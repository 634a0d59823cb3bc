"""The carbon dioxide that the energy of one inference, of a whole batch, emits where it is made."""

from hwnas.figure import Figure, Figures
from hwnas.metrics.base import Metric, times
from hwnas.target import Target

_MJ_PER_KWH = 3.6e9


def _carbon(figures: Figures, target: Target) -> Figure:
    return times(figures["energy_mj"], target.facts["grid_g_per_kwh"] / _MJ_PER_KWH)


METRIC = Metric(
    "co2_g",
    "CO2",
    "g",
    derive=_carbon,
    needs=("energy_mj",),
    facts={"grid_g_per_kwh": "grams of CO2 that its grid emits for a kilowatt-hour"},
)
