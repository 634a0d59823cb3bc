"""Compute the error of the roofline model of the target ``cpu`` on measured networks.

    python experiments/cpu_latency/roofline.py

Prints the agreement of the roofline model and of the latency table with the held-out networks of
the table. Also prints the ``launch_us`` with the least error on the networks of the calibration.
"""

import csv
import json
from dataclasses import replace

import yaml

from hwnas.core import package
from hwnas.core.agreement import agreement
from hwnas.hardware.costs.roofline_cost import operator_bound
from hwnas.hardware.target import Roofline
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature, fuse

SPACE, TABLE = "mbconv_small", "tvm-float32-1t-b1"


def main() -> None:
    """Print the best ``launch_us``, and the agreement of both models with the measurements."""
    raw = yaml.safe_load((package.ROOT / "conf" / "target" / "cpu.yaml").read_text())
    roofline = Roofline(**raw["roofline"])
    fit, held_out = (_networks(role) for role in ("fit", "held_out"))
    best = min(
        (launch / 1000 for launch in range(0, 500, 10)),
        key=lambda launch: agreement(
            [_predict(net, replace(roofline, launch_us=launch)) for net, _, _ in fit],
            [ms for _, ms, _ in fit],
        )["mape"],
    )
    print(f"launch_us: {roofline.launch_us} in cpu.yaml, least error on the fit at {best}")
    measured = [ms for _, ms, _ in held_out]
    for name, predicted in {
        "roofline": [_predict(net, roofline) for net, _, _ in held_out],
        "table": [ms for _, _, ms in held_out],
    }.items():
        print(name, {key: round(value, 4) for key, value in agreement(predicted, measured).items()})


def _predict(graph: Graph, roofline: Roofline) -> float:
    return sum(
        operator_bound(node.op, roofline, not roofline.weights_stay).latency_ms for node in graph
    )


def _networks(role: str) -> list[tuple[Graph, float, float]]:
    """Return the networks with a role; each with its measured and its predicted ms."""
    space, family = spaces.load_space(spaces.find(SPACE)), families.get("mbconv")
    signature = Signature(1, 10)
    path = package.ROOT / "latency_tables" / "cpu" / TABLE / "networks.csv"
    with path.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["role"] == role and r["search_space"] == SPACE]
    return [
        (
            fuse(
                family.lower(space, space.genotype(json.loads(r["genotype"])), signature), "float32"
            ),
            float(r["measured_ms"]),
            float(r["predicted_ms"]),
        )
        for r in rows
    ]


if __name__ == "__main__":
    main()
