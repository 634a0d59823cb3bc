"""Compare TVM, onnxruntime and torch eager on the same networks, with interleaved measurements.

    python -m experiments.cpu_latency.runtimes [threads]

Writes ``runtimes_<threads>t.csv`` to this folder.
"""

import csv
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.cpu_latency.networks import mobilenet_v3, resnet, vit
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.onnxruntime import session as ort
from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.backends.tvm.engine import LocalDevice, TvmEngine
from hwnas.hardware.runtimes.bench import DeviceBench
from hwnas.hardware.target import PowerModel, Target
from hwnas.hardware.timing import TimingConfig, measure
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature, fuse
from hwnas.models.onnx.writer import write_fp32

N_SUBNETS, ROUNDS, N_PLANS = 20, 5, 10


def main() -> None:
    """Measure all networks with all runtimes and write the medians."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    settings: dict[str, Any] = {"tvm": TvmSettings()}
    target = Target(
        "cpu", "this CPU", "", "", runtime="tvm", dtype="float32", threads=threads, **settings,
        power=PowerModel(1, 1, "not used"),
    )  # fmt: skip
    engine, timing_config = TvmEngine(target, LocalDevice(threads)), TimingConfig()
    bench = DeviceBench(engine, timing_config, "float32")
    plans: dict[object, str] = {}
    rows = []
    start = time.monotonic()
    for name, graph, eager in _networks():
        net = fuse(graph, "float32")
        for node in net:
            if node.op not in plans:
                plans[node.op] = bench.tune(node.op, N_PLANS)
        net_plans = {node.op: plans[node.op] for node in net}
        weights = random_weights(net, 0)
        model = write_fp32(net, weights)
        images = np.random.default_rng(0).normal(size=(4, *net[0].op.in_shape)).astype(np.float32)
        files = {
            suffix: _write(name + suffix, content)
            for suffix, content in engine.export(net, net_plans, weights).items()
        }
        tvm_outputs = engine.open(files).session.run(images)
        ort_outputs = ort.OrtSession(model).run(images)
        timers = {"tvm": engine.network(net, net_plans), "onnxruntime": ort.timer(model, threads)}
        if eager is not None:
            timers["torch"] = eager
        medians: dict[str, list[float]] = {runtime: [] for runtime in timers}
        for _ in range(ROUNDS):
            for runtime, timer in timers.items():
                medians[runtime].append(measure(timer, timing_config).median_ms)
        ms = {runtime: statistics.median(values) for runtime, values in medians.items()}
        row: dict[str, Any] = {
            "network": name,
            "operators": len(net),
            "macs_m": round(sum(node.op.n_macs for node in net) / 1e6, 3),
            **{f"{runtime}_ms": round(ms.get(runtime, float("nan")), 6) for runtime in
               ("tvm", "onnxruntime", "torch")},
            "tvm_over_onnxruntime": round(ms["tvm"] / ms["onnxruntime"], 3),
            "error": float(np.abs(tvm_outputs - ort_outputs).max() / np.abs(ort_outputs).max()),
        }  # fmt: skip
        rows.append(row)
        print(row, flush=True)
    seconds = time.monotonic() - start
    with Path(__file__).with_name(f"runtimes_{threads}t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    ratios = [row["tvm_over_onnxruntime"] for row in rows if str(row["network"]).isdigit()]
    print(f"{len(ratios)} subnets: median TVM over onnxruntime {statistics.median(ratios):.3f}")
    print(f"{len(plans)} operators tuned; total time {seconds:.0f} s")


def _networks() -> list[tuple[str, Graph, Callable[[int], float] | None]]:
    """Return the name, the operators and, for subnets, the torch timer of each network."""
    space, family = spaces.load_space(spaces.find("mbconv_small")), families.get("mbconv")
    signature = Signature(3, 10)
    rng = random.Random(7)
    networks: list[tuple[str, Graph, Callable[[int], float] | None]] = []
    for index in range(N_SUBNETS):
        genotype = space.sample(rng)
        module = family.build(space, genotype, signature).eval()
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        graph = family.lower(space, genotype, signature)
        networks.append((str(index), graph, _eager_timer(module, graph)))
    others = {"resnet": resnet(), "vit": vit(), "mobilenet_v3": mobilenet_v3(),
              "mobilenet_v3_224": mobilenet_v3(224)}  # fmt: skip
    return networks + [(name, graph, None) for name, graph in others.items()]


def _eager_timer(module: torch.nn.Module, graph: Graph) -> Callable[[int], float]:
    """Return a function that runs a module ``n`` times and returns the seconds."""
    image = torch.randn(1, *graph[0].op.in_shape).to(memory_format=torch.channels_last)

    def run(n: int) -> float:
        with torch.inference_mode():
            start = time.perf_counter()
            for _ in range(n):
                module(image)
            return time.perf_counter() - start

    return run


def _write(name: str, content: bytes) -> Path:
    path = Path("/tmp" if os.path.isdir("/tmp") else ".", f"hwnas-runtimes-{os.getpid()}-{name}")
    path.write_bytes(content)
    return path


if __name__ == "__main__":
    main()
