"""The built-in metrics."""

import math
from dataclasses import replace

from hwnas.core.quantity import Quantities, Quantity, from_log_widths
from hwnas.tasks.metrics.metric import Metric, TargetFacts, divide, scale

THROUGHPUT_NAME = "throughput_ips"
P99_FACT = "p99_over_p50"
_MJ_PER_KWH = 3.6e9
_INFERENCES = 1e6
_S_PER_H = 3600.0


def throughput_of_batch(latency_ms: Quantity, batch: int) -> dict[str, Quantity]:
    """Return ``{"throughput_ips": images per second}`` of a network with its own batch size.

    Args:
        latency_ms: Latency of a batch in milliseconds.
        batch: Images per batch. For 0, the batch of the target, the result is empty, as
            ``THROUGHPUT`` derives it.
    """
    return {THROUGHPUT_NAME: divide(1e3 * batch, latency_ms)} if batch else {}


def _throughput(figures: Quantities, target: TargetFacts) -> Quantity:
    return divide(1e3 * target.batch, figures["latency_ms"])


def _carbon(figures: Quantities, target: TargetFacts) -> Quantity:
    return scale(figures["energy_mj"], target.facts["grid_g_per_kwh"] / _MJ_PER_KWH)


def _tail(figures: Quantities, target: TargetFacts) -> Quantity:
    return replace(scale(figures["latency_ms"], target.facts[P99_FACT]), source="modelled")


def _power(figures: Quantities, target: TargetFacts) -> Quantity:
    """Return energy over latency.

    Where energy is modelled as power times latency, the error of the latency is in both and
    cancels. Otherwise the two errors are independent.
    """
    energy, latency = figures["energy_mj"], figures["latency_ms"]
    source = latency.source if energy.source == "measured" else energy.source
    (energy_below, energy_above), (below, above) = energy.log_widths, latency.log_widths
    if energy.source == "modelled" and target.power is not None:
        widths = _remaining_width(energy_below, below), _remaining_width(energy_above, above)
    else:
        widths = math.hypot(energy_below, above), math.hypot(energy_above, below)
    return from_log_widths(energy.value / latency.value, source, *widths)


def _remaining_width(total: float, part: float) -> float:
    """Return the half-width without an independent part of it: sqrt(total² - part²)."""
    return total if math.isinf(total) else math.sqrt(max(0.0, total**2 - part**2))


def _cost(figures: Quantities, target: TargetFacts) -> Quantity:
    price_usd_per_s = target.facts["price_usd_per_h"] / _S_PER_H
    return divide(_INFERENCES * price_usd_per_s, figures[THROUGHPUT_NAME])


# Quality metrics: the fraction of correct images, the means over classes of recall and F1 score,
# and the mean error in the unit of the targets.
ACCURACY = Metric("accuracy", "accuracy", maximise=True, perfect=1.0, worst=0.0)
BALANCED_ACCURACY = Metric(
    "balanced_accuracy", "balanced accuracy", maximise=True, perfect=1.0, worst=0.0
)
MACRO_F1 = Metric("macro_f1", "macro-F1", maximise=True, perfect=1.0, worst=0.0)
MAE = Metric("mae", "mean absolute error", perfect=0.0)

# Costs of one inference, that is, of a whole batch.
LATENCY = Metric("latency_ms", "latency", "ms")
ENERGY = Metric("energy_mj", "energy", "mJ")
SRAM = Metric("sram_kib", "SRAM", "KiB")  # peak memory of activations
FLASH = Metric("flash_kib", "flash", "KiB")  # memory of weights
MACS = Metric("macs_m", "MACs", "millions")  # of one image
PARAMS = Metric("params_m", "parameters", "millions")

# Means over images of networks with early exits.
EXPECTED_ENERGY = Metric("expected_energy_mj", "expected energy", "mJ", mean_of="energy_mj")
EXPECTED_LATENCY = Metric("expected_latency_ms", "expected latency", "ms", mean_of="latency_ms")

THROUGHPUT = Metric(
    THROUGHPUT_NAME, "throughput", "images/s", maximise=True, derive=_throughput,
    needs=("latency_ms",),
)  # fmt: skip

# Verified networks are measured. Before that the median latency is multiplied by a stated factor of
# the target (from ``profile``): the tail depends on the other load of a machine as much as on the
# network.
LATENCY_P99 = Metric(
    "latency_p99_ms", "p99 latency", "ms", derive=_tail, needs=("latency_ms",),
    facts={P99_FACT: "p99 latency divided by median latency"},
)  # fmt: skip

# Power above idle while computing.
POWER = Metric("power_w", "power", "W", derive=_power, needs=("energy_mj", "latency_ms"))

CO2 = Metric(
    "co2_g", "CO2", "g", derive=_carbon, needs=("energy_mj",),
    facts={"grid_g_per_kwh": "CO2 emissions of the grid in grams per kilowatt-hour"},
)  # fmt: skip

# Cost of a million images on a device that is paid by the hour.
COST = Metric(
    "cost_usd_per_m", "cost", "USD/million", derive=_cost, needs=(THROUGHPUT_NAME,),
    facts={"price_usd_per_h": "price of the device in US dollars per hour"},
)  # fmt: skip
