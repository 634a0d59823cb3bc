"""Convolutional networks of several kinds of blocks, and import of Once-for-all weights.

Source of the weights: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791, with
the older and newer names of https://github.com/mit-han-lab/once-for-all.
"""

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
    """Expand, depthwise, gate, project; plus the input if the shapes are equal."""

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
    """Dense convolution, gate, project; plus the input if the shapes are equal."""

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
    """A dense convolution with batch norm and activation, without a residual connection."""

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
    """Two dense convolutions, plus the input or its projection."""

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
    """Depthwise and pointwise convolution."""

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
    """The network of a genotype; its modules have the names of the graph's nodes."""

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


_COUNTERS = "num_batches_tracked"  # not imported
#: Regular expressions of Once-for-all's names of parts of a block, and the names here.
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
#: The same for names outside blocks.
_OUTSIDE = (
    (r"first_conv\.conv\.weight", "stem.weight"),
    (r"first_conv\.bn\.(\w+)", r"stem.norm.\1"),
    (r"final_expand_layer\.conv\.weight", "head.weight"),
    (r"final_expand_layer\.bn\.(\w+)", r"head.norm.\1"),
    (r"feature_mix_layer\.conv\.weight", "features.weight"),
    (r"classifier\.linear\.(\w+)", r"classifier.\1"),
)


def is_once_for_all(state: Mapping[str, Tensor]) -> bool:
    """Return True if weights have Once-for-all's names."""
    return any(name.startswith("first_conv.") for name in state)


def from_once_for_all(state: Mapping[str, Tensor], space: SearchSpace) -> dict[str, Tensor]:
    """Return Once-for-all's MobileNetV3 weights with the names of ``MBConvSupernet``.

    Counters of batch norm are left out; a missing bias of ``features`` is zero.

    Args:
        state: Weights by Once-for-all's name; unknown names are kept.
        space: Space of the supernet: its depths give the stage of each block, as Once-for-all
            numbers the blocks of all stages from 0.
    """
    blocks = [
        f"stages.{stage}.{index}.inverted"
        for stage in range(n_stages(space))
        for index in range(max(int(depth) for depth in space.options(f"stages.{stage}.depth")))
    ]
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not name.endswith(_COUNTERS):
            new_name = _rename(name, blocks)
            linear = new_name.startswith("features.") or ".se." in new_name
            weights[new_name] = tensor.flatten(1) if linear and tensor.dim() == 4 else tensor
    if "features.weight" in weights:  # Once-for-all has no bias
        weights.setdefault("features.bias", torch.zeros(len(weights["features.weight"])))
    return weights


def _rename(name: str, blocks: list[str]) -> str:
    # Elastic layers wrap plain layers of the same name; newer versions have shorter block names.
    plain = name.replace(".mobile_inverted_conv.", ".conv.")
    plain = re.sub(r"\b(bn|linear)\.\1\.", r"\1.", plain)
    plain = plain.replace(".conv.conv.weight", ".conv.weight")
    block = re.fullmatch(r"blocks\.(\d+)\.conv\.(.+)", plain)
    if block is None:
        return _replace(plain, _OUTSIDE) or name
    part = _replace(block[2], _PARTS)
    index = int(block[1])
    return f"{blocks[index]}.{part}" if part and index < len(blocks) else name


def _replace(name: str, rules: tuple[tuple[str, str], ...]) -> str | None:
    for pattern, template in rules:
        if match := re.fullmatch(pattern, name):
            return match.expand(template)
    return None
