"""Settings of this process that make training on CPUs faster; results are not changed by them."""

import ctypes
import os

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
