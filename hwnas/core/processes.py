"""Process settings that speed up CPU training without changing results, and clean processes."""

import ctypes
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import (
    ForkServerContext,
    ForkServerProcess,
    SpawnContext,
    SpawnProcess,
)
from types import ModuleType
from typing import final

from hwnas.core import machine

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_MIB = 1 << 20
_SAVING_S = 10.0  # after an interrupt, in which further signals are ignored
_started_at = time.monotonic()  # of the current command


def elapsed_s() -> float:
    """Return the seconds since the current command began, that is, since ``tune_process``."""
    return time.monotonic() - _started_at


def tune_process() -> None:
    """Begin a command: configure thread waiting and memory reuse, before torch is imported.

    GNU OpenMP threads spin while they wait. If another process needs the core, a training step
    takes several times as long as with a short spin, which costs little otherwise. glibc returns
    large freed buffers to the system, so the next layer causes page faults again; keeping the
    buffers avoids them. Measurements: ``benchmarks/README.md``. numpy and scipy process only small
    matrices here: one thread is fastest, and rounding does not depend on the number of cores.
    """
    global _started_at
    _started_at = time.monotonic()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # CUDA's own order is by speed; energy is read in the order of NVML, that of nvidia-smi.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    # Older versions of glibc ignore thresholds above 32 MiB.
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB)
    mallopt(_M_TRIM_THRESHOLD, 1024 * _MIB)
    mallopt(_M_TOP_PAD, 64 * _MIB)


def tune_worker(n: int) -> None:
    """Begin a worker process, one of ``n``: it uses its part of the cores, at least one.

    A value of ``OMP_NUM_THREADS`` in the environment has priority.
    """
    tune_process()
    threads = os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.available_cores() // n)))
    if "torch" in sys.modules:  # it read the variable when it was loaded
        sys.modules["torch"].set_num_threads(int(threads))


def interrupt_on_signals() -> None:
    """Let SIGTERM and Ctrl-C raise ``KeyboardInterrupt`` in the main thread.

    Further signals are ignored for 10 seconds, in which the state is saved.
    """
    handled_at = -math.inf

    def interrupt(*_: object) -> None:
        nonlocal handled_at
        if time.monotonic() - handled_at > _SAVING_S:
            handled_at = time.monotonic()
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def end_with_parent() -> None:
    """End this worker process, without cleanup, when its parent ends or is killed."""
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# Worker processes that do not import the main module.
#
# Threads and locks do not survive a fork, and the contexts of ``multiprocessing`` that do not fork
# import the main module again: a user's script without ``if __name__ == "__main__":`` would run
# twice. The processes here come from imported modules only. They never receive the SIGINT of
# Ctrl-C, which the terminal sends to all processes: the parent process ends them.

_MAIN = "__main__"
_lock = threading.RLock()


@final
class _SpawnedProcess(SpawnProcess):
    def start(self) -> None:
        with _without_main():
            super().start()


@final
class CleanSpawnContext(SpawnContext):
    """A ``multiprocessing`` context of new processes (``spawn``), in which latency is measured.

    They do not import the main module, and do not receive Ctrl-C.
    """

    Process = _SpawnedProcess


@final
class _WorkerProcess(ForkServerProcess):
    def start(self) -> None:
        imported = [name for name in sys.modules if name.partition(".")[0] == "hwnas"]
        with _without_main():
            forkserver.set_forkserver_preload(imported)
            super().start()


@final
class WorkerContext(ForkServerContext):
    """A ``multiprocessing`` context of worker processes that start quickly.

    They are forked from a server process with one thread. It has imported the modules of hwnas that
    this process had imported when it started its first worker. Workers do not receive Ctrl-C.
    """

    Process = _WorkerProcess


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module and block SIGINT, for a new process, which inherits both."""
    with _lock:
        resource_tracker.ensure_running()  # unblocks SIGINT when it starts
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        main, sys.modules[_MAIN] = sys.modules[_MAIN], ModuleType(_MAIN)
        try:
            yield
        finally:
            sys.modules[_MAIN] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
