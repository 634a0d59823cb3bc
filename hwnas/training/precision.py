"""Number format of the forward pass: float32 or bfloat16."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from hwnas.core import machine
from hwnas.models.graph import Graph

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
    """Return the mean number of multiply-accumulates per output value of dense convolutions."""
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
