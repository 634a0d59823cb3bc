"""Kubernetes manifests: a Deployment per pool, its Service, autoscaler and disruption budget."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from hwnas.fleet.calendar import DAY, WEEK
from hwnas.fleet.deployment import server_files
from hwnas.fleet.deployment.onnx_served import CONFIDENCE
from hwnas.fleet.deployment.pools import (
    DeployedPool,
    busiest_hour,
    dns_label,
    path_of,
    routes_by_hour,
)
from hwnas.fleet.plan import DeploymentPlan, RequestRoute

DEVICE = "hwnas/device"  #: node label: device of the fleet
_SERVER_MIB = 1024  # assumed memory of a server without its model
_SCALE_DOWN_S = 300  # seconds of low load before scaling down, to avoid oscillation
_MAX_LABEL = 63  # characters of a label's value
_MIN_BUSY = 10  # minimum target utilisation of the autoscaler, %

#: security context of pods
LOCKED = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}

Manifest = dict[str, Any]


def manifests(pools: Sequence[DeployedPool], scheduled: bytes = b"") -> dict[str, bytes]:
    """Return the content of ``kubernetes/POOL.yaml`` and ``kustomization.yaml``, by path.

    ``scheduled`` is the content of ``schedule.yaml``; empty: none is written.
    """
    result = {f"{pool.name}.yaml": to_yaml(*_pool_manifests(pool)) for pool in pools}
    result |= {"schedule.yaml": scheduled} if scheduled else {}
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [*result],
    }  # fmt: skip
    result["kustomization.yaml"] = to_yaml(listed)
    return {f"kubernetes/{name}": content for name, content in result.items()}


def hour_patches(pools: Sequence[DeployedPool], hour: int) -> bytes:
    """Return YAML patches that set the replicas of an hour of the plan, counted from 0.

    For a pool with an autoscaler they set its minimum, and the replicas only when the pool stops
    or starts, so that replicas added by the autoscaler stay.
    """
    return to_yaml(*(part for pool in pools for part in _patches_of_pool(pool, hour)))


def _patches_of_pool(pool: DeployedPool, hour: int) -> Iterator[Manifest]:
    n = pool.replicas[hour]
    if not pool.is_scaled or 0 in (n, pool.replicas[hour - 1]):  # hour 0 comes after the last
        yield _workload_manifest("apps/v1", "Deployment", pool, {"replicas": n})
    if pool.is_scaled and n:
        least = {"minReplicas": n}
        yield _workload_manifest("autoscaling/v2", "HorizontalPodAutoscaler", pool, least)


def to_yaml(*documents: Manifest) -> bytes:
    """Return the YAML text of one or more documents."""
    return yaml.safe_dump_all(documents, sort_keys=False, width=100).encode()


def node_label(device: str) -> str:
    """Return the value of the node label ``hwnas/device`` for a device of ``fleet.yaml``.

    Invalid characters are replaced by hyphens; it has at most 63 characters.
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", device)[:_MAX_LABEL].strip("-_.")


def _pool_manifests(pool: DeployedPool) -> Iterator[Manifest]:
    yield _workload_manifest("apps/v1", "Deployment", pool, {
        "replicas": pool.initial_replicas, "selector": _selector(pool),
        # Machines are full: a new pod fits only where an old one ended.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": 0, "maxUnavailable": _max_unavailable(pool)}},
        "template": {"metadata": {"labels": _labels(pool), "annotations": {
            "prometheus.io/scrape": "true", "prometheus.io/port": str(server_files.METRICS)}},
            "spec": _pod(pool)},
    })  # fmt: skip
    yield _workload_manifest("v1", "Service", pool, {
        "selector": _labels(pool),
        "ports": [{"name": "http", "port": server_files.HTTP, "targetPort": "http"},
                  {"name": "metrics", "port": server_files.METRICS, "targetPort": "metrics"}],
    })  # fmt: skip
    yield _workload_manifest("policy/v1", "PodDisruptionBudget", pool, {
        "maxUnavailable": _max_unavailable(pool), "selector": _selector(pool),
    })  # fmt: skip
    if pool.is_scaled:
        yield _workload_manifest("autoscaling/v2", "HorizontalPodAutoscaler", pool, _scaling(pool))


