"""Residual networks: the plain network of one genotype."""

from collections.abc import Callable, Iterable
from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import Add, ConvNormAct, Mean
from hwnas.families.resnet.lowering import POOL_KERNEL, POOL_STRIDE, Block, Conv, Dimensions
from hwnas.op import Signature


def stem_pool(dims: Dimensions) -> nn.Module:
    """Return what follows the stem."""
    return nn.MaxPool2d(POOL_KERNEL, POOL_STRIDE, POOL_KERNEL // 2) if dims.pool else nn.Identity()


def stages(blocks: Iterable[Block], build: Callable[[Block], nn.Module]) -> nn.ModuleList:
    """Return a module for each block, under the block's name behind ``stages.``."""
    found: dict[int, nn.ModuleList] = {}
    for block in blocks:
        found.setdefault(block.stage, nn.ModuleList()).append(build(block))
    return nn.ModuleList(nn.ModuleDict({"blocks": modules}) for modules in found.values())


@final
class Residual(nn.Module):
    """Convolutions in a row, and the input or its projection added to their result."""

    def __init__(self, block: Block):
        super().__init__()
        self.shortcut = nn.Identity() if block.shortcut is None else _plain(block.shortcut)
        self.convs = nn.Sequential(*map(_plain, block.convs))
        self.add = Add(block.act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.add(self.shortcut(x), self.convs(x))
        return out


def _plain(conv: Conv) -> nn.Module:
    return ConvNormAct((conv.c_in, conv.c_out), conv.kernel, conv.stride, 1, conv.act)


@final
class ResidualNetwork(nn.Module):
    """The network of one genotype; its modules have the names of the lowered operators."""

    def __init__(self, dims: Dimensions, signature: Signature):
        super().__init__()
        self.stem = _plain(dims.stem)
        self.stem_pool = stem_pool(dims)
        self.stages = stages(dims.blocks, Residual)
        self.pool = Mean()
        self.classifier = nn.Linear(dims.width, signature.n_outputs)
        self._blocks = [block.name for block in dims.blocks]

    def forward(self, images: Tensor) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``."""
        x: Tensor = self.stem_pool(self.stem(images))
        for name in self._blocks:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.classifier(self.pool(x))
        return logits
