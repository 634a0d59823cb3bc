"""Settings of processes that make training on CPUs faster; results are not changed by them."""

import contextlib
import ctypes
import multiprocessing
import os
import threading
from collections.abc import Iterator

from hwnas import machine

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
