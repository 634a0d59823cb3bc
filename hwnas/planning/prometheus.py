"""Telemetry from Prometheus, by its HTTP API. Source: https://prometheus.io/docs/prometheus/latest/querying/api/."""

import base64
import http.client
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from hwnas.database import public
from hwnas.errors import RunError, why
from hwnas.planning.plan import Plan
from hwnas.planning.telemetry import Sample, check
from hwnas.records import parsed
from hwnas.records.schema import OPEN, Bound

_MOST = 64 << 20  # bytes of an answer


class _Series(TypedDict):
    metric: dict[str, str]
    values: Annotated[list[tuple[float, str]], Bound(0, 1e6)]


class _Matrix(TypedDict):
    resultType: Literal["matrix"]
    result: list[Annotated[_Series, OPEN]]


class _Answer(TypedDict):
    status: Literal["success", "error"]
    data: NotRequired[Annotated[_Matrix, OPEN]]
    error: NotRequired[str]


_ANSWER: Any = Annotated[_Answer, OPEN]


@dataclass(frozen=True)
class Range:
    """A range of times that is asked for, in seconds since 1970."""

    start_s: float
    end_s: float
    step_s: float


def samples(
    url: str, queries: Mapping[str, str], over: Range, timeout_s: float, plan: Plan
) -> list[Sample]:
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
            found += [s for t, said in values if (s := _sample(name, of, t, said)) is not None]
    for sample in found:
        check(sample, plan, f"telemetry={public(url)}")
    if not any(sample.rate is not None for sample in found):
        raise RunError(
            f"telemetry={public(url)}: query.rate finds no sample in the last "
            f"{(over.end_s - over.start_s) / 3600:g} hours; try it in the server's own page."
        )
    return found


def _is_now(values: Sequence[tuple[float, str]], over: Range) -> bool:
    """Return whether a series goes on until the end of a range, but for a step that was missed."""
    return bool(values) and values[-1][0] >= over.end_s - 2 * over.step_s


def _sample(name: str, of: str, at: float, said: str) -> Sample | None:
    """Return a value as a sample; ``None``: it is none, as rates of nothing are."""
    value = float(said) if said.lstrip("+-")[:1].isdigit() else math.nan
    if not math.isfinite(value) or value < 0:
        return None
    if name == "down":
        return Sample(at, device=of, down=round(value))
    if name == "p99_ms" and value == 0:
        return None
    return {
        "rate": Sample(at, of, rate=value),
        "late": Sample(at, of, late=min(value, 1.0)),
        "p99_ms": Sample(at, of, p99_ms=value),
    }[name]


def _asked(url: str, query: str, over: Range, timeout_s: float) -> list[_Series]:
    asked = {"query": query, "start": f"{over.start_s:.3f}", "end": f"{over.end_s:.3f}",
             "step": f"{over.step_s:g}"}  # fmt: skip
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    where = f"telemetry={public(url)}"
    answer = parsed(_ANSWER, _got(address, where, timeout_s), RunError, where)
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
        said = why(reason) if isinstance(reason, Exception) else str(reason)
        raise RunError(f"{where} cannot be reached: {said or 'no answer'}.") from None
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as problem:
        said = f"no answer within {timeout_s:g} s" if isinstance(problem, TimeoutError) else (
            why(problem))  # fmt: skip
        raise RunError(f"{where} cannot be reached: {said}.") from None


def _text(answer: Any) -> str:
    found: bytes = answer.read(_MOST + 1)
    if len(found) > _MOST:
        raise ValueError(f"it answers more than {_MOST >> 20} MiB; ask for a longer query.step_s")
    return found.decode("utf-8", "replace")
