"""Alerting rules of Prometheus: where what is measured leaves what was planned.

Metrics are Triton's: https://github.com/triton-inference-server/server, docs/user_guide/metrics.md.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import yaml

from hwnas.core.quantity import Quantity
from hwnas.fleet.calendar import DAY, WEEK
from hwnas.fleet.deployment.pools import DeployedPool
from hwnas.fleet.simulation import LATE

_SLACK = 1.1  # times what was planned: below, it is noise
_FULL = 0.99  # of what a replica can do: it is never seen to do all of it
FORECAST = "hwnas:forecast_requests_per_second"  #: the series that says what a pool must bear


def rules(pools: Sequence[DeployedPool], begin_min: int | None = None) -> dict[str, bytes]:
    """Return the file of rules.

    Args:
        pools: What they are of.
        begin_min: Minutes after 0:00 UTC, of a week after Monday's, at which hour 0 begins.
    """
    groups = [
        {"name": f"hwnas-{pool.name}", "rules": [*_of_pool(pool, begin_min or 0)]} for pool in pools
    ]
    text = yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)
    return {"prometheus/rules.yaml": text.encode()}


def _of_pool(pool: DeployedPool, begin_min: int) -> Iterator[dict[str, Any]]:
    chosen = f'{{model="{pool.name}"}}'
    rate = f"sum(rate(nv_inference_request_success{chosen}[5m]))"
    count = f"count(nv_inference_request_success{chosen})"
    late = f'nv_inference_request_summary_us{{model="{pool.name}",quantile="0.99"}}'
    forecast = _forecast(pool.rates, begin_min)
    yield {"record": FORECAST, "labels": {"model": pool.name}, "expr": forecast}
    yield _alert(
        pool, "Late", f"max({late}) > {pool.kind.limit_ms * 1e3:.9g}", "5m", "page",
        f"More than {LATE:.0%} of the answers of a replica take longer than the "
        f"{pool.kind.limit_ms:g} ms of the pool.",
    )  # fmt: skip
    yield _busy(pool, chosen, rate, count)
    yield _alert(
        pool, "Demand", f'{rate} > {_SLACK:g} * sum({FORECAST}{chosen})', "10m",
        "ticket", "More requests come than the plan bears in this hour: plan again.",
    )  # fmt: skip
    missing = f"absent(nv_inference_request_success{chosen})"
    start_s = 0
    if 0 in pool.replicas:  # it rests in hours in which nothing is to come, and starts after them
        missing += f" and on() sum({FORECAST}{chosen}) > 0"
        start_s = math.ceil(pool.start_s)
    yield _alert(
        pool, "Missing", missing, f"{120 + start_s}s", "page", "No replica serves the model."
    )
    yield _alert(
        pool, "Few", f"{count} < {pool.least}", f"{300 + start_s}s", "page",
        f"Fewer replicas run than the {pool.least} of the quietest hour.",
    )  # fmt: skip
    failures = f"sum(rate(nv_inference_request_failure{chosen}[5m]))"
    yield _alert(pool, "Failing", f"{failures} > 0", "5m", "page", "Requests fail.")


def _busy(pool: DeployedPool, chosen: str, rate: str, count: str) -> dict[str, Any]:
    """Return the alert that replicas have more to do than was planned.

    Each request of a batch counts the time of the whole batch, and no counter has that of batches:
    ``nv_inference_compute_infer_duration_us`` over-counts by how unlike they are. So where there
    are batches, requests are counted.
    """
    if pool.kind.batch > 1:
        # No more can be answered than full batches hold, however many come.
        most = min(_SLACK * pool.kind.goodput, _FULL * _capacity(pool))
        return _alert(
            pool, "Busy", f"{rate} / {count} > {most:.9g}", "15m", "ticket",
            f"Replicas answer more than the {pool.kind.goodput:.4g} requests a second, each, at "
            "which the pool keeps its limit.",
        )  # fmt: skip
    work = f"sum(rate(nv_inference_compute_infer_duration_us{chosen}[5m])) / 1e6"
    most = min(_FULL, _SLACK * max(pool.busy, 0.01))
    return _alert(
        pool, "Busy", f"{work} / {count} > {most:.4g}", "15m", "ticket",
        f"Replicas work more than the {pool.busy:.0%} of the time that was simulated.",
    )  # fmt: skip


def _capacity(pool: DeployedPool) -> float:
    """Return the requests a second that a replica answers in full batches, as they were timed."""
    ms = pool.kind.latency_ms.get(str(pool.kind.batch))
    return math.inf if ms is None else pool.kind.batch / Quantity(*ms).upper * 1e3


def _alert(
    pool: DeployedPool, name: str, expression: str, lasting: str, severity: str, words: str
) -> dict[str, Any]:
    return {
        "alert": f"Hwnas{name}", "expr": expression, "for": lasting,
        "labels": {"severity": severity, "model": pool.name, "device": pool.kind.device},
        "annotations": {"summary": f"{pool.name}: {words}", "pool": pool.of},
    }  # fmt: skip


def _forecast(rates: Sequence[float], begin_min: int = 0) -> str:
    """Return what must be borne now: by the hour in UTC of a day or a week, or else the most."""
    n, (first, minute) = len(rates), divmod(begin_min, 60)
    if n not in (DAY, WEEK) or len({*rates}) == 1:
        return f"vector({max(rates):.9g})"
    # Prometheus counts days from Sunday on, plans from Monday on.
    now = "hour()" if n == DAY else f"({DAY} * ((day_of_week() + 6) % 7) + hour())"
    if minute:  # the hour of the plan that goes on began in the hour before until then
        now = f"floor(({now} + {n} + (minute() - {minute}) / 60) % {n})"
    parts, hour = [], 0
    for rate, group in groupby(rates[(i - first) % n] for i in range(n)):
        last = hour + len([*group]) - 1
        parts.append(f"(vector({rate:.9g}) and on() ({now} >= {hour}) and on() ({now} <= {last}))")
        hour = last + 1
    return " or ".join(parts)
