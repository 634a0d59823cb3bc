"""Measure the networks of this folder on a device; writes results.csv beside this script.

    python measure.py onnxruntime                                    # pip install onnxruntime numpy
    python measure.py onnxruntime --provider CUDAExecutionProvider
    python measure.py trtexec -- --useCudaGraph                      # options of trtexec behind --
    python measure.py trtexec -- --fp16                              # of a kit for float16
    python measure.py tflite --adb -- --use_gpu=true                 # benchmark_model, on a phone
    python measure.py command 'mytool --model {file}'                # prints ms, one a line

Needs Python 3.9 alone, and what runs the networks. Interrupt it at any time: started again, it goes
on. Lock the clocks if you can, end other programs, and let a phone cool.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
AGREE = 0.03  # passes, and readings of a sentinel, that differ by more are repeated
PASSES, MOST_PASSES, EVERY = 3, 8, 5  # a sentinel is read after every five networks
LEAST_RUNS, LEAST_S, WARM_S = 50, 1.0, 1.0
WRITTEN = ("float32", "int8")  # dtypes of files; those of other kits are in float32
NARROWS = {"float16": "--fp16", "bfloat16": "--bf16", "int8": "--int8"}  # by these trtexec computes
OTHERS = ("--fp8", "--int4", "--best")  # it has these, too
COLUMNS = [
    *("network", "role", "search_space", "genotype", "sha256", "step", "pass"),
    *("p10_ms", "p50_ms", "p90_ms", "p99_ms", "n_runs", "energy_mj"),
    *("batch", "dtype", "threads", "runtime", "version", "provider"),
    *("machine", "clock_mhz", "temperature_c", "time"),
]
Runs = list[float]
Runner = Callable[[Path], Any]  # runs in ms, and mJ of a run where known


def percentile(values: Runs, share: float) -> float:
    """Return the value that a share of sorted values lies below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(run: Callable[[], Any]) -> tuple[Runs, float | None]:
    """Return milliseconds of each run once it is warm, and millijoules of a run where known."""
    end, best = time.perf_counter() + WARM_S, 0.0
    while time.perf_counter() < end or not best:
        start = time.perf_counter()
        run()
        best = time.perf_counter() - start
    found: Runs = []
    energy, begun = microjoules(), time.perf_counter()
    while len(found) < LEAST_RUNS or time.perf_counter() - begun < LEAST_S:
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() - begun > 60 and len(found) >= 5:
            break
    used = microjoules()
    if energy is None or used is None or used < energy:
        return found, None
    return found, (used - energy) / 1e3 / len(found)


def microjoules() -> float | None:
    """Return what the package has used so far (RAPL), if this may be read."""
    try:
        return float(Path("/sys/class/powercap/intel-rapl:0/energy_uj").read_text())
    except (OSError, ValueError):
        return None


def reading(path: str, scale: float) -> str:
    """Return what a file of the system says, in other units; empty if there is none."""
    try:
        return f"{float(Path(path).read_text()) * scale:.0f}"
    except (OSError, ValueError):
        return ""


