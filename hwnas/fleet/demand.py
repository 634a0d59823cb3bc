"""Demand: requests per hour and their burstiness, from rates, CSV files and traces."""

import contextlib
from collections.abc import Mapping, Sequence
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

#: Minimum number of requests of a trace: fewer do not determine the 99th percentile.
MIN_ARRIVALS = 500
_ARRIVAL = ("timestamp", "time", "arrival", "arrived_at")


@dataclass(frozen=True)
class ArrivalRates:
    """Demand of all classes: requests/s that the cache does not answer, and arrival traces."""

    rates: Array  #: expected requests/s ``(classes, hours)``
    #: requests/s that a plan must serve ``(classes, hours)``: ``rates`` times ``demand.spike``
    provisioned_rates: Array
    traces: dict[str, Array]  #: times between requests, divided by their mean, by file path
    trace_of: tuple[str, ...]  #: trace file of each class; empty: Poisson arrivals
    begin_min: int | None = None  #: minutes from 0:00 UTC to hour 0; ``None``: not given, 0

    @property
    def n_hours(self) -> int:
        """Number of hours of the demand, and so of the plan."""
        return len(self.rates[0])


def read_load(service: Service, folder: Path, begin_s: float | None = None) -> ArrivalRates:
    """Return the demand of all classes by hour.

    Args:
        service: The service.
        folder: Folder of ``service.yaml``, for relative paths.
        begin_s: Time of hour 0 in seconds since 1970; ``None``: 0:00 UTC.

    Raises:
        ConfigError: a file is missing, invalid or empty, classes have different numbers of hours,
            the demand is 0 in every hour, or ``begin_s`` is not a whole minute.
    """
    hourly = {name: _class_rates(name, c, folder, begin_s) for name, c in service.classes.items()}
    constant = all(c.demand.rate is not None for c in service.classes.values())
    n = calendar.DAY if constant else max(len(rates) for rates in hourly.values())
    for name, rates in hourly.items():
        if len(rates) not in (1, n):
            raise ConfigError(
                f"Service file: the demand of class '{name}' has {len(rates)} hours, that of "
                f"another class {n}: give all classes the same number of hours, or a constant rate."
            )
    rates = np.array([np.resize(r, n) for r in hourly.values()])
    uncached = rates * np.array([[1 - c.cache_hit] for c in service.classes.values()])
    spikes = np.array([[c.demand.spike] for c in service.classes.values()])
    if not uncached.any():
        raise ConfigError(
            "Service file: the demand of all classes is 0 in every hour: set demand.rate, "
            "demand.hours or demand.csv of a class."
        )
    text = tuple(c.demand.trace or "" for c in service.classes.values())
    traces = {name: read_gaps(resolve_path(name, folder)) for name in text if name}
    return ArrivalRates(
        uncached, uncached * spikes, traces, text, calendar.begin_minutes(begin_s, n)
    )


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
    if len(result) > MOST_HOURS:
        raise ConfigError(
            f"{path} has {len(result)} rows; give one row per hour, at most {MOST_HOURS} (a week)."
        )
    calendar.check_rows(result, path, begin_s, len(result), column)
    advice = "Set demand.column of the class to one of them."
    return _parse_column(result, column, path, 1e7, advice)


def _parse_column(
    rows: Sequence[Mapping[str, str]], column: str, path: Path, upper: float, advice: str
) -> Array:
    """Return the numbers of a column; ``advice`` is that of the message if it is missing."""
    if column not in rows[0]:
        names = unknown_name("column", column, rows[0])
        raise ConfigError(f"{path}: {names} {advice}")
    result = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        with contextlib.suppress(ValueError):
            result[i] = float(row[column])
        if not 0 <= result[i] <= upper:
            raise ConfigError(
                f"{path}, row {i}: {column} '{row[column][:40]}' is not allowed: give a number "
                f"from 0 to {upper:g}."
            )
    return result


