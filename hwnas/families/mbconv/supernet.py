"""Inverted residuals: shared weights for every genotype of a space."""

from typing import final

from torch import Tensor, nn

from hwnas.families.elastic import ElasticConv, ElasticLinear
from hwnas.families.mbconv.lowering import Block, dimensions, n_stages
from hwnas.families.mbconv.network import InvertedResidual, MBConvNet
from hwnas.op import Task
from hwnas.space import Genotype, SearchSpace


@final
class ElasticBlock(nn.Module):
    """Inverted residual with elastic channels and kernel."""

    def __init__(self, block: Block, act: str):
        super().__init__()
        b = block
        self.expand = ElasticConv((b.c_in, b.c_mid), 1, 1, False, act) if b.expands else None
        self.depthwise = ElasticConv((b.c_mid, b.c_mid), b.kernel, b.stride, True, act)
        self.project = ElasticConv((b.c_mid, b.c_out), 1, 1, False, "")

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = x
        if block.expands:
            assert self.expand is not None
            out = self.expand(out, block.c_mid, 1)
        out = self.depthwise(out, block.c_mid, block.kernel)
        out = self.project(out, block.c_out, 1)
        return x + out if block.residual else out

    def extract_to(self, plain: InvertedResidual, block: Block) -> None:
        """Put copies of the weights into a plain block."""
        if block.expands:
            assert self.expand is not None
            plain.expand = self.expand.extract(block.c_in, block.c_mid, 1)
        plain.depthwise = self.depthwise.extract(block.c_mid, block.c_mid, block.kernel)
        plain.project = self.project.extract(block.c_mid, block.c_out, 1)


@final
class MBConvSupernet(nn.Module):
    """Shared weights, the largest option of every choice."""

    def __init__(self, space: SearchSpace, task: Task):
        super().__init__()
        self._space, self._task = space, task
        largest = dimensions(space, space.largest())
        act = largest.activation
        stem = (task.in_channels, largest.stem_width)
        self.stem = ElasticConv(stem, largest.stem_kernel, largest.stem_stride, False, act)
        # A block reads the widest of what can stand before it: the stem or the stage before for
        # the first block of a stage, its own stage for the others. That is what `largest` has.
        self.stages = nn.ModuleList(
            nn.ModuleList(ElasticBlock(b, act) for b in largest.blocks if b.stage == stage)
            for stage in range(n_stages(space))
        )
        last = largest.blocks[-1].c_out
        self.head = ElasticConv((last, largest.head_width), 1, 1, False, act)
        self.classifier = ElasticLinear(largest.head_width, task.n_classes)

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """``(N, C, R, R)`` to logits ``(N, n_classes)``."""
        dims = dimensions(self._space, genotype)
        x: Tensor = self.stem(images, dims.stem_width, dims.stem_kernel)
        for block in dims.blocks:
            x = self._block(block)(x, block)
        x = self.head(x, dims.head_width, 1)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a plain network with copies of the weights, in the same mode."""
        dims = dimensions(self._space, genotype)
        network = MBConvNet(dims, self._task)
        network.stem = self.stem.extract(self._task.in_channels, dims.stem_width, dims.stem_kernel)
        for block in dims.blocks:
            plain = network.get_submodule(block.name)
            assert isinstance(plain, InvertedResidual)
            self._block(block).extract_to(plain, block)
        network.head = self.head.extract(dims.blocks[-1].c_out, dims.head_width, 1)
        network.classifier = self.classifier.extract(dims.head_width)
        return network.train(self.training)

    def _block(self, block: Block) -> ElasticBlock:
        stage = self.stages[block.stage]
        assert isinstance(stage, nn.ModuleList)
        elastic = stage[block.index]
        assert isinstance(elastic, ElasticBlock)
        return elastic
