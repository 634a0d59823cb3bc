"""Batch norm over the images of several processes, each of which holds a share of the batch."""

from typing import Any, final

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import FunctionCtx

_EPSILON = 1e-5  # torch's own


def shared() -> bool:
    """Return whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise by the statistics of all processes, as ``F.batch_norm`` does by its own.

    Every process must hold the same number of values.

    Args:
        x: ``(N, C, H, W)``.
        weight: ``(C,)``.
        bias: ``(C,)``.
    """
    n = dist.get_world_size()
    own = x.float()
    var, mean = torch.var_mean(own, (0, 2, 3), correction=0)
    # Means and variances of all, by a sum to which each adds its own row; exact, unlike sums of
    # squares, and its gradient is again a sum.
    rows = torch.zeros(n, 2, len(mean), device=x.device)
    mine = torch.zeros(n, 1, 1, device=x.device)
    mine[dist.get_rank()] = 1
    rows = _sum(rows + mine * torch.stack([mean, var]))
    means, variances = torch.unbind(rows, 1)
    mean = means.mean(0)
    var = (variances + (means - mean).square()).mean(0)
    scale = weight * torch.rsqrt(var + _EPSILON)
    shift = bias - mean * scale
    out: Tensor = own * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
    return out.to(x.dtype)


@final
class _Sum(torch.autograd.Function):
    """Sum over the processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: FunctionCtx, own: Tensor) -> Tensor:
        """Any shape."""
        total = own.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Tensor:
        """Any shape."""
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return torch.as_tensor(total)


def _sum(own: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(own)  # type: ignore[no-untyped-call]
    return total
