"""Telemetry: observed demand, latencies and failed machines, from CSV files and Prometheus."""

import base64
import http.client
import math
import queue
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np

from hwnas.core import schema
from hwnas.core.database import redact
from hwnas.core.errors import ConfigError, RunError, short_reason, unknown_name
from hwnas.core.run_folder import Row
from hwnas.core.schema import OPEN, Fraction, NumberBounds, Positive, SchemaError
from hwnas.core.typed_files import parse_json_as
from hwnas.fleet.calendar import HOUR, parse_date
from hwnas.fleet.models import csv_rows
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.service_file import MOST_HOURS, Rate

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
    """An observation of a class of requests, or of a device; values not observed are ``None``."""

    at: float  #: seconds since 1970, or since hour 0 of the plan
    request_class: str = ""  #: name of the class; empty: an observation of a device
    rate: float | None = None  #: requests/s, without those answered by a cache
    p99_ms: float | None = None  #: 99th percentile of latencies
    late: float | None = None  #: fraction of late requests, in [0, 1]
    device: str = ""  #: name of the device; empty: an observation of a class
    down: int | None = None  #: number of machines down; ``None``: all


@dataclass(frozen=True)
class Telemetry:
    """Means over samples, by class (first key) and hour of the plan (second key)."""

    rates: Mapping[str, Mapping[int, float]]  #: requests/s
    p99_ms: Mapping[str, Mapping[int, float]]  #: 99th percentile of latencies in ms
    late: Mapping[str, Mapping[int, float]]  #: fraction of late requests, in [0, 1]
    #: number of machines down by device, of the latest sample; ``None``: all
    down: Mapping[str, int | None]


