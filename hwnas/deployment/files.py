"""All files that a plan is launched by, with what was left out of them and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hwnas.deployment import alerts, kserve, kubernetes, ray_app, triton
from hwnas.deployment.pools import Deployed, deployed
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
    found = {"README.md": (_HEAD.read_text() + _notes(pools, unserved)).encode()}
    if pools:
        found |= triton.repository(pools) | kubernetes.manifests(pools)
        found |= kserve.graphs(plan, pools) | alerts.rules(pools) | ray_app.app(plan, pools)
    return {f"{FOLDER}/{name}": content for name, content in found.items()}


def _notes(pools: Sequence[Deployed], unserved: Mapping[str, str]) -> str:
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
    return "\n## Of this plan\n\n" + "\n".join(lines) + "\n" if lines else ""
