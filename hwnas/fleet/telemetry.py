"""Telemetry from Prometheus, by its HTTP API. Source: https://prometheus.io/docs/prometheus/latest/querying/api/."""

import base64
import http.client
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np

from hwnas.core import schema
from hwnas.core.database import redact
from hwnas.core.errors import ConfigError, RunError, short_reason, unknown_name
from hwnas.core.run_folder import Row
from hwnas.core.schema import OPEN, Fraction, NumberBounds, Positive, SchemaError
from hwnas.core.typed_files import parse_json_as
from hwnas.fleet.calendar import HOUR, moment
from hwnas.fleet.models import csv_rows
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.service_file import MOST_HOURS, Rate

# What is seen while a plan runs: requests, late answers and machines that are down.

_MOMENT = 1e-9  # hours

_Row = TypedDict(
    "_Row",
    {
        "hour": NotRequired[Annotated[float, NumberBounds(0, MOST_HOURS)]],
        "class": NotRequired[str],
        "requests_per_s": NotRequired[Rate],
        "p99_ms": NotRequired[Positive],
        "late": NotRequired[Fraction],
        "device": NotRequired[str],
        "machines_down": NotRequired[Annotated[int, NumberBounds(0, 100_000)]],
    },
)

_COLUMNS = ("time", *_Row.__annotations__)


@dataclass(frozen=True)
class TelemetrySample:
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


def telemetry(samples: Iterable[TelemetrySample], n_hours: int, begin_s: float) -> Telemetry:
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


def read_samples(path: Path, plan: DeploymentPlan) -> tuple[list[TelemetrySample], bool]:
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
            raise ConfigError(f"{path}: {unknown_name('column', name, _COLUMNS)}")
    by_hour = "hour" in found[0]
    if by_hour == ("time" in found[0]):
        raise ConfigError(
            f"{path} needs one of the columns time (of dates) and hour (of the plan)."
        )
    return [_telemetry_sample(raw, path, i, plan) for i, raw in enumerate(found)], by_hour


def _telemetry_sample(
    raw: dict[str, str], path: Path, i: int, plan: DeploymentPlan
) -> TelemetrySample:
    try:
        row: _Row = schema.parse_row(_Row, {k: v for k, v in raw.items() if v != ""}, f"row {i}")
        if "hour" not in row:
            at = moment(raw.get("time", ""), f"{path}, row {i}")
        else:
            at = row["hour"] * HOUR
            n_hours = len(next(iter(plan.classes.values())).demand)
            NumberBounds(0, n_hours - _MOMENT).check(row["hour"], f"row {i}: hour")
    except SchemaError as problem:
        raise ConfigError(f"{path} cannot be read: {problem}.") from None
    found = TelemetrySample(
        at, row.get("class", ""), row.get("requests_per_s"), row.get("p99_ms"), row.get("late"),
        row.get("device", ""), row.get("machines_down"),
    )  # fmt: skip
    check_sample(found, plan, f"{path}, row {i}")
    return found


def check_sample(sample: TelemetrySample, plan: DeploymentPlan, where: str) -> None:
    """Refuse a sample of nothing, or of a class that the plan has not.

    Raises:
        ConfigError: it says which.
    """
    if not sample.klass and not sample.device:
        raise ConfigError(f"{where} names neither a class nor a device.")
    if sample.klass and sample.klass not in plan.classes:
        raise ConfigError(f"{where}: {unknown_name('class', sample.klass, plan.classes)}")
    if sample.klass and sample.rate is None and sample.p99_ms is None and sample.late is None:
        raise ConfigError(f"{where} says nothing of class '{sample.klass}': give requests_per_s.")


def is_url(said: str) -> bool:
    """Return whether telemetry is asked for over HTTP."""
    return re.match(r"https?://", said) is not None


def as_rows(samples: Sequence[TelemetrySample], *, by_hour: bool) -> list[Row]:
    """Return samples as the rows of a file that ``read_samples`` reads."""
    return [
        {
            **({"hour": sample.at / HOUR} if by_hour else {"time": sample.at}),
            "class": sample.klass, "requests_per_s": sample.rate, "p99_ms": sample.p99_ms,
            "late": sample.late, "device": sample.device, "machines_down": sample.down,
        }
        for sample in samples
    ]  # fmt: skip


_MOST = 64 << 20  # bytes of an answer


class _Series(TypedDict):
    metric: dict[str, str]
    values: Annotated[list[tuple[float, str]], NumberBounds(0, 1e6)]


class _Matrix(TypedDict):
    resultType: Literal["matrix"]
    result: list[Annotated[_Series, OPEN]]


class _Answer(TypedDict):
    status: Literal["success", "error"]
    data: NotRequired[Annotated[_Matrix, OPEN]]
    error: NotRequired[str]


