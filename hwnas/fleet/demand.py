"""How many requests come in which hour, and how bursty: from rates, CSV files and traces."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.fleet import calendar
from hwnas.fleet.fleet_file import Fleet
from hwnas.fleet.models import csv_rows, located
from hwnas.fleet.service_file import MOST_HOURS, RequestClass, Service

Array = NDArray[np.float64]

#: Requests of a trace that say how bursty it is: fewer say little of the hundredth that is latest.
LEAST_ARRIVALS = 500
_ARRIVAL = ("timestamp", "time", "arrival", "arrived_at")


@dataclass(frozen=True)
class ArrivalRates:
    """What comes: rates ``(classes, hours)`` a second behind the cache, and traces by class."""

    rates: Array  #: as they are expected
    borne: Array  #: as they must be borne: spikes counted
    traces: dict[str, Array]  #: gaps between arrivals, of mean 1, by the path of the file
    trace_of: tuple[str, ...]  #: of each class; empty: arrivals are Poisson's
    begin_min: int | None = None  #: of hour 0 after 0:00 UTC; ``None``: nothing was said, 0

    @property
    def n_hours(self) -> int:
        """How many hours a plan has."""
        return len(self.rates[0])


def read_load(service: Service, beside: Path, begin_s: float | None = None) -> ArrivalRates:
    """Return the demand of all classes.

    Args:
        service: Names it.
        beside: The folder that relative paths begin in, if they are not there from here.
        begin_s: When hour 0 began once, in seconds since 1970; ``None``: at 0:00 UTC.

    Raises:
        ConfigError: a file cannot be read, is empty, has not as many hours as others, or other
            hours than it should.
    """
    hourly = {name: _hours(name, c, beside, begin_s) for name, c in service.classes.items()}
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
    said = tuple(c.demand.trace or "" for c in service.classes.values())
    traces = {name: read_gaps(located(name, beside)) for name in said if name}
    return ArrivalRates(behind, behind * spikes, traces, said, calendar.minutes(begin_s, n))


def _hours(name: str, asked: RequestClass, beside: Path, begin_s: float | None) -> Array:
    demand = asked.demand
    if demand.rate is not None:
        return np.array([demand.rate])  # in as many hours as others have
    if demand.hours is not None:
        return np.array(demand.hours)
    assert demand.csv is not None
    path = located(demand.csv, beside)
    found, column = csv_rows(path, f"demand of class '{name}'"), demand.column or name
    if column not in found[0]:
        raise ConfigError(f"{path}: {unknown_name('column', column, found[0])}")
    if len(found) > MOST_HOURS:
        raise ConfigError(
            f"{path} has {len(found)} rows; allowed: one an hour, at most {MOST_HOURS}."
        )
    calendar.check_rows(found, path, begin_s, len(found), column)
    return np.array([_rate(row[column], path, i) for i, row in enumerate(found)])


def _rate(said: str, path: Path, row: int, most: float = 1e7) -> float:
    try:
        value = float(said)
    except ValueError:
        value = np.nan
    if not 0 <= value <= most:
        raise ConfigError(f"{path}, row {row}: '{said[:40]}' is no number from 0 to {most:g}.")
    return value


def read_gaps(path: Path) -> Array:
    """Return the gaps between the arrivals of a trace, scaled to a mean of 1.

    Its file has a column ``TIMESTAMP`` (also ``time``, ``arrival``): dates or seconds, one row a
    request.

    Raises:
        ConfigError: it cannot be read, has too few arrivals, or they are not in order.
    """
    found = csv_rows(path)
    column = next((name for name in found[0] if name.lower() in _ARRIVAL), None)
    if column is None:
        raise ConfigError(
            f"{path}: no column says when requests came ({', '.join(_ARRIVAL)}); there are "
            f"{', '.join(found[0])}."
        )
    if len(found) < LEAST_ARRIVALS:
        raise ConfigError(
            f"{path} has {len(found)} arrivals; at least {LEAST_ARRIVALS} say how bursty it is. "
            "Leave trace out: arrivals are then Poisson's."
        )
    said = [row[column] for row in found]
    times = np.array([calendar.seconds(one, f"{path}, row {i}") for i, one in enumerate(said)])
    gaps = np.diff(times)
    if (gaps < 0).any() or not gaps.sum() > 0:
        raise ConfigError(f"{path}: its arrivals are not in the order of time.")
    scaled: Array = gaps / gaps.mean()
    return scaled


def read_carbon(
    fleet: Fleet, n_hours: int, beside: Path, begin_s: float | None = None
) -> tuple[dict[str, Array], list[str]]:
    """Return kg of CO2 a kWh by region and hour, 0 where nothing is said; and what was left out.

    Raises:
        ConfigError: a file cannot be read, or has another number of hours.
    """
    found, left_out = {}, []
    for region in sorted(fleet.regions):
        said = fleet.carbon.get(region, 0.0)
        if isinstance(said, str):
            path = located(said, beside)
            rows = csv_rows(path, f"carbon.{region}")
            calendar.check_rows(rows, path, begin_s, n_hours)
            said = [_rate(row.get("kg_per_kwh", ""), path, i, 10) for i, row in enumerate(rows)]
        values = np.atleast_1d(np.array(said, np.float64))
        if len(values) > 1 and n_hours % len(values) and len(values) % n_hours:
            raise ConfigError(
                f"carbon.{region} has {len(values)} hours, the demand {n_hours}: they do not fit."
            )
        if len(values) > n_hours:
            left_out.append(
                f"carbon.{region} has {len(values)} hours: the plan's {n_hours} have the first "
                f"{n_hours} of them."
            )
        found[region] = np.resize(values, n_hours)
    return found, left_out


# When requests come: at random (Poisson's), or in the bursts of a trace.


@dataclass(frozen=True)
class Arrivals:
    """A process of arrivals, of any rate.

    A trace is replayed so much faster or slower that its mean rate is the one asked for: bursts
    keep their size in requests. Each seed begins elsewhere in it, and it begins anew at its end.
    """

    gaps: Array | None = None  #: of the trace, of mean 1; ``None``: Poisson's

    @property
    def period(self) -> int:
        """After how many requests a trace begins anew; 0: there is none."""
        return 0 if self.gaps is None else self.gaps.size

    def at(self, rate: float, count: int, rng: np.random.Generator) -> Array:
        """Return when ``count`` requests come, in seconds, at so many a second."""
        if self.gaps is None:
            steps = rng.exponential(1.0, count)
        else:
            begin = int(rng.integers(self.gaps.size))
            steps = self.gaps[(begin + np.arange(count)) % self.gaps.size]
        times: Array = np.cumsum(steps) / rate
        return times

    def within(self, rate: float, seconds: float, rng: np.random.Generator) -> Array:
        """Return when requests come within so many seconds."""
        if rate <= 0:
            return np.zeros(0)
        parts, end = [], 0.0
        while end < seconds:
            more = self.at(rate, int(rate * (seconds - end) * 1.05) + 50, rng) + end
            parts.append(more)
            end = float(more[-1])
        times = np.concatenate(parts)
        found: Array = times[times < seconds]
        return found
