"""Number formats of the forward pass."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from hwnas.core import machine
from hwnas.models.graph import Graph

AUTO, FLOAT32, BFLOAT16 = "auto", "float32", "bfloat16"

_ABLE = {"avx512_bf16", "amx_bf16"}  # features of CPUs that multiply bfloat16
#: Multiply-accumulates of dense convolutions for each value that they write, from which on they are
#: faster in bfloat16: ``benchmarks/training_dtype.py``.
DENSE = 50


def choose_precision(asked: str, graph: Graph, device: str) -> str:
    """Return the format that a network is trained in: as asked, or which is the faster one.

    Args:
        asked: An option ``train.dtype``.
        graph: The network; of a supernet the largest.
        device: The type of the device that trains it.
    """
    if asked != AUTO:
        return asked
    faster = device == "cpu" and _multiplies_bfloat16() and density(graph) >= DENSE
    return BFLOAT16 if faster else FLOAT32


@functools.cache
def _multiplies_bfloat16() -> bool:
    return not _ABLE.isdisjoint(machine.describe()["flags"])


def density(graph: Graph) -> float:
    """Return the multiply-accumulates of dense convolutions for each value that they write."""
    dense = [node.op for node in graph if node.op.kind.startswith("conv") and node.op.groups == 1]
    written = sum(math.prod(op.out_shape) for op in dense)
    return sum(op.n_macs for op in dense) / max(written, 1)


def forward(network: Callable[[], Tensor], images: Tensor, dtype: str) -> Tensor:
    """Return the outputs of a network in float32, computed in another format where it is asked for.

    The backward pass computes in the formats of the forward pass; weights and their gradients stay
    float32.
    """
    if dtype == FLOAT32:
        return network()
    with torch.autocast(images.device.type, getattr(torch, dtype)):
        return network().float()
