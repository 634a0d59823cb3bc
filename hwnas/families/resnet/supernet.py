"""Residual networks: shared weights for every genotype of a space."""

from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import Add, ConvNormAct, pooled
from hwnas.families.elastic import ElasticConv, ElasticLinear
from hwnas.families.resnet.lowering import Block, Conv, dimensions
from hwnas.families.resnet.network import ResidualNetwork, stages, stem_pool
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace


@final
class ElasticResidual(nn.Module):
    """Residual block with elastic channels and kernel."""

    def __init__(self, largest: Block):
        super().__init__()
        self.shortcut = None if largest.shortcut is None else _elastic(largest.shortcut)
        self.convs = nn.ModuleList(map(_elastic, largest.convs))
        self.add = Add(largest.act)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, C, H, W)`` to ``(N, C', ceil(H / stride), ceil(W / stride))``."""
        other = x
        if block.shortcut is not None:
            assert self.shortcut is not None
            other = self.shortcut(x, block.shortcut.c_out, 1)
        for conv, dims in zip(self.convs, block.convs, strict=True):
            x = conv(x, dims.c_out, dims.kernel)
        out: Tensor = self.add(other, x)
        return out


def _elastic(conv: Conv) -> ElasticConv:
    return ElasticConv((conv.c_in, conv.c_out), conv.kernel, conv.stride, False, conv.act)


@final
class ResidualSupernet(nn.Module):
    """Shared weights, the largest option of every choice; modules are named as in the network."""

    def __init__(self, space: SearchSpace, signature: Signature):
        super().__init__()
        self._space, self._task = space, signature
        largest = dimensions(space, space.largest(), signature)
        self.stem = _elastic(largest.stem)
        self.stem_pool = stem_pool(largest)
        # The first block of a stage reads the widest that can stand before it: `largest` has it.
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
        logits: Tensor = self.classifier(pooled(x))
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a plain network with copies of the weights, in the same mode."""
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
