"""Latency of networks in int8 relative to float32 on this machine's CPU.

python -m experiments.precision.latency [--networks 12] [--larger 4]

Networks: the smallest, the largest and random ones of ``cpu_small``, and random ones of
``mbconv_224``, all with random weights. onnxruntime runs them in int8, with and without float32
edges. Each is timed interleaved with the same network in float32. Writes in_turns.csv, one row per
network.
"""

import argparse
import csv
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hwnas.core import package
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.target import Remote, Target, from_facts
from hwnas.hardware.timing import TimingConfig
from hwnas.models import families, spaces
from hwnas.models.families.annotations import float_edges
from hwnas.models.graph import Graph, Signature, n_macs, n_params
from hwnas.models.spaces import Genotype

_DATA = Signature(3, 10)
_RESULT = Path(__file__).with_name("in_turns.csv")


def main() -> None:
    """Time networks, write the table, and print the latency ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--networks", type=int, default=12, help="number of random networks of cpu_small"
    )
    parser.add_argument(
        "--larger", type=int, default=4, help="number of random networks of mbconv_224"
    )
    arguments = parser.parse_args()
    facts = package.ROOT / "conf" / "target" / "cpu.yaml"
    cpu = from_facts(yaml.safe_load(facts.read_text(encoding="utf-8")))
    target = replace(cpu, runtime="onnxruntime")
    rows = []
    with DevicePool(target, TimingConfig(), Remote(), 300) as pool:
        for name, genotype in _networks(arguments.networks, arguments.larger):
            rows.append(_compare(name, genotype, target, RetryingPool(pool)))
            print(rows[-1])
    with _RESULT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for name in ("cpu_small", "mbconv_224"):
        _print_summary(name, [row for row in rows if row["space"] == name])


def _networks(n_small: int, n_larger: int) -> Iterator[tuple[str, Genotype]]:
    small, larger = (spaces.load_space(spaces.find(name)) for name in ("cpu_small", "mbconv_224"))
    rng = random.Random(0)
    for genotype in (small.smallest(), small.largest()):
        yield "cpu_small", genotype
    for _ in range(n_small):
        yield "cpu_small", small.sample(rng)
    for _ in range(n_larger):
        yield "mbconv_224", larger.sample(rng)


def _compare(name: str, genotype: Genotype, target: Target, worker: RetryingPool) -> dict[str, Any]:
    space = spaces.load_space(spaces.find(name))
    graph = families.family_of(space).lower(space, genotype, _DATA)
    edges = float_edges(graph)
    int8 = replace(graph, dtype="int8")
    mixed = tuple(replace(node, in_float=node.name in edges) for node in graph)
    row: dict[str, Any] = {
        "space": name, "id": genotype.id, "resolution": graph[0].op.in_shape[1],
        "macs_m": round(n_macs(graph) / 1e6, 3), "params_m": round(n_params(graph) / 1e6, 4),
    }  # fmt: skip
    float32 = fused_graph(replace(graph, dtype="float32"), target)
    for kind, variant in (("int8", int8), ("edges", replace(int8, nodes=mixed))):
        row |= _time(kind, fused_graph(variant, target), float32, worker)
    return row


def _time(kind: str, graph: Graph, float32: Graph, worker: RetryingPool) -> dict[str, Any]:
    latencies = worker.interleaved_networks(graph, float32)
    ratio = latencies.ratio
    return {
        f"float32_ms_beside_{kind}": f"{latencies.second.median_ms:.5g}",
        f"{kind}_ms": f"{latencies.first.median_ms:.5g}",
        f"{kind}_over_float32": f"{ratio.value:.4g}",
        f"{kind}_low": f"{ratio.lower:.4g}", f"{kind}_high": f"{ratio.upper:.4g}",
    }  # fmt: skip


def _print_summary(name: str, rows: Sequence[dict[str, Any]]) -> None:
    for kind in ("int8", "edges"):
        ratios = [float(row[f"{kind}_over_float32"]) for row in rows]
        faster = sum(float(row[f"{kind}_high"]) < 1 for row in rows)
        print(
            f"{name}, {kind}: {faster} of {len(rows)} faster than float32; latency relative to "
            f"float32: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to "
            f"{max(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
