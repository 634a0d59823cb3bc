"""Worker processes: a bench in a process that is killed if it hangs and replaced if it dies.

A compiler that crashes or hangs costs one operator or one candidate, not the search.
"""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core import errors
from hwnas.core.errors import CompileError, ConfigError, DeviceError, HwnasError
from hwnas.core.processes import CleanSpawnContext
from hwnas.hardware import backends
from hwnas.hardware.runtimes.interfaces import DeviceEvaluation, Engine, OperatorPlans
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import InterleavedTimings, Timing, TimingConfig
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import Parameters
from hwnas.tasks.metrics import builtin

#: Workers of remote devices may finish a call before they are killed: a server may not survive a
#: client that dies while it answers.
GRACE_S = 5.0
_START_S = 120.0  #: limit to import a compiler and time the sentinel on a busy machine


@final
class Worker:
    """The methods of ``DeviceBench``, run in another process. Not thread-safe.

    The first call starts the process. If the process crashes during a call, or the call takes
    longer than ``limit_s`` seconds, it raises a ``CompileError``; while the process starts, a
    ``ConfigError``; for a remote target always a ``DeviceError``. The next call starts a new
    process.

    Raises:
        ConfigError: the target is remote, and its meter would read this machine.
    """

    def __init__(self, target: Target, timing: TimingConfig, remote: Remote, limit_s: float):
        if remote.tracker and target.meter != "none":
            raise ConfigError(
                f"target.meter={target.meter} measures this machine, not device '{remote.key}' at "
                f"rpc.tracker={remote.tracker}: set target.meter=none."
            )
        self._arguments = (target, timing, remote)
        self._limit_s = limit_s
        self._process: Any = None
        self._pipe: Connection | None = None

    def tune(self, op: OpSpec, limit: int, first: str = "") -> str:
        """Return the fastest compilation plan of an operator, see ``DeviceBench.tune``."""
        return cast(str, self._call("tune", op, limit, first))

    def time_operators(self, work: Sequence[tuple[OpSpec, str]]) -> list[Timing]:
        """Return the latency of each pair (operator, compilation plan) in ``work``, in order."""
        return cast("list[Timing]", self._call("time_operators", list(work)))

    def time_network(self, graph: Graph, plans: OperatorPlans) -> Timing:
        """Return the latency of a fused network, see ``DeviceBench.time_network``."""
        return cast(Timing, self._call("time_network", graph, _used_plans(graph, plans)))

    def interleaved_networks(self, first: Graph, second: Graph) -> InterleavedTimings:
        """Return the latencies of two fused networks, timed in turns with random weights.

        Raises:
            CompileError: the runtime needs compilation plans.
        """
        return cast(InterleavedTimings, self._call("interleaved_networks", first, second))

    def percentiles(self, graph: Graph, plans: OperatorPlans, n: int) -> dict[str, float]:
        """Return ``p50_ms``, ``p90_ms`` and ``p99_ms`` of ``n`` single inferences of a network."""
        return cast(
            "dict[str, float]", self._call("percentiles", graph, _used_plans(graph, plans), n)
        )

    def export(self, graph: Graph, plans: OperatorPlans, weights: Parameters) -> dict[str, bytes]:
        """Compile a fused network; return its files, see ``DeviceBench.export``."""
        return cast(
            "dict[str, bytes]", self._call("export", graph, _used_plans(graph, plans), weights)
        )

    def evaluate(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> DeviceEvaluation:
        """Return outputs and measurements of a network, see ``DeviceBench.evaluate``."""
        return cast(DeviceEvaluation, self._call("evaluate", dict(files), images))

    def interleaved(
        self, first: Mapping[str, Path], second: Mapping[str, Path]
    ) -> InterleavedTimings:
        """Return the latencies of two networks, loaded from files by suffix and timed in turns."""
        return cast(InterleavedTimings, self._call("interleaved", dict(first), dict(second)))

    def run(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for images, see ``DeviceBench.run``."""
        return cast("NDArray[np.float32]", self._call("run", dict(files), images))

    def sentinel_ms(self) -> tuple[float, ...]:
        """Return all readings of the sentinel since the start of the process, in ms."""
        return cast("tuple[float, ...]", self._call("sentinel_ms"))

    def close(self) -> None:
        """End the process, if there is one; the next call starts a new one."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            if self._is_remote:
                self._process.terminate()
                self._process.join(GRACE_S)
            self._process.kill()
            self._process.join()
            self._process = None

    def kill(self, gently: bool) -> None:
        """Kill the process from another thread; the running call raises an error.

        Args:
            gently: Whether the process of a remote device may finish its call first.
        """
        process = self._process
        if process is None or not process.is_alive():
            return
        if gently and self._is_remote:
            process.terminate()
        else:
            process.kill()

    @property
    def _is_remote(self) -> bool:
        return bool(self._arguments[-1].tracker)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(method) from None
        return self._answer(self._limit_s, method)

    def _start(self) -> None:
        context = CleanSpawnContext()
        self._pipe, other = context.Pipe()
        arguments = (other, *self._arguments, self._limit_s)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        waiting_s = self._arguments[-1].timeout_s if self._is_remote else 0.0
        self._answer(_START_S + waiting_s, "start")

    def _answer(self, limit_s: float, method: str) -> Any:
        assert self._pipe is not None
        try:
            if not self._pipe.poll(limit_s):
                self.close()
                reason = f"no answer within {limit_s:g} s ({method.replace('_', ' ')})"
                hint = _limit_hint(method)
                raise self._failure(f"{reason}; the process was killed{hint}", method)
            kind, content = self._pipe.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            raise self._death(method) from None
        except BaseException:  # Ctrl-C before the answer: the next answer would belong to this call
            self.close()
            raise
        if kind == "error":
            name, message = content
            if name == "DeviceError" or method == "start":
                self.close()
            raise getattr(errors, name, CompileError)(message)
        return content

    def _death(self, method: str) -> HwnasError:
        self._process.join()
        code = self._process.exitcode
        self.close()
        cause = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        return self._failure(f"the process died of {cause} ({method.replace('_', ' ')})", method)

    def _failure(self, reason: str, method: str) -> HwnasError:
        target, _, remote = self._arguments
        if self._is_remote:
            return DeviceError(
                f"Worker of device '{remote.key}' at {remote.tracker}: {reason}. Check the device, "
                "and that its server runs."
            )
        message = f"Compiler process of target '{target.name}': {reason}."
        if method == "start":  # LLVM aborts on unknown values; every operator would fail alike
            hint = backends.get(target.runtime).start_hint or "Choose another target.runtime."
            return ConfigError(f"{message} {hint}")
        return CompileError(f"{message} Choose another search space or target.runtime.")


def _limit_hint(method: str) -> str:
    """Return the option that sets the time limit of a call; starting has none."""
    return "" if method == "start" else " (time limit: tuning.limit_s; of verify: limit_s)"


def _used_plans(graph: Graph, plans: OperatorPlans) -> dict[OpSpec, str]:
    """Return the plans of a network's operators; a table has thousands."""
    return {node.op: plans[node.op] for node in graph if node.op in plans}


def _serve(
    pipe: Connection, target: Target, timing: TimingConfig, remote: Remote, limit_s: float
) -> None:
    """Answer calls until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, _leave)
    _silence()
    try:
        _answer_calls(pipe, target, timing, remote, limit_s)
    except SystemExit:
        os._exit(0)  # immediately: cleaning up a hanging library may hang, too


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise SystemExit


def _answer_calls(
    pipe: Connection, target: Target, timing: TimingConfig, remote: Remote, limit_s: float
) -> None:
    try:
        if not remote.tracker:
            _pin(target)
        from hwnas.hardware.runtimes.bench import DeviceBench

        meter = None
        if target.meter != "none":
            from hwnas.hardware.meters.builtin import open_meter

            meter = open_meter(target.meter, target.meter_channel)
        # Half of the limit: the same call also runs images and times the network.
        p99_limit_s = limit_s / 2 if builtin.P99_FACT in target.facts else None
        bench = DeviceBench(_engine(target, remote), timing, target.dtype, meter, p99_limit_s)
        pipe.send(("ok", None))
    except Exception as error:
        pipe.send(("error", _name_and_message(error)))
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("ok", getattr(bench, method)(*arguments))
        except Exception as error:
            answer = ("error", _name_and_message(error))
        pipe.send(answer)


def _engine(target: Target, remote: Remote) -> Engine:
    """Return the engine of a target; its packages are imported only here.

    Raises:
        ConfigError: the target is not measured, or not available.
        DeviceError: the device does not answer.
    """
    backend = backends.get(target.runtime)
    if not backend.measured:
        raise ConfigError(
            f"Target '{target.name}' cannot be measured: target.runtime={target.runtime} only "
            "estimates costs. Choose another target.runtime."
        )
    if remote.tracker and not backend.remote:
        able = " or ".join(f"target.runtime={d.name}" for d in backends.known() if d.remote)
        raise ConfigError(
            f"rpc.tracker={remote.tracker}: target.runtime={target.runtime} does not support "
            f"remote devices. Set {able}, or remove rpc.tracker and rpc.key."
        )
    engine: Engine = backends.resolve_reference(backend.engine, backend)(target, remote)
    return engine


_CPUS = Path("/sys/devices/system/cpu")
_AS_FAST = 0.85  # fraction of the highest frequency; efficiency cores have 0.6 to 0.81 of it


def _pin(target: Target) -> None:
    """Pin the process to the cores that are first in ``_preferred``.

    Raises:
        ConfigError: the machine has fewer cores.
    """
    cores, chosen = _preferred(os.sched_getaffinity(0)), target.thread_counts
    threads = max(chosen or [target.threads])
    if threads > len(cores):
        option = f"target.thread_counts={chosen}" if chosen else f"target.threads={threads}"
        raise ConfigError(
            f"{option}, but only {len(cores)} cores are available. Set {len(cores)} or less."
        )
    os.sched_setaffinity(0, cores[:threads])


def _preferred(available: Iterable[int]) -> list[int]:
    """Return cores in the order of preference.

    Fast cores of hybrid CPUs are preferred to slow ones, then physical cores to second threads of a
    core, then the last ones: the first ones handle interrupts and other processes.
    """
    cores = sorted(available, reverse=True)
    speeds = {
        core: int(_fact(core, "cpu_capacity") or _fact(core, "cpufreq/cpuinfo_max_freq") or 1)
        for core in cores
    }
    is_slow = {core: speeds[core] < _AS_FAST * max(speeds.values()) for core in cores}
    siblings = [_fact(core, "topology/thread_siblings_list") or str(core) for core in cores]
    is_second = {c: s in siblings[:i] for i, (c, s) in enumerate(zip(cores, siblings, strict=True))}
    return sorted(cores, key=lambda core: (is_slow[core], is_second[core], -core))


def _fact(core: int, name: str) -> str:
    """Return the content of a file about a core; empty if there is none."""
    try:
        return (_CPUS / f"cpu{core}" / name).read_text("ascii").strip()
    except OSError:
        return ""


def _silence() -> None:
    """Drop output of native code, such as the backtrace of a crash."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _name_and_message(error: Exception) -> tuple[str, str]:
    if isinstance(error, HwnasError):
        return type(error).__name__, str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[-1] if lines else 'no text'}"[:300]
    return "CompileError", f"{reason}. Choose another search space or target.runtime."
