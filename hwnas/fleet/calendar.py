"""Times of hours: hour 0 is at 0:00 UTC (of a week: Monday) unless ``begin`` says otherwise."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hwnas.core.errors import ConfigError
from hwnas.core.schema import NumberBounds, SchemaError

HOUR = 3600.0
DAY, WEEK = 24, 168  #: hours of the plans whose hours have a time of day
_MONDAY = 4 * DAY * HOUR  # first Monday after 1970-01-01
_TIME_COLUMNS = ("time", "timestamp", "datetime")
_AGES = NumberBounds(-1e11, 1e11)


def parse_time(text: str, where: str) -> float:
    """Return a date or a number of seconds as seconds since 1970-01-01 UTC.

    Args:
        text: ISO 8601 date (UTC if it has no time zone), or seconds since 1970.
        where: Option or file, with which messages begin.

    Raises:
        ConfigError: the text is neither a date nor a finite number.
    """
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)):
            return seconds
    try:
        result = datetime.fromisoformat(text)
        return (result if result.tzinfo else result.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ConfigError(
            f"{where}: '{text[:40]}' is not a time: give a date as 2026-01-31T14:00 (UTC), or "
            "seconds since 1970."
        ) from None


def parse_date(text: str, where: str) -> float:
    """Return a date or a number of seconds as seconds since 1970, as ``parse_time``.

    Raises:
        ConfigError: the text is neither, or more than 1e11 seconds from 1970, as milliseconds are.
    """
    result = parse_time(text, where)
    try:
        _AGES.check(result, f"{where}: time")
    except SchemaError as problem:
        raise ConfigError(
            f"{problem}. Give a date, or seconds (not milliseconds) since 1970."
        ) from None
    return result


def begin_minutes(begin_s: float | None, n_hours: int) -> int | None:
    """Return the minutes from 0:00 UTC to hour 0 of a plan; ``None`` if ``begin_s`` is ``None``.

    For plans of a week, minutes count from Monday, 0:00 UTC. They are less than the plan's length.

    Args:
        begin_s: Time of hour 0 in seconds since 1970.
        n_hours: Number of hours of the plan.

    Raises:
        ConfigError: ``begin_s`` is not a whole minute.
    """
    if begin_s is None:
        return None
    if begin_s % 60:
        raise ConfigError("begin must be a whole minute: omit the seconds, as 2026-01-31T14:00.")
    return round((begin_s - _default_begin(n_hours)) / 60) % (n_hours * 60)


def begin_seconds(begin_min: int | None, n_hours: int) -> float | None:
    """Return a time at which hour 0 begins, in seconds since 1970.

    Only its time of day (of a week: and its weekday) is meaningful; its date is in January 1970.
    ``None`` if ``begin_min``, the minutes as of ``begin_minutes``, is ``None``.
    """
    return None if begin_min is None else _default_begin(n_hours) + 60.0 * begin_min


def begin_or_midnight(begin_s: float | None, n_hours: int) -> float:
    """Return the time of hour 0 in seconds since 1970; by default midnight UTC (of a week: Monday).

    Raises:
        ConfigError: ``begin_s`` is ``None``, and the hours are neither a week nor a divisor of 24.
    """
    if begin_s is not None:
        return begin_s
    if DAY % n_hours and n_hours != WEEK:
        raise ConfigError(
            f"The plan has {n_hours} hours, neither a week nor a divisor of 24, so the time of "
            "its hour 0 is unknown: give begin=DATE, or telemetry with a column hour."
        )
    return _default_begin(n_hours)


def _default_begin(n_hours: int) -> float:
    """Return the default time of hour 0 in seconds since 1970."""
    return _MONDAY if n_hours == WEEK else 0.0


def format_begin(begin_min: int, n_hours: int) -> str:
    """Return the time of hour 0 as ``22:00 UTC``; of a plan of a week as ``Monday 22:00 UTC``.

    ``begin_min`` is as of ``begin_minutes``.
    """
    begin = datetime.fromtimestamp(_default_begin(n_hours) + 60 * begin_min, UTC)
    return f"{begin:{'%A ' * (n_hours == WEEK)}%H:%M} UTC"


def check_rows(
    rows: Sequence[Mapping[str, str]],
    path: Path,
    begin_s: float | None,
    n_hours: int,
    rates: str = "",
) -> None:
    """Check that the rows of a file are consecutive hours, the first one hour 0 of the plan.

    Only files with a column ``hour``, ``time``, ``timestamp`` or ``datetime`` are checked.

    Args:
        rows: Rows of the file.
        path: The file, for messages.
        begin_s: Time of hour 0 in seconds since 1970. ``None``: 0:00 UTC, of plans of a week on
            Monday; or the first row, if the rows are neither whole days nor a divisor of 24 hours.
        n_hours: Number of hours of the plan.
        rates: Column of the demand, which is never taken for a time.

    Raises:
        ConfigError: a row is missing or misplaced, or the first row is not hour 0 of the plan.
    """
    for column in rows[0]:
        if column != rates and column.strip().lower() == "hour":
            _check_hours([row[column] for row in rows], path)
        if column != rates and column.strip().lower() in _TIME_COLUMNS:
            _check_times([row[column] for row in rows], path, begin_s, n_hours, column)


def _check_hours(texts: Sequence[str], path: Path) -> None:
    """Refuse hours that do not count the rows, or the rows of each day."""
    for i, hour in enumerate(texts):
        if _number(hour) not in (i, i % DAY):
            raise ConfigError(
                f"{path}, row {i}: column hour is '{hour[:40]}', expected {i}: give one row per "
                "hour from 0 on, in order and without gaps."
            )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_times(
    texts: Sequence[str], path: Path, begin_s: float | None, n_hours: int, column: str
) -> None:
    times = [parse_date(time, f"{path}, row {i}") for i, time in enumerate(texts)]
    for i, time in enumerate(times):
        if abs(time - times[0] - i * HOUR) > 1:
            raise ConfigError(
                f"{path}, row {i}: column {column} is '{texts[i][:40]}', which is not one hour "
                "after the row before: give one row per hour, in order and without gaps."
            )
    n, usual_s = len(texts), _default_begin(n_hours)
    if begin_s is None and DAY % n and n % DAY:
        return  # their first row defines hour 0
    # A week of data for a plan of a day may begin on any day; parts of a day repeat.
    round_s = HOUR * (WEEK if n_hours == WEEK and n % WEEK == 0 else min(n, DAY))
    begin = usual_s if begin_s is None else begin_s
    if 1 < (times[0] - begin) % round_s < round_s - 1:
        usual = format_begin(round((begin - usual_s) / 60) % (n_hours * 60), n_hours)
        first = datetime.fromtimestamp(times[0], UTC)
        option = f", or set begin={first:%Y-%m-%dT%H:%M}" if times[0] % 60 == 0 else ""
        raise ConfigError(
            f"{path} begins at {texts[0]}, but hour 0 of the plan is at {usual}: begin the rows at "
            f"that time{option}."
        )
