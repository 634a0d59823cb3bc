"""Alerting rules of Prometheus for deviations from the plan.

Metrics: https://github.com/triton-inference-server/server, docs/user_guide/metrics.md.
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

_SLACK = 1.1  # tolerated factor of planned values
_FULL = 0.99  # measurable fraction of a replica's capacity
FORECAST = "hwnas:forecast_requests_per_second"  #: series of a pool's planned rate


def alert_rules(pools: Sequence[DeployedPool], begin_min: int | None = None) -> dict[str, bytes]:
    """Return the content of ``prometheus/rules.yaml`` by this path.

    ``begin_min`` are the minutes from 0:00 UTC (of a week: Monday) to hour 0; ``None``: 0.
    """
    groups = [
        {"name": f"hwnas-{pool.name}", "rules": [*_pool_rules(pool, begin_min or 0)]}
        for pool in pools
    ]
    text = yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)
    return {"prometheus/rules.yaml": text.encode()}


def _pool_rules(pool: DeployedPool, begin_min: int) -> Iterator[dict[str, Any]]:
    chosen = f'{{model="{pool.name}"}}'
    rate = f"sum(rate(nv_inference_request_success{chosen}[5m]))"
    count = f"count(nv_inference_request_success{chosen})"
    late = f'nv_inference_request_summary_us{{model="{pool.name}",quantile="0.99"}}'
    forecast = _forecast(pool.rates, begin_min)
    yield {"record": FORECAST, "labels": {"model": pool.name}, "expr": forecast}
    yield _alert(
        pool, "Late", f"max({late}) > {pool.kind.limit_ms * 1e3:.9g}", "5m", "page",
        f"More than {LATE:.0%} of a replica's responses exceed the {pool.kind.limit_ms:g} ms of "
        "the pool.",
    )  # fmt: skip
    yield _busy_alert(pool, chosen, rate, count)
    yield _alert(
        pool, "Demand", f'{rate} > {_SLACK:g} * sum({FORECAST}{chosen})', "10m",
        "ticket", "The demand exceeds the plan of this hour: replan.",
    )  # fmt: skip
    missing = f"absent(nv_inference_request_success{chosen})"
    start_s = 0
    if 0 in pool.replicas:  # it has no replicas in hours without demand, and starts after them
        missing += f" and on() sum({FORECAST}{chosen}) > 0"
        start_s = math.ceil(pool.start_s)
    yield _alert(
        pool, "Missing", missing, f"{120 + start_s}s", "page", "No replica serves the model."
    )
    yield _alert(
        pool, "Few", f"{count} < {pool.least}", f"{300 + start_s}s", "page",
        f"Fewer replicas run than the minimum of all hours, {pool.least}.",
    )  # fmt: skip
    failures = f"sum(rate(nv_inference_request_failure{chosen}[5m]))"
    yield _alert(pool, "Failing", f"{failures} > 0", "5m", "page", "Requests fail.")


def _busy_alert(pool: DeployedPool, chosen: str, rate: str, count: str) -> dict[str, Any]:
    """Return the alert on overloaded replicas.

    Triton counts the time of a batch once per request (``nv_inference_compute_infer_duration_us``),
    so pools with batches are watched by their requests/s.
    """
    if pool.kind.batch > 1:
        # Full batches limit the responses at any demand.
        limit = min(_SLACK * pool.kind.goodput, _FULL * _capacity(pool))
        return _alert(
            pool, "Busy", f"{rate} / {count} > {limit:.9g}", "15m", "ticket",
            f"Replicas serve more than {pool.kind.goodput:.4g} requests/s each, at which the pool "
            "keeps its limit.",
        )  # fmt: skip
    work = f"sum(rate(nv_inference_compute_infer_duration_us{chosen}[5m])) / 1e6"
    limit = min(_FULL, _SLACK * max(pool.busy, 0.01))
    return _alert(
        pool, "Busy", f"{work} / {count} > {limit:.4g}", "15m", "ticket",
        f"Replicas are busy more than the simulated {pool.busy:.0%} of the time.",
    )  # fmt: skip


def _capacity(pool: DeployedPool) -> float:
    """Return the requests/s of a replica with full batches, as timed."""
    ms = pool.kind.latency_ms.get(str(pool.kind.batch))
    return math.inf if ms is None else pool.kind.batch / Quantity(*ms).upper * 1e3


def _alert(
    pool: DeployedPool, name: str, expression: str, lasting: str, severity: str, summary: str
) -> dict[str, Any]:
    return {
        "alert": f"Hwnas{name}", "expr": expression, "for": lasting,
        "labels": {"severity": severity, "model": pool.name, "device": pool.kind.device},
        "annotations": {"summary": f"{pool.name}: {summary}", "pool": pool.of},
    }  # fmt: skip


def _forecast(rates: Sequence[float], begin_min: int = 0) -> str:
    """Return an expression of the planned rate now: by UTC hour, else the maximum."""
    n, (first, minute) = len(rates), divmod(begin_min, 60)
    if n not in (DAY, WEEK) or len({*rates}) == 1:
        return f"vector({max(rates):.9g})"
    # Prometheus counts days from Sunday on, plans from Monday on.
    now = "hour()" if n == DAY else f"({DAY} * ((day_of_week() + 6) % 7) + hour())"
    if minute:  # hours of the plan begin at this minute
        now = f"floor(({now} + {n} + (minute() - {minute}) / 60) % {n})"
    parts, hour = [], 0
    for rate, group in groupby(rates[(i - first) % n] for i in range(n)):
        last = hour + len([*group]) - 1
        parts.append(f"(vector({rate:.9g}) and on() ({now} >= {hour}) and on() ({now} <= {last}))")
        hour = last + 1
    return " or ".join(parts)