def read_gaps(path: Path) -> Array:
    """Return the times between the requests of a trace, divided by their mean ``(requests - 1,)``.

    The CSV file has a row per request and a column ``TIMESTAMP`` (or ``time``, ``arrival``,
    ``arrived_at``) of dates or seconds. Requests with equal times of whole seconds are spread at
    random over that second, as their order within it is unknown.

    Raises:
        ConfigError: the file cannot be read, has no such column or fewer than 500 requests, is not
            in chronological order, or all times are equal.
    """
    result = csv_rows(path)
    column = next((name for name in result[0] if name.lower() in _ARRIVAL), None)
    if column is None:
        raise ConfigError(
            f"{path} has no column of arrival times: name one of its columns "
            f"({', '.join(result[0])}) {' or '.join(_ARRIVAL)}."
        )
    if len(result) < MIN_ARRIVALS:
        raise ConfigError(
            f"{path} has {len(result)} requests; a trace needs at least {MIN_ARRIVALS}. Give a "
            "longer trace, or omit trace for Poisson arrivals."
        )
    texts = [row[column] for row in result]
    times = np.array(
        [calendar.parse_time(text, f"{path}, row {i}") for i, text in enumerate(texts)]
    )
    gaps = np.diff(times)
    if (gaps < 0).any():
        raise ConfigError(f"{path}: the times of column {column} must ascend: sort the rows.")
    if not gaps.sum() > 0:
        raise ConfigError(
            f"{path}: all times of column {column} are equal: give a trace with different times."
        )
    if (gaps == 0).any() and (times % 1 == 0).all():
        times += np.random.default_rng(0).uniform(0.0, 1.0, times.size)
        gaps = np.diff(np.sort(times))
    scaled: Array = gaps / gaps.mean()
    return scaled


def read_carbon(
    fleet: Fleet, n_hours: int, folder: Path, begin_s: float | None = None
) -> tuple[dict[str, Array], list[str]]:
    """Return the carbon intensities by region, and messages on hours that are not used.

    Intensities are kg of CO2 per kWh for each hour of the plan ``(n_hours,)``; 0 if not given.
    Fewer hours are repeated.

    Raises:
        ConfigError: a file cannot be read or has wrong values or times, or the number of hours is
            neither a multiple nor a divisor of ``n_hours``.
    """
    result, left_out = {}, []
    for region in sorted(fleet.regions):
        carbon = fleet.carbon.get(region, 0.0)
        if isinstance(carbon, str):
            path = resolve_path(carbon, folder)
            rows = csv_rows(path, f"carbon.{region}")
            calendar.check_rows(rows, path, begin_s, n_hours)
            advice = "Give it the name kg_per_kwh, and its values in kg of CO2 per kWh."
            values = _parse_column(rows, "kg_per_kwh", path, 10, advice)
        else:
            values = np.atleast_1d(np.array(carbon, np.float64))
        if len(values) > 1 and n_hours % len(values) and len(values) % n_hours:
            raise ConfigError(
                f"Fleet file: carbon.{region} has {len(values)} hours, the demand {n_hours}: "
                "one must be a multiple of the other; give a constant, or a value per hour."
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
    Each seed starts at another request of the trace, which repeats.
    """

    gaps: Array | None = None  #: times between requests, divided by their mean; ``None``: Poisson

    @property
    def period(self) -> int:
        """Number of requests after which a trace repeats; 0 without a trace."""
        return 0 if self.gaps is None else self.gaps.size

    def at(self, rate: float, count: int, rng: np.random.Generator) -> Array:
        """Return the arrival times of ``count`` requests in s ``(count,)``, ascending.

        Args:
            rate: Mean requests/s, above 0.
            count: Number of requests.
            rng: Random numbers.
        """
        if self.gaps is None:
            steps = rng.exponential(1.0, count)
        else:
            begin = int(rng.integers(self.gaps.size))
            steps = self.gaps[(begin + np.arange(count)) % self.gaps.size]
        times: Array = np.cumsum(steps) / rate
        return times

    def within(self, rate: float, seconds: float, rng: np.random.Generator) -> Array:
        """Return the ascending arrival times in s of all requests in ``seconds`` at a mean rate.

        The array is empty if the rate (requests/s) is 0.
        """
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