def onnxruntime(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return what times an ONNX file with one execution provider, without falling back."""
    import numpy as np
    import onnxruntime as ort

    provider = arguments.provider
    if provider not in ort.get_available_providers():
        sys.exit(f"--provider {provider}: there are {', '.join(ort.get_available_providers())}.")

    def run(path: Path) -> tuple[Runs, float | None]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = kit["threads"]
        options.inter_op_num_threads = 1
        # As networks are delivered: without it int8 may overflow on x86 that has no VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        if provider != "CPUExecutionProvider":  # an operator on the CPU would be timed unseen
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = ort.InferenceSession(str(path), options, providers=[provider])
        (image,) = session.get_inputs()
        shape = [size if isinstance(size, int) else kit["batch"] for size in image.shape]
        feed = {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        return timed(lambda: session.run(None, feed))

    return run, ort.__version__


def trtexec(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return what times an ONNX file by TensorRT's own tool: compute alone, no copies."""

    def run(path: Path) -> tuple[Runs, float | None]:
        times = HERE / ".times.json"
        warm = [f"--warmUp={WARM_S * 1e3:.0f}", f"--duration={LEAST_S:.0f}"]
        least = [f"--iterations={LEAST_RUNS}", f"--exportTimes={times}", "--noDataTransfers"]
        output([arguments.tool or "trtexec", f"--onnx={path}", *warm, *least, *arguments.rest])
        entries = json.loads(times.read_text())
        times.unlink()
        return [float(entry["computeMs"]) for entry in entries], None

    said = re.search(r"TensorRT[^\d]*([\dv.]+)", output([arguments.tool or "trtexec", "--help"]))
    return run, said.group(1) if said else ""


def tflite(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return what times a TFLite file by benchmark_model, here or on a phone by adb."""
    there, tool = "/data/local/tmp", arguments.tool or "benchmark_model"

    def run(path: Path) -> tuple[Runs, float | None]:
        graph = str(path)
        if arguments.adb:
            output(["adb", "push", str(path), f"{there}/{path.name}"])
            graph = f"{there}/{path.name}"
        command = [
            *(["adb", "shell", f"{there}/{tool}"] if arguments.adb else [tool]),
            *(f"--graph={graph}", f"--num_runs={LEAST_RUNS}", f"--min_secs={LEAST_S}"),
            *(f"--warmup_min_secs={WARM_S}", f"--num_threads={kit['threads']}", *arguments.rest),
        ]
        text = output(command)
        found = re.findall(r"count=(\d+)\s.*?\bavg=([\d.e+]+)(.*)", text)
        if not found:
            sys.exit(f"benchmark_model said no timings of {path.name}: {text[-300:]}")
        median = re.search(r"\b(?:median|p50)=([\d.e+]+)", found[-1][2])
        return [float(median.group(1) if median else found[-1][1]) / 1e3], None

    return run, ""


def command(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return what times a file by a command line that prints milliseconds, one a line."""
    if not arguments.rest or "{file}" not in arguments.rest[0]:
        sys.exit("command needs a line with {file}: python measure.py command 'mytool {file}'")

    def run(path: Path) -> tuple[Runs, float | None]:
        line = arguments.rest[0].replace("{file}", str(path))
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{line} failed: {done.stderr[-300:]}")
        numbers = re.findall(r"^\s*([\d.]+(?:e[+-]?\d+)?)\s*$", done.stdout, re.MULTILINE)
        if not numbers:
            sys.exit(f"{line} printed no line that is a number of milliseconds.")
        return [float(number) for number in numbers], None

    return run, ""


def output(line: list[str]) -> str:
    """Return what a command says; end with its last words if it fails."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"{line[0]} cannot be started: {error}")
    if done.returncode:
        sys.exit(f"{' '.join(line)} failed: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout + done.stderr


RUNTIMES = {"onnxruntime": onnxruntime, "trtexec": trtexec, "tflite": tflite, "command": command}


def check_dtype(runtime: str, rest: list[str], dtype: str) -> None:
    """Refuse to time networks in another dtype than that which results are said to be of."""
    if runtime == "onnxruntime" and dtype not in WRITTEN:
        sys.exit(
            f"This kit is for {dtype} and its files are in float32, as onnxruntime runs them: take "
            "trtexec, or a command of yours that computes in it."
        )
    if runtime != "trtexec":
        return
    said = [word for word in rest if word in (*NARROWS.values(), *OTHERS)]
    wanted = [NARROWS[dtype]] if dtype in NARROWS else []
    as_written = not said and "--stronglyTyped" in rest and dtype in WRITTEN
    if said != wanted and not as_written:
        sys.exit(
            f"This kit is for {dtype}: behind --, of what says a dtype, trtexec takes "
            f"{' '.join(wanted) or 'nothing'}, not {' '.join(said) or 'nothing'}."
        )


class Results:
    """The rows of results.csv, each written as soon as it is known."""

    def __init__(self, path: Path, facts: dict[str, Any]):
        self.path, self.facts = path, facts
        self.passes: dict[str, Runs] = {}
        self.step = 0
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    if any(
                        row[name] != str(facts[name]) for name in ("runtime", "provider", "batch")
                    ):
                        sys.exit(f"{path} is of {row['runtime']} {row['provider']}: move it away.")
                    if row["p50_ms"] and row["time"]:
                        self.passes.setdefault(row["network"], []).append(float(row["p50_ms"]))
                        self.step += 1

    def add(self, network: dict[str, Any], runs: Runs, energy: float | None) -> float:
        """Append a reading; return its median."""
        median = statistics.median(runs)
        known = self.passes.setdefault(network["id"], [])
        known.append(median)
        self.step += 1
        row = {
            **self.facts,
            **{"network": network["id"], "role": network["role"], "sha256": network["sha256"]},
            **{
                "search_space": network["search_space"],
                "genotype": json.dumps(network["genotype"]),
            },
            **{"step": self.step, "pass": len(known), "n_runs": len(runs)},
            **{f"p{s}_ms": f"{percentile(runs, s / 100):.6f}" for s in (10, 90, 99)},
            "p50_ms": f"{median:.6f}",
            "energy_mj": "" if energy is None else f"{energy:.4f}",
            "clock_mhz": reading("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 1e-3),
            "temperature_c": reading("/sys/class/thermal/thermal_zone0/temp", 1e-3),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        }
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())
        return median

    def agreed(self, network: str) -> bool:
        """Return whether the two fastest passes agree: what disturbs a device makes it slower."""
        known = sorted(self.passes.get(network, []))
        return len(known) >= PASSES and known[1] <= known[0] * (1 + AGREE)

    def wants(self, network: str) -> bool:
        """Return whether another pass is worth it."""
        return not self.agreed(network) and len(self.passes.get(network, [])) < MOST_PASSES


def measure(kit: dict[str, Any], run: Runner, results: Results, suffix: str) -> None:
    """Time all networks in random order until passes agree, sentinels between them."""
    sentinels = [network for network in kit["networks"] if network["role"] == "sentinel"]

    def read(network: dict[str, Any]) -> None:
        path = HERE / "networks" / f"{network['id']}{suffix}"
        results.add(network, *run(path))

    for number in range(MOST_PASSES):
        todo = [network for network in kit["networks"] if results.wants(network["id"])]
        random.Random(number + results.step).shuffle(todo)
        for i, network in enumerate(todo):
            if i % EVERY == 0:
                watched = sentinels[i // EVERY % len(sentinels)]
                for _ in range(3):  # again, if something disturbed it
                    read(watched)
                    known = results.passes[watched["id"]]
                    if known[-1] <= min(known) * (1 + AGREE):
                        break
            read(network)
            print(f"pass {number + 1}: {i + 1} of {len(todo)}, {network['id']} "
                  f"{results.passes[network['id']][-1]:.4f} ms", flush=True)  # fmt: skip
    left = [n["id"] for n in kit["networks"] if not results.agreed(n["id"])]
    if left:
        print(f"Passes of {len(left)} networks differ by more than {AGREE:.0%}: {' '.join(left)}")
    print(f"Written: {results.path}. Next: {kit['command']} measured=FILE")


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return what is said before --, and what behind it: argparse takes no options between."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def main() -> None:
    """Measure what is not measured yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("rest", nargs="*", help="options of the tool, behind --; or the command")
    parser.add_argument("--provider", default="CPUExecutionProvider")
    parser.add_argument("--tool", help="path of trtexec or benchmark_model")
    parser.add_argument("--adb", action="store_true", help="run on a phone")
    parser.add_argument("--results", default="results.csv")
    own, behind = split(sys.argv[1:])
    arguments = parser.parse_intermixed_args(own)
    arguments.rest += behind
    kit = json.loads((HERE / "kit.json").read_text())
    check_dtype(arguments.runtime, arguments.rest, kit["dtype"])
    suffix = ".tflite" if arguments.runtime == "tflite" else ".onnx"
    for network in kit["networks"]:
        path = HERE / "networks" / f"{network['id']}{suffix}"
        if not path.exists():
            sys.exit(f"{path} is missing: this kit has no {suffix} files.")
        if hashlib.sha256(path.read_bytes()).hexdigest() != network["sha256"][suffix]:
            sys.exit(f"{path} is not what kit.json says: copy the kit again.")
        network["sha256"] = network["sha256"][suffix]
    run, version = RUNTIMES[arguments.runtime](arguments, kit)
    provider = (
        arguments.provider if arguments.runtime == "onnxruntime" else " ".join(arguments.rest)
    )
    facts = {name: kit[name] for name in ("batch", "dtype", "threads")}
    facts.update(runtime=arguments.runtime, version=version, provider=provider)
    facts["machine"] = f"{platform.node()} {platform.machine()} {platform.processor()}".strip()
    measure(kit, run, Results(HERE / arguments.results, facts), suffix)


if __name__ == "__main__":
    main()
