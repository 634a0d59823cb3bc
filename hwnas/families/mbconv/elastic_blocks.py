"""Kinds of blocks with shared weights: those of the largest options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from torch import Tensor, nn

from hwnas.families.blocks import ConvNormAct, SqueezeExcitation, pooled
from hwnas.families.elastic import ElasticConv, ElasticLinear, activated
from hwnas.families.mbconv.lowering import Block
from hwnas.families.mbconv.network import (
    BasicResidual,
    FusedResidual,
    InvertedResidual,
    Plain,
    Separable,
)


@runtime_checkable
class ElasticBlock(Protocol):
    """A block whose dimensions are chosen per call."""

    def __call__(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        ...

    def copy_to(self, plain: nn.Module) -> None:
        """Give a plain block copies of the weights."""
        ...


@dataclass(frozen=True)
class Elastic:
    """What the blocks of one place can be, beside the largest of them."""

    kernels: tuple[int, ...]
    transforms: bool  #: whether smaller kernels are mapped from larger ones
    projects: bool  #: whether any of them changes the shape of what it reads

    def conv(self, shape: tuple[int, int], depthwise: bool = False) -> ElasticConv:
        """Return the weights of a convolution with a block's kernel."""
        transforms = self.transforms
        return ElasticConv(shape, self.kernels, depthwise=depthwise, transforms=transforms)


@final
class ElasticGate(nn.Module):
    """Squeeze-excitation over the first channels."""

    def __init__(self, channels: int, reduced: int):
        super().__init__()
        self.reduce = ElasticLinear(channels, reduced)
        self.excite = ElasticLinear(reduced, channels)

    def forward(self, x: Tensor, reduced: int) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        small = activated(self.reduce(pooled(x), reduced), "relu")
        gate = activated(self.excite(small, x.shape[1]), "hardsigmoid")
        return x * gate[:, :, None, None]

    def copy_to(self, plain: SqueezeExcitation) -> None:
        """Give a plain module copies of the weights."""
        self.reduce.copy_to(plain.reduce.linear)
        self.excite.copy_to(plain.excite.linear)


@final
class ElasticInverted(nn.Module):
    """Inverted residual with elastic channels, kernel, activation and gate."""

    def __init__(self, block: Block, elastic: Elastic):
        super().__init__()
        b, mid = block, (block.c_mid, block.c_mid)
        self.expand = ElasticConv((b.c_in, b.c_mid), 1) if b.expands else None
        self.depthwise = elastic.conv(mid, depthwise=True)
        self.se = ElasticGate(b.c_mid, b.c_se) if b.c_se else None
        self.project = ElasticConv((b.c_mid, b.c_out), 1)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = x
        act = block.activation
        if block.expands:
            assert self.expand is not None
            out = self.expand(out, block.c_mid, 1, act)
        out = self.depthwise(out, block.c_mid, block.kernel, act, block.stride)
        if block.c_se:
            assert self.se is not None
            out = self.se(out, block.c_se)
        out = self.project(out, block.c_out, 1)
        return x + out if block.residual else out

    def copy_to(self, plain: nn.Module) -> None:
        """Give a plain block copies of the weights."""
        assert isinstance(plain, InvertedResidual)
        if isinstance(plain.expand, ConvNormAct):
            assert self.expand is not None
            self.expand.copy_to(plain.expand)
        self.depthwise.copy_to(plain.depthwise)
        if isinstance(plain.se, SqueezeExcitation):
            assert self.se is not None
            self.se.copy_to(plain.se)
        self.project.copy_to(plain.project)


@final
class ElasticFused(nn.Module):
    """Fused residual with elastic channels, kernel, activation and gate."""

    def __init__(self, block: Block, elastic: Elastic):
        super().__init__()
        b, shape = block, (block.c_in, block.c_mid)
        self.fused = elastic.conv(shape)
        self.se = ElasticGate(b.c_mid, b.c_se) if b.c_se else None
        self.project = ElasticConv((b.c_mid, b.c_out), 1)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b = block
        out: Tensor = self.fused(x, b.c_mid, b.kernel, b.activation, b.stride)
        if block.c_se:
            assert self.se is not None
            out = self.se(out, block.c_se)
        out = self.project(out, block.c_out, 1)
        return x + out if block.residual else out

    def copy_to(self, plain: nn.Module) -> None:
        """Give a plain block copies of the weights."""
        assert isinstance(plain, FusedResidual)
        self.fused.copy_to(plain.fused)
        if isinstance(plain.se, SqueezeExcitation):
            assert self.se is not None
            self.se.copy_to(plain.se)
        self.project.copy_to(plain.project)


@final
class ElasticPlain(nn.Module):
    """Dense convolution with elastic channels, kernel and activation."""

    def __init__(self, block: Block, elastic: Elastic):
        super().__init__()
        self.conv = elastic.conv((block.c_in, block.c_out))

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b = block
        out: Tensor = self.conv(x, b.c_out, b.kernel, b.activation, b.stride)
        return out

    def copy_to(self, plain: nn.Module) -> None:
        """Give a plain block copies of the weights."""
        assert isinstance(plain, Plain)
        self.conv.copy_to(plain.conv)


@final
class ElasticBasic(nn.Module):
    """Basic residual block with elastic channels, kernel and activation."""

    def __init__(self, block: Block, elastic: Elastic):
        super().__init__()
        b = block
        self.shortcut = ElasticConv((b.c_in, b.c_out), 1) if elastic.projects else None
        self.first = elastic.conv((b.c_in, b.c_mid))
        self.second = elastic.conv((b.c_mid, b.c_out))

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b, other = block, x
        if not b.residual:
            assert self.shortcut is not None
            other = self.shortcut(x, b.c_out, 1, "", b.stride)
        out: Tensor = self.first(x, b.c_mid, b.kernel, b.activation, b.stride)
        return activated(other + self.second(out, b.c_out, b.kernel), b.activation)

    def copy_to(self, plain: nn.Module) -> None:
        """Give a plain block copies of the weights."""
        assert isinstance(plain, BasicResidual)
        if isinstance(plain.shortcut, ConvNormAct):
            assert self.shortcut is not None
            self.shortcut.copy_to(plain.shortcut)
        self.first.copy_to(plain.first)
        self.second.copy_to(plain.second)


@final
class ElasticSeparable(nn.Module):
    """Separable convolution with elastic channels, kernel and activation."""

    def __init__(self, block: Block, elastic: Elastic):
        super().__init__()
        self.depthwise = elastic.conv((block.c_in, block.c_in), depthwise=True)
        self.pointwise = ElasticConv((block.c_in, block.c_out), 1)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b = block
        out: Tensor = self.depthwise(x, b.c_in, b.kernel, b.activation, b.stride)
        out = self.pointwise(out, b.c_out, 1, b.activation)
        return out

    def copy_to(self, plain: nn.Module) -> None:
        """Give a plain block copies of the weights."""
        assert isinstance(plain, Separable)
        self.depthwise.copy_to(plain.depthwise)
        self.pointwise.copy_to(plain.pointwise)


KINDS: Mapping[str, Callable[[Block, Elastic], nn.Module]] = {
    "inverted": ElasticInverted,
    "fused": ElasticFused,
    "plain": ElasticPlain,
    "residual": ElasticBasic,
    "separable": ElasticSeparable,
}
