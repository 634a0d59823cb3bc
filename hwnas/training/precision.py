"""Number formats of the forward pass."""

from collections.abc import Callable

import torch
from torch import Tensor


def forward(network: Callable[[], Tensor], images: Tensor, dtype: str) -> Tensor:
    """Return the outputs of a network in float32, computed in another format where it is asked for.

    The backward pass computes in the formats of the forward pass; weights and their gradients stay
    float32.
    """
    if dtype == "float32":
        return network()
    with torch.autocast(images.device.type, getattr(torch, dtype)):
        return network().float()
