"""All files that a plan is launched by, with what was left out of them and why."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hwnas.fleet import calendar
from hwnas.fleet.deployment import alerts, kubernetes, server_files
from hwnas.fleet.deployment import kubernetes as kserve
from hwnas.fleet.deployment import pools as ways
from hwnas.fleet.deployment.kubernetes import DEVICE, allowed, node_label, schedule
from hwnas.fleet.deployment.pools import DeployedPool, deployed
from hwnas.fleet.plan import DeploymentPlan
from hwnas.models.onnx.subgraphs import PASSED

FOLDER = "deploy"  #: in the folder of a plan

_HEAD = Path(__file__).with_name("launch.md")
_NOTHING = "# What launches this plan\n\nNothing: servers run none of its pools.\n"
#: Lines that need files, by how those begin.
_LINES = {
    "docker build": "triton/", "kubectl apply --server-side --force-conflicts -f": "kserve/",
    "serve run": server_files.NAME, f"- `{server_files.NAME}`": server_files.NAME,
}  # fmt: skip


def files(plan: DeploymentPlan, busy: Mapping[str, float]) -> dict[str, bytes]:
    """Return the files by their paths in the folder of a plan.

    Args:
        plan: The plan.
        busy: Share of the time that replicas of a pool work at most, by name in the plan.

    Raises:
        RunError: the export or run that a model is of cannot be read.
        CompileError: its file is no classifier.
    """
    pools, unserved = deployed(plan, busy)
    found: dict[str, bytes] = {}
    if pools:
        found |= server_files.repository(pools) | kubernetes.manifests(
            pools, _scheduled(plan, pools)
        )
        found |= kserve.graphs(plan, pools) | alerts.rules(pools, plan.begin_min)
        found |= server_files.app(plan, pools)
    jobs = [f"`{name}`" for name in found if name.endswith("/schedule.yaml")]
    notes = [
        *_notes(pools, unserved),
        *_cut(plan, pools),
        *_hours(pools, jobs),
        *_begun(plan),
        *_nodes(plan, pools),
    ]
    own = "\n## Of this plan\n\n" + "\n".join(notes) + "\n" if notes else ""
    table = ways.routing_table(plan, pools, kserve.named(plan, pools))
    found["README.md"] = (_head(found) + table + own).encode()
    return {f"{FOLDER}/{name}": content for name, content in found.items()}


def _head(found: Mapping[str, bytes]) -> str:
    """Return what is said of any plan, without lines on files that this one has none of."""
    if not found:
        return _NOTHING
    lacking = tuple(
        begin for begin, needed in _LINES.items()
        if not any(name.startswith(needed) for name in found)
    )  # fmt: skip
    lines = _HEAD.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(lacking))


def _scheduled(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> bytes:
    """Return what changes replicas by the hour."""
    hours = [kubernetes.hour(pools, of) for of in range(len(pools[0].replicas))]
    names = [pool.name for pool in pools]
    rules = [
        allowed("apps", "deployments", names),
        allowed("autoscaling", "horizontalpodautoscalers", names),
    ]
    return schedule("hwnas-replicas", hours, rules, plan.begin_min)


def _notes(pools: Sequence[DeployedPool], unserved: Mapping[str, str]) -> list[str]:
    lines = [f"- `{name}` is left out, with all routes through it: {why}."
             for name, why in unserved.items()]  # fmt: skip
    for pool in pools:
        if pool.model is not None and pool.model.shrinks:
            lines.append(
                f"- `{pool.name}` makes images smaller before it reads them, so that all pools are "
                "sent the same: answers may differ a little from those that were counted."
            )
        if pool.source.note:
            cure = f" Put it at `{server_files.REPOSITORY}/{pool.name}/1/model.onnx`." * (
                pool.model is None
            )
            lines.append(f"- `{pool.name}`: {pool.source.note}.{cure}")
        lines += _unscaled(pool)
    return lines


def _cut(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> Iterator[str]:
    """Yield what there is to say of networks that were cut in two."""
    names = {pool.of: pool.name for pool in pools}
    split = dict.fromkeys(
        (names[first], names[second], klass) for klass in plan.classes
        for of in ways.ways(plan, klass, names) for first, second, _ in map(ways.way, of)
        if second is not None and plan.is_split(first, second)
    )  # fmt: skip
    for first, second, klass in split:
        yield (
            f"- `{first}` and `{second}` are a network that was cut: send the first one's output "
            f"`{PASSED}` to the second as its input of that name; `{server_files.NAME}` does. "
            f"KServe cannot pass it on, so class `{klass}` has no graph."
        )


def _unscaled(pool: DeployedPool) -> Iterator[str]:
    """Yield why a pool on CPUs has no autoscaler, if it has none."""
    if pool.is_scaled or pool.source.is_on_gpu:
        return
    why = (
        f"its replicas work {pool.busy:.0%} of the time, and an autoscaler acts on a tenth more"
        if pool.kind.batch == 1
        else "batches grow with the load, so that its CPU is as busy at many loads"
    )
    yield f"- `{pool.name}` has no autoscaler: {why}. Its replicas are those of the plan."


def _nodes(plan: DeploymentPlan, pools: Sequence[DeployedPool]) -> list[str]:
    """Return what there is to say of nodes: their labels, and where pools want more of them."""
    lines = []
    for name, device in plan.devices.items():
        own = [pool for pool in pools if pool.kind.device == name]
        if own and node_label(name) != name:
            lines.append(f"- Nodes of `{name}` are labelled `{DEVICE}={node_label(name)}`.")
        lines += _shared(name, device.slots, own)
        most = max(of.machines.get(name, 0) for of in plan.hours) * device.slots
        together = sum(pool.peak if pool.is_scaled else pool.begun for pool in own)
        if together > most:
            lines.append(
                f"- Pools on `{name}` have their peaks in different hours: {together} replicas in "
                f"all, where the plan has room for {most}. Manifests start those of hour "
                f"{own[0].start}, which fit, and the least of those that rest in it; where they do "
                "not fit, or autoscalers add to several at once, pods stay pending."
            )
    return lines


def _shared(name: str, slots: int, own: Sequence[DeployedPool]) -> Iterator[str]:
    """Yield what there is to do where several replicas are to have one GPU."""
    if slots > 1 and any(pool.source.is_on_gpu for pool in own):
        yield (
            f"- Pods on `{name}` ask for a whole GPU each, and a machine has {slots} slots: where "
            "it has fewer GPUs, it holds fewer pods than planned, unless NVIDIA's device plugin "
            f"shares them (`sharing.timeSlicing`: {slots} `replicas` of the only one). "
            f"`{server_files.NAME}` gives each replica 1/{slots} of a GPU: its `gpus`, 1 where "
            "each has one of its own."
        )


def _hours(pools: Sequence[DeployedPool], jobs: Sequence[str]) -> list[str]:
    """Return what there is to say of the hour that is deployed, and of the jobs that follow it."""
    n = len(pools[0].replicas) if pools else 0
    if not jobs and (
        n in (calendar.DAY, calendar.WEEK) or all(_is_constant(pool) for pool in pools)
    ):
        return []
    start = f"- Replicas and routes that are deployed are those of hour {pools[0].start}, in which "
    start += "most is asked for"
    if jobs:
        return [f"{start}; {' and '.join(jobs)} set those of others when they begin."]
    return [
        f"{start}. The plan's {n} hours are no day or week, so that nothing says when they are: "
        "`pools.csv` has their replicas."
    ]


def _begun(plan: DeploymentPlan) -> list[str]:
    """Return what there is to say of hour 0, where it is another than usual."""
    n_hours = sum(len(of.hours) for of in plan.hours)
    if plan.begin_min is None or n_hours not in (calendar.DAY, calendar.WEEK):
        return []
    when = calendar.spelt(plan.begin_min, n_hours)
    return [f"- Hour 0 of the plan begins at {when}: jobs and forecasts count from then on."]


def _is_constant(pool: DeployedPool) -> bool:
    return len({*zip(pool.replicas, pool.rates, strict=True)}) == 1
