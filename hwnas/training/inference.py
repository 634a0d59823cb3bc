"""Images read by a plain network: for its batch norm, and for what it answers."""

import math
from collections.abc import Mapping
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.tasks.base import PerImageResults, Task
from hwnas.tasks.metrics import column
from hwnas.training.data import ImageData
from hwnas.training.parallel import ThreadPool

_BATCH = 250  # images at once; larger ones were slower on the CPUs tried


def recalibrate(network: nn.Module, images: Tensor) -> None:
    """Set the statistics of every batch norm to those of ``images``, averaged over batches.

    Source: Yu & Huang, 2019, "post-statistics of batch normalization",
    https://arxiv.org/abs/1903.05134, section 3.3.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a plain average over the batches
    network.train()
    with torch.inference_mode():
        # Batches of (nearly) one size, because each counts the same in the average.
        for batch in torch.tensor_split(images, math.ceil(len(images) / _BATCH)):
            network(batch)
    network.eval()


def per_sample(task: Task, network: nn.Module, images: Tensor, targets: Tensor) -> PerImageResults:
    """Return what the task finds of each of ``images`` ``(N, C, R, R)``, ``(N,)``."""

    def of_batch(x: Tensor, y: Tensor) -> PerImageResults:
        with torch.inference_mode():
            return task.per_sample(network(x).numpy(), y.numpy())

    n = max(1, math.ceil(len(images) / _BATCH))  # of (nearly) one size: they are read at once
    batches = zip(torch.tensor_split(images, n), torch.tensor_split(targets, n), strict=True)
    return np.concatenate([*_thread_pool().run([partial(of_batch, *batch) for batch in batches])])


@cache
def _thread_pool() -> ThreadPool:
    return ThreadPool(torch.get_num_threads())


# Networks whose answers, once they are trained, cannot be told from guesses.
#
# ``watch`` stops a training that learns nothing, but none of fewer steps than its window has.


def at_chance_level(task: Task, found: Mapping[str, float], n: int) -> dict[str, float]:
    """Return which networks do not surely answer better than guesses do.

    Args:
        task: What they are for.
        found: The metric on ``n`` images, by what a network is called.
        n: How many.
    """
    return {name: value for name, value in found.items() if not task.has_learned(value * n, n)}


def chance_level_messages(data: ImageData, found: Mapping[str, float], cure: str) -> list[str]:
    """Return in a sentence which networks may be guessing on validation; none where none is.

    Args:
        data: That networks were trained on.
        found: The metric on the validation split, by what a network is called.
        cure: Options that train longer.
    """
    n, label = len(data.validation), column(data.task.metric).label
    each = [f"{name} ({label} {v:.4g})" for name, v in at_chance_level(data.task, found, n).items()]
    return [
        f"No better than by guessing, as far as {n:,} validation images tell: {', '.join(each)}. "
        f"Train longer: {cure}."
    ] * bool(each)