def aggregate_samples(
    samples: Iterable[TelemetrySample], n_hours: int, begin_s: float
) -> Telemetry:
    """Return means of samples by class and hour of a plan.

    Args:
        samples: Samples.
        n_hours: Number of hours of the plan, which repeat.
        begin_s: A time at which hour 0 began, in seconds from the same origin as ``at``.
    """
    ordered = sorted(samples, key=lambda sample: sample.at)
    result: dict[str, dict[str, dict[int, list[float]]]] = {"rate": {}, "p99_ms": {}, "late": {}}
    for sample in ordered:
        hour = int((sample.at - begin_s) // HOUR) % n_hours
        for name, by_class in result.items():
            value = getattr(sample, name)
            if sample.request_class and value is not None:
                by_class.setdefault(sample.request_class, {}).setdefault(hour, []).append(value)
    means = {
        name: {
            k: {h: float(np.mean(v)) for h, v in sorted(by_hour.items())}
            for k, by_hour in by_class.items()
        }
        for name, by_class in result.items()
    }
    down = {s.device: s.down for s in ordered if s.device}
    return Telemetry(means["rate"], means["p99_ms"], means["late"], down)


def read_samples(path: Path, plan: DeploymentPlan) -> tuple[list[TelemetrySample], bool]:
    """Return the samples of a CSV file, and True if its times are hours of the plan.

    Rows have a ``time`` (a date, or seconds since 1970) or an ``hour`` of the plan, and values of
    a ``class`` (``requests_per_s``, ``p99_ms``, ``late``) or a ``device`` (``machines_down``;
    empty: all).

    Raises:
        ConfigError: the file is missing or invalid, or names an unknown class or column.
    """
    result = csv_rows(path, "telemetry")
    for name in result[0]:
        if name not in _COLUMNS:
            raise ConfigError(f"{path}: {unknown_name('column', name, _COLUMNS)}")
    by_hour = "hour" in result[0]
    if by_hour == ("time" in result[0]):
        raise ConfigError(
            f"{path} must have a column time (dates) or a column hour (of the plan); it has "
            f"{'both: remove one' if by_hour else 'neither: add one'}."
        )
    return [_telemetry_sample(raw, path, i, plan) for i, raw in enumerate(result)], by_hour


def _telemetry_sample(
    raw: dict[str, str], path: Path, i: int, plan: DeploymentPlan
) -> TelemetrySample:
    try:
        row: _Row = schema.parse_row(_Row, {k: v for k, v in raw.items() if v != ""}, f"row {i}")
        if "hour" not in row:
            time_s = parse_date(raw.get("time", ""), f"{path}, row {i}")
        else:
            time_s = row["hour"] * HOUR
            NumberBounds(0, plan.n_hours - _MOMENT).check(row["hour"], f"row {i}: hour")
    except SchemaError as problem:
        raise ConfigError(f"{path} cannot be read: {problem}. Correct the row.") from None
    result = TelemetrySample(
        time_s, row.get("class", ""), row.get("requests_per_s"), row.get("p99_ms"), row.get("late"),
        row.get("device", ""), row.get("machines_down"),
    )  # fmt: skip
    check_sample(result, plan, f"{path}, row {i}")
    return result


def check_sample(sample: TelemetrySample, plan: DeploymentPlan, where: str) -> None:
    """Check that a sample has a value, and a known class; ``where`` names it in messages.

    Raises:
        ConfigError: the sample has neither class nor device, an unknown class, or no value.
    """
    if not sample.request_class and not sample.device:
        raise ConfigError(f"{where} names neither a class nor a device: give one of them.")
    if sample.request_class and sample.request_class not in plan.classes:
        raise ConfigError(f"{where}: {unknown_name('class', sample.request_class, plan.classes)}")
    if (
        sample.request_class
        and sample.rate is None
        and sample.p99_ms is None
        and sample.late is None
    ):
        raise ConfigError(
            f"{where} has no value for class '{sample.request_class}': give requests_per_s, p99_ms "
            "or late."
        )


def is_url(text: str) -> bool:
    """Return True if the text begins with ``http://`` or ``https://``."""
    return re.match(r"https?://", text) is not None


def as_rows(samples: Sequence[TelemetrySample], *, by_hour: bool) -> list[Row]:
    """Return samples as rows of a CSV file that ``read_samples`` reads.

    ``by_hour``: times of samples are seconds since hour 0 of the plan, and become hours; else they
    are seconds since 1970.
    """
    return [
        {
            **({"hour": sample.at / HOUR} if by_hour else {"time": sample.at}),
            "class": sample.request_class, "requests_per_s": sample.rate, "p99_ms": sample.p99_ms,
            "late": sample.late, "device": sample.device, "machines_down": sample.down,
        }
        for sample in samples
    ]  # fmt: skip


_MAX_BYTES = 64 << 20  # of a response
_UNAUTHORISED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


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
    """A time range of a query."""

    start_s: float  #: seconds since 1970
    end_s: float  #: seconds since 1970
    step_s: float  #: seconds between values


def query_samples(
    url: str, queries: Mapping[str, str], over: TimeRange, timeout_s: float, plan: DeploymentPlan
) -> list[TelemetrySample]:
    """Return the samples that queries of a Prometheus server return.

    Values that are negative or no numbers are left out, and so are machines that are not down at
    the end of the range.

    Args:
        url: URL of the server, as ``http://host:9090``.
        queries: PromQL by name: ``rate``, ``late`` and ``p99_ms`` (series with a label ``class``),
            and ``down`` (label ``device``).
        over: Time range.
        timeout_s: Time limit of each query in seconds.
        plan: Plan with the classes.

    Raises:
        RunError: the server does not respond or refuses a query, its response is invalid, a series
            lacks its label, or ``rate`` has no value.
        ConfigError: a series names an unknown class.
    """
    result = []
    for name, query in queries.items():
        label = "device" if name == "down" else "class"
        for series in _query(url, query, over, timeout_s):
            if label not in series["metric"]:
                raise RunError(
                    f"query.{name}: the series that Prometheus returns have no label '{label}' "
                    f"(labels: {', '.join(sorted(series['metric'])) or 'none'}): write the query "
                    f"as sum by ({label}) (...)."
                )
            label_value, values = series["metric"][label], series["values"]
            if name == "down" and not _is_now(values, over):
                continue  # a count disappears when no machine is down any more
            result += [
                s
                for t, text in values
                if (s := _prometheus_sample(name, label_value, t, text)) is not None
            ]
    for sample in result:
        check_sample(sample, plan, f"telemetry={redact(url)}")
    if not any(sample.rate is not None for sample in result):
        raise RunError(
            f"telemetry={redact(url)}: query.rate returns no value for the last "
            f"{(over.end_s - over.start_s) / 3600:g} hours: test the query on the web page of the "
            "server."
        )
    return result


def _is_now(values: Sequence[tuple[float, str]], over: TimeRange) -> bool:
    """Return True if a series reaches the end of a range, except for one missed step."""
    return bool(values) and values[-1][0] >= over.end_s - 2 * over.step_s


def _prometheus_sample(
    name: str, label_value: str, time_s: float, text: str
) -> TelemetrySample | None:
    """Return a value as a sample; ``None`` if it is not a number, as rates of nothing."""
    value = float(text) if text.lstrip("+-")[:1].isdigit() else math.nan
    if not math.isfinite(value) or value < 0:
        return None
    if name == "down":
        return TelemetrySample(time_s, device=label_value, down=round(value))
    if name == "p99_ms" and value == 0:
        return None
    return {
        "rate": TelemetrySample(time_s, label_value, rate=value),
        "late": TelemetrySample(time_s, label_value, late=min(value, 1.0)),
        "p99_ms": TelemetrySample(time_s, label_value, p99_ms=value),
    }[name]


def _query(url: str, query: str, over: TimeRange, timeout_s: float) -> list[_Series]:
    request_class = {"query": query, "start": f"{over.start_s:.3f}", "end": f"{over.end_s:.3f}",
             "step": f"{over.step_s:g}"}  # fmt: skip
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(request_class)}"
    source = f"telemetry={redact(url)}"
    answer = parse_json_as(_ANSWER, _fetch(address, source, timeout_s), RunError, source)
    if answer["status"] == "error" or "data" not in answer:
        raise RunError(
            f"{source}: Prometheus refuses the query {query!r}: "
            f"{answer.get('error', 'no reason given')}. Correct it (options query.*)."
        )
    result: list[_Series] = answer["data"]["result"]
    return result


