"""Convolutional networks of several kinds of blocks: shared weights for all of a space."""

from dataclasses import replace
from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import ConvNormAct, LinearAct, pooled
from hwnas.families.checks import n_stages
from hwnas.families.elastic import ElasticConv, ElasticLinear, activated
from hwnas.families.mbconv.elastic_blocks import KINDS, Elastic, ElasticBlock
from hwnas.families.mbconv.lowering import Block, described, dimensions, possible
from hwnas.families.mbconv.network import MBConvNet
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace, closest


@final
class MBConvSupernet(nn.Module):
    """Shared weights, the largest option of every choice; each kind of block has its own."""

    def __init__(self, space: SearchSpace, signature: Signature):
        super().__init__()
        self._space, self._task = space, signature
        # With choices that do not count in the largest network, but in others.
        every = {name: options[-1] for name, options in space.choices.items()}
        largest = described(space, {**space.fixed, **every})
        stem, kernels = (signature.in_channels, largest.stem_width), space.options("stem.kernel")
        self.stem = ElasticConv(stem, tuple(map(int, kernels)), largest.stem_stride)
        # A block reads the widest of what can stand before it: the stem or the stage before for
        # the first block of a stage, its own stage for the others. That is what `largest` has.
        self.stages = nn.ModuleList(
            nn.ModuleList(self._kinds(b) for b in largest.blocks if b.stage == stage)
            for stage in range(n_stages(space))
        )
        last, head = largest.blocks[-1].c_out, largest.head
        self.head = ElasticConv((last, head.width), 1) if head.width else None
        self.features = ElasticLinear(head.width, head.features) if head.features else None
        self.classifier = ElasticLinear(head.features or largest.pooled, signature.n_outputs)
        # What a head computes and what a block computes are not alike: each has its classifier.
        some = head.width and 0 in space.options("head.width")
        self.headless = ElasticLinear(last, signature.n_outputs) if some else None

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``."""
        dims = dimensions(self._space, genotype)
        head = dims.head
        x: Tensor = self.stem(
            images, dims.stem_width, dims.stem_kernel, dims.stem_activation, dims.stem_stride
        )
        for block in dims.blocks:
            x = self._block(block)(x, block)
        if head.width:
            assert self.head is not None
            x = self.head(x, head.width, 1, head.activation)
        x = pooled(x)
        if head.features:
            assert self.features is not None
            x = activated(self.features(x, head.features), head.activation)
        logits: Tensor = self._classifier(head.width)(x)
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a plain network with copies of the weights, in the same mode."""
        dims = dimensions(self._space, genotype)
        network = MBConvNet(dims, self._task)
        self.stem.copy_to(network.stem)
        for block in dims.blocks:
            self._block(block).copy_to(network.get_submodule(block.name))
        if isinstance(network.head, ConvNormAct):
            assert self.head is not None
            self.head.copy_to(network.head)
        if isinstance(network.features, LinearAct):
            assert self.features is not None
            self.features.copy_to(network.features.linear)
        self._classifier(dims.head.width).copy_to(network.classifier)
        return network.train(self.training)

    def _kinds(self, block: Block) -> nn.ModuleDict:
        """Return a block of each kind that it can be."""
        space = self._space
        names = {*space.choices, *space.fixed}

        def options(key: str, default: str) -> tuple[str, ...]:
            name = closest(names, block.name, key)
            return (default,) if name is None else tuple(map(str, space.options(name)))

        def elastic(kind: str) -> Elastic:
            kernels = possible(space, block.name, kind, "kernel")
            return Elastic(
                kernels=tuple(sorted({int(kernel) for kernel in kernels})),
                transforms=options("kernel_sharing", "crop") == ("transform",),
                projects=block.index == 0 and self._changes(block.stage),
            )

        def largest(kind: str) -> Block:
            # What says it further away may be larger; weights are never fewer than a choice says.
            expansions, shares = (possible(space, block.name, kind, k) for k in ("expansion", "se"))
            return replace(
                block,
                kind=kind,
                expansion=max(block.expansion, *map(int, expansions)),
                se=max(block.se, *map(float, shares)),
            )

        return nn.ModuleDict(
            {
                kind: KINDS[kind](largest(kind), elastic(kind))
                for kind in options("kind", "inverted")
            }
        )

    def _changes(self, stage: int) -> bool:
        """Return whether the first block of a stage may change the shape of what it reads."""
        options = self._space.options
        before = f"stages.{stage - 1}.width" if stage else "stem.width"
        widths = {*options(before), *options(f"stages.{stage}.width")}
        return len(widths) > 1 or options(f"stages.{stage}.stride") != (1,)

    def _classifier(self, head_width: int) -> ElasticLinear:
        if head_width or self.headless is None:
            return self.classifier
        return self.headless

    def _block(self, block: Block) -> ElasticBlock:
        stage = self.stages[block.stage]
        assert isinstance(stage, nn.ModuleList)
        kinds = stage[block.index]
        assert isinstance(kinds, nn.ModuleDict)
        elastic = kinds[block.kind]
        assert isinstance(elastic, ElasticBlock)
        return elastic
