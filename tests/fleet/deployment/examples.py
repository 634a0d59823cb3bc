"""A small plan with a cascade, and the run folders that it reads."""

from dataclasses import asdict, replace
from pathlib import Path

from hwnas.core.quantity import QuantityRow
from hwnas.core.typed_files import to_json_bytes
from hwnas.fleet.plan import (
    ClassRequirements,
    DeploymentPlan,
    HourPlan,
    PlannedMachine,
    PoolType,
    ReplicaPool,
    RequestRoute,
)
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.target import Target
from hwnas.models import families
from hwnas.models.graph import Graph, Signature, fuse
from hwnas.models.onnx.writer import write_fp32
from hwnas.models.spaces import SearchSpace

SMALL, LARGE, NPU, UNKNOWN = (
    "cpu/0a-float32/b4w2/9ms",
    "cpu/0a-float32/b1/9ms",
    "npu/0b-int8/b1",
    "head",
)
THRESHOLD = 0.62
HOURS = 24


def model(space: SearchSpace, batch: int = 1) -> bytes:
    """Return an ONNX network with random weights and a fixed batch size."""
    family = families.get(space.family)
    lowered = fuse(family.lower(space, space.smallest(), Signature(1, 10)), "float32")
    lowered = Graph.of(replace(node, op=replace(node.op, batch=batch)) for node in lowered)
    return write_fp32(lowered, random_weights(lowered, 0))


def write_run(folder: Path, target: Target, name: str, content: bytes | None) -> None:
    """Write the parts of a run folder that plans read: manifest and model."""
    (folder / "models").mkdir(parents=True)
    searched = {
        "n_trials": 1, "seed": 0, "budget": {}, "sampler": {"name": "random"}, "cost": "table",
        "dataset": {"name": "digits"}, "search_space": "tiny", "target": asdict(target),
    }  # fmt: skip
    manifest = {"format": 2, "verb": "search", "arguments": [], "config": searched}
    (folder / "manifest.json").write_bytes(to_json_bytes(manifest))
    if content is not None:
        (folder / "models" / f"{name}.onnx").write_bytes(content)


def plan(cpu: Path, npu: Path) -> DeploymentPlan:
    """Return a plan of 24 hours whose pools come from two runs and an unknown source."""
    figure: QuantityRow = (0.9, "measured", 0.89, 0.91)
    ms: dict[str, QuantityRow] = {"1": (1.0, "measured", None, None)}

    def kind(device: str, name: str, batch: int, wait_ms: float, place: str) -> PoolType:
        return PoolType(
            device, name, batch, wait_ms, 9.0, 50.0, 1, figure if place else None, ms, 3.5, place
        )

    kinds = {
        SMALL: kind("cpu", "0a-float32", 4, 2.0, str(cpu)),
        LARGE: kind("cpu", "0a-float32", 1, 0.0, str(cpu)),
        NPU: kind("npu", "0b-int8", 1, 0.0, str(npu)),
        UNKNOWN: kind("cpu", "head", 1, 0.0, ""),
    }
    route = RequestRoute("web", 40.0, SMALL, LARGE, 0.25, THRESHOLD, 0.9, 0.0, 0.0, 0.0)
    other = RequestRoute("web", 20.0, LARGE, None, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0)
    local = RequestRoute("counter", 5.0, NPU, None, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0)
    pools = [
        ReplicaPool(SMALL, 3, 1, 50.0),
        ReplicaPool(LARGE, 2, 0, 50.0),
        ReplicaPool(NPU, 1, 0, 50.0),
    ]
    quiet = [ReplicaPool(SMALL, 1, 1, 50.0), *pools[1:], ReplicaPool(UNKNOWN, 1, 0, 50.0)]
    rates = [60.0 if 8 <= hour < 20 else 30.0 for hour in range(HOURS)]
    return DeploymentPlan(
        1, "cost", "$", 1.0, 1.0, 1.0, 0.05,
        {name: ClassRequirements(9.0, 0.5, 0.5, ["site"], rates, rates, "")
         for name in ("web", "counter")},
        {name: PlannedMachine("site", "bought", 0.1, 8, 4, 1, 2, 0, 2) for name in ("cpu", "npu")},
        kinds,
        [HourPlan([*range(8, 20)], {"cpu": 2}, pools, [route, other, local], []),
         HourPlan([*range(8), *range(20, HOURS)], {"cpu": 1}, quiet,
                  [replace(route, rate=10.0), other], [])],
        {"site": [0.3] * HOURS},
    )  # fmt: skip
