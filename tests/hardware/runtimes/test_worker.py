import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.runtimes import worker as workers
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import Remote, Target
from hwnas.models.graph import Graph, OpSpec
from tests.conftest import with_settings
from tests.hardware.runtimes import torch_reference as reference
from tests.hardware.runtimes.rpc_lab import CONV, HOST, LINEAR, MEAN, NETWORK, QUICK, exists, until

GROUPED = OpSpec("conv2d", (8, 4, 4), (16, 4, 4), 3, groups=2, dtype="float32")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(HOST, QUICK, Remote(), limit_s=60.0) as worker:
        yield worker


def _pid(worker: Worker) -> int:
    worker.sentinel_ms()  # starts it where it is not running
    return int(worker._process.pid)


def _check(worker: Worker, folder: Path) -> None:
    """Tune, time, export and evaluate a network in the worker process."""
    plans = {op: worker.tune(op, 2) for op in (CONV, MEAN, LINEAR)}
    timings = worker.time_operators([*plans.items()])
    assert len(timings) == 3
    network_timing = worker.time_network(
        Graph.of(NETWORK), {**plans, GROUPED: "of another network"}
    )
    assert 0 < max(timing.median_ms for timing in timings) < 10 * network_timing.median_ms
    assert {*worker.percentiles(Graph.of(NETWORK), plans, 20)} == {"p50_ms", "p90_ms", "p99_ms"}
    weights = random_weights(Graph.of(NETWORK), 0)
    files = {}
    for suffix, content in worker.export(Graph.of(NETWORK), plans, weights).items():
        files[suffix] = folder / f"network{suffix}"
        files[suffix].write_bytes(content)
    images = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32)
    judged = worker.evaluate(files, images)
    expected = reference.network(Graph.of(NETWORK), weights, images)
    assert reference.relative_error(judged.outputs[..., None, None], expected) < 2e-5
    assert np.array_equal(worker.run(files, images[2:]), judged.outputs[2:])
    assert judged.timing.median_ms > 0
    assert judged.energy is None


@pytest.mark.slow
def test_worker_provides_functions_of_bench(worker: Worker, tmp_path: Path) -> None:
    _check(worker, tmp_path)
    assert len(worker.sentinel_ms()) > 8


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.slow
def test_worker_uses_several_threads(tmp_path: Path) -> None:
    with Worker(replace(HOST, threads=2), QUICK, Remote(), limit_s=60.0) as worker:
        _check(worker, tmp_path)
        assert os.sched_getaffinity(_pid(worker)) == {*sorted(os.sched_getaffinity(0))[-2:]}


def test_worker_runs_on_last_core(worker: Worker) -> None:
    worker.time_operators([(MEAN, "plain")])
    assert os.sched_getaffinity(_pid(worker)) == {max(os.sched_getaffinity(0))}


def test_refusal_is_raised_and_process_continues(worker: Worker) -> None:
    pid = _pid(worker)
    with pytest.raises(CompileError, match=r"^No TVM operator for conv2d 8x4x4->16x4x4 k3 s1 g2"):
        worker.tune(GROUPED, 2)
    with pytest.raises(CompileError, match="3 operators have no compilation plan"):
        worker.time_network(Graph.of(NETWORK), {})
    with pytest.raises(CompileError, match=r"^ValueError: not enough values to unpack"):
        worker.time_operators([(CONV, "no plan")])
    assert _pid(worker) == pid


@pytest.mark.slow
def test_death_during_call_is_reported_and_next_call_works(worker: Worker) -> None:
    pid = _pid(worker)
    os.kill(pid, signal.SIGSTOP)  # so that the call is under way
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    message = r"'host': the process died of SIGKILL \(time operators\)\. Choose"
    with pytest.raises(CompileError, match=message):
        worker.time_operators([(MEAN, "plain")])
    assert not exists(pid)
    assert len(worker.time_operators([(MEAN, "plain")])) == 1


@pytest.mark.slow
def test_death_between_calls_is_reported_by_next_call(worker: Worker) -> None:
    pid = _pid(worker)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not worker._process.is_alive())
    with pytest.raises(CompileError, match=r"the process died of SIGKILL \(sentinel ms\)"):
        worker.sentinel_ms()
    assert _pid(worker) != pid


