"""Training by several processes, each on its share of every batch, as torchrun starts them."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from hwnas.errors import ConfigError

_PATIENCE = timedelta(days=7)  # torchrun ends all where one ends; the first may wait for a supernet


@dataclass(frozen=True)
class Processes:
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


def current() -> Processes:
    """Return the processes that train together; this one alone where none were joined."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    return Processes()


def leads() -> bool:
    """Return whether this is the process that writes and tells for all, before they are joined."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes that torchrun started, if it did: by NCCL on GPUs, else by gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
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
