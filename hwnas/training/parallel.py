"""Parallel training: processes started by torchrun, threads, and locks between commands."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, final

import torch
from torch import Tensor
from torch import distributed as dist

from hwnas.core.errors import ConfigError, LockedError
from hwnas.core.progress import Progress
from hwnas.core.run_folder import RunFolder
from hwnas.training.checkpoints import Checkpoint

_TIMEOUT = timedelta(days=7)  # the first process may wait for another command's supernet


@dataclass(frozen=True)
class ProcessGroup:
    """Rank of this process and number of training processes."""

    rank: int = 0  #: from 0
    n: int = 1  #: number of processes

    @property
    def leads(self) -> bool:
        """True for the one process that writes and prints."""
        return self.rank == 0

    def rows(self, batch_size: int) -> slice:
        """Return the rows of a batch that belong to this process.

        Raises:
            ConfigError: the batch cannot be divided evenly.
        """
        if batch_size % self.n:
            below = batch_size // self.n * self.n
            examples = f"{below} or {below + self.n}" if below else self.n
            raise ConfigError(
                f"train.batch_size={batch_size} cannot be divided evenly among {self.n} processes. "
                f"Allowed: multiples of {self.n}, such as {examples}."
            )
        share = batch_size // self.n
        return slice(self.rank * share, (self.rank + 1) * share)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors in place by their means over the processes."""
        if self.n == 1:
            return
        message = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(message)
        message /= self.n
        parts = torch.split(message, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))

    def meet(self) -> None:
        """Wait for all processes."""
        if self.n > 1:
            dist.barrier()


def current() -> ProcessGroup:
    """Return the current process group; a group of one if there is no other process."""
    if dist.is_available() and dist.is_initialized():
        return ProcessGroup(dist.get_rank(), dist.get_world_size())
    return ProcessGroup()


def leads() -> bool:
    """Return whether this process writes and prints; also valid before ``joined``."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def joined() -> Iterator[ProcessGroup]:
    """Join the process group of torchrun within the context; yield it, or a group of one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ProcessGroup()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", timeout=_TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        yield current()
    finally:
        dist.destroy_process_group()


# Layers of small networks are too short to keep several cores busy; independent networks in
# parallel do. Measured in ``benchmarks/README.md``.

T = TypeVar("T")


@final
class ThreadPool:
    """Threads for independent tasks; a single task, or one thread, runs in the caller."""

    def __init__(self, n_tasks: int):
        """Start at most ``n_tasks`` threads, and at most one per core that torch may use."""
        n_cores = torch.get_num_threads()
        self.n_threads = n_threads = max(1, min(n_tasks, n_cores))
        self._pool: ThreadPoolExecutor | None = None
        if self.n_threads > 1:
            all_there = threading.Barrier(n_threads)

            def start() -> None:  # must not refer to ``self``, or the threads would never end
                torch.get_num_threads()  # the first call in a thread initialises its setting
                torch.set_num_threads(n_cores // n_threads)
                all_there.wait()

            self._pool = ThreadPoolExecutor(n_threads, "networks", start)
            wait([self._pool.submit(int) for _ in range(n_threads)])
            torch.set_num_threads(n_cores)  # for this thread and for later ones

    def run(self, tasks: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Yield the results of tasks in order; raise an error only after all tasks have ended.

        Tasks must not modify shared state or use random numbers: their order is not fixed.
        """
        if self._pool is None or len(tasks) == 1:
            yield from (task() for task in tasks)
            return
        futures: list[Future[T]] = [self._pool.submit(task) for task in tasks]
        wait(futures)
        while futures:
            yield futures.pop(0).result()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread within the context, to train a single network.

    Several threads gain little, and wait for each other when other processes use the cores: steps
    take ten times as long. Measured in ``benchmarks/README.md``.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Locks: one command trains, others with the same training wait for its checkpoint.

_POLL_S = 1.0


@contextlib.contextmanager
def train_once(checkpoint: Checkpoint, n_steps: int, progress: Progress) -> Iterator[None]:
    """Lock a training within the context, so that no other command runs it.

    If another command runs it, wait until that has ended. A training that already has ``n_steps``
    is not locked.

    Raises:
        RunError: the checkpoint is damaged or of another training.
    """
    processes = current()
    with contextlib.ExitStack() as stack:
        if processes.leads and checkpoint.n_steps() < n_steps:
            stack.callback(_lock_checkpoint(checkpoint, n_steps, progress).close)
        processes.meet()
        yield
        processes.meet()


def _lock_checkpoint(checkpoint: Checkpoint, n_steps: int, progress: Progress) -> RunFolder:
    """Lock the folder of a checkpoint, waiting for another process that trains it."""
    folder = RunFolder(checkpoint.path.parent)
    try:
        folder.create()
    except LockedError:
        shown = checkpoint.n_steps()
        with progress.phase("Wait for training", n_steps, shown) as advance:
            while True:
                time.sleep(_POLL_S)
                advance(checkpoint.n_steps() - shown)
                shown = checkpoint.n_steps()
                try:
                    folder.create()
                    break
                except LockedError:
                    continue
    return folder


def lock_folder(folder: RunFolder, progress: Progress) -> RunFolder:
    """Lock a folder, which is created if missing, and return it; the caller closes it.

    If another process uses it, wait for that.
    """
    with contextlib.suppress(LockedError):
        folder.create()
        return folder
    with progress.phase("Wait for teacher", 1):
        while True:
            time.sleep(_POLL_S)
            with contextlib.suppress(LockedError):
                folder.create()
                return folder
