"""Elastic layers: width and kernel are chosen per call, weights are those of the largest option.

Weights are in channels-last order, in which these networks train about twice as fast on CPUs. Use
``to(memory_format=...)``, not ``contiguous(...)``: if a dimension is 1, the latter keeps strides
that convolutions interpret as channels-first, and all following layers are slow.

Layers on tokens use the first channels of the largest option. Source: "weight entanglement", Chen
et al., "AutoFormer", ICCV 2021, https://arxiv.org/abs/2107.00651.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from hwnas.models.families.layers import (
    ConvNormAct,
    PixelLinear,
    PixelNorm,
    activation,
    depthwise_in_float,
)
from hwnas.models.graph import padding

#: Functions that round the weight of an elastic layer, for example to a grid of 4 bits.
Rounding = Mapping[nn.Module, Callable[[Tensor], Tensor]]

_rounding: ContextVar[Rounding | None] = ContextVar("rounding", default=None)
_copies: ContextVar[list[tuple[nn.Module, nn.Module]] | None] = ContextVar("copies", default=None)


@contextmanager
def weight_rounding(rounding: Rounding) -> Iterator[None]:
    """Apply ``rounding`` to the weights of its elastic layers in this context and thread."""
    token = _rounding.set(rounding)
    try:
        yield
    finally:
        _rounding.reset(token)


def round_weight(layer: nn.Module, weight: Tensor) -> Tensor:
    """Return the weight of a layer, rounded if ``weight_rounding`` is active for it."""
    rounding = (_rounding.get() or {}).get(layer)
    return weight if rounding is None else rounding(weight)


@contextmanager
def record_copies() -> Iterator[list[tuple[nn.Module, nn.Module]]]:
    """Yield a list to which each copy of weights in this context adds its layers.

    An item is ``(elastic layer, plain layer)``.
    """
    pairs: list[tuple[nn.Module, nn.Module]] = []
    token = _copies.set(pairs)
    try:
        yield pairs
    finally:
        _copies.reset(token)


def register_copy(layer: nn.Module, plain: nn.Module) -> None:
    """Record for ``record_copies`` that an elastic layer copied its weights to a plain one."""
    if (pairs := _copies.get()) is not None:
        pairs.append((layer, plain))


@final
class ElasticConv(nn.Module):
    """Convolution with batch norm whose channels, kernel and activation are chosen per call.

    It uses the first channels and the centre of the kernel; with ``transforms``, the centre after a
    learned linear map from each kernel size to the next smaller one.

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
        """Create the weights of the largest option.

        Args:
            shape: Input and output channels.
            kernel: The largest kernel, or all options.
            stride: Default stride.
            depthwise: True for a depthwise convolution.
            act: Default activation.
            transforms: Learn linear maps between kernel sizes.
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
        """``(N, C, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``.

        Without ``act`` or ``stride``, the layer's default is used.
        """
        stride = self.stride if stride is None else stride
        groups = c_out if self.depthwise else 1
        weight = round_weight(self, self._weight(x.shape[1], c_out, kernel))
        with depthwise_in_float(x, groups) as inputs:
            x = F.conv2d(inputs, weight, None, stride, padding(kernel, stride), 1, groups)
        return apply_activation(self.norm(x), self._act if act is None else act)

    def copy_to(self, layer: ConvNormAct) -> None:
        """Copy to a plain layer the part of the weights that layers of its shape have."""
        conv = layer.conv
        weight = self._weight(conv.in_channels, conv.out_channels, conv.kernel_size[0])
        conv.weight = nn.Parameter(weight.detach().clone(memory_format=torch.channels_last))
        assert isinstance(layer.norm, nn.BatchNorm2d)
        self.norm.copy_to(layer.norm)
        register_copy(self, conv)

    def _weight(self, c_in: int, c_out: int, kernel: int) -> Tensor:
        """Return the weight ``(c_out, c_in, kernel, kernel)``."""
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


def apply_activation(x: Tensor, act: str) -> Tensor:
    """Return an activation of a tensor, same shape, possibly in place; ``""`` is the identity."""
    out: Tensor = activation(act)(x)
    return out


@final
class ElasticNorm(nn.Module):
    """Batch norm over the first channels.

    Training does not update the running statistics, which would mix those of all subnets; a subnet
    is recalibrated before its evaluation.
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
        if is_distributed():
            return synchronised_batch_norm(x, weight, bias)
        return F.batch_norm(x, None, None, weight, bias, training=True)

    def copy_to(self, norm: nn.BatchNorm2d) -> None:
        """Copy the first channels, with running statistics, to a plain batch norm."""
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
        weight = round_weight(self, self.weight[:c_out, : x.shape[1]].contiguous())
        return F.linear(x, weight, self.bias[:c_out])

    def copy_to(self, layer: nn.Linear) -> None:
        """Copy to a plain layer the part of the weights that layers of its shape have."""
        with torch.no_grad():
            layer.weight.copy_(self.weight[: layer.out_features, : layer.in_features])
            if layer.bias is not None:
                layer.bias.copy_(self.bias[: layer.out_features])
        register_copy(self, layer)


@final
class ElasticPixelLinear(nn.Module):
    """Fully connected layer on each pixel with elastic channels.

    With ``parts`` above 1 the output is that many concatenated tensors, such as queries, keys and
    values; it uses the first channels of each.

    Args:
        shape: Largest numbers of input channels, and of output channels of a part.
        act: Activation, see ``layers.activation``.
        parts: Number of parts.
    """

    def __init__(self, shape: tuple[int, int], act: str = "", parts: int = 1):
        super().__init__()
        c_in, c_out = shape
        self.weight = nn.Parameter(torch.empty(parts, c_out, c_in))
        self.bias = nn.Parameter(torch.zeros(parts, c_out))
        # As torch initialises linear layers; AutoFormer's 0.02 learns later with few channels.
        nn.init.uniform_(self.weight, -(c_in**-0.5), c_in**-0.5)
        self.act = activation(act)

    def forward(self, x: Tensor, c_out: int) -> Tensor:
        """``(N, C, H, W)`` to ``(N, parts * c_out, H, W)``."""
        weight, bias = self._slice(x.shape[1], c_out)
        out: Tensor = self.act(F.linear(x.permute(0, 2, 3, 1), round_weight(self, weight), bias))
        return out.permute(0, 3, 1, 2)

    def copy_to(self, layer: PixelLinear) -> None:
        """Copy to a plain layer the part of the weights that layers of its shape have."""
        linear = layer.linear
        weight, bias = self._slice(linear.in_features, linear.out_features // len(self.bias))
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        register_copy(self, linear)

    def _slice(self, c_in: int, c_out: int) -> tuple[Tensor, Tensor]:
        # Contiguous, so that results equal those of the plain layer.
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
        """Copy the first channels to a plain layer."""
        c = len(layer.norm.weight)
        with torch.no_grad():
            layer.norm.weight.copy_(self.weight[:c])
            layer.norm.bias.copy_(self.bias[:c])


_EPSILON = 1e-5  # torch's own


def is_distributed() -> bool:
    """Return True if ``torch.distributed`` runs with several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def synchronised_batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``F.batch_norm`` of ``x``, same shape, with the statistics of all processes.

    Every process must have the same number of values.

    Args:
        x: Batch of this process, ``(N, C, H, W)``.
        weight: ``(C,)``.
        bias: ``(C,)``.
    """
    n = dist.get_world_size()
    values = x.float()
    var, mean = torch.var_mean(values, (0, 2, 3), correction=0)
    # All means and variances, by a sum to which each process adds its row: exact, unlike sums of
    # squares, and its gradient is a sum too.
    rows = torch.zeros(n, 2, len(mean), device=x.device)
    is_own = torch.zeros(n, 1, 1, device=x.device)
    is_own[dist.get_rank()] = 1
    rows = _sum(rows + is_own * torch.stack([mean, var]))
    means, variances = torch.unbind(rows, 1)
    mean = means.mean(0)
    var = (variances + (means - mean).square()).mean(0)
    scale = weight * torch.rsqrt(var + _EPSILON)
    shift = bias - mean * scale
    out: Tensor = values * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
    return out.to(x.dtype)


@final
class _Sum(torch.autograd.Function):
    """Sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        """Any shape."""
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Tensor:
        """Any shape."""
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return torch.as_tensor(total)


def _sum(x: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total
