"""Training by several processes, each on its share of every batch, as torchrun starts them."""

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

_PATIENCE = timedelta(days=7)  # torchrun ends all where one ends; the first may wait for a supernet


@dataclass(frozen=True)
class ProcessGroup:
    """All processes of a training, seen from one of them."""

    rank: int = 0
    n: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def rows(self, batch_size: int) -> slice:
        """Return which images of a batch are this process's.

        Raises:
            ConfigError: a batch cannot be shared evenly.
        """
        if batch_size % self.n:
            below = batch_size // self.n * self.n
            raise ConfigError(
                f"train.batch_size={batch_size} cannot be shared evenly by {self.n} processes. "
                f"Allowed: multiples of {self.n}, such as {below or self.n} or {below + self.n}."
            )
        share = batch_size // self.n
        return slice(self.rank * share, (self.rank + 1) * share)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Set tensors to their mean over the processes, in place and by one message."""
        if self.n == 1:
            return
        message = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(message)
        message /= self.n
        parts = torch.split(message, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))

    def meet(self) -> None:
        """Wait until all are here."""
        if self.n > 1:
            dist.barrier()


def current() -> ProcessGroup:
    """Return the processes that train together; this one alone where none were joined."""
    if dist.is_available() and dist.is_initialized():
        return ProcessGroup(dist.get_rank(), dist.get_world_size())
    return ProcessGroup()


def leads() -> bool:
    """Return whether this is the process that writes and tells for all, before they are joined."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def joined() -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, if it did: by NCCL on GPUs, else by gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ProcessGroup()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", timeout=_PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield current()
    finally:
        dist.destroy_process_group()


# Several networks at once, each by a thread of its own with a share of the processor's cores.
#
# A small network does not keep several cores busy: its layers are too short to be shared out.
# Networks that do not depend on each other keep them busy. Figures: ``benchmarks/README.md``.

T = TypeVar("T")


@final
class ThreadPool:
    """Threads that wait for tasks; none where one core is all there is, or all that is wanted."""

    def __init__(self, n_tasks: int):
        """Start threads for so many tasks at once, at most one for each core that torch may use."""
        n_cores = torch.get_num_threads()
        self.n_threads = n_threads = max(1, min(n_tasks, n_cores))
        self._pool: ThreadPoolExecutor | None = None
        if self.n_threads > 1:
            all_there = threading.Barrier(n_threads)

            def start() -> None:  # knows nothing of ``self``: threads end with it
                torch.get_num_threads()  # a thread's first use takes the number of all of them
                torch.set_num_threads(n_cores // n_threads)
                all_there.wait()

            self._pool = ThreadPoolExecutor(n_threads, "crew", start)
            wait([self._pool.submit(int) for _ in range(n_threads)])
            torch.set_num_threads(n_cores)  # of this thread, and of those to come

    def run(self, tasks: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Yield the results of tasks in their order; what one raises is raised once all have ended.

        Each must leave alone what others read, and draw no random numbers: threads are not in step.
        """
        if self._pool is None or len(tasks) == 1:
            yield from (task() for task in tasks)
            return
        futures: list[Future[T]] = [self._pool.submit(task) for task in tasks]
        wait(futures)
        while futures:
            yield futures.pop(0).result()


# One command trains, others that want the same wait for it.

_POLL_S = 1.0  # between looks at what another process trains


@contextlib.contextmanager
def train_once(checkpoint: Checkpoint, n_steps: int, progress: Progress) -> Iterator[None]:
    """Have no other command train the same meanwhile; wait for one that does."""
    processes = current()
    with contextlib.ExitStack() as stack:
        if processes.leads and checkpoint.n_steps() < n_steps:
            stack.callback(_locked(checkpoint, n_steps, progress).close)
        processes.meet()
        yield
        processes.meet()


def _locked(checkpoint: Checkpoint, n_steps: int, progress: Progress) -> RunFolder:
    """Return the folder of a checkpoint, locked; while another process trains it, wait."""
    folder = RunFolder(checkpoint.path.parent)
    try:
        folder.create()
    except LockedError:
        shown = checkpoint.n_steps()
        with progress.phase("Wait for supernet", n_steps, shown) as advance:
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


def waited(folder: RunFolder, progress: Progress) -> RunFolder:
    """Return a folder, locked; while another process works in it, wait."""
    with contextlib.suppress(LockedError):
        folder.create()
        return folder
    with progress.phase("Wait for answers", 1):
        while True:
            time.sleep(_POLL_S)
            with contextlib.suppress(LockedError):
                folder.create()
                return folder
