"""All files that deploy a plan, with notes on omitted pools."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hwnas.fleet import calendar
from hwnas.fleet.deployment import alerts, kubernetes, server_files
from hwnas.fleet.deployment import kubernetes as kserve
from hwnas.fleet.deployment import pools as ways
from hwnas.fleet.deployment.kubernetes import DEVICE, node_label, patch_rule, schedule
from hwnas.fleet.deployment.pools import DeployedPool, deployed_pools
from hwnas.fleet.plan import DeploymentPlan
from hwnas.models.onnx.subgraphs import BOUNDARY

FOLDER = "deploy"  #: subfolder of a plan

_HEAD = Path(__file__).with_name("launch.md")
_NOTHING = "# Deployment\n\nNo pool of this plan can be deployed.\n"
#: Prefixes of README lines, and the file prefixes that they need.
_LINES = {
    "docker build": "triton/", "kubectl apply --server-side --force-conflicts -f": "kserve/",
    "serve run": server_files.NAME, f"- `{server_files.NAME}`": server_files.NAME,
}  # fmt: skip


def deployment_files(plan: DeploymentPlan, busy: Mapping[str, float]) -> dict[str, bytes]:
    """Return the content of the files in ``deploy/``, by path in the folder of a plan.

    If no pool can be deployed, there is only a README.

    Args:
        plan: Plan.
        busy: Maximum utilisation of replicas in [0, 1], by name of the pool type.

    Raises:
        RunError: the export or run of a model cannot be read.
        CompileError: a model is not a classifier.
    """
    pools, unserved = deployed_pools(plan, busy)
    result: dict[str, bytes] = {}
    if pools:
        result |= server_files.repository(pools) | kubernetes.manifests(
            pools, _replica_schedule(plan, pools)
        )
        result |= kserve.inference_graphs(plan, pools) | alerts.alert_rules(pools, plan.begin_min)
        result |= server_files.ray_app(plan, pools)
    jobs = [f"`{name}`" for name in result if name.endswith("/schedule.yaml")]
    notes = [
        *_pool_notes(pools, unserved),
        *_split_notes(plan, pools),
        *_hour_notes(pools, jobs),
        *_begin_notes(plan),
        *_spot_notes(plan),
        *_node_notes(plan, pools),
    ]
    plan_notes = "\n## Notes on this plan\n\n" + "\n".join(notes) + "\n" if notes else ""
    table = ways.routing_table(plan, pools, kserve.graph_names(plan, pools))
    result["README.md"] = (_readme_head(result) + table + plan_notes).encode()
    return {f"{FOLDER}/{name}": content for name, content in result.items()}


def _readme_head(deployed: Mapping[str, bytes]) -> str:
    """Return the general part of the README without lines on missing files."""
    if not deployed:
        return _NOTHING
    lacking = tuple(
        begin for begin, needed in _LINES.items()
        if not any(name.startswith(needed) for name in deployed)
    )  # fmt: skip
    lines = _HEAD.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(lacking))


def _replica_schedule(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> bytes:
    """Return the manifests that change replicas by the hour."""
    hours = [kubernetes.hour_patches(pools, hour) for hour in range(len(pools[0].replicas))]
    names = [pool.name for pool in pools]
    rules = [
        patch_rule("apps", "deployments", names),
        patch_rule("autoscaling", "horizontalpodautoscalers", names),
    ]
    return schedule("hwnas-replicas", hours, rules, plan.begin_min)


def _pool_notes(pools: Sequence[DeployedPool], unserved: Mapping[str, str]) -> list[str]:
    lines = [f"- `{name}` is omitted, with all routes through it: {why}."
             for name, why in unserved.items()]  # fmt: skip
    for pool in pools:
        if pool.model is not None and pool.model.shrinks:
            lines.append(
                f"- `{pool.name}` resizes images, so that all pools accept the same size: outputs "
                "may differ slightly from the evaluated ones."
            )
        if pool.source.note:
            fix = f" Put it at `{server_files.REPOSITORY}/{pool.name}/1/model.onnx`." * (
                pool.model is None
            )
            lines.append(f"- `{pool.name}`: {pool.source.note}.{fix}")
        lines += _autoscaler_notes(pool)
    return lines


def _split_notes(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> Iterator[str]:
    """Yield notes on split networks."""
    names = {pool.of: pool.name for pool in pools}
    split = dict.fromkeys(
        (names[first], names[second], request_class) for request_class in plan.classes
        for routes in ways.routes_by_hour(plan, request_class, names)
        for first, second, _ in map(ways.path_of, routes)
        if second is not None and plan.is_split(first, second)
    )  # fmt: skip
    for first, second, request_class in split:
        yield (
            f"- `{first}` and `{second}` are a split network: send output `{BOUNDARY}` of the "
            f"first to the second as its input of that name, as `{server_files.NAME}` does. KServe "
            f"cannot forward it, so class `{request_class}` has no graph."
        )


def _autoscaler_notes(pool: DeployedPool) -> Iterator[str]:
    """Yield the reason why a pool on CPUs has no autoscaler."""
    if pool.is_scaled or pool.source.is_on_gpu:
        return
    why = (
        f"its replicas are busy {pool.busy:.0%} of the time, and autoscalers act at 10 % more"
        if pool.kind.batch == 1
        else "batches grow with the load, so CPU utilisation does not show the load"
    )
    yield f"- `{pool.name}` has no autoscaler: {why}. It has the replicas of the plan."


def _node_notes(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> list[str]:
    """Return notes on node labels, and on pools that need more nodes."""
    lines = []
    for name, device in plan.devices.items():
        placed = [pool for pool in pools if pool.kind.device == name]
        if placed and node_label(name) != name:
            lines.append(f"- Nodes of `{name}` are labelled `{DEVICE}={node_label(name)}`.")
        lines += _gpu_notes(name, device.slots, placed)
        room = max(hour_plan.machines.get(name, 0) for hour_plan in plan.hours) * device.slots
        together = sum(pool.peak if pool.is_scaled else pool.initial_replicas for pool in placed)
        if together > room:
            lines.append(
                f"- Pools on `{name}` peak in different hours: {together} replicas in total, with "
                f"room for {room}. Manifests start those of hour {placed[0].start}, which fit, and "
                "the minimum of pools without replicas in it; if these do not fit, or autoscalers "
                "scale several pools at once, pods stay pending."
            )
    return lines


def _gpu_notes(name: str, slots: int, pools: Sequence[DeployedPool]) -> Iterator[str]:
    """Yield the note on several replicas per GPU."""
    if slots > 1 and any(pool.source.is_on_gpu for pool in pools):
        yield (
            f"- Pods on `{name}` request a whole GPU each, and a machine has {slots} slots: with "
            "fewer GPUs it holds fewer pods than planned, unless NVIDIA's device plugin shares "
            f"them (`sharing.timeSlicing`: {slots} `replicas` of a single GPU). "
            f"`{server_files.NAME}` gives each replica 1/{slots} of a GPU; set `gpus` to 1 if each "
            "has a separate one."
        )


def _hour_notes(pools: Sequence[DeployedPool], jobs: Sequence[str]) -> list[str]:
    """Return notes on the deployed hour, and the jobs that change it."""
    n = len(pools[0].replicas) if pools else 0
    if not jobs and (
        n in (calendar.DAY, calendar.WEEK) or all(_is_constant(pool) for pool in pools)
    ):
        return []
    start = f"- Replicas and routes are deployed for hour {pools[0].start}, the peak of the demand"
    if jobs:
        return [f"{start}; {' and '.join(jobs)} change them every hour."]
    return [
        f"{start}. The plan's {n} hours are not a day or week, so there is no schedule: "
        "`pools.csv` has the replicas of each hour."
    ]


def _spot_notes(plan: DeploymentPlan) -> Iterator[str]:
    if any(hour.degraded for hour in plan.hours):
        yield (
            "- The routes for a failure of all spot machines (`degraded` in `plan.yaml`) are not "
            "deployed: send the requests along these routes when it happens."
        )


def _begin_notes(plan: DeploymentPlan) -> list[str]:
    """Return the note on hour 0 if it is not the default."""
    n_hours = plan.n_hours
    if plan.begin_min is None or n_hours not in (calendar.DAY, calendar.WEEK):
        return []
    when = calendar.format_begin(plan.begin_min, n_hours)
    return [f"- Hour 0 of the plan begins at {when}: jobs and forecasts count from then."]


def _is_constant(pool: DeployedPool) -> bool:
    return len({*zip(pool.replicas, pool.rates, strict=True)}) == 1
