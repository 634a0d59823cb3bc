"""All files that a plan is launched by, with what was left out of them and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hwnas.deployment import alerts, kserve, kubernetes, ray_app, triton
from hwnas.deployment.kubernetes import DEVICE, node_label
from hwnas.deployment.pools import Deployed, deployed
from hwnas.deployment.schedule import DAY, WEEK, allowed, schedule
from hwnas.planning.plan import Plan

FOLDER = "deploy"  #: in the folder of a plan

_HEAD = Path(__file__).with_name("launch.md")


def files(plan: Plan, busy: Mapping[str, float]) -> dict[str, bytes]:
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
        found |= triton.repository(pools) | kubernetes.manifests(pools, _scheduled(pools))
        found |= kserve.graphs(plan, pools) | alerts.rules(pools) | ray_app.app(plan, pools)
    jobs = [f"`{name}`" for name in found if name.endswith("/schedule.yaml")]
    notes = [*_notes(pools, unserved), *_hours(pools, jobs), *_nodes(plan, pools)]
    own = "\n## Of this plan\n\n" + "\n".join(notes) + "\n" if notes else ""
    found["README.md"] = (_HEAD.read_text() + own).encode()
    return {f"{FOLDER}/{name}": content for name, content in found.items()}


def _scheduled(pools: Sequence[Deployed]) -> bytes:
    """Return what changes replicas by the hour."""
    hours = [kubernetes.hour(pools, of) for of in range(len(pools[0].replicas))]
    names = [pool.name for pool in pools]
    rules = [
        allowed("apps", "deployments", names),
        allowed("autoscaling", "horizontalpodautoscalers", names),
    ]
    return schedule("hwnas-replicas", hours, rules)


def _notes(pools: Sequence[Deployed], unserved: Mapping[str, str]) -> list[str]:
    lines = [f"- `{name}` is left out, with all routes through it: {why}."
             for name, why in unserved.items()]  # fmt: skip
    for pool in pools:
        if pool.model is not None and pool.model.shrinks:
            lines.append(
                f"- `{pool.name}` makes images smaller before it reads them, so that all pools are "
                "sent the same: answers may differ a little from those that were counted."
            )
        if pool.source.note:
            cure = f" Put it at `{triton.REPOSITORY}/{pool.name}/1/model.onnx`." * (
                pool.model is None
            )
            lines.append(f"- `{pool.name}`: {pool.source.note}.{cure}")
    return lines


def _nodes(plan: Plan, pools: Sequence[Deployed]) -> list[str]:
    """Return what there is to say of nodes: their labels, and where pools want more of them."""
    lines = []
    for name, device in plan.devices.items():
        own = [pool for pool in pools if pool.kind.device == name]
        if own and node_label(name) != name:
            lines.append(f"- Nodes of `{name}` are labelled `{DEVICE}={node_label(name)}`.")
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


def _hours(pools: Sequence[Deployed], jobs: Sequence[str]) -> list[str]:
    """Return what there is to say of the hour that is deployed, and of the jobs that follow it."""
    n = len(pools[0].replicas) if pools else 0
    if not jobs and (n in (DAY, WEEK) or all(_is_constant(pool) for pool in pools)):
        return []
    start = f"- Replicas and routes that are deployed are those of hour {pools[0].start}, in which "
    start += "most is asked for"
    if jobs:
        return [f"{start}; {' and '.join(jobs)} set those of others when they begin."]
    return [
        f"{start}. The plan's {n} hours are no day or week, so that nothing says when they are: "
        "`pools.csv` has their replicas."
    ]


def _is_constant(pool: Deployed) -> bool:
    return len({*zip(pool.replicas, pool.rates, strict=True)}) == 1
