"""Runtimes that time networks of a kit: onnxruntime, trtexec, benchmark_model, or a command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MIN_RUNS, MIN_S, WARM_S = 50, 1.0, 1.0
WRITTEN = ("float32", "int8")  # dtypes of files; kits of other dtypes have float32 files
# options by which trtexec computes in these dtypes
NARROWS = {"float16": "--fp16", "bfloat16": "--bf16"}
OTHERS = ("--int8", "--fp8", "--int4", "--best")  # other dtype options of trtexec
Runs = list[float]
Runner = Callable[[Path], Any]  # latencies in ms, and energy per run in mJ or None


def timed(run: Callable[[], Any]) -> tuple[Runs, float | None]:
    """Return the latency of each run in ms, and the energy per run in mJ.

    After one second of untimed runs, 50 runs or more are timed, for at least one second; after a
    minute, five are enough. The energy is that of the first CPU package, idle power
    included; ``None`` if its counter cannot be read.
    """
    end, best = time.perf_counter() + WARM_S, 0.0
    while time.perf_counter() < end or not best:
        start = time.perf_counter()
        run()
        best = time.perf_counter() - start
    latencies: Runs = []
    energy, started = microjoules(), time.perf_counter()
    while len(latencies) < MIN_RUNS or time.perf_counter() - started < MIN_S:
        start = time.perf_counter()
        run()
        latencies.append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() - started > 60 and len(latencies) >= 5:
            break
    used = microjoules()
    if energy is None or used is None or used < energy:
        return latencies, None
    return latencies, (used - energy) / 1e3 / len(latencies)


def microjoules() -> float | None:
    """Return the energy counter of the first CPU package (RAPL) in µJ.

    ``None`` if it cannot be read.
    """
    try:
        return float(Path("/sys/class/powercap/intel-rapl:0/energy_uj").read_text())
    except (OSError, ValueError):
        return None


def onnxruntime(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return a function that times an ONNX file with one provider, and onnxruntime's version.

    The program exits with an error if the installed onnxruntime lacks the provider, or the provider
    does not support all operators: nothing runs on the CPU instead.
    """
    try:
        import numpy as np
        import onnxruntime as ort
    except ImportError as error:
        sys.exit(f"{error}. Install it: pip install onnxruntime numpy")

    provider = arguments.provider
    if provider not in ort.get_available_providers():
        sys.exit(
            f"--provider {provider} is not in the installed onnxruntime. Allowed: "
            f"{', '.join(ort.get_available_providers())}."
        )
    if provider in ("CUDAExecutionProvider", "TensorrtExecutionProvider"):
        getattr(ort, "preload_dlls", lambda: None)()  # libraries of CUDA and cuDNN installed by pip

    def open_session(path: Path) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = kit["threads"]
        options.inter_op_num_threads = 1
        # As in exports: without it int8 may overflow on x86 CPUs without VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        if provider != "CPUExecutionProvider":  # operators on the CPU are an error
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        provider_arguments = ([provider], [arguments.options])
        try:
            session = ort.InferenceSession(
                str(path), options, *provider_arguments, enable_fallback=0
            )
            if session.get_providers()[0] == provider:
                return session
            problem = "onnxruntime would use another provider, see its log"
        except Exception as error:  # ten types of exceptions
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        written = next(n.get("onnx", "") for n in kit["networks"] if n["id"] == path.stem)
        sys.exit(
            f"onnxruntime {ort.__version__} does not run {path.name} ({written}) with {provider} "
            f"alone: {problem}. Use another --provider or runtime."
        )

    def run(path: Path) -> tuple[Runs, float | None]:
        session = open_session(path)
        (image,) = session.get_inputs()
        shape = [size if isinstance(size, int) else kit["batch"] for size in image.shape]
        feed = {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        return timed(lambda: session.run(None, feed))

    return run, ort.__version__


def trtexec(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return a function that times an ONNX file with trtexec, and TensorRT's version.

    Copies to and from the GPU are not timed. The version is empty if trtexec does not print it.
    """

    def run(path: Path) -> tuple[Runs, float | None]:
        with tempfile.TemporaryDirectory() as folder:  # the kit may be read-only
            times = Path(folder, "times.json")
            warm = [f"--warmUp={WARM_S * 1e3:.0f}", f"--duration={MIN_S:.0f}"]
            least = [f"--iterations={MIN_RUNS}", f"--exportTimes={times}", "--noDataTransfers"]
            output([arguments.tool or "trtexec", f"--onnx={path}", *warm, *least, *arguments.rest])
            entries = json.loads(times.read_text())
        return [float(entry["computeMs"]) for entry in entries], None

    version = re.search(r"TensorRT[^\d]*([\dv.]+)", output([arguments.tool or "trtexec", "--help"]))
    return run, version.group(1) if version else ""


def tflite(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return a function that times a TFLite file with benchmark_model, here or on a phone by adb.

    It returns one latency, the median of all runs, or their mean if the tool prints no median. The
    second value, the version, is empty.
    """
    there, tool = "/data/local/tmp", arguments.tool or "benchmark_model"
    on_phone = tool if tool.startswith("/") else f"{there}/{tool}"

    def run(path: Path) -> tuple[Runs, float | None]:
        graph = str(path)
        if arguments.adb:
            output(["adb", "push", str(path), f"{there}/{path.name}"])
            graph = f"{there}/{path.name}"
        command = [
            on_phone if arguments.adb else tool,
            *(f"--graph={graph}", f"--num_runs={MIN_RUNS}", f"--min_secs={MIN_S}"),
            *(f"--warmup_min_secs={WARM_S}", f"--num_threads={kit['threads']}", *arguments.rest),
        ]
        # The phone's shell splits the command again.
        text = output(["adb", "shell", shlex.join(command)] if arguments.adb else command)
        matches = re.findall(r"count=(\d+)\s.*?\bavg=([\d.e+]+)(.*)", text)
        if not matches:
            sys.exit(
                f"benchmark_model printed no line 'count=... avg=...' for {path.name}. Use another "
                f"version of it. It printed: {text[-300:] or 'nothing'}"
            )
        median = re.search(r"\b(?:median|p50)=([\d.e+]+)", matches[-1][2])
        return [float(median.group(1) if median else matches[-1][1]) / 1e3], None

    return run, ""


def command(arguments: argparse.Namespace, kit: dict[str, Any]) -> tuple[Runner, str]:
    """Return a function that times a file by a command that prints milliseconds, one per line.

    The command is started without a shell, so that no character of a path has a meaning. The second
    value, the version, is empty.
    """
    try:
        words = shlex.split(" ".join(arguments.rest[:1]), posix=os.sep == "/")
        if os.sep != "/":  # quotes of paths with blanks are kept on Windows
            words = [re.sub(r'^"(.*)"$', r"\1", word) for word in words]
    except ValueError as error:
        sys.exit(f"The command {arguments.rest[0]!r} has wrong quotes: {error}.")
    if not any("{file}" in word for word in words[1:]):
        sys.exit("The command must contain {file}: python measure.py command 'mytool {file}'")

    def run(path: Path) -> tuple[Runs, float | None]:
        line = [word.replace("{file}", str(path)) for word in words]
        numbers = re.findall(
            r"^\s*((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*$",
            output(line, only_stdout=True),
            re.MULTILINE,
        )
        if not numbers:
            sys.exit(
                f"{shlex.join(line)} printed no latency. It must print milliseconds, one number "
                "per line."
            )
        return [float(number) for number in numbers], None

    return run, ""


def output(line: list[str], *, only_stdout: bool = False) -> str:
    """Return what a command prints: stdout, then stderr unless ``only_stdout``.

    The program exits with an error if the command cannot be started or fails.
    """
    try:
        process = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"{line[0]} cannot be started: {error}. Install it, or give its path.")
    if process.returncode:
        printed = (process.stderr or process.stdout)[-500:] or "it printed nothing"
        sys.exit(f"{' '.join(line)} failed with exit code {process.returncode}: {printed}")
    return process.stdout if only_stdout else process.stdout + process.stderr


RUNTIMES = {"onnxruntime": onnxruntime, "trtexec": trtexec, "tflite": tflite, "command": command}


def check_dtype(runtime: str, rest: list[str], dtype: str) -> None:
    """Exit with an error if a runtime, with the options ``rest``, does not compute in ``dtype``."""
    if runtime == "onnxruntime" and dtype not in WRITTEN:
        sys.exit(
            f"This kit is for {dtype} and its files are in float32, as onnxruntime runs them: use "
            f"trtexec, or your own command that computes in {dtype}."
        )
    if runtime != "trtexec":
        return
    if dtype == "int8":
        sys.exit(
            "This kit is for int8 and its activations are uint8 with zero points, which TensorRT "
            "refuses: use onnxruntime, or your own command that reads them."
        )
    given = [word for word in rest if word in (*NARROWS.values(), *OTHERS)]
    required = [NARROWS[dtype]] if dtype in NARROWS else []
    as_written = not given and "--stronglyTyped" in rest and dtype in WRITTEN
    if given != required and not as_written:
        sys.exit(
            f"This kit is for {dtype}: the dtype options of trtexec after -- must be "
            f"'{' '.join(required)}', got '{' '.join(given)}'."
        )


def no_tf32(arguments: argparse.Namespace, dtype: str) -> None:
    """Add the option that computes float32 in full: NVIDIA GPUs round it to 10 bits by default.

    It is added to ``arguments``, for kits in float32 with CUDA's provider or trtexec, and a note is
    printed; not with ``--tf32`` or an option of the user.
    """
    cuda = (arguments.runtime, arguments.provider) == ("onnxruntime", "CUDAExecutionProvider")
    if (arguments.runtime, arguments.provider) == ("onnxruntime", "TensorrtExecutionProvider"):
        if dtype == "float32" and not arguments.tf32:  # the provider has no option for it
            os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
            print("float32 is computed in full, not as TF32 (--tf32 allows it).", flush=True)
        return
    if dtype != "float32" or arguments.tf32 or not (cuda or arguments.runtime == "trtexec"):
        return
    if cuda and arguments.options.setdefault("use_tf32", "0") != "0":
        return
    if not cuda and "--noTF32" not in arguments.rest:
        arguments.rest.insert(0, "--noTF32")
    print("float32 is computed in full, not as TF32 (--tf32 allows it).", flush=True)


def machine(*, phone: bool) -> str:
    """Return name, architecture and processor of this machine.

    With ``phone``, model and serial number of the phone that adb is connected to.
    """
    if not phone:
        return f"{platform.node()} {platform.machine()} {platform.processor()}".strip()
    output(["adb", "start-server"])  # its first message goes here
    queries = (["shell", "getprop", "ro.product.model"], ["get-serialno"])
    return " ".join(output(["adb", *query]).strip() for query in queries)
