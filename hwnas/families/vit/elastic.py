"""Layers on tokens whose channels are chosen per call: the first ones of the largest option.

Source: "weight entanglement", Chen et al., "AutoFormer", ICCV 2021,
https://arxiv.org/abs/2107.00651.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.families.blocks import PixelLinear, PixelNorm, activation
from hwnas.families.rounding import copied, rounded


@final
class ElasticPixelLinear(nn.Module):
    """Fully connected layer on each pixel with elastic channels.

    With ``parts`` above 1 the output is that many tensors one behind the other, of which the first
    channels each are used: queries, keys and values.
    """

    def __init__(self, shape: tuple[int, int], act: str = "", parts: int = 1):
        super().__init__()
        c_in, c_out = shape
        self.weight = nn.Parameter(torch.empty(parts, c_out, c_in))
        self.bias = nn.Parameter(torch.zeros(parts, c_out))
        # As a plain layer begins. AutoFormer's 0.02 is small for few channels: it learns later.
        nn.init.uniform_(self.weight, -(c_in**-0.5), c_in**-0.5)
        self.act = activation(act)

    def forward(self, x: Tensor, c_out: int) -> Tensor:
        """``(N, C, H, W)`` to ``(N, parts * c_out, H, W)``."""
        weight, bias = self._slice(x.shape[1], c_out)
        out: Tensor = self.act(F.linear(x.permute(0, 2, 3, 1), rounded(self, weight), bias))
        return out.permute(0, 3, 1, 2)

    def copy_to(self, layer: PixelLinear) -> None:
        """Give a plain layer, whose shape is one of the choices, copies of the weights."""
        linear = layer.linear
        weight, bias = self._slice(linear.in_features, linear.out_features // len(self.bias))
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        copied(self, linear)

    def _slice(self, c_in: int, c_out: int) -> tuple[Tensor, Tensor]:
        # Contiguous, so that the product is computed as the plain layer computes it.
        weight = self.weight[:, :c_out, :c_in].reshape(-1, c_in).contiguous()
        return weight, self.bias[:, :c_out].reshape(-1)


@final
class ElasticPixelNorm(nn.Module):
    """Layer norm of the first channels of each pixel."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        c = x.shape[1]
        out = F.layer_norm(x.permute(0, 2, 3, 1), (c,), self.weight[:c], self.bias[:c])
        return out.permute(0, 3, 1, 2)

    def copy_to(self, layer: PixelNorm) -> None:
        """Give a plain layer the weights of the first channels."""
        c = len(layer.norm.weight)
        with torch.no_grad():
            layer.norm.weight.copy_(self.weight[:c])
            layer.norm.bias.copy_(self.bias[:c])