def _max_unavailable(pool: DeployedPool) -> int:
    """Return the number of replicas that may be missing at once: the spares, or 1."""
    return max(1, pool.max_per_machine)


def _workload_manifest(version: str, kind: str, pool: DeployedPool, spec: Manifest) -> Manifest:
    metadata = {"name": pool.name, "labels": _labels(pool)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(pool: DeployedPool) -> dict[str, str]:
    return {"app.kubernetes.io/name": pool.name, "app.kubernetes.io/managed-by": "hwnas"}


def _selector(pool: DeployedPool) -> Manifest:
    return {"matchLabels": _labels(pool)}


def _pod(pool: DeployedPool) -> Manifest:
    return {
        "nodeSelector": {DEVICE: node_label(pool.kind.device)},
        "topologySpreadConstraints": [{
            # Spread evenly, so that no node holds more replicas than may fail.
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule" if pool.max_per_machine else "ScheduleAnyway",
            "labelSelector": _selector(pool),
        }],
        "securityContext": {**LOCKED},
        "containers": [_container(pool)],
    }  # fmt: skip


def _container(pool: DeployedPool) -> Manifest:
    def asked(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 5}

    return {
        "name": "triton", "image": server_files.IMAGE,
        "command": server_files.server_arguments(pool),
        "ports": [{"name": "http", "containerPort": server_files.HTTP},
                  {"name": "metrics", "containerPort": server_files.METRICS}],
        "resources": _resources(pool),
        "startupProbe": asked(f"/v2/models/{pool.name}/ready") | {"failureThreshold": 60},
        "readinessProbe": asked(f"/v2/models/{pool.name}/ready"),
        "livenessProbe": asked("/v2/health/live"),
        "securityContext": {"allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip


def _resources(pool: DeployedPool) -> Manifest:
    """Return a replica's requests: the threads of its timing, and memory."""
    memory = f"{math.ceil(pool.kind.memory_mib) + _SERVER_MIB}Mi"
    gpu = {"nvidia.com/gpu": "1"} if pool.source.is_on_gpu else {}
    return {"requests": {"cpu": str(pool.source.threads), "memory": memory, **gpu},
            "limits": {"memory": memory, **gpu}}  # fmt: skip


def _scaling(pool: DeployedPool) -> Manifest:
    busy = max(_MIN_BUSY, round(100 * pool.busy))
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.name},
        "minReplicas": pool.least, "maxReplicas": pool.peak,
        "metrics": [{"type": "Resource", "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": busy}}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_S}},
    }  # fmt: skip


# Hourly changes: CronJobs apply patches by server-side apply. The manifests must be applied by the
# server, too: after client-side apply the next manager owns all fields, and patches would remove
# the others. Source: https://kubernetes.io/docs/reference/using-api/server-side-apply.

IMAGE = "registry.k8s.io/kubectl:v1.34.0"
_PATH, _FILE = "/hours", "hour.yaml"
_LATE_S = 1800  # maximum delay of a job if the controller was down


def schedule(
    name: str, hours: Sequence[bytes], rules: Sequence[Manifest], begin_min: int | None = None
) -> bytes:
    """Return the YAML of CronJobs that apply a file in each hour.

    Empty if all hours have the same file, or the plan is neither a day nor a week.

    Args:
        name: Prefix of the names of jobs.
        hours: File of each hour of the plan.
        rules: Permissions that the files need.
        begin_min: Minutes from 0:00 UTC (of a week: Monday) to hour 0.
    """
    if len(hours) not in (DAY, WEEK) or len({*hours}) == 1:
        return b""
    result = [*_access_manifests(name, rules)]
    for content in dict.fromkeys(hours):
        equal_hours = [hour for hour, other in enumerate(hours) if other == content]
        job_name = f"{name}-{equal_hours[0]}"
        result.append(_cron_manifest("v1", "ConfigMap", job_name, data={_FILE: content.decode()}))
        for i, when in enumerate(cron_times(equal_hours, len(hours), begin_min or 0)):
            result.append(_job(f"{job_name}-{i}", when, name, job_name))
    return to_yaml(*result)


