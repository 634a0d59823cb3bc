"""Inference with plain networks: batch norm recalibration, per-image results, chance level."""

import math
from collections.abc import Mapping
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.tasks.base import PerImageResults, Task
from hwnas.tasks.metrics import metric_of
from hwnas.training.data import ImageData
from hwnas.training.parallel import ThreadPool

_BATCH = 250  # images; larger batches were slower on the CPUs tried


def recalibrate(network: nn.Module, images: Tensor) -> None:
    """Set the statistics of every batch norm to those of ``images``, averaged over batches.

    Source: Yu & Huang, 2019, "post-statistics of batch normalization",
    https://arxiv.org/abs/1903.05134, section 3.3.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # plain average over batches
    network.train()
    with torch.inference_mode():
        # Equal batch sizes, because each batch has the same weight in the average.
        for batch in torch.tensor_split(images, math.ceil(len(images) / _BATCH)):
            network(batch)
    network.eval()


def per_sample(task: Task, network: nn.Module, images: Tensor, targets: Tensor) -> PerImageResults:
    """Return the task's result for each image.

    Args:
        task: Task of the network.
        network: Plain network in evaluation mode.
        images: Normalised images, ``(N, C, R, R)``.
        targets: Targets, ``(N,)`` or ``(N, n)``.
    """

    def of_batch(x: Tensor, y: Tensor) -> PerImageResults:
        with torch.inference_mode():
            return task.per_sample(network(x).numpy(), y.numpy())

    n = max(1, math.ceil(len(images) / _BATCH))
    batches = zip(torch.tensor_split(images, n), torch.tensor_split(targets, n), strict=True)
    return np.concatenate([*_thread_pool().run([partial(of_batch, *batch) for batch in batches])])


@cache
def _thread_pool() -> ThreadPool:
    return ThreadPool(torch.get_num_threads())


# Chance level: collapse detection misses trainings that are shorter than its window.


def at_chance_level(task: Task, metrics: Mapping[str, float], n: int) -> dict[str, float]:
    """Return the networks that are not significantly better than chance level.

    Args:
        task: Task of the networks.
        metrics: Metric on the validation split by network name.
        n: Number of validation images.
    """
    return {name: v for name, v in metrics.items() if not task.has_learned(v * n, n)}


def chance_level_messages(
    data: ImageData, metrics: Mapping[str, float], longer_options: str
) -> list[str]:
    """Return a warning that names the networks at chance level; an empty list if there are none.

    Args:
        data: Data set of the networks.
        metrics: Metric on the validation split by network name.
        longer_options: Names of the options that lengthen training.
    """
    n, label = len(data.validation), metric_of(data.task.metric).label
    at_chance = at_chance_level(data.task, metrics, n)
    if not at_chance:
        return []
    names = ", ".join(f"{name} ({label} {value:.4g})" for name, value in at_chance.items())
    return [
        f"Not significantly better than chance level on {n:,} validation images: {names}. "
        f"Train longer: {longer_options}."
    ]
