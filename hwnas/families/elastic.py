"""Layers whose width and kernel are chosen per call; weights are those of the largest option.

Weights are kept in channels-last order, in which these networks train about twice as fast on CPUs.
``to(memory_format=...)`` is meant, not ``contiguous(...)``: where a dimension is 1 the latter
leaves strides that convolution takes for channels-first, and all behind it runs slowly.
"""

import itertools
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.families import synchronised
from hwnas.families.blocks import ConvNormAct, activation, depthwise_in_float
from hwnas.families.rounding import copied, rounded
from hwnas.op import padding


@final
class ElasticConv(nn.Module):
    """Convolution with batch norm whose channels, kernel and activation are chosen per call.

    The first channels are used, and the centre of the kernel; with ``transforms``, the centre as a
    learned linear map leaves it, from each kernel size to the next smaller one.

    Source: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791, section 3.3.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        kernel: int | tuple[int, ...],
        stride: int = 1,
        depthwise: bool = False,
        act: str = "",
        transforms: bool = False,
    ):
        """Hold the weights of the largest option.

        Args:
            shape: Channels in and out.
            kernel: The largest, or all that can be chosen.
            stride: Of the convolution, unless a call names another.
            depthwise: Whether each channel is convolved alone.
            act: The activation, unless a call names another.
            transforms: Whether kernels are mapped.
        """
        super().__init__()
        c_in, c_out = shape
        kernels = (kernel,) if isinstance(kernel, int) else kernel
        self.stride = stride
        self.depthwise = depthwise
        weight = torch.empty(c_out, 1 if depthwise else c_in, max(kernels), max(kernels))
        nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
        self.weight = nn.Parameter(weight.to(memory_format=torch.channels_last))
        self.norm = ElasticNorm(c_out)
        self.transforms = nn.ParameterDict()
        if transforms:
            sizes = sorted(kernels, reverse=True)
            for size, smaller in itertools.pairwise(sizes):
                self.transforms[f"{size}to{smaller}"] = nn.Parameter(torch.eye(smaller**2))
        self._kernels = kernels
        self._act = act

    def forward(
        self,
        x: Tensor,
        c_out: int,
        kernel: int,
        act: str | None = None,
        stride: int | None = None,
    ) -> Tensor:
        """``(N, C, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        stride = self.stride if stride is None else stride
        groups = c_out if self.depthwise else 1
        weight = rounded(self, self._chosen(x.shape[1], c_out, kernel))
        with depthwise_in_float(x, groups) as read:
            x = F.conv2d(read, weight, None, stride, padding(kernel, stride), 1, groups)
        return activated(self.norm(x), self._act if act is None else act)

    def copy_to(self, layer: ConvNormAct) -> None:
        """Give a plain layer, whose shape is one of the choices, copies of the weights."""
        conv = layer.conv
        weight = self._chosen(conv.in_channels, conv.out_channels, conv.kernel_size[0])
        conv.weight = nn.Parameter(weight.detach().clone(memory_format=torch.channels_last))
        assert isinstance(layer.norm, nn.BatchNorm2d)
        self.norm.copy_to(layer.norm)
        copied(self, conv)

    def _chosen(self, c_in: int, c_out: int, kernel: int) -> Tensor:
        """Return the weight ``(c_out, c_in, kernel, kernel)`` of a choice."""
        weight = self.weight[:c_out, : 1 if self.depthwise else c_in]
        if self.transforms:
            for size, smaller in itertools.pairwise(sorted(self._kernels, reverse=True)):
                if size > kernel:
                    rows = _centre(weight, smaller).reshape(-1, smaller**2)
                    mapped = F.linear(rows, self.transforms[f"{size}to{smaller}"])
                    weight = mapped.reshape(*weight.shape[:2], smaller, smaller)
        return _centre(weight, kernel).to(memory_format=torch.channels_last)


def _centre(weight: Tensor, kernel: int) -> Tensor:
    assert kernel <= weight.shape[-1]
    crop = (weight.shape[-1] - kernel) // 2
    return weight[:, :, crop : crop + kernel, crop : crop + kernel]


def activated(x: Tensor, act: str) -> Tensor:
    """Return an activation of what nothing else reads."""
    out: Tensor = activation(act)(x)
    return out


@final
class ElasticNorm(nn.Module):
    """Batch norm over the first channels.

    Training leaves the running statistics alone: they would mix those of all subnets. A subnet is
    recalibrated before it is scored.
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
        weight, bias = self.weight[:c], self.bias[:c]
        if not self.training:
            return F.batch_norm(x, self.running_mean[:c], self.running_var[:c], weight, bias)
        if synchronised.shared():
            return synchronised.batch_norm(x, weight, bias)
        return F.batch_norm(x, None, None, weight, bias, training=True)

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
    """Fully connected layer over the first input and output features."""

    def __init__(self, c_in: int, c_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c_out, c_in))
        self.bias = nn.Parameter(torch.zeros(c_out))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, x: Tensor, c_out: int | None = None) -> Tensor:
        """``(N, C)`` to ``(N, c_out)``, by default all outputs."""
        weight = rounded(self, self.weight[:c_out, : x.shape[1]].contiguous())
        return F.linear(x, weight, self.bias[:c_out])

    def copy_to(self, layer: nn.Linear) -> None:
        """Give a plain layer, whose shape is one of the choices, copies of the weights."""
        with torch.no_grad():
            layer.weight.copy_(self.weight[: layer.out_features, : layer.in_features])
            if layer.bias is not None:
                layer.bias.copy_(self.bias[: layer.out_features])
        copied(self, layer)