def _request(address: str, source: str) -> urllib.request.Request:
    """Return a request with the URL's user and password in its header only."""
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError:  # its message contains the password
        raise RunError(f"{source} is not a URL: give one as http://HOST:9090.") from None
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if user:
        text = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {text}")
    return request


def _fetch(address: str, source: str, timeout_s: float) -> str:
    """Return the text of a response that is complete within ``timeout_s``.

    Timeouts of sockets hold per read: a slow server would never reach them.

    Raises:
        RunError: the server does not respond in time, or refuses.
    """
    results: queue.SimpleQueue[str | RunError] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(_read_response(address, source, timeout_s))
        except RunError as error:
            results.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        result = results.get(timeout=timeout_s)
    except queue.Empty:
        raise RunError(
            f"{source}: no complete response within {timeout_s:g} s: increase query.timeout_s, or "
            "ask for fewer hours."
        ) from None
    if isinstance(result, RunError):
        raise result
    return result


def _read_response(address: str, source: str, timeout_s: float) -> str:
    """Return the text of a response; error responses of Prometheus are text, too."""
    request = _request(address, source)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # is_url: http, https
            return _read_text(answer, source)
    except urllib.error.HTTPError as refused:
        with refused:
            text = _read_text(refused, source)
        if refused.code not in _UNAUTHORISED and text.lstrip().startswith("{"):
            return text
        raise RunError(
            f"{source} responds {refused.code} {refused.reason}: {_advice_on_status(refused.code)}."
        ) from None
    except urllib.error.URLError as problem:
        reason = problem.reason
        text = short_reason(reason) if isinstance(reason, Exception) else str(reason)
        raise RunError(
            f"{source} cannot be reached: {text or 'no answer'}. Check the URL, and that the "
            "server is running."
        ) from None
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as problem:
        text = f"no answer within {timeout_s:g} s" if isinstance(problem, TimeoutError) else (
            short_reason(problem))  # fmt: skip
        raise RunError(
            f"{source} cannot be reached: {text}. Check the URL, and that the server is running."
        ) from None


def _advice_on_status(code: int) -> str:
    if code in _UNAUTHORISED:
        return "give a user and password with access, as http://USER:PASSWORD@HOST:9090"
    if code == HTTPStatus.TOO_MANY_REQUESTS or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "try again later, or check the server"
    return "give the URL of a Prometheus server, as http://HOST:9090"


def _read_text(answer: Any, source: str) -> str:
    result: bytes = answer.read(_MAX_BYTES + 1)
    if len(result) > _MAX_BYTES:
        raise RunError(
            f"{source}: the response is larger than {_MAX_BYTES >> 20} MiB: increase query.step_s."
        )
    return result.decode("utf-8", "replace")
