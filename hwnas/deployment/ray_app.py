"""The application of Ray Serve: one file, which holds what it needs of the plan."""

import json
import math
import pprint
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwnas.deployment.pools import Deployed, busiest
from hwnas.planning.plan import HourPlan, Plan

NAME = "ray_app.py"
_SCRIPT = Path(__file__).parent / "app.py"
_EMPTY = "PLAN: dict[str, Any] = {}"
_PROVIDERS = {
    "": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider", "openvino": "OpenVINOExecutionProvider",
}  # fmt: skip


def app(plan: Plan, pools: Sequence[Deployed]) -> dict[str, bytes]:
    """Return the application by its name; nothing where no pool has the file of its model."""
    able = {pool.of: pool for pool in pools if pool.model is not None}
    if not able:
        return {}
    hours = [_hour(plan, of, able) for of in plan.hours]
    content = {
        "pools": {pool.name: _pool(pool) for pool in able.values()},
        "hours": hours,
        "routes": _at_peak(hours),
        "start": busiest(plan),
    }
    return {NAME: _written(content)}


def alone(pools: Sequence[Deployed]) -> bytes:
    """Return an application in which each pool has one replica, and a class of its own name."""
    routes = {
        pool.name: [
            {"first": pool.name, "second": "", "rate": 1.0, "threshold": 0.0, "split": False}
        ]
        for pool in pools
    }
    hour = {"hours": [0], "replicas": {pool.name: 1 for pool in pools}, "routes": routes}
    named = {pool.name: _pool(pool) for pool in pools}
    return _written({"pools": named, "hours": [hour], "routes": routes, "start": 0})


def _written(content: dict[str, Any]) -> bytes:
    """Return the application with what it serves.

    Args:
        content: ``pools`` by name, ``hours`` with their replicas and routes, ``routes`` of
            peaks, and ``start``, the hour whose replicas come first.
    """
    plain = json.loads(json.dumps(content))  # lists for tuples, and nothing that is no literal
    literal = pprint.pformat(plain, width=100, sort_dicts=False, compact=True)
    text = _SCRIPT.read_text()
    assert _EMPTY in text
    return text.replace(_EMPTY, f"PLAN: dict[str, Any] = {literal}").encode()


def _pool(pool: Deployed) -> dict[str, Any]:
    assert pool.model is not None
    return {
        "device": pool.kind.device, "batch": pool.kind.batch, "wait_s": pool.kind.wait_ms / 1e3,
        "threads": pool.source.threads, "providers": [_PROVIDERS[pool.source.provider]],
        "gpus": _gpus(pool), "shape": pool.model.shape, "busy": pool.busy,
        "dtype": "uint8" if pool.model.types[0] == "UINT8" else "float32",
    }  # fmt: skip


def _gpus(pool: Deployed) -> float:
    """Return the share of a GPU that a replica has: as many fit on one as a machine has slots."""
    return math.floor(1e4 / pool.slots) / 1e4 if pool.source.is_on_gpu else 0.0  # as Ray counts


def _at_peak(hours: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the routes of each class in the hour in which most is asked of it."""
    found: dict[str, list[dict[str, Any]]] = {}
    most: dict[str, float] = {}
    for hour in hours:
        for name, routes in hour["routes"].items():
            rate = sum(route["rate"] for route in routes)
            if rate > most.get(name, 0.0):
                found[name], most[name] = routes, rate
    return found


def _hour(plan: Plan, of: HourPlan, able: dict[str, Deployed]) -> dict[str, Any]:
    routes: dict[str, list[dict[str, Any]]] = {}
    for r in of.routes:
        if r.first in able and (r.second is None or r.second in able):
            routes.setdefault(r.klass, []).append({
                "first": able[r.first].name, "second": able[r.second].name if r.second else "",
                "rate": r.rate, "threshold": r.threshold, "split": plan.is_split(r.first, r.second),
            })  # fmt: skip
    replicas = {able[p.kind].name: p.replicas for p in of.pools if p.kind in able}
    return {"hours": of.hours, "replicas": replicas, "routes": routes}
