"""Residual networks and supernets."""

from collections.abc import Callable, Iterable
from typing import final

from torch import Tensor, nn

from hwnas.models.families.elastic_layers import ElasticConv, ElasticLinear
from hwnas.models.families.layers import Add, ConvNormAct, Mean, global_mean
from hwnas.models.families.resnet.lowering import (
    POOL_KERNEL,
    POOL_STRIDE,
    Conv,
    ResidualBlock,
    ResNetDimensions,
    dimensions,
)
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, SearchSpace


def stem_pool(dims: ResNetDimensions) -> nn.Module:
    """Return the max pooling after the stem; an identity if the network has none."""
    return nn.MaxPool2d(POOL_KERNEL, POOL_STRIDE, POOL_KERNEL // 2) if dims.pool else nn.Identity()


def stages(
    blocks: Iterable[ResidualBlock], build: Callable[[ResidualBlock], nn.Module]
) -> nn.ModuleList:
    """Return a module list with ``build(block)`` at each block's name, without ``stages.``."""
    modules_of: dict[int, nn.ModuleList] = {}
    for block in blocks:
        modules_of.setdefault(block.stage, nn.ModuleList()).append(build(block))
    return nn.ModuleList(nn.ModuleDict({"blocks": modules}) for modules in modules_of.values())


@final
class Residual(nn.Module):
    """A sequence of convolutions, plus the input or its projection."""

    def __init__(self, block: ResidualBlock):
        super().__init__()
        self.shortcut = nn.Identity() if block.shortcut is None else _plain_layer(block.shortcut)
        self.convs = nn.Sequential(*map(_plain_layer, block.convs))
        self.add = Add(block.act)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.add(self.shortcut(x), self.convs(x))
        return out


def _plain_layer(conv: Conv) -> nn.Module:
    return ConvNormAct((conv.c_in, conv.c_out), conv.kernel, conv.stride, 1, conv.act)


@final
class ResidualNetwork(nn.Module):
    """The network of a genotype; its modules have the names of the graph's nodes."""

    def __init__(self, dims: ResNetDimensions, signature: Signature):
        super().__init__()
        self.stem = _plain_layer(dims.stem)
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


@final
class ElasticResidual(nn.Module):
    """Residual block with elastic channels and kernel."""

    def __init__(self, largest: ResidualBlock):
        super().__init__()
        self.shortcut = None if largest.shortcut is None else _elastic_layer(largest.shortcut)
        self.convs = nn.ModuleList(map(_elastic_layer, largest.convs))
        self.add = Add(largest.act)

    def forward(self, x: Tensor, block: ResidualBlock) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        other = x
        if block.shortcut is not None:
            assert self.shortcut is not None
            other = self.shortcut(x, block.shortcut.c_out, 1)
        for conv, dims in zip(self.convs, block.convs, strict=True):
            x = conv(x, dims.c_out, dims.kernel)
        out: Tensor = self.add(other, x)
        return out


def _elastic_layer(conv: Conv) -> ElasticConv:
    return ElasticConv((conv.c_in, conv.c_out), conv.kernel, conv.stride, False, conv.act)


@final
class ResidualSupernet(nn.Module):
    """Shared weights of a space; modules have the same names as in the network."""

    def __init__(self, space: SearchSpace, signature: Signature):
        super().__init__()
        self._space, self._task = space, signature
        largest = dimensions(space, space.largest(), signature)
        self.stem = _elastic_layer(largest.stem)
        self.stem_pool = stem_pool(largest)
        # `largest` has the maximum input width of the first block of each stage.
        self.stages = stages(largest.blocks, ElasticResidual)
        self.classifier = ElasticLinear(largest.width, signature.n_outputs)

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``."""
        dims = dimensions(self._space, genotype, self._task)
        x: Tensor = self.stem_pool(self.stem(images, dims.stem.c_out, dims.stem.kernel))
        for block in dims.blocks:
            x = self.get_submodule(block.name)(x, block)
        logits: Tensor = self.classifier(global_mean(x))
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return the network of a genotype with copies of the shared weights."""
        dims = dimensions(self._space, genotype, self._task)
        network = ResidualNetwork(dims, self._task)
        for conv in dims.convs():
            elastic = self.get_submodule(conv.name)
            assert isinstance(elastic, ElasticConv)
            plain = network.get_submodule(conv.name)
            assert isinstance(plain, ConvNormAct)
            elastic.copy_to(plain)
        self.classifier.copy_to(network.classifier)
        return network.train(self.training)
