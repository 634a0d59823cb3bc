"""When the hours of a plan are: hour 0 begins at 0:00 UTC, of a week on Monday, or as one says."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hwnas.core.errors import ConfigError
from hwnas.core.schema import NumberBounds, SchemaError

HOUR = 3600.0
DAY, WEEK = 24, 168  #: hours of plans that say which hour is when
_MONDAY = 4 * DAY * HOUR  # the first since 1970
_AGES = NumberBounds(-1e11, 1e11)


def seconds(said: str, where: str) -> float:
    """Return the seconds since 1970 of a date, which is UTC's if it names no zone, or of a number.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return float(said)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(said)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ConfigError(
            f"{where}: '{said[:40]}' is no time: write a date, as 2026-01-31T14:00, or seconds "
            "since 1970."
        ) from None


def moment(said: str, where: str) -> float:
    """Return the same, of a time that may be: in seconds, not in thousandths of them.

    Raises:
        ConfigError: it is none.
    """
    found = seconds(said, where)
    try:
        _AGES.check(found, f"{where}: time")
    except SchemaError as problem:
        raise ConfigError(f"{problem}.") from None
    return found


def minutes(begin_s: float | None, n_hours: int) -> int | None:
    """Return the minutes after 0:00 UTC, of a week after Monday's, at which hour 0 begins.

    Args:
        begin_s: When it began once, in seconds since 1970; ``None``: nothing was said.
        n_hours: Of the plan, after which hours come round.

    Raises:
        ConfigError: it begins within a minute.
    """
    if begin_s is None:
        return None
    if begin_s % 60:
        raise ConfigError("begin: hours begin at a whole minute: leave its seconds out.")
    return round((begin_s - _usual(n_hours)) / 60) % (n_hours * 60)


def began(begin_min: int | None, n_hours: int) -> float | None:
    """Return when hour 0 began once, in seconds since 1970; ``None``: nothing was said."""
    return None if begin_min is None else _usual(n_hours) + 60.0 * begin_min


def known(begin_s: float | None, n_hours: int) -> float:
    """Return when hour 0 began once; where nothing was said, at midnight in UTC.

    Raises:
        ConfigError: nothing was said, and the plan is neither for days nor for a week.
    """
    if begin_s is not None:
        return begin_s
    if DAY % n_hours and n_hours % DAY:
        raise ConfigError(
            f"The plan has {n_hours} hours, no day: say when hour 0 began, with begin=DATE, or "
            "give telemetry with hours of the plan in a column hour."
        )
    return _usual(n_hours)


def _usual(n_hours: int) -> float:
    """Return when hour 0 of a plan begins of which nothing else was said."""
    return _MONDAY if n_hours == WEEK else 0.0


def spelt(begin_min: int, n_hours: int) -> str:
    """Return when hour 0 begins, as ``22:00 UTC``, of a week with its day."""
    begin = datetime.fromtimestamp(_usual(n_hours) + 60 * begin_min, UTC)
    return f"{begin:{'%A ' * (n_hours == WEEK)}%H:%M} UTC"


def check_rows(
    found: Sequence[Mapping[str, str]],
    path: Path,
    begin_s: float | None,
    n_hours: int,
    rates: str = "",
) -> None:
    """Refuse rows that are not one an hour from hour 0 on, where a column says when they are.

    Args:
        found: The rows, with an ``hour`` of the plan or a ``time``, or neither.
        path: Of their file.
        begin_s: When hour 0 began once, in seconds since 1970; ``None``: nothing was said.
        n_hours: Of the plan.
        rates: The column of what comes, whatever it is called.

    Raises:
        ConfigError: one is left out, in another's place, or hour 0 is another than that of plans.
    """
    for column in found[0]:
        if column != rates and column.strip().lower() == "hour":
            _check_hours([row[column] for row in found], path)
        if column != rates and column.strip().lower() == "time":
            _check_times([row[column] for row in found], path, begin_s, n_hours)


def _check_hours(said: Sequence[str], path: Path) -> None:
    """Refuse hours that do not count rows: of the plan, or of each of its days."""
    for i, hour in enumerate(said):
        if _number(hour) not in (i, i % DAY):
            raise ConfigError(
                f"{path}, row {i}: hour is '{hour[:40]}', where {i} must be: rows are the hours of "
                "the plan, from hour 0 on, none left out."
            )


def _number(said: str) -> float | None:
    try:
        return float(said)
    except ValueError:
        return None


def _check_times(said: Sequence[str], path: Path, begin_s: float | None, n_hours: int) -> None:
    times = [moment(time, f"{path}, row {i}") for i, time in enumerate(said)]
    for i, time in enumerate(times):
        if abs(time - times[0] - i * HOUR) > 1:
            raise ConfigError(
                f"{path}, row {i}: time is '{said[i][:40]}', which is not an hour after the row "
                "before: rows are hours in their order, none left out."
            )
    n, usual_s = len(said), _usual(n_hours)
    if begin_s is None and DAY % n and n % DAY:
        return  # hour 0 is whenever they say
    # A week beside a plan of a day is of any days; half a day, or half a day's plan, comes round.
    round_s = HOUR * (WEEK if n_hours == n == WEEK else min(n_hours, n, DAY))
    begin = usual_s if begin_s is None else begin_s
    if 1 < (times[0] - begin) % round_s < round_s - 1:
        usual = spelt(round((begin - usual_s) / 60) % (n_hours * 60), n_hours)
        raise ConfigError(
            f"{path} begins at {said[0]}, hour 0 of the plan at {usual}: have rows begin then, or "
            f"say begin={said[0]}."
        )
