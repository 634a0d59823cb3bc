"""What changes by the hour, as CronJobs of Kubernetes: each applies a file when its hours begin.

Files hold parts of manifests, which are merged into what there is (server-side apply). Source:
https://kubernetes.io/docs/reference/using-api/server-side-apply, "Field management". Whole
manifests must be applied by the server, too: of what the client applied, ``kubectl`` makes the next
manager own all fields, so that parts would remove the others.
"""

from collections.abc import Iterator, Sequence

from hwnas.deployment.kubernetes import LOCKED, Manifest, dumped
from hwnas.planning.clock import DAY, WEEK

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
        found.append(_manifest("v1", "ConfigMap", of, data={_FILE: content.decode()}))
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
    yield _manifest("v1", "ServiceAccount", name)
    yield _manifest(f"{group}/v1", "Role", name, rules=[*rules])
    yield _manifest(
        f"{group}/v1", "RoleBinding", name,
        roleRef={"apiGroup": group, "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    )  # fmt: skip


def allowed(group: str, resource: str, names: Sequence[str]) -> Manifest:
    """Return the rule that lets named resources be changed."""
    return {"apiGroups": [group], "resources": [resource], "resourceNames": [*names],
            "verbs": ["get", "patch"]}  # fmt: skip


def _manifest(version: str, kind: str, name: str, **more: object) -> Manifest:
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
    return _manifest("batch/v1", "CronJob", name, spec={
        "schedule": when, "timeZone": "Etc/UTC", "startingDeadlineSeconds": _LATE_S,
        "jobTemplate": {"spec": {"backoffLimit": 4, "template": {"spec": pod}}},
    })  # fmt: skip
