"""Latency of int8 networks with TVM compared with float32 by TVM and both by onnxruntime.

python -m experiments.tvm_int8.in_turns [--networks 4]

The largest and random networks of several spaces, with random weights, on one thread. Operators
are tuned first. Then each network is timed interleaved with the same network in another runtime or
dtype: networks.csv. operators.csv has single convolutions.
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
#: Runtimes and dtypes to compare int8 by TVM with.
_OTHERS = ("tvm_float32", "onnxruntime_int8", "onnxruntime_float32")


def main() -> None:
    """Time networks and operators, write both tables, and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=4)
    asked = parser.parse_args()
    lab = Lab()
    rows = [lab.operator(c, side, k) for k in _KERNELS for c in _CHANNELS for side in _SIDES]
    _write("operators.csv", rows)
    wide = [float(row["int8_over_float32"]) for row in rows if row["channels"] >= 64]
    print(
        f"{len(wide)} convolutions of 64 channels and more: int8 relative to float32, {_span(wide)}"
    )
    rows = []
    for name in _SPACES:
        searched, rng = spaces.load_space(spaces.find(name)), random.Random(0)
        genotypes = [searched.largest(), *(searched.sample(rng) for _ in range(asked.networks - 1))]
        rows += [lab.network(name, searched, genotype) for genotype in genotypes]
        print(rows[-1])
    _write("networks.csv", rows)
    for name in _SPACES:
        for other in _OTHERS:
            ratios = [float(row[f"over_{other}"]) for row in rows if row["space"] == name]
            print(f"{name}, int8 by TVM relative to {other}: {_span(ratios)}")


class Lab:
    """The runtimes of this machine, and the best plans."""

    def __init__(self) -> None:
        facts = package.ROOT / "conf" / "target" / "cpu.yaml"
        self._target = from_facts(yaml.safe_load(facts.read_text(encoding="utf-8")))
        device = LocalDevice(1)
        self._tvm = {d: TvmEngine(self._of("tvm", d), device) for d in ("float32", "int8")}
        self._plans: dict[OpSpec, str] = {}
        self._latencies: dict[OpSpec, float] = {}

    def operator(self, channels: int, side: int, kernel: int) -> dict[str, Any]:
        """Return the latencies of a single convolution."""
        shape = (channels, side, side)
        ops = [OpSpec("conv2d+bn+relu", shape, shape, kernel, dtype=d) for d in ("float32", "int8")]
        for op in ops:
            self._tune(op)
        real, byte = (self._latencies[op] for op in ops)
        return {
            "channels": channels, "side": side, "kernel": kernel, "float32_us": f"{1e3 * real:.4g}",
            "int8_us": f"{1e3 * byte:.4g}", "int8_over_float32": f"{byte / real:.4g}",
        }  # fmt: skip

    def network(self, name: str, searched: SearchSpace, genotype: Genotype) -> dict[str, Any]:
        """Return the latencies of a network in each runtime, interleaved with int8 by TVM."""
        lowered = families.family_of(searched).lower(searched, genotype, Signature(3, 10))
        row: dict[str, Any] = {
            "space": name, "id": genotype.id, "resolution": lowered[0].op.in_shape[1],
            "macs_m": round(n_macs(lowered) / 1e6, 3),
        }  # fmt: skip
        ours = self.timer("tvm", "int8", lowered)
        for other in _OTHERS:
            runtime, dtype = other.split("_")
            found = interleaved(ours, self.timer(runtime, dtype, lowered), _TIMING)
            ratio = found.ratio
            row[f"tvm_int8_ms_beside_{other}"] = f"{found.first.median_ms:.4g}"
            row[f"{other}_ms"] = f"{found.second.median_ms:.4g}"
            row[f"over_{other}"] = f"{ratio.value:.4g}"
            row[f"over_{other}_low"], row[f"over_{other}_high"] = (
                f"{end:.4g}" for end in (ratio.lower, ratio.upper)
            )
        return row

    def _of(self, runtime: str, dtype: str) -> Target:
        return replace(self._target, runtime=runtime, dtype=dtype)

    def timer(self, runtime: str, dtype: str, lowered: Graph) -> Timer:
        """Return a timer of a network; operators without a plan are tuned first."""
        target = self._of(runtime, dtype)
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
        return self._opened(files)

    def _opened(self, files: Mapping[str, bytes]) -> Timer:
        with tempfile.TemporaryDirectory() as folder:
            paths = {suffix: Path(folder, f"model{suffix}") for suffix in files}
            for suffix, file in files.items():
                paths[suffix].write_bytes(file)
            return self._tvm["int8"].open(paths).timer

    def _tune(self, op: OpSpec) -> None:
        """Find the fastest of some plans."""
        if op in self._plans:
            return
        engine = self._tvm[op.dtype]
        timed = []
        for plan in engine.plans(op, _PLANS):
            timed.append((measure(engine.operator(op, plan), _TUNING).median_ms, plan))
            engine.forget(op, plan)
        self._latencies[op], self._plans[op] = min(timed)


def _write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    with (_HERE / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _span(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
