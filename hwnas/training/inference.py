"""Forward passes: number format, batch norm recalibration, per-image results, chance level."""

import functools
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.core import machine
from hwnas.core.quantity import NORMAL_95, Quantity
from hwnas.models.graph import Graph
from hwnas.tasks.base import PerImageResults, Task
from hwnas.tasks.metrics import format_value, is_better, metric_of
from hwnas.training.data import ImageData
from hwnas.training.parallel import ThreadPool

_BATCH = 250  # images; larger batches were slower on the CPUs tried


def recalibrate(network: nn.Module, images: Tensor) -> None:
    """Set the statistics of every ``BatchNorm2d`` to those of ``images``, averaged over batches.

    Afterwards the network is in evaluation mode.

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
    """Return the task's result for each image, ``(N,)``, such as 1 for a correct answer.

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
    tasks = [partial(of_batch, *batch) for batch in batches]
    pool = _thread_pool(torch.get_num_threads())
    return np.concatenate([*pool.run(tasks)])


@cache
def _thread_pool(n_threads: int) -> ThreadPool:
    return ThreadPool(n_threads)


# Chance level: collapse detection misses trainings that are shorter than its window.


def at_chance_level(
    metric: str, figures: Mapping[str, Quantity], constant: Quantity
) -> dict[str, Quantity]:
    """Return the metrics, by name, of networks not significantly better than a constant answer.

    The 95 % intervals are scaled for the number of networks.

    Args:
        metric: Name of the metric.
        figures: Metric on one split, by name of the network.
        constant: Metric of the best constant answer on the same split.

    Source: Dunn, "Multiple comparisons among means", JASA 56, 1961 (Bonferroni's correction).
    """
    scale = -NormalDist().inv_cdf(0.025 / max(1, len(figures))) / NORMAL_95

    def bound(figure: Quantity) -> float:
        return figure.value + scale * (metric_of(metric).binding(figure) - figure.value)

    return {n: f for n, f in figures.items() if not is_better(metric, bound(f), constant.value)}


def chance_level_messages(
    data: ImageData, split: str, figures: Mapping[str, Quantity], longer_options: str
) -> list[str]:
    """Return a list with one warning about the networks of ``at_chance_level``; empty if none.

    Args:
        data: Data set of the networks.
        split: ``validation`` or ``test``.
        figures: Metric on that split, by name of the network.
        longer_options: Names of the options that lengthen training.
    """
    metric, constant = data.task.metric, data.constant(split)
    if not (weak := at_chance_level(metric, figures, constant)):
        return []
    values = {name: format_value(metric, figure.value) for name, figure in weak.items()}
    named = ", ".join(f"{name} ({value})" for name, value in values.items())
    n = len(figures)
    test = f", at 95 % corrected for {n} networks" if n > 1 else ""
    return [
        f"Not significantly better than {constant_answer(data, split)}{test}: {named}. Train "
        f"longer: {longer_options}."
    ]


def constant_answer(data: ImageData, split: str) -> str:
    """Return a text with the best constant answer and its metric on a split (``test``, ...)."""
    metric, n = data.task.metric, len(getattr(data, split))
    value = format_value(metric, data.constant(split).value)
    return (
        f"{data.task.description.constant} ({metric_of(metric).label} {value} on {n:,} {split} "
        "images)"
    )


AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"

_CPU_FEATURES = {"avx512_bf16", "amx_bf16"}  # CPUs with fast bfloat16 products
#: Multiply-accumulates per output value of dense convolutions from which bfloat16 is faster;
#: measured by ``benchmarks/training_dtype.py``.
DENSE = 50


def choose_precision(option: str, graph: Graph, device: str) -> str:
    """Return the number format of a training: ``float32`` or ``bfloat16``.

    Args:
        option: Value of ``train.dtype``; ``auto`` selects the faster format.
        graph: Graph of the network; of a supernet the largest one.
        device: Device type, such as ``cpu``.
    """
    if option != AUTO:
        return option
    faster = device == "cpu" and _multiplies_bfloat16() and density(graph) >= DENSE
    return BFLOAT16 if faster else FLOAT32


@functools.cache
def _multiplies_bfloat16() -> bool:
    return not _CPU_FEATURES.isdisjoint(machine.describe()["flags"])


def density(graph: Graph) -> float:
    """Return the mean number of multiply-accumulates per output value of dense convolutions.

    It is 0 without these; depthwise and grouped convolutions do not count.
    """
    dense = [node.op for node in graph if node.op.kind.startswith("conv") and node.op.groups == 1]
    n_outputs = sum(math.prod(op.out_shape) for op in dense)
    return sum(op.n_macs for op in dense) / max(n_outputs, 1)


def forward(network: Callable[[], Tensor], images: Tensor, dtype: str) -> Tensor:
    """Return the float32 outputs of ``network()``, computed in ``dtype``.

    The backward pass uses the same format. Weights and their gradients stay float32.
    """
    if dtype == FLOAT32:
        return network()
    with torch.autocast(images.device.type, getattr(torch, dtype)):
        return network().float()
