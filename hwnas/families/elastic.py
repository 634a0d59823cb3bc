"""Layers whose width and kernel are chosen per call; weights are those of the largest option.

Weights are kept in channels-last order, in which these networks train about twice as fast on CPUs.
``to(memory_format=...)`` is meant, not ``contiguous(...)``: where a dimension is 1 the latter
leaves strides that convolution takes for channels-first, and all behind it runs slowly.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.families import synchronised
from hwnas.families.blocks import ConvNormAct, activation


@final
class ElasticConv(nn.Module):
    """Convolution with batch norm whose channels and kernel are chosen per call.

    The first channels are used, and the centre of the kernel. Once-for-all also learns a linear
    map between kernel sizes; here it stays out until an ablation earns its place.

    Source: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791.
    """

    def __init__(self, shape: tuple[int, int], kernel: int, stride: int, depthwise: bool, act: str):
        super().__init__()
        c_in, c_out = shape
        self.stride = stride
        self.depthwise = depthwise
        weight = torch.empty(c_out, 1 if depthwise else c_in, kernel, kernel)
        nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
        self.weight = nn.Parameter(weight.to(memory_format=torch.channels_last))
        self.norm = ElasticNorm(c_out)
        self.act = activation(act)
        self._act_name = act

    def forward(self, x: Tensor, c_out: int, kernel: int) -> Tensor:
        """``(N, C, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        groups = c_out if self.depthwise else 1
        weight = self._slice(x.shape[1], c_out, kernel)
        x = F.conv2d(x, weight, None, self.stride, kernel // 2, 1, groups)
        out: Tensor = self.act(self.norm(x))
        return out

    def extract(self, c_in: int, c_out: int, kernel: int) -> ConvNormAct:
        """Return the plain layer for one choice of channels and kernel."""
        groups = c_out if self.depthwise else 1
        layer = ConvNormAct((c_in, c_out), kernel, self.stride, groups, self._act_name)
        layer.conv.weight = nn.Parameter(
            self._slice(c_in, c_out, kernel).detach().clone(memory_format=torch.channels_last)
        )
        assert isinstance(layer.norm, nn.BatchNorm2d)
        self.norm.copy_to(layer.norm)
        return layer

    def _slice(self, c_in: int, c_out: int, kernel: int) -> Tensor:
        crop = (self.weight.shape[-1] - kernel) // 2
        rows = slice(crop, crop + kernel)
        weight = self.weight[:c_out, : 1 if self.depthwise else c_in, rows, rows]
        return weight.to(memory_format=torch.channels_last)


@final
class ElasticNorm(nn.Module):
    """Batch norm over the first channels.

    The running statistics mix those of all subnets that were trained; a subnet is recalibrated
    before it is scored.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        c = x.shape[1]
        if self.training and synchronised.shared():
            running = self.running_mean[:c], self.running_var[:c]
            return synchronised.batch_norm(x, running, self.weight[:c], self.bias[:c])
        return F.batch_norm(
            x,
            self.running_mean[:c],
            self.running_var[:c],
            self.weight[:c],
            self.bias[:c],
            training=self.training,
        )

    def copy_to(self, norm: nn.BatchNorm2d) -> None:
        """Copy the first channels into a plain batch norm."""
        c = norm.num_features
        mean, var = norm.running_mean, norm.running_var
        assert mean is not None
        assert var is not None
        with torch.no_grad():
            norm.weight.copy_(self.weight[:c])
            norm.bias.copy_(self.bias[:c])
            mean.copy_(self.running_mean[:c])
            var.copy_(self.running_var[:c])


@final
class ElasticLinear(nn.Module):
    """Fully connected layer over the first input features."""

    def __init__(self, c_in: int, c_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c_out, c_in))
        self.bias = nn.Parameter(torch.zeros(c_out))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C)`` to ``(N, C')``."""
        return F.linear(x, self.weight[:, : x.shape[1]].contiguous(), self.bias)

    def extract(self, c_in: int) -> nn.Linear:
        """Return the plain layer."""
        layer = nn.Linear(c_in, self.weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(self.weight[:, :c_in])
            layer.bias.copy_(self.bias)
        return layer
