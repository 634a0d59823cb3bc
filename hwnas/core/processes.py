"""Settings of processes that make training on CPUs faster; results are not changed by them."""

import contextlib
import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import final

from hwnas.core import machine

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_MIB = 1 << 20


def tune() -> None:
    """Set how threads wait and how freed memory is kept; call it before torch is imported.

    Threads of GNU OpenMP spin while they wait for others: where another process wants a core, a
    step of training took several times as long as with a short spin, which costs little otherwise.
    glibc gives large buffers back to the system as soon as they are free, and the next layer has to
    fault them in again; keeping them spares those faults. Figures: ``benchmarks/README.md``.
    numpy and scipy only see small matrices here, for which one thread is fastest, and rounds alike
    on any number of cores.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc: another allocator, with habits of its own
        return
    # Older glibc refuses thresholds above 32 MiB, which does no harm.
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB)
    mallopt(_M_TRIM_THRESHOLD, 1024 * _MIB)
    mallopt(_M_TOP_PAD, 64 * _MIB)


@contextlib.contextmanager
def shared_by(n: int) -> Iterator[None]:
    """Have ``n`` processes, which are started meanwhile, take every core once together."""
    before = os.environ.get("OMP_NUM_THREADS")  # read by libraries when they are loaded
    os.environ["OMP_NUM_THREADS"] = before or str(max(1, machine.cores() // n))
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


def end_with_parent() -> None:
    """Have this process end when the one that started it does, also if that is killed."""
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# Processes of our own: fresh interpreters that know nothing of the program that starts them.
#
# Threads and locks don't survive a fork, and ``multiprocessing``'s own fresh interpreters import
# the
# main module again: a user's script without ``if __name__ == "__main__":`` would run from its
# start.

_MAIN = "__main__"
_hidden = threading.RLock()


@final
class _Fresh(SpawnProcess):
    """A process whose target and arguments are of modules that it imports, not of the main one."""

    def start(self) -> None:
        with _without_main():
            super().start()


@final
class Context(SpawnContext):
    """What ``multiprocessing`` calls a context: where processes, queues and pipes come from."""

    Process = _Fresh


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module: what tells the other process which it is looks it up here."""
    with _hidden:
        before, sys.modules[_MAIN] = sys.modules[_MAIN], ModuleType(_MAIN)
        try:
            yield
        finally:
            sys.modules[_MAIN] = before
