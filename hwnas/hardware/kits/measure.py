"""Measure the networks of this folder on a device; writes results.csv next to this script.

    python measure.py onnxruntime                                    # pip install onnxruntime numpy
    python measure.py onnxruntime --provider CUDAExecutionProvider --option device_id=1
    python measure.py trtexec -- --useCudaGraph                      # options of trtexec after --
    python measure.py trtexec -- --fp16                              # for a kit in float16
    python measure.py tflite --adb -- --use_gpu=true                 # benchmark_model, on a phone
    python measure.py command 'mytool --model {file}'                # prints ms, one per line
                                                                     # (started without a shell)

Requires only Python 3.9 and a runtime. If it is interrupted, start it again: it continues. Lock the
clocks if possible, close other programs, and let a phone cool down.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import random
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if sys.version_info < (3, 9):  # noqa: UP036 - of the device, not of hwnas
    sys.exit("measure.py needs Python 3.9 or later: start it with a newer python3.")

from runtimes import RUNTIMES, Runner, Runs, check_dtype, machine, no_tf32  # next to this script

HERE = Path(__file__).resolve().parent
# Sentinels are networks that are measured again and again, to notice a change of speed.
AGREE = 0.03  # passes and sentinel readings must agree within this fraction
MIN_PASSES, MAX_PASSES, EVERY = 3, 8, 5  # a sentinel is measured after every five networks
COLUMNS = [
    *("network", "role", "search_space", "genotype", "sha256", "step", "pass"),
    *("p10_ms", "p50_ms", "p90_ms", "p99_ms", "n_runs", "energy_mj"),
    *("batch", "dtype", "threads", "channels", "outputs", "runtime", "version", "provider"),
    *("machine", "clock_mhz", "temperature_c", "time", "tool"),
]


def percentile(values: Runs, share: float) -> float:
    """Return the value below which the fraction ``share`` (in [0, 1]) of ``values`` lies."""
    ordered: list[float] = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


#: Files with the state of this machine, by column.
STATE = {
    "clock_mhz": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
    "temperature_c": "/sys/class/thermal/thermal_zone0/temp",
}


def reading(path: str, scale: float) -> str:
    """Return the number in a system file times ``scale``, as text without decimals.

    Empty if the file cannot be read.
    """
    try:
        return f"{float(Path(path).read_text()) * scale:.0f}"
    except (OSError, ValueError):
        return ""


class Results:
    """The rows of results.csv, each written immediately; an existing file is continued.

    ``facts`` are columns with one value in all rows, such as ``machine``. The program exits with an
    error if the file has other values. ``is_local`` is False if another device runs the networks,
    whose clock and temperature are unknown.
    """

    def __init__(self, path: Path, facts: dict[str, Any], is_local: bool = True):
        self.path, self.facts, self.columns = path, facts, COLUMNS
        self.is_local = is_local
        self.passes: dict[str, Runs] = {}
        self.step = 0
        if path.exists() and path.stat().st_size:
            complete, end, rest = path.read_bytes().rpartition(b"\n")
            if not end and ",".join(COLUMNS).encode().startswith(rest):  # an incomplete header
                path.write_bytes(b"")
                return
            reader = csv.DictReader(io.StringIO((complete + end).decode("utf-8", "replace")))
            # an older script wrote fewer columns
            self.columns = list(reader.fieldnames or ())
            if absent := [n for n in ("network", "p50_ms", "time") if n not in self.columns]:
                sys.exit(
                    f"{path} has no column {absent[0]}: another program wrote it. To keep it, "
                    "write to another file: --results OTHER.csv."
                )
            for row in reader:
                if row["p50_ms"] and row["time"]:  # else the row is incomplete
                    self._check(row)
                    self.passes.setdefault(row["network"], []).append(float(row["p50_ms"]))
                    self.step += 1
            if rest:  # the last row is incomplete
                path.write_bytes(complete + end)
        try:
            path.open("ab").close()
        except OSError as error:
            sys.exit(
                f"{path} cannot be written: {error.strerror}. Name another file: --results "
                "/FOLDER/results.csv."
            )

    def _check(self, row: dict[str, str]) -> None:
        """Refuse to continue results of another device or measurement."""
        for name, now in self.facts.items():
            before = row.get(name)  # an older script wrote fewer facts
            if before is not None and before != str(now):
                hint = f", or --machine '{before}' if it is the same" if name == "machine" else ""
                sys.exit(
                    f"{self.path} has {name} '{before}', not '{now}': use "
                    f"--results OTHER.csv{hint}."
                )

    def add(self, network: dict[str, Any], runs: Runs, energy: float | None) -> float:
        """Append a row for an entry of kit.json to the file; return the median of ``runs`` in ms.

        ``energy`` is per run in mJ; ``None`` if it was not measured.
        """
        median: float = statistics.median(runs)
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
            **{name: reading(path, 1e-3) for name, path in STATE.items() if self.is_local},
            "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        }
        new = not (self.path.exists() and self.path.stat().st_size)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())
        return median

    def agreed(self, network: str) -> bool:
        """Return True if a network has three or more passes and the two fastest agree within 3 %.

        ``network`` is its id. Disturbances make a device slower, never faster.
        """
        known = sorted(self.passes.get(network, []))
        return len(known) >= MIN_PASSES and known[1] <= known[0] * (1 + AGREE)

    def needs_pass(self, network: str) -> bool:
        """Return True if the passes of a network, given by id, do not agree and are below eight."""
        return not self.agreed(network) and len(self.passes.get(network, [])) < MAX_PASSES


def measure(kit: dict[str, Any], run: Runner, results: Results, suffix: str) -> None:
    """Time all networks in random order until passes agree, with sentinels between them.

    Each network has three to eight passes. Rows are appended to ``results``, and progress, networks
    whose passes disagree and the next command are printed.
    """
    sentinels = [network for network in kit["networks"] if network["role"] == "sentinel"]

    def read(network: dict[str, Any]) -> None:
        path = HERE / "networks" / f"{network['id']}{suffix}"
        results.add(network, *run(path))

    for number in range(MAX_PASSES):
        todo = [network for network in kit["networks"] if results.needs_pass(network["id"])]
        random.Random(number + results.step).shuffle(todo)
        for i, network in enumerate(todo):
            if i % EVERY == 0:
                sentinel = sentinels[i // EVERY % len(sentinels)]
                for _ in range(3):  # repeat a disturbed reading
                    read(sentinel)
                    known = results.passes[sentinel["id"]]
                    if known[-1] <= min(known) * (1 + AGREE):
                        break
            read(network)
            print(f"pass {number + 1}: {i + 1} of {len(todo)}, {network['id']} "
                  f"{results.passes[network['id']][-1]:.4f} ms", flush=True)  # fmt: skip
    unstable = [n["id"] for n in kit["networks"] if not results.agreed(n["id"])]
    if unstable:
        print(f"Passes of {len(unstable)} networks differ by more than {AGREE:.0%}:", *unstable)
    print(f"Written: {results.path}. Copy it to {kit['folder']} on the computer with hwnas, then:")
    measured = f"measured={kit['folder']}/{results.path.name}"
    print(f"  {kit['command']} {shlex.quote(measured)}")


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after the first ``--``, which argparse cannot separate.

    Without ``--`` the second list is empty.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def pair(text: str) -> tuple[str, str]:
    """Return key and value of ``KEY=VALUE``; without ``=`` or a key, argparse refuses it."""
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise argparse.ArgumentTypeError(f"write KEY=VALUE, not {text}")
    return key, value


def unused(arguments: argparse.Namespace, kit: dict[str, Any]) -> str:
    """Return the error for options without effect, or for a missing provider; else ``""``."""
    by_onnxruntime = arguments.runtime == "onnxruntime"
    if arguments.adb and arguments.runtime not in ("tflite", "command"):
        return f"--adb is for tflite and command: {arguments.runtime} runs on this machine"
    if not by_onnxruntime and (arguments.provider or arguments.option):
        return "--provider and --option are for onnxruntime; options of other tools follow --"
    if by_onnxruntime and arguments.rest:
        return f"onnxruntime does not take '{' '.join(arguments.rest)}': write --provider NAME"
    if by_onnxruntime and arguments.provider is None and kit.get("per_device"):
        return (
            f"this kit is for {kit['target']}, an accelerator: add --provider CUDAExecutionProvider"
        )
    return ""


def main() -> None:
    """Measure the networks of this kit whose passes do not agree yet, by the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("rest", nargs="*", help="options of the tool, after --; or the command")
    parser.add_argument("--provider", help="of onnxruntime; default: CPUExecutionProvider")
    parser.add_argument("--option", action="append", default=[], type=pair, metavar="KEY=VALUE",
                        help="option of the provider; may be repeated")  # fmt: skip
    parser.add_argument("--tf32", action="store_true", help="let NVIDIA GPUs round float32")
    parser.add_argument("--machine", help="name of the device in the results; default: detected")
    parser.add_argument("--tool", help="path of trtexec or benchmark_model")
    parser.add_argument("--adb", action="store_true", help="run on a phone: tflite or command")
    parser.add_argument("--results", default="results.csv")
    arguments_before, arguments_after = split(sys.argv[1:])
    arguments = parser.parse_intermixed_args(arguments_before)
    arguments.rest += arguments_after
    kit, arguments.options = json.loads((HERE / "kit.json").read_text()), dict(arguments.option)
    check_dtype(arguments.runtime, arguments.rest, kit["dtype"])
    if error := unused(arguments, kit):
        parser.error(error)
    arguments.provider = arguments.provider or "CPUExecutionProvider"
    no_tf32(arguments, kit["dtype"])
    suffix = ".tflite" if arguments.runtime == "tflite" else ".onnx"
    for network in kit["networks"]:
        path = HERE / "networks" / f"{network['id']}{suffix}"
        if suffix not in network["sha256"]:
            sys.exit(
                f"{path} is missing: this kit has no {suffix} files. Use another runtime, or make "
                "another kit."
            )
        if not path.exists():
            sys.exit(f"{path} is missing: copy the kit again.")
        if hashlib.sha256(path.read_bytes()).hexdigest() != network["sha256"][suffix]:
            sys.exit(f"{path} has another SHA-256 than in kit.json: copy the kit again.")
        network["sha256"] = network["sha256"][suffix]
    run, version = RUNTIMES[arguments.runtime](arguments, kit)
    options = [f"{key}={value}" for key, value in sorted(arguments.options.items())]
    by_provider = arguments.runtime == "onnxruntime"
    provider = " ".join([arguments.provider, *options] if by_provider else arguments.rest)
    facts = {name: kit[name] for name in ("batch", "dtype", "threads", "channels", "outputs")}
    facts.update(runtime=arguments.runtime, version=version, provider=provider)
    facts.update(tool=arguments.tool or "")
    facts["machine"] = arguments.machine or machine(phone=arguments.adb)
    results = Results(HERE / arguments.results, facts, is_local=not arguments.adb)
    measure(kit, run, results, suffix)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The same command continues.")
