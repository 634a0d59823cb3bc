"""Manifests of Kubernetes: a Deployment a pool, its Service, what scales and what guards it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from hwnas.fleet.calendar import DAY, WEEK
from hwnas.fleet.deployment import server_files
from hwnas.fleet.deployment.onnx_served import CONFIDENCE
from hwnas.fleet.deployment.pools import DeployedPool, busiest, by_hour, label, way, ways
from hwnas.fleet.plan import DeploymentPlan, RequestRoute

DEVICE = "hwnas/device"  #: the label of nodes that says which device of the fleet they are
_SERVER_MIB = 1024  # memory of a server beside its model: assumed
_SCALE_DOWN_S = 300  # of low load before replicas are taken away, so that scaling does not swing
_LONGEST = 63  # characters of a label's value
_LEAST_BUSY = 10  # per cent that the autoscaler may be told

#: of pods: a user without rights
LOCKED = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}

Manifest = dict[str, Any]


def manifests(pools: Sequence[DeployedPool], scheduled: bytes = b"") -> dict[str, bytes]:
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


def hour(pools: Sequence[DeployedPool], of: int) -> bytes:
    """Return the replicas of an hour, as parts of manifests.

    An autoscaler is told the least. What it added is left alone, but where a pool rests, and where
    it begins anew after that.
    """
    return dumped(*(part for pool in pools for part in _in_hour(pool, of)))


def _in_hour(pool: DeployedPool, of: int) -> Iterator[Manifest]:
    n = pool.replicas[of]
    if not pool.is_scaled or 0 in (n, pool.replicas[of - 1]):  # hour 0 comes after the last
        yield _workload_manifest("apps/v1", "Deployment", pool, {"replicas": n})
    if pool.is_scaled and n:
        least = {"minReplicas": n}
        yield _workload_manifest("autoscaling/v2", "HorizontalPodAutoscaler", pool, least)


def dumped(*documents: Manifest) -> bytes:
    """Return documents as YAML."""
    return yaml.safe_dump_all(documents, sort_keys=False, width=100).encode()


def node_label(device: str) -> str:
    """Return the value of ``DEVICE`` on nodes of a device: of all names what labels may hold."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", device)[:_LONGEST].strip("-_.")


def _of_pool(pool: DeployedPool) -> Iterator[Manifest]:
    yield _workload_manifest("apps/v1", "Deployment", pool, {
        "replicas": pool.begun, "selector": _selector(pool),
        # Machines are full: there is room for a new pod where an old one ended.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": 0, "maxUnavailable": _lost(pool)}},
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
        "maxUnavailable": _lost(pool), "selector": _selector(pool),
    })  # fmt: skip
    if pool.is_scaled:
        yield _workload_manifest("autoscaling/v2", "HorizontalPodAutoscaler", pool, _scaling(pool))


def _lost(pool: DeployedPool) -> int:
    """Return how many replicas may be missing at once: those that are spare, or else one."""
    return max(1, pool.spread)


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
            # Evenly over the nodes that the plan has, no node holds more than may fail.
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule" if pool.spread else "ScheduleAnyway",
            "labelSelector": _selector(pool),
        }],
        "securityContext": {**LOCKED},
        "containers": [_container(pool)],
    }  # fmt: skip


def _container(pool: DeployedPool) -> Manifest:
    def asked(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 5}

    return {
        "name": "triton", "image": server_files.IMAGE, "command": server_files.arguments(pool),
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
    """Return what a replica asks for: the threads that it was timed with, and memory."""
    memory = f"{math.ceil(pool.kind.memory_mib) + _SERVER_MIB}Mi"
    gpu = {"nvidia.com/gpu": "1"} if pool.source.is_on_gpu else {}
    return {"requests": {"cpu": str(pool.source.threads), "memory": memory, **gpu},
            "limits": {"memory": memory, **gpu}}  # fmt: skip


def _scaling(pool: DeployedPool) -> Manifest:
    busy = max(_LEAST_BUSY, round(100 * pool.busy))
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.name},
        "minReplicas": pool.least, "maxReplicas": pool.peak,
        "metrics": [{"type": "Resource", "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": busy}}}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_S}},
    }  # fmt: skip


# What changes by the hour, as CronJobs of Kubernetes: each applies a file when its hours begin.
#
# Files hold parts of manifests, which are merged into what there is (server-side apply). Source:
# https://kubernetes.io/docs/reference/using-api/server-side-apply, "Field management". Whole
# manifests must be applied by the server, too: of what the client applied, ``kubectl`` makes the
# next
# manager own all fields, so that parts would remove the others.

IMAGE = "registry.k8s.io/kubectl:v1.34.0"
_PATH, _FILE = "/hours", "hour.yaml"
_LATE_S = 1800  # that an hour may begin late, where the controller was away


