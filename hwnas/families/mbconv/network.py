"""Inverted residuals: the plain network of one genotype."""

from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import Add, ConvNormAct, Mean
from hwnas.families.mbconv.lowering import Block, Dimensions
from hwnas.op import Task


@final
class InvertedResidual(nn.Module):
    """Expand, depthwise, project, and add the input where the shapes allow it."""

    def __init__(self, block: Block, act: str):
        super().__init__()
        b = block
        self.expand = ConvNormAct((b.c_in, b.c_mid), 1, 1, 1, act) if b.expands else nn.Identity()
        self.depthwise = ConvNormAct((b.c_mid, b.c_mid), b.kernel, b.stride, b.c_mid, act)
        self.project = ConvNormAct((b.c_mid, b.c_out), 1, 1, 1, "")
        self.add = Add() if b.residual else None

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out if self.add is None else self.add(x, out)


@final
class MBConvNet(nn.Module):
    """The network of one genotype; its modules have the names of the lowered operators."""

    def __init__(self, dims: Dimensions, task: Task):
        super().__init__()
        stem = (task.in_channels, dims.stem_width)
        self.stem = ConvNormAct(stem, dims.stem_kernel, dims.stem_stride, 1, dims.activation)
        stages: dict[int, list[nn.Module]] = {}
        for block in dims.blocks:
            stages.setdefault(block.stage, []).append(InvertedResidual(block, dims.activation))
        self.stages = nn.ModuleList(
            nn.ModuleDict({"blocks": nn.ModuleList(blocks)}) for blocks in stages.values()
        )
        last = dims.blocks[-1].c_out
        self.head = ConvNormAct((last, dims.head_width), 1, 1, 1, dims.activation)
        self.pool = Mean()
        self.classifier = nn.Linear(dims.head_width, task.n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """``(N, C, R, R)`` to logits ``(N, n_classes)``."""
        x: Tensor = self.stem(images)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleDict)
            blocks = stage["blocks"]
            assert isinstance(blocks, nn.ModuleList)
            for block in blocks:
                x = block(x)
        logits: Tensor = self.classifier(self.pool(self.head(x)))
        return logits
