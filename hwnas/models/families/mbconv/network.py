"""Convolutional networks of several kinds of blocks: the plain network of one genotype."""

import re
from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor, nn

from hwnas.models.families.common_checks import n_stages
from hwnas.models.families.layers import Add, ConvNormAct, LinearAct, Mean, SqueezeExcitation
from hwnas.models.families.mbconv.lowering import MBConvBlock, MBConvDimensions
from hwnas.models.graph import Signature
from hwnas.models.spaces import SearchSpace


@final
class InvertedResidual(nn.Module):
    """Expand, depthwise, gate, project, and add the input where the shapes allow it."""

    def __init__(self, block: MBConvBlock):
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

    def __init__(self, block: MBConvBlock):
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

    def __init__(self, block: MBConvBlock):
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

    def __init__(self, block: MBConvBlock):
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

    def __init__(self, block: MBConvBlock):
        super().__init__()
        b, act = block, block.activation
        self.depthwise = ConvNormAct((b.c_in, b.c_in), b.kernel, b.stride, b.c_in, act)
        self.pointwise = ConvNormAct((b.c_in, b.c_out), 1, 1, 1, act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.pointwise(self.depthwise(x))
        return out


_KINDS: Mapping[str, Callable[[MBConvBlock], nn.Module]] = {
    "inverted": InvertedResidual,
    "fused": FusedResidual,
    "plain": Plain,
    "residual": BasicResidual,
    "separable": Separable,
}


@final
class MBConvNet(nn.Module):
    """The network of one genotype; its modules have the names of the lowered operators."""

    def __init__(self, dims: MBConvDimensions, signature: Signature):
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


# Weights of Once-for-all's MobileNetV3 supernets, under the names that ours have.
#
# Source: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791; names of
# https://github.com/mit-han-lab/once-for-all, older and newer ones.

#: What only counts batches.
_COUNTERS = "num_batches_tracked"
#: Names of parts of a block, in order: the first that fits is replaced.
_PARTS = (
    (r"inverted_bottleneck\.conv\.weight", "expand.weight"),
    (r"inverted_bottleneck\.bn\.(\w+)", r"expand.norm.\1"),
    (r"depth_conv\.conv\.weight", "depthwise.weight"),
    (r"depth_conv\.conv\.(\d+to\d+)_matrix", r"depthwise.transforms.\1"),
    (r"depth_conv\.bn\.(\w+)", r"depthwise.norm.\1"),
    (r"depth_conv\.se\.fc\.reduce\.(\w+)", r"se.reduce.\1"),
    (r"depth_conv\.se\.fc\.expand\.(\w+)", r"se.excite.\1"),
    (r"point_linear\.conv\.weight", "project.weight"),
    (r"point_linear\.bn\.(\w+)", r"project.norm.\1"),
)
#: Names outside blocks.
_WHOLE = (
    (r"first_conv\.conv\.weight", "stem.weight"),
    (r"first_conv\.bn\.(\w+)", r"stem.norm.\1"),
    (r"final_expand_layer\.conv\.weight", "head.weight"),
    (r"final_expand_layer\.bn\.(\w+)", r"head.norm.\1"),
    (r"feature_mix_layer\.conv\.weight", "features.weight"),
    (r"classifier\.linear\.(\w+)", r"classifier.\1"),
)


def is_from(state: Mapping[str, Tensor]) -> bool:
    """Return whether weights have Once-for-all's names."""
    return any(name.startswith("first_conv.") for name in state)


def translated(state: Mapping[str, Tensor], space: SearchSpace) -> dict[str, Tensor]:
    """Return weights under our names; what is not known keeps its own.

    Args:
        state: Once-for-all's.
        space: Of the supernet that they are for: blocks are numbered through all its stages.
    """
    places = [
        f"stages.{stage}.{index}.inverted"
        for stage in range(n_stages(space))
        for index in range(max(int(depth) for depth in space.options(f"stages.{stage}.depth")))
    ]
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not name.endswith(_COUNTERS):
            ours = _renamed(name, places)
            linear = ours.startswith("features.") or ".se." in ours
            found[ours] = tensor.flatten(1) if linear and tensor.dim() == 4 else tensor
    if "features.weight" in found:  # theirs has no bias
        found.setdefault("features.bias", torch.zeros(len(found["features.weight"])))
    return found


def _renamed(name: str, places: list[str]) -> str:
    # Elastic layers wrap plain ones of the same name, and newer versions shortened a block's.
    plain = name.replace(".mobile_inverted_conv.", ".conv.")
    plain = re.sub(r"\b(bn|linear)\.\1\.", r"\1.", plain)
    plain = plain.replace(".conv.conv.weight", ".conv.weight")
    block = re.fullmatch(r"blocks\.(\d+)\.conv\.(.+)", plain)
    if block is None:
        return _replaced(plain, _WHOLE) or name
    part = _replaced(block[2], _PARTS)
    index = int(block[1])
    return f"{places[index]}.{part}" if part and index < len(places) else name


def _replaced(name: str, rules: tuple[tuple[str, str], ...]) -> str | None:
    for pattern, ours in rules:
        if match := re.fullmatch(pattern, name):
            return match.expand(ours)
    return None