@pytest.mark.slow
def test_call_beyond_time_limit_is_killed(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = _pid(worker)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_limit_s", 0.5)
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        message = r"0.5 s \(tune\); the process was killed \(time limit: tuning.limit_s"
        with pytest.raises(CompileError, match=message):
            worker.tune(CONV, 2)
        assert 0.5 <= time.monotonic() - start < 5
    assert not exists(pid)
    assert worker.tune(MEAN, 2) == "plain"


def test_interrupt_does_not_stop_worker(worker: Worker) -> None:
    pid = _pid(worker)
    os.kill(pid, signal.SIGINT)
    assert _pid(worker) == pid


@pytest.mark.slow
def test_answer_of_interrupted_call_is_discarded(worker: Worker) -> None:
    pid = _pid(worker)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        worker.tune(MEAN, 2)
    assert not exists(pid)
    assert all(isinstance(reading, float) for reading in worker.sentinel_ms())


def test_process_ends_with_its_parent(worker: Worker) -> None:
    _pid(worker)
    process, pipe = worker._process, worker._pipe
    assert pipe is not None
    pipe.close()  # as at the death of this process
    until(lambda: not process.is_alive())
    assert process.exitcode == 0
    worker.close()


def test_closing_leaves_no_process(worker: Worker) -> None:
    pid = _pid(worker)
    worker.close()
    assert not exists(pid)
    worker.close()


def _refused(target: Target, error: type[Exception], message: str) -> None:
    worker = Worker(target, QUICK, Remote(), limit_s=60.0)
    with pytest.raises(error, match=message):
        worker.sentinel_ms()
    assert worker._process is None


def test_more_threads_than_cores_are_refused_at_start() -> None:
    n_cores = len(os.sched_getaffinity(0))
    _refused(
        replace(HOST, threads=n_cores + 1),
        ConfigError,
        f"^target.threads={n_cores + 1}, but only {n_cores} cores are available",
    )


def test_local_meter_is_refused_for_remote_device() -> None:
    with pytest.raises(ConfigError, match=r"^target\.meter=rapl measures this machine, .*'rpi4'"):
        Worker(replace(HOST, meter="rapl"), QUICK, Remote("host:9190", "rpi4"), limit_s=60.0)


def test_crash_at_start_is_reported() -> None:
    # TVM crashes without that LLVM backend.
    target = with_settings(HOST, TvmSettings(mcpu="generic", mtriple="armabacus-unknown-linux"))
    _refused(target, ConfigError, r"the process died of SIGSEGV \(start\)")


def _describe_cores(
    folder: Path, mhz: Sequence[int | None], siblings: Sequence[str], name: str
) -> None:
    for core, (speed, threads) in enumerate(zip(mhz, siblings, strict=True)):
        facts = {
            name: "" if speed is None else str(speed),
            "topology/thread_siblings_list": threads,
        }
        for fact, text in facts.items():
            path = folder / f"cpu{core}" / fact
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("mhz", "siblings", "expected"),
    [
        # four fast cores, of which two have two threads, and two slow ones
        ([5500, 5500, 5300, 5300, 4300, 4300], ["0-1", "0-1", "2-3", "2-3", "4", "5"],
         [3, 1, 2, 0, 5, 4]),
        ([3000] * 4, ["0,2", "1,3", "0,2", "1,3"], [3, 2, 1, 0]),  # a server
        ([None] * 2, ["0-1", "0-1"], [1, 0]),  # a virtual machine
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_fast_and_physical_cores_are_preferred(
    mhz: list[int | None],
    siblings: list[str],
    expected: list[int],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _describe_cores(tmp_path, mhz, siblings, name)
    monkeypatch.setattr(workers, "_CPUS", tmp_path)
    assert workers._preferred({*range(len(mhz))}) == expected
    monkeypatch.setattr(workers, "_CPUS", tmp_path / "unknown")
    assert workers._preferred({0, 3, 2}) == [3, 2, 0]
