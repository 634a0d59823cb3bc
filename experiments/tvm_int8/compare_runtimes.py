"""Latency of int8 networks with TVM compared with float32 and with onnxruntime.

    python -m experiments.tvm_int8.compare_runtimes [--networks 4]

The script uses the largest network and random networks of several spaces, with random weights, on
one thread. It first tunes the operators. Then it times each network with TVM in int8, interleaved
with the same network in another runtime or dtype (``networks.csv``). ``operators.csv`` has the
latencies of single convolutions.
"""

import argparse
import csv
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hwnas.core import package
from hwnas.hardware.backends.onnxruntime.engine import OrtEngine
from hwnas.hardware.backends.onnxruntime.engine import open_engine as open_onnxruntime
from hwnas.hardware.backends.tvm.engine import LocalDevice, TvmEngine
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.target import Remote, Target, from_facts
from hwnas.hardware.timing import Timer, TimingConfig, interleaved, measure
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, OpSpec, Signature, n_macs
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.spaces import Genotype, SearchSpace

_HERE = Path(__file__).parent
_SPACES = ("resnet_small", "mbconv_small", "cpu_small")
_TUNING, _TIMING, _PLANS = TimingConfig(repeats=3, min_repeat_ms=1.0), TimingConfig(), 6
_CHANNELS, _SIDES, _KERNELS = (16, 32, 64, 128, 256), (7, 14, 28), (1, 3)
#: Runtimes and dtypes that int8 with TVM is compared with.
_ALTERNATIVES = ("tvm_float32", "onnxruntime_int8", "onnxruntime_float32")


def main() -> None:
    """Time networks and operators, write both tables, and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=4)
    arguments = parser.parse_args()
    runtimes = Runtimes()
    rows = [runtimes.operator(c, side, k) for k in _KERNELS for c in _CHANNELS for side in _SIDES]
    _write_table("operators.csv", rows)
    ratios = [float(row["int8_over_float32"]) for row in rows if row["channels"] >= 64]
    print(f"int8 relative to float32, {len(ratios)} convolutions of 64 channels and more:")
    print(_summary(ratios))
    rows = []
    for name in _SPACES:
        space, rng = spaces.load_space(spaces.find(name)), random.Random(0)
        genotypes = [space.largest(), *(space.sample(rng) for _ in range(arguments.networks - 1))]
        rows += [runtimes.network(name, space, genotype) for genotype in genotypes]
        print(rows[-1])
    _write_table("networks.csv", rows)
    for name in _SPACES:
        for other in _ALTERNATIVES:
            ratios = [float(row[f"over_{other}"]) for row in rows if row["space"] == name]
            print(f"{name}, int8 with TVM relative to {other}: {_summary(ratios)}")


class Runtimes:
    """The runtimes of this machine, with the fastest plan of each operator."""

    def __init__(self) -> None:
        facts = package.ROOT / "conf" / "target" / "cpu.yaml"
        self._target = from_facts(yaml.safe_load(facts.read_text(encoding="utf-8")))
        device = LocalDevice(1)
        self._tvm = {d: TvmEngine(self._target_for("tvm", d), device) for d in ("float32", "int8")}
        self._plans: dict[OpSpec, str] = {}
        self._latencies: dict[OpSpec, float] = {}

    def operator(self, channels: int, side: int, kernel: int) -> dict[str, Any]:
        """Return the latencies of a single convolution."""
        shape = (channels, side, side)
        ops = [OpSpec("conv2d+bn+relu", shape, shape, kernel, dtype=d) for d in ("float32", "int8")]
        for op in ops:
            self._tune(op)
        float32_ms, int8_ms = (self._latencies[op] for op in ops)
        return {
            "channels": channels, "side": side, "kernel": kernel,
            "float32_us": f"{1e3 * float32_ms:.4g}", "int8_us": f"{1e3 * int8_ms:.4g}",
            "int8_over_float32": f"{int8_ms / float32_ms:.4g}",
        }  # fmt: skip

    def network(self, name: str, space: SearchSpace, genotype: Genotype) -> dict[str, Any]:
        """Return the latencies of a network in each runtime, interleaved with int8 with TVM."""
        lowered = families.family_of(space).lower(space, genotype, Signature(3, 10))
        row: dict[str, Any] = {
            "space": name, "id": genotype.id, "resolution": lowered[0].op.in_shape[1],
            "macs_m": round(n_macs(lowered) / 1e6, 3),
        }  # fmt: skip
        int8_timer = self.timer("tvm", "int8", lowered)
        for other in _ALTERNATIVES:
            runtime, dtype = other.split("_")
            timings = interleaved(int8_timer, self.timer(runtime, dtype, lowered), _TIMING)
            ratio = timings.ratio
            row[f"tvm_int8_ms_beside_{other}"] = f"{timings.first.median_ms:.4g}"
            row[f"{other}_ms"] = f"{timings.second.median_ms:.4g}"
            row[f"over_{other}"] = f"{ratio.value:.4g}"
            row[f"over_{other}_low"], row[f"over_{other}_high"] = (
                f"{bound:.4g}" for bound in (ratio.lower, ratio.upper)
            )
        return row

    def _target_for(self, runtime: str, dtype: str) -> Target:
        return replace(self._target, runtime=runtime, dtype=dtype)

    def timer(self, runtime: str, dtype: str, lowered: Graph) -> Timer:
        """Return a timer of a network; operators without a plan are tuned first."""
        target = self._target_for(runtime, dtype)
        graph = fused_graph(lowered, target)
        if runtime == "onnxruntime":
            engine = open_onnxruntime(target, Remote())
            assert isinstance(engine, OrtEngine)
            return engine.network(graph, {})
        for node in graph:
            self._tune(node.op)
        if dtype == "float32":
            return self._tvm[dtype].network(graph, self._plans)
        files = self._tvm[dtype].export(graph, self._plans, random_int8_network(lowered))
        return self._open(files)

    def _open(self, files: Mapping[str, bytes]) -> Timer:
        with tempfile.TemporaryDirectory() as folder:
            paths = {suffix: Path(folder, f"model{suffix}") for suffix in files}
            for suffix, file in files.items():
                paths[suffix].write_bytes(file)
            return self._tvm["int8"].open(paths).timer

    def _tune(self, op: OpSpec) -> None:
        """Time some plans of an operator, and store the fastest."""
        if op in self._plans:
            return
        engine = self._tvm[op.dtype]
        latencies = []
        for plan in engine.plans(op, _PLANS):
            latencies.append((measure(engine.operator(op, plan), _TUNING).median_ms, plan))
            engine.forget(op, plan)
        self._latencies[op], self._plans[op] = min(latencies)


def _write_table(name: str, rows: Sequence[dict[str, Any]]) -> None:
    with (_HERE / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _summary(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
