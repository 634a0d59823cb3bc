"""Manifests of Kubernetes: a Deployment a pool, its Service, what scales and what guards it."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from hwnas.deployment import triton
from hwnas.deployment.pools import Deployed

DEVICE = "hwnas/device"  #: the label of nodes that says which device of the fleet they are
_SERVER_MIB = 1024  # memory of a server beside its model: assumed
_SCALE_DOWN_S = 300  # of low load before replicas are taken away, so that scaling does not swing
_LONGEST = 63  # characters of a label's value
_LEAST_BUSY = 10  # per cent that the autoscaler may be told

#: of pods: a user without rights
LOCKED = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}

Manifest = dict[str, Any]


def manifests(pools: Sequence[Deployed], scheduled: bytes = b"") -> dict[str, bytes]:
    """Return a file for each pool, and ``kustomization.yaml``, which lists them.

    Args:
        pools: The pools.
        scheduled: What changes their replicas by the hour; empty: nothing does.
    """
    found = {f"{pool.name}.yaml": dumped(*_of_pool(pool)) for pool in pools}
    found |= {"schedule.yaml": scheduled} if scheduled else {}
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [*found],
    }  # fmt: skip
    found["kustomization.yaml"] = dumped(listed)
    return {f"kubernetes/{name}": content for name, content in found.items()}


def hour(pools: Sequence[Deployed], of: int) -> bytes:
    """Return the replicas of an hour, as parts of manifests.

    An autoscaler is told the least. What it added is left alone, but where a pool rests, and where
    it begins anew after that.
    """
    return dumped(*(part for pool in pools for part in _in_hour(pool, of)))


def _in_hour(pool: Deployed, of: int) -> Iterator[Manifest]:
    n = pool.replicas[of]
    if not pool.is_scaled or 0 in (n, pool.replicas[of - 1]):  # hour 0 comes after the last
        yield _manifest("apps/v1", "Deployment", pool, {"replicas": n})
    if pool.is_scaled and n:
        least = {"minReplicas": n}
        yield _manifest("autoscaling/v2", "HorizontalPodAutoscaler", pool, least)


def dumped(*documents: Manifest) -> bytes:
    """Return documents as YAML."""
    return yaml.safe_dump_all(documents, sort_keys=False, width=100).encode()


def node_label(device: str) -> str:
    """Return the value of ``DEVICE`` on nodes of a device: of all names what labels may hold."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", device)[:_LONGEST].strip("-_.")


def _of_pool(pool: Deployed) -> Iterator[Manifest]:
    yield _manifest("apps/v1", "Deployment", pool, {
        "replicas": pool.begun, "selector": _selector(pool),
        # Machines are full: there is room for a new pod where an old one ended.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": 0, "maxUnavailable": _lost(pool)}},
        "template": {"metadata": {"labels": _labels(pool), "annotations": {
            "prometheus.io/scrape": "true", "prometheus.io/port": str(triton.METRICS)}},
            "spec": _pod(pool)},
    })  # fmt: skip
    yield _manifest("v1", "Service", pool, {
        "selector": _labels(pool),
        "ports": [{"name": "http", "port": triton.HTTP, "targetPort": "http"},
                  {"name": "metrics", "port": triton.METRICS, "targetPort": "metrics"}],
    })  # fmt: skip
    yield _manifest("policy/v1", "PodDisruptionBudget", pool, {
        "maxUnavailable": _lost(pool), "selector": _selector(pool),
    })  # fmt: skip
    if pool.is_scaled:
        yield _manifest("autoscaling/v2", "HorizontalPodAutoscaler", pool, _scaling(pool))


def _lost(pool: Deployed) -> int:
    """Return how many replicas may be missing at once: those that are spare, or else one."""
    return max(1, pool.spread)


def _manifest(version: str, kind: str, pool: Deployed, spec: Manifest) -> Manifest:
    metadata = {"name": pool.name, "labels": _labels(pool)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(pool: Deployed) -> dict[str, str]:
    return {"app.kubernetes.io/name": pool.name, "app.kubernetes.io/managed-by": "hwnas"}


def _selector(pool: Deployed) -> Manifest:
    return {"matchLabels": _labels(pool)}


def _pod(pool: Deployed) -> Manifest:
    return {
        "nodeSelector": {DEVICE: node_label(pool.kind.device)},
        "topologySpreadConstraints": [{
            # Evenly over the nodes that the plan has, no node holds more than may fail.
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule" if pool.spread else "ScheduleAnyway",
            "labelSelector": _selector(pool),
        }],
        "securityContext": {**LOCKED},
        "containers": [_container(pool)],
    }  # fmt: skip


def _container(pool: Deployed) -> Manifest:
    def asked(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 5}

    return {
        "name": "triton", "image": triton.IMAGE, "command": triton.arguments(pool),
        "ports": [{"name": "http", "containerPort": triton.HTTP},
                  {"name": "metrics", "containerPort": triton.METRICS}],
        "resources": _resources(pool),
        "startupProbe": asked(f"/v2/models/{pool.name}/ready") | {"failureThreshold": 60},
        "readinessProbe": asked(f"/v2/models/{pool.name}/ready"),
        "livenessProbe": asked("/v2/health/live"),
        "securityContext": {"allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip


def _resources(pool: Deployed) -> Manifest:
    """Return what a replica asks for: the threads that it was timed with, and memory."""
    memory = f"{math.ceil(pool.kind.memory_mib) + _SERVER_MIB}Mi"
    gpu = {"nvidia.com/gpu": "1"} if pool.source.is_on_gpu else {}
    return {"requests": {"cpu": str(pool.source.threads), "memory": memory, **gpu},
            "limits": {"memory": memory, **gpu}}  # fmt: skip


def _scaling(pool: Deployed) -> Manifest:
    busy = max(_LEAST_BUSY, round(100 * pool.busy))
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.name},
        "minReplicas": pool.least, "maxReplicas": pool.peak,
        "metrics": [{"type": "Resource", "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": busy}}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_S}},
    }  # fmt: skip
