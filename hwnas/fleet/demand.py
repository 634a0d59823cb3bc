"""Demand: requests per hour and their burstiness, from rates, CSV files and traces."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.fleet import calendar
from hwnas.fleet.fleet_file import Fleet
from hwnas.fleet.models import csv_rows, resolve_path
from hwnas.fleet.service_file import MOST_HOURS, RequestClass, Service

Array = NDArray[np.float64]

#: Minimum arrivals of a trace: fewer do not determine the 99th percentile.
MIN_ARRIVALS = 500
_ARRIVAL = ("timestamp", "time", "arrival", "arrived_at")


@dataclass(frozen=True)
class ArrivalRates:
    """Rates ``(classes, hours)`` in requests/s behind the cache, and traces by class."""

    rates: Array  #: expected
    provisioned_rates: Array  #: with spikes: the rates that a plan must serve
    traces: dict[str, Array]  #: gaps between arrivals, of mean 1, by file path
    trace_of: tuple[str, ...]  #: trace file of each class; empty: Poisson arrivals
    begin_min: int | None = None  #: minutes from 0:00 UTC to hour 0; ``None``: not given, 0

    @property
    def n_hours(self) -> int:
        """Number of hours."""
        return len(self.rates[0])


def read_load(service: Service, folder: Path, begin_s: float | None = None) -> ArrivalRates:
    """Return the demand of all classes.

    Raises:
        ConfigError: a file cannot be read, is empty, or has a different number of hours.
    """
    hourly = {name: _class_rates(name, c, folder, begin_s) for name, c in service.classes.items()}
    constant = all(c.demand.rate is not None for c in service.classes.values())
    n = calendar.DAY if constant else max(len(rates) for rates in hourly.values())
    for name, rates in hourly.items():
        if len(rates) not in (1, n):
            raise ConfigError(f"class '{name}' has rates for {len(rates)} hours, others for {n}.")
    rates = np.array([np.resize(r, n) for r in hourly.values()])
    behind = rates * np.array([[1 - c.cache_hit] for c in service.classes.values()])
    spikes = np.array([[c.demand.spike] for c in service.classes.values()])
    if not behind.any():
        raise ConfigError("The demand of all classes is 0 in every hour: there is nothing to plan.")
    text = tuple(c.demand.trace or "" for c in service.classes.values())
    traces = {name: read_gaps(resolve_path(name, folder)) for name in text if name}
    return ArrivalRates(behind, behind * spikes, traces, text, calendar.begin_minutes(begin_s, n))


def _class_rates(
    name: str, request_class: RequestClass, folder: Path, begin_s: float | None
) -> Array:
    demand = request_class.demand
    if demand.rate is not None:
        return np.array([demand.rate])  # repeated for the hours of the other classes
    if demand.hours is not None:
        return np.array(demand.hours)
    assert demand.csv is not None
    path = resolve_path(demand.csv, folder)
    result, column = csv_rows(path, f"demand of class '{name}'"), demand.column or name
    if column not in result[0]:
        raise ConfigError(f"{path}: {unknown_name('column', column, result[0])}")
    if len(result) > MOST_HOURS:
        raise ConfigError(
            f"{path} has {len(result)} rows; allowed: one per hour, at most {MOST_HOURS}."
        )
    calendar.check_rows(result, path, begin_s, len(result), column)
    return np.array([_parse_rate(row[column], path, i) for i, row in enumerate(result)])


def _parse_rate(text: str, path: Path, row: int, most: float = 1e7) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 0 <= value <= most:
        raise ConfigError(f"{path}, row {row}: '{text[:40]}' is not a number from 0 to {most:g}.")
    return value


def read_gaps(path: Path) -> Array:
    """Return the gaps between the arrivals of a trace, scaled to a mean of 1.

    The file has one row per request and a column ``TIMESTAMP`` (or ``time``) of dates or seconds.

    Raises:
        ConfigError: the file cannot be read, has too few arrivals, or they are not in order.
    """
    result = csv_rows(path)
    column = next((name for name in result[0] if name.lower() in _ARRIVAL), None)
    if column is None:
        raise ConfigError(
            f"{path}: no column of arrival times ({', '.join(_ARRIVAL)}); columns: "
            f"{', '.join(result[0])}."
        )
    if len(result) < MIN_ARRIVALS:
        raise ConfigError(
            f"{path} has {len(result)} arrivals; at least {MIN_ARRIVALS} are needed. "
            "Omit trace for Poisson arrivals."
        )
    messages = [row[column] for row in result]
    times = np.array(
        [calendar.parse_time(one, f"{path}, row {i}") for i, one in enumerate(messages)]
    )
    gaps = np.diff(times)
    if (gaps < 0).any() or not gaps.sum() > 0:
        raise ConfigError(f"{path}: arrivals are not in chronological order.")
    scaled: Array = gaps / gaps.mean()
    return scaled


def read_carbon(
    fleet: Fleet, n_hours: int, folder: Path, begin_s: float | None = None
) -> tuple[dict[str, Array], list[str]]:
    """Return kg of CO2 per kWh by region and hour (0 if not given), and messages on ignored hours.

    Raises:
        ConfigError: a file cannot be read, or has a number of hours that does not fit.
    """
    result, left_out = {}, []
    for region in sorted(fleet.regions):
        text = fleet.carbon.get(region, 0.0)
        if isinstance(text, str):
            path = resolve_path(text, folder)
            rows = csv_rows(path, f"carbon.{region}")
            calendar.check_rows(rows, path, begin_s, n_hours)
            text = [
                _parse_rate(row.get("kg_per_kwh", ""), path, i, 10) for i, row in enumerate(rows)
            ]
        values = np.atleast_1d(np.array(text, np.float64))
        if len(values) > 1 and n_hours % len(values) and len(values) % n_hours:
            raise ConfigError(
                f"carbon.{region} has {len(values)} hours, the demand {n_hours}: "
                "one must be a multiple of the other."
            )
        if len(values) > n_hours:
            left_out.append(
                f"carbon.{region} has {len(values)} hours; the plan uses the first {n_hours}."
            )
        result[region] = np.resize(values, n_hours)
    return result, left_out


# Arrival processes: Poisson, or a trace.


@dataclass(frozen=True)
class Arrivals:
    """An arrival process that can be scaled to any rate.

    A trace is sped up or slowed down to the requested rate; bursts keep their number of requests.
    Each seed starts at another place in the trace, which repeats.
    """

    gaps: Array | None = None  #: gaps of the trace, of mean 1; ``None``: Poisson

    @property
    def period(self) -> int:
        """Number of requests after which a trace repeats; 0 without a trace."""
        return 0 if self.gaps is None else self.gaps.size

    def at(self, rate: float, count: int, rng: np.random.Generator) -> Array:
        """Return the times in seconds of ``count`` requests at a rate."""
        if self.gaps is None:
            steps = rng.exponential(1.0, count)
        else:
            begin = int(rng.integers(self.gaps.size))
            steps = self.gaps[(begin + np.arange(count)) % self.gaps.size]
        times: Array = np.cumsum(steps) / rate
        return times

    def within(self, rate: float, seconds: float, rng: np.random.Generator) -> Array:
        """Return the times of requests within ``seconds``."""
        if rate <= 0:
            return np.zeros(0)
        parts, end = [], 0.0
        while end < seconds:
            more = self.at(rate, int(rate * (seconds - end) * 1.05) + 50, rng) + end
            parts.append(more)
            end = float(more[-1])
        times = np.concatenate(parts)
        result: Array = times[times < seconds]
        return result
