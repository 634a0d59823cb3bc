"""Process settings that speed up CPU training without changing results, and clean processes."""

import contextlib
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
from multiprocessing.context import SpawnContext, SpawnProcess
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
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    # Older versions of glibc ignore thresholds above 32 MiB.
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB)
    mallopt(_M_TRIM_THRESHOLD, 1024 * _MIB)
    mallopt(_M_TOP_PAD, 64 * _MIB)


@contextlib.contextmanager
def split_cores(n: int) -> Iterator[None]:
    """Divide the cores among ``n`` processes that are started in this context."""
    before = os.environ.get("OMP_NUM_THREADS")  # libraries read it when they are loaded
    os.environ["OMP_NUM_THREADS"] = before or str(max(1, machine.available_cores() // n))
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


def interrupt_on_signals() -> None:
    """Let SIGTERM and Ctrl-C raise ``KeyboardInterrupt``, once: the state is being saved then.

    After 10 seconds, another signal raises it again.
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
    """End this process when its parent ends, even if the parent is killed."""
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# Worker processes that do not import the main module.
#
# Threads and locks do not survive a fork, and the spawn context of ``multiprocessing`` imports the
# main module again: a user's script without ``if __name__ == "__main__":`` would run twice.

_MAIN = "__main__"
_lock = threading.RLock()


@final
class _CleanProcess(SpawnProcess):
    """A spawned process whose target and arguments come from imported modules.

    It never receives the SIGINT of Ctrl-C, which the terminal sends to all processes: the parent
    process ends it.
    """

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # is inherited
        try:
            with _without_main():
                super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@final
class CleanSpawnContext(SpawnContext):
    """A ``multiprocessing`` context whose processes do not import the main module."""

    Process = _CleanProcess


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which ``multiprocessing`` would tell the new process to import."""
    with _lock:
        before, sys.modules[_MAIN] = sys.modules[_MAIN], ModuleType(_MAIN)
        try:
            yield
        finally:
            sys.modules[_MAIN] = before
