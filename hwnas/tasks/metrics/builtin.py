"""The images a second that a target gets through, one batch after another."""

from dataclasses import replace

from hwnas.core.quantity import Quantities, Quantity
from hwnas.tasks.metrics.metric import Metric, Target, over, times

NAME = "throughput_ips"


def of_batch(latency_ms: Quantity, batch: int) -> dict[str, Quantity]:
    """Return the throughput of a network that says its batch; nothing where the target says it.

    Args:
        latency_ms: Of a batch.
        batch: Its images; 0: the target's, which ``THROUGHPUT`` knows.
    """
    return {NAME: _throughput(latency_ms, batch)} if batch else {}


def _throughput(latency_ms: Quantity, batch: int) -> Quantity:
    return over(1e3 * batch, latency_ms)


def _derived(figures: Quantities, target: Target) -> Quantity:
    return _throughput(figures["latency_ms"], target.batch)


THROUGHPUT = Metric(
    NAME,
    "throughput",
    "images/s",
    maximise=True,
    derive=_derived,
    needs=("latency_ms",),
)


# The fraction of images that a network gets right.

ACCURACY = Metric("accuracy", "accuracy", maximise=True, perfect=1.0, worst=0.0)

# The carbon dioxide that the energy of one inference, of a whole batch, emits where it is made.

_MJ_PER_KWH = 3.6e9


def _carbon(figures: Quantities, target: Target) -> Quantity:
    return times(figures["energy_mj"], target.facts["grid_g_per_kwh"] / _MJ_PER_KWH)


CO2 = Metric(
    "co2_g",
    "CO2",
    "g",
    derive=_carbon,
    needs=("energy_mj",),
    facts={"grid_g_per_kwh": "grams of CO2 that its grid emits for a kilowatt-hour"},
)

# The energy of one inference, that is, of a whole batch.

ENERGY = Metric("energy_mj", "energy", "mJ")

# The energy of one image on the average, of networks that images leave early.

EXPECTED_ENERGY = Metric("expected_energy_mj", "expected energy", "mJ", mean_of="energy_mj")

# The time of one image on the average, of networks that images leave early.

EXPECTED_LATENCY = Metric("expected_latency_ms", "expected latency", "ms", mean_of="latency_ms")

# The memory that weights take.

FLASH = Metric("flash_kib", "flash", "KiB")

# The time of one inference, that is, of a whole batch.

LATENCY = Metric("latency_ms", "latency", "ms")

# The time within which 99 of 100 inferences end, of a whole batch each, one after another.
#
# What is verified on a device is measured there. Before that it is modelled: latency, a median,
# times
# how much longer the slowest hundredth takes on the target, which ``profile`` says. That is what
# else
# runs on a machine as much as the network, so that it is stated, and one number for all networks.

FACT = "p99_over_p50"


def _tail(figures: Quantities, target: Target) -> Quantity:
    return replace(times(figures["latency_ms"], target.facts[FACT]), source="modelled")


LATENCY_P99 = Metric(
    "latency_p99_ms",
    "p99 latency",
    "ms",
    derive=_tail,
    needs=("latency_ms",),
    facts={FACT: "how many times its median the latency of the slowest hundredth is"},
)

# The multiply-accumulates of one image.

MACS = Metric("macs_m", "MACs", "millions")

# The mean absolute error of answers, in the unit of the targets.

MAE = Metric("mae", "mean absolute error", perfect=0.0)

# The parameters of a network.

PARAMS = Metric("params_m", "parameters", "millions")

# The power that a target takes above idle while it computes: the energy over the latency.


def _power(figures: Quantities, target: Target) -> Quantity:
    """Return mJ over ms, with an interval that holds whatever the two have in common."""
    energy, latency = figures["energy_mj"], figures["latency_ms"]
    source = latency.source if energy.source == "measured" else energy.source
    low, high = (
        energy.lower / latency.upper,
        energy.upper / latency.lower if latency.lower else None,
    )
    known = energy.low is not None or latency.low is not None
    value = energy.value / latency.value
    return Quantity(value, source, low, high) if known else Quantity(value, source)


POWER = Metric("power_w", "power", "W", derive=_power, needs=("energy_mj", "latency_ms"))

# The memory that activations take at once.

SRAM = Metric("sram_kib", "SRAM", "KiB")

# What a million inferences cost, an image each, on a device that is paid by the hour.

_INFERENCES = 1e6
_S_PER_H = 3600.0


def _cost(figures: Quantities, target: Target) -> Quantity:
    price_usd_per_s = target.facts["price_usd_per_h"] / _S_PER_H
    return over(_INFERENCES * price_usd_per_s, figures[NAME])


COST = Metric(
    "cost_usd_per_m",
    "cost",
    "USD/million",
    derive=_cost,
    needs=(NAME,),
    facts={"price_usd_per_h": "US dollars that an hour of the device costs"},
)