_ANSWER: Any = Annotated[_Answer, OPEN]


@dataclass(frozen=True)
class TimeRange:
    """A range of times that is asked for, in seconds since 1970."""

    start_s: float
    end_s: float
    step_s: float


def samples(
    url: str, queries: Mapping[str, str], over: TimeRange, timeout_s: float, plan: DeploymentPlan
) -> list[TelemetrySample]:
    """Return what queries find, sample by sample.

    Args:
        url: Of the server, as ``http://host:9090``.
        queries: In PromQL, by what they say: ``rate``, ``late`` and ``p99_ms``, whose series have a
            label ``class``, and ``down``, whose have a label ``device``.
        over: When.
        timeout_s: That each may take.
        plan: Whose classes they are of.

    Raises:
        RunError: the server does not answer, or refuses, or answers something else.
    """
    found = []
    for name, query in queries.items():
        label = "device" if name == "down" else "class"
        for series in _asked(url, query, over, timeout_s):
            if label not in series["metric"]:
                raise RunError(
                    f"query.{name}: its series have no label '{label}' (they have "
                    f"{', '.join(sorted(series['metric'])) or 'none'}): sum by ({label}) (...)."
                )
            of, values = series["metric"][label], series["values"]
            if name == "down" and not _is_now(values, over):
                continue  # as of a count of what is down, once nothing is
            found += [
                s for t, said in values if (s := _prometheus_sample(name, of, t, said)) is not None
            ]
    for sample in found:
        check_sample(sample, plan, f"telemetry={redact(url)}")
    if not any(sample.rate is not None for sample in found):
        raise RunError(
            f"telemetry={redact(url)}: query.rate finds no sample in the last "
            f"{(over.end_s - over.start_s) / 3600:g} hours; try it in the server's own page."
        )
    return found


def _is_now(values: Sequence[tuple[float, str]], over: TimeRange) -> bool:
    """Return whether a series goes on until the end of a range, but for a step that was missed."""
    return bool(values) and values[-1][0] >= over.end_s - 2 * over.step_s


def _prometheus_sample(name: str, of: str, at: float, said: str) -> TelemetrySample | None:
    """Return a value as a sample; ``None``: it is none, as rates of nothing are."""
    value = float(said) if said.lstrip("+-")[:1].isdigit() else math.nan
    if not math.isfinite(value) or value < 0:
        return None
    if name == "down":
        return TelemetrySample(at, device=of, down=round(value))
    if name == "p99_ms" and value == 0:
        return None
    return {
        "rate": TelemetrySample(at, of, rate=value),
        "late": TelemetrySample(at, of, late=min(value, 1.0)),
        "p99_ms": TelemetrySample(at, of, p99_ms=value),
    }[name]


def _asked(url: str, query: str, over: TimeRange, timeout_s: float) -> list[_Series]:
    asked = {"query": query, "start": f"{over.start_s:.3f}", "end": f"{over.end_s:.3f}",
             "step": f"{over.step_s:g}"}  # fmt: skip
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    where = f"telemetry={redact(url)}"
    answer = parse_json_as(_ANSWER, _got(address, where, timeout_s), RunError, where)
    if answer["status"] == "error" or "data" not in answer:
        raise RunError(f"{where} refuses {query!r}: {answer.get('error', 'it says not why')}.")
    found: list[_Series] = answer["data"]["result"]
    return found


def _request(address: str, where: str) -> urllib.request.Request:
    """Return a request; a user and a password of its URL go into its header, and nowhere else."""
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError:  # which says the whole of it
        raise RunError(f"{where} is no URL: write http://HOST:9090.") from None
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if user:
        said = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {said}")
    return request


def _got(address: str, where: str, timeout_s: float) -> str:
    """Return the text of an answer; servers say why they refuse in theirs, too."""
    request = _request(address, where)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # is_url: http, https
            return _text(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            said = _text(refused)
        if said.lstrip().startswith("{"):
            return said
        raise RunError(
            f"{where} answers {refused.code} {refused.reason}: is it Prometheus?"
        ) from None
    except urllib.error.URLError as problem:
        reason = problem.reason
        said = short_reason(reason) if isinstance(reason, Exception) else str(reason)
        raise RunError(f"{where} cannot be reached: {said or 'no answer'}.") from None
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as problem:
        said = f"no answer within {timeout_s:g} s" if isinstance(problem, TimeoutError) else (
            short_reason(problem))  # fmt: skip
        raise RunError(f"{where} cannot be reached: {said}.") from None


def _text(answer: Any) -> str:
    found: bytes = answer.read(_MOST + 1)
    if len(found) > _MOST:
        raise ValueError(f"it answers more than {_MOST >> 20} MiB; ask for a longer query.step_s")
    return found.decode("utf-8", "replace")
