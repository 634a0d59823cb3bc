"""Convolutional networks of several kinds of blocks: the plain network of one genotype."""

from collections.abc import Callable, Mapping
from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import Add, ConvNormAct, LinearAct, Mean, SqueezeExcitation
from hwnas.families.mbconv.lowering import Block, Dimensions
from hwnas.op import Signature


@final
class InvertedResidual(nn.Module):
    """Expand, depthwise, gate, project, and add the input where the shapes allow it."""

    def __init__(self, block: Block):
        super().__init__()
        b, act = block, block.activation
        self.expand = ConvNormAct((b.c_in, b.c_mid), 1, 1, 1, act) if b.expands else nn.Identity()
        self.depthwise = ConvNormAct((b.c_mid, b.c_mid), b.kernel, b.stride, b.c_mid, act)
        self.se = SqueezeExcitation(b.c_mid, b.c_se) if b.c_se else nn.Identity()
        self.project = ConvNormAct((b.c_mid, b.c_out), 1, 1, 1, "")
        self.add = Add() if b.residual else None

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.project(self.se(self.depthwise(self.expand(x))))
        return out if self.add is None else self.add(x, out)


@final
class FusedResidual(nn.Module):
    """Dense convolution, gate, project, and add the input where the shapes allow it."""

    def __init__(self, block: Block):
        super().__init__()
        b = block
        self.fused = ConvNormAct((b.c_in, b.c_mid), b.kernel, b.stride, 1, b.activation)
        self.se = SqueezeExcitation(b.c_mid, b.c_se) if b.c_se else nn.Identity()
        self.project = ConvNormAct((b.c_mid, b.c_out), 1, 1, 1, "")
        self.add = Add() if b.residual else None

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.project(self.se(self.fused(x)))
        return out if self.add is None else self.add(x, out)


@final
class Plain(nn.Module):
    """A dense convolution alone."""

    def __init__(self, block: Block):
        super().__init__()
        b = block
        self.conv = ConvNormAct((b.c_in, b.c_out), b.kernel, b.stride, 1, b.activation)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.conv(x)
        return out


@final
class BasicResidual(nn.Module):
    """Two dense convolutions, and the input or its projection added to their result."""

    def __init__(self, block: Block):
        super().__init__()
        b, shape = block, (block.c_in, block.c_out)
        self.shortcut = nn.Identity() if b.residual else ConvNormAct(shape, 1, b.stride, 1, "")
        self.first = ConvNormAct((b.c_in, b.c_mid), b.kernel, b.stride, 1, b.activation)
        self.second = ConvNormAct((b.c_mid, b.c_out), b.kernel, 1, 1, "")
        self.add = Add(b.activation)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.add(self.shortcut(x), self.second(self.first(x)))
        return out


@final
class Separable(nn.Module):
    """Depthwise convolution, and one of each pixel."""

    def __init__(self, block: Block):
        super().__init__()
        b, act = block, block.activation
        self.depthwise = ConvNormAct((b.c_in, b.c_in), b.kernel, b.stride, b.c_in, act)
        self.pointwise = ConvNormAct((b.c_in, b.c_out), 1, 1, 1, act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.pointwise(self.depthwise(x))
        return out


_KINDS: Mapping[str, Callable[[Block], nn.Module]] = {
    "inverted": InvertedResidual,
    "fused": FusedResidual,
    "plain": Plain,
    "residual": BasicResidual,
    "separable": Separable,
}


@final
class MBConvNet(nn.Module):
    """The network of one genotype; its modules have the names of the lowered operators."""

    def __init__(self, dims: Dimensions, signature: Signature):
        super().__init__()
        stem = (signature.in_channels, dims.stem_width)
        self.stem = ConvNormAct(stem, dims.stem_kernel, dims.stem_stride, 1, dims.stem_activation)
        stages: dict[int, list[nn.Module]] = {}
        for block in dims.blocks:
            stages.setdefault(block.stage, []).append(_KINDS[block.kind](block))
        self.stages = nn.ModuleList(
            nn.ModuleDict({"blocks": nn.ModuleList(blocks)}) for blocks in stages.values()
        )
        last, head = dims.blocks[-1].c_out, dims.head
        self.head: nn.Module = nn.Identity()
        if head.width:
            self.head = ConvNormAct((last, head.width), 1, 1, 1, head.activation)
        self.pool = Mean()
        self.features: nn.Module = nn.Identity()
        if head.features:
            self.features = LinearAct((dims.pooled, head.features), head.activation)
        self.classifier = nn.Linear(head.features or dims.pooled, signature.n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``."""
        x: Tensor = self.stem(images)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleDict)
            blocks = stage["blocks"]
            assert isinstance(blocks, nn.ModuleList)
            for block in blocks:
                x = block(x)
        logits: Tensor = self.classifier(self.features(self.pool(self.head(x))))
        return logits