def schedule(
    name: str, hours: Sequence[bytes], rules: Sequence[Manifest], begin_min: int | None = None
) -> bytes:
    """Return the manifests that apply a file an hour; empty: all are the same, or no day or week.

    Args:
        name: Of all that there is of it; jobs and files end in the first of their hours.
        hours: The file of each hour of the plan.
        rules: What applying them needs to be allowed.
        begin_min: Minutes after 0:00 UTC, of a week after Monday's, at which hour 0 begins.
    """
    if len(hours) not in (DAY, WEEK) or len({*hours}) == 1:
        return b""
    found = [*_allowed(name, rules)]
    for content in dict.fromkeys(hours):
        own = [hour for hour, other in enumerate(hours) if other == content]
        of = f"{name}-{own[0]}"
        found.append(_cron_manifest("v1", "ConfigMap", of, data={_FILE: content.decode()}))
        for i, when in enumerate(crons(own, len(hours), begin_min or 0)):
            found.append(_job(f"{of}-{i}", when, name, of))
    return dumped(*found)


def crons(hours: Sequence[int], n: int, begin_min: int = 0) -> list[str]:
    """Return when hours of a day or a week begin, as cron has it: days that are alike together."""
    days: dict[tuple[int, ...], list[int]] = {}
    first, minute = divmod(begin_min, 60)
    utc = sorted((hour + first) % n for hour in hours)
    for day in range(n // DAY):
        own = tuple(hour % DAY for hour in utc if hour // DAY == day)
        days.setdefault(own, []).append((day + 1) % 7)  # of cron's week, Sunday is the first
    return [
        f"{minute} {_listed(own)} * * {_listed(sorted(on)) if n == WEEK else '*'}"
        for own, on in days.items()
        if own
    ]


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _allowed(name: str, rules: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield who applies files, and what that is allowed."""
    group = "rbac.authorization.k8s.io"
    yield _cron_manifest("v1", "ServiceAccount", name)
    yield _cron_manifest(f"{group}/v1", "Role", name, rules=[*rules])
    yield _cron_manifest(
        f"{group}/v1", "RoleBinding", name,
        roleRef={"apiGroup": group, "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    )  # fmt: skip


def allowed(group: str, resource: str, names: Sequence[str]) -> Manifest:
    """Return the rule that lets named resources be changed."""
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


# Classes with several ways as InferenceGraphs of KServe, over the Services of the pools.
#
# Of a cascade, the first pool answers; where it is less sure than the threshold, the request goes
# on
# to the second. What a class has of several ways is split by their rates.
# Source: https://kserve.github.io/website/docs/concepts/resources/inferencegraph.


def graphs(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> dict[str, bytes]:
    """Return the graphs of ``named``, as in the hour that is deployed first.

    Where they are others in other hours, ``schedule.yaml`` applies them then.
    """
    names = {pool.of: pool.name for pool in pools}
    start, hours = busiest(plan), range(len(by_hour(plan)))
    by_class = {
        name: [dumped(_graph(name, of, names)) for of in _routes(plan, klass, names)]
        for klass, name in named(plan, pools).items()
    }
    found = {f"kserve/{name}.yaml": of[start] for name, of in by_class.items()}
    every = [b"---\n".join(of[hour] for of in by_class.values()) for hour in hours]
    rules = [allowed("serving.kserve.io", "inferencegraphs", [*by_class])]
    scheduled = schedule("hwnas-routes", every, rules, plan.begin_min)
    return found | ({"kserve/schedule.yaml": scheduled} if scheduled else {})


def named(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> dict[str, str]:
    """Return the names of graphs by class: of all with a cascade, or more than one way.

    What no server runs is left out, and so are classes that are left with nothing; and those with
    a network that was cut: what one step answers is not what the next one reads, to KServe.
    """
    names, taken = {pool.of: pool.name for pool in pools}, set[str]()
    found = {}
    for klass in plan.classes:
        own = {way(route) for of in ways(plan, klass, names) for route in of}
        if any(plan.is_split(first, second) for first, second, _ in own):
            continue
        if len(own) > 1 or any(second is not None for _, second, _ in own):
            found[klass] = label(f"class-{klass}", klass, taken)
    return found


def _routes(plan: DeploymentPlan, klass: str, names: Mapping[str, str]) -> list[list[RequestRoute]]:
    """Return the ways of a class that servers run, by hour; where it rests, those of its peak."""
    every = ways(plan, klass, names)
    peak = max(every, key=lambda routes: sum(r.rate for r in routes))
    return [routes or peak for routes in every]


def _graph(name: str, routes: Sequence[RequestRoute], names: Mapping[str, str]) -> Manifest:
    weights = _per_cent([route.rate for route in routes])
    if weights.count(0) == len(weights) - 1:  # nothing is split
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
    # What a condition finds in the answer is what lets the next step run.
    unsure = f'outputs.#(name=="{CONFIDENCE}").data.#(<{route.threshold:.9g})'
    second = {"name": "second", "serviceUrl": _url(names[route.second]),
              "data": "$request", "condition": unsure}  # fmt: skip
    return [first, second]


def _url(name: str) -> str:
    return f"http://{name}:{server_files.HTTP}/v2/models/{name}/infer"


def _per_cent(rates: Sequence[float]) -> list[int]:
    """Return shares in whole per cent that add up to 100, by largest remainders."""
    exact = [100 * rate / sum(rates) for rate in rates]
    found = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in order[: 100 - sum(found)]:
        found[i] += 1
    return found
