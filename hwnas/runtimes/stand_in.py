"""Weights of networks that nobody has trained."""

import math

import numpy as np
from numpy.typing import NDArray

from hwnas.graph import Graph


def random_weights(
    lowered: Graph, seed: int
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return weights by operator that let activations keep their size.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for node in lowered:
        shape, c_out = node.op.weight_shape, node.op.out_shape[0]
        if node.op.base == "layernorm":
            weight = 1 + 0.1 * rng.standard_normal(c_out)
        elif shape:
            weight = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        else:
            continue
        bias = 0.1 * rng.standard_normal(c_out)
        weights[node.name] = (weight.astype(np.float32), bias.astype(np.float32))
    return weights