def cron_times(hours: Sequence[int], n: int, begin_min: int = 0) -> list[str]:
    """Return cron schedules in UTC of hours of a plan; days with the same hours share one.

    Args:
        hours: Hours of the plan.
        n: Number of hours of the plan: 24 or 168.
        begin_min: Minutes from 0:00 UTC (of a week: Monday) to hour 0.
    """
    days: dict[tuple[int, ...], list[int]] = {}
    first, minute = divmod(begin_min, 60)
    utc = sorted((hour + first) % n for hour in hours)
    for day in range(n // DAY):
        times = tuple(hour % DAY for hour in utc if hour // DAY == day)
        days.setdefault(times, []).append((day + 1) % 7)  # in cron Sunday is day 0
    return [
        f"{minute} {_join_numbers(times)} * * {_join_numbers(sorted(on)) if n == WEEK else '*'}"
        for times, on in days.items()
        if times
    ]


def _join_numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _access_manifests(name: str, rules: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield the account of the jobs, and its permissions."""
    group = "rbac.authorization.k8s.io"
    yield _cron_manifest("v1", "ServiceAccount", name)
    yield _cron_manifest(f"{group}/v1", "Role", name, rules=[*rules])
    yield _cron_manifest(
        f"{group}/v1", "RoleBinding", name,
        roleRef={"apiGroup": group, "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    )  # fmt: skip


def patch_rule(group: str, resource: str, names: Sequence[str]) -> Manifest:
    """Return a rule of a Role: the permission to read and patch the named resources."""
    return {"apiGroups": [group], "resources": [resource], "resourceNames": [*names],
            "verbs": ["get", "patch"]}  # fmt: skip


def _cron_manifest(version: str, kind: str, name: str, **more: object) -> Manifest:
    labels = {"app.kubernetes.io/managed-by": "hwnas"}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def _job(name: str, when: str, account: str, files: str) -> Manifest:
    pod = {
        "serviceAccountName": account, "restartPolicy": "Never", "securityContext": {**LOCKED},
        "containers": [{
            "name": "kubectl", "image": IMAGE,
            "command": ["kubectl", "apply", "--server-side", "--force-conflicts",
                        "--field-manager=hwnas", "-f", f"{_PATH}/{_FILE}"],
            "volumeMounts": [{"name": "hours", "mountPath": _PATH}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"},
                          "limits": {"memory": "256Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]}},
        }],
        "volumes": [{"name": "hours", "configMap": {"name": files}}],
    }  # fmt: skip
    return _cron_manifest("batch/v1", "CronJob", name, spec={
        "schedule": when, "timeZone": "Etc/UTC", "startingDeadlineSeconds": _LATE_S,
        "jobTemplate": {"spec": {"backoffLimit": 4, "template": {"spec": pod}}},
    })  # fmt: skip


# Classes with cascades or several routes: InferenceGraphs of KServe over the pools' Services.
# Cascades escalate below a confidence threshold; several routes are split by their rates. Source:
# https://kserve.github.io/website/docs/concepts/resources/inferencegraph.


def inference_graphs(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> dict[str, bytes]:
    """Return the content of ``kserve/NAME.yaml`` by path, and of their schedule if there is one.

    Graphs have the routes of the busiest hour; the schedule changes them every hour.
    """
    names = {pool.of: pool.name for pool in pools}
    start, hours = busiest_hour(plan), range(plan.n_hours)
    by_class = {
        name: [
            to_yaml(_graph(name, routes, names))
            for routes in _class_routes(plan, request_class, names)
        ]
        for request_class, name in graph_names(plan, pools).items()
    }
    result = {f"kserve/{name}.yaml": graphs[start] for name, graphs in by_class.items()}
    every = [b"---\n".join(graphs[hour] for graphs in by_class.values()) for hour in hours]
    rules = [patch_rule("serving.kserve.io", "inferencegraphs", [*by_class])]
    scheduled = schedule("hwnas-routes", every, rules, plan.begin_min)
    return result | ({"kserve/schedule.yaml": scheduled} if scheduled else {})


def graph_names(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> dict[str, str]:
    """Return the names of inference graphs by class, of classes with a cascade or several routes.

    Classes without a deployed route have none; nor have those with a split network, as KServe
    cannot forward its tensor.
    """
    names, labels = {pool.of: pool.name for pool in pools}, set[str]()
    result = {}
    for request_class in plan.classes:
        paths = {
            path_of(route)
            for routes in routes_by_hour(plan, request_class, names)
            for route in routes
        }
        if any(plan.is_split(first, second) for first, second, _ in paths):
            continue
        if len(paths) > 1 or any(second is not None for _, second, _ in paths):
            result[request_class] = dns_label(f"class-{request_class}", request_class, labels)
    return result


def _class_routes(
    plan: DeploymentPlan, request_class: str, names: Mapping[str, str]
) -> list[list[RequestRoute]]:
    """Return the served routes of a class by hour; in hours without demand those of its peak."""
    every = routes_by_hour(plan, request_class, names)
    peak = max(every, key=lambda routes: sum(r.rate for r in routes))
    return [routes or peak for routes in every]


def _graph(name: str, routes: Sequence[RequestRoute], names: Mapping[str, str]) -> Manifest:
    weights = _per_cent([route.rate for route in routes])
    if weights.count(0) == len(weights) - 1:  # a single route
        only = routes[weights.index(100)]
        return _graph_manifest(
            name, {"root": {"routerType": "Sequence", "steps": _steps(only, names)}}
        )
    nodes: dict[str, Manifest] = {"root": {"routerType": "Splitter", "steps": [
        {"nodeName": f"route-{i}", "name": f"route-{i}", "weight": weight}
        for i, weight in enumerate(weights) if weight
    ]}}  # fmt: skip
    for i, (route, weight) in enumerate(zip(routes, weights, strict=True)):
        if weight:
            nodes[f"route-{i}"] = {"routerType": "Sequence", "steps": _steps(route, names)}
    return _graph_manifest(name, nodes)


def _graph_manifest(name: str, nodes: Mapping[str, Manifest]) -> Manifest:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1", "kind": "InferenceGraph",
        "metadata": {"name": name}, "spec": {"nodes": nodes},
    }  # fmt: skip


def _steps(route: RequestRoute, names: Mapping[str, str]) -> list[Manifest]:
    first: Manifest = {"name": "first", "serviceUrl": _url(names[route.first])}
    if route.second is None:
        return [first]
    # The next step runs if its condition finds a match in the response.
    unsure = f'outputs.#(name=="{CONFIDENCE}").data.#(<{route.threshold:.9g})'
    second = {"name": "second", "serviceUrl": _url(names[route.second]),
              "data": "$request", "condition": unsure}  # fmt: skip
    return [first, second]


def _url(name: str) -> str:
    return f"http://{name}:{server_files.HTTP}/v2/models/{name}/infer"


def _per_cent(rates: Sequence[float]) -> list[int]:
    """Return fractions as whole percentages that add up to 100 (largest remainders)."""
    exact = [100 * rate / sum(rates) for rate in rates]
    result = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: result[i] - exact[i])
    for i in order[: 100 - sum(result)]:
        result[i] += 1
    return result
