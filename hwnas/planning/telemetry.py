"""What is seen while a plan runs: requests, late answers and machines that are down."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

import numpy as np

from hwnas.errors import ConfigError, unknown
from hwnas.planning.clock import HOUR, moment
from hwnas.planning.models import csv_rows
from hwnas.planning.plan import Plan
from hwnas.planning.service import MOST_HOURS, Rate
from hwnas.records import rows
from hwnas.records.schema import Bound, Fraction, Positive, Unfit
from hwnas.results import Row

_MOMENT = 1e-9  # hours

_Row = TypedDict(
    "_Row",
    {
        "hour": NotRequired[Annotated[float, Bound(0, MOST_HOURS)]],
        "class": NotRequired[str],
        "requests_per_s": NotRequired[Rate],
        "p99_ms": NotRequired[Positive],
        "late": NotRequired[Fraction],
        "device": NotRequired[str],
        "machines_down": NotRequired[Annotated[int, Bound(0, 100_000)]],
    },
)

_COLUMNS = ("time", *_Row.__annotations__)


@dataclass(frozen=True)
class Sample:
    """What was seen at a time of a class, or of a device."""

    at: float  #: seconds since 1970, or since hour 0 of the plan
    klass: str = ""
    rate: float | None = None  #: requests a second, behind the cache
    p99_ms: float | None = None
    late: float | None = None  #: share of requests
    device: str = ""
    down: int | None = None  #: machines; ``None``: all


@dataclass(frozen=True)
class Telemetry:
    """What was seen, by class and hour of the plan: means over samples."""

    rates: Mapping[str, Mapping[int, float]]
    p99_ms: Mapping[str, Mapping[int, float]]
    late: Mapping[str, Mapping[int, float]]
    down: Mapping[str, int | None]  #: machines by device, as last seen; ``None``: all


def telemetry(samples: Iterable[Sample], n_hours: int, begin_s: float) -> Telemetry:
    """Return samples by the hours of a plan.

    Args:
        samples: What was seen.
        n_hours: Of the plan.
        begin_s: When hour 0 of the plan begins, or began once; hours come round.
    """
    ordered = sorted(samples, key=lambda sample: sample.at)
    found: dict[str, dict[str, dict[int, list[float]]]] = {"rate": {}, "p99_ms": {}, "late": {}}
    for sample in ordered:
        hour = int((sample.at - begin_s) // HOUR) % n_hours
        for name, of in found.items():
            value = getattr(sample, name)
            if sample.klass and value is not None:
                of.setdefault(sample.klass, {}).setdefault(hour, []).append(value)
    means = {
        name: {k: {h: float(np.mean(v)) for h, v in sorted(at.items())} for k, at in of.items()}
        for name, of in found.items()
    }
    down = {s.device: s.down for s in ordered if s.device}
    return Telemetry(means["rate"], means["p99_ms"], means["late"], down)


def read_samples(path: Path, plan: Plan) -> tuple[list[Sample], bool]:
    """Return the samples of a CSV file, and whether their times are hours of the plan.

    Its rows have a ``time`` (a date, or seconds since 1970) or an ``hour`` of the plan, and what
    was seen of a ``class`` (``requests_per_s``, ``p99_ms``, ``late``) or of a ``device``
    (``machines_down``; empty: all).

    Raises:
        ConfigError: it cannot be read, or names what the plan has not.
    """
    found = csv_rows(path, "telemetry")
    for name in found[0]:
        if name not in _COLUMNS:
            raise ConfigError(f"{path}: {unknown('column', name, _COLUMNS)}")
    by_hour = "hour" in found[0]
    if by_hour == ("time" in found[0]):
        raise ConfigError(
            f"{path} needs one of the columns time (of dates) and hour (of the plan)."
        )
    return [_sample(raw, path, i, plan) for i, raw in enumerate(found)], by_hour


def _sample(raw: dict[str, str], path: Path, i: int, plan: Plan) -> Sample:
    try:
        row: _Row = rows.typed(_Row, {k: v for k, v in raw.items() if v != ""}, f"row {i}")
        if "hour" not in row:
            at = moment(raw.get("time", ""), f"{path}, row {i}")
        else:
            at = row["hour"] * HOUR
            n_hours = len(next(iter(plan.classes.values())).demand)
            Bound(0, n_hours - _MOMENT).check(row["hour"], f"row {i}: hour")
    except Unfit as problem:
        raise ConfigError(f"{path} cannot be read: {problem}.") from None
    found = Sample(
        at, row.get("class", ""), row.get("requests_per_s"), row.get("p99_ms"), row.get("late"),
        row.get("device", ""), row.get("machines_down"),
    )  # fmt: skip
    check(found, plan, f"{path}, row {i}")
    return found


def check(sample: Sample, plan: Plan, where: str) -> None:
    """Refuse a sample of nothing, or of a class that the plan has not.

    Raises:
        ConfigError: it says which.
    """
    if not sample.klass and not sample.device:
        raise ConfigError(f"{where} names neither a class nor a device.")
    if sample.klass and sample.klass not in plan.classes:
        raise ConfigError(f"{where}: {unknown('class', sample.klass, plan.classes)}")
    if sample.klass and sample.rate is None and sample.p99_ms is None and sample.late is None:
        raise ConfigError(f"{where} says nothing of class '{sample.klass}': give requests_per_s.")


def is_url(said: str) -> bool:
    """Return whether telemetry is asked for over HTTP."""
    return re.match(r"https?://", said) is not None


def as_rows(samples: Sequence[Sample], *, by_hour: bool) -> list[Row]:
    """Return samples as the rows of a file that ``read_samples`` reads."""
    return [
        {
            **({"hour": sample.at / HOUR} if by_hour else {"time": sample.at}),
            "class": sample.klass, "requests_per_s": sample.rate, "p99_ms": sample.p99_ms,
            "late": sample.late, "device": sample.device, "machines_down": sample.down,
        }
        for sample in samples
    ]  # fmt: skip
