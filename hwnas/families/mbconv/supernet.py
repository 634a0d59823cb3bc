"""Inverted and fused residuals: shared weights for every genotype of a space."""

from typing import final

from torch import Tensor, nn

from hwnas.families.blocks import ConvNormAct, LinearAct, SqueezeExcitation
from hwnas.families.checks import closest, n_stages
from hwnas.families.elastic import ElasticConv, ElasticLinear, activated
from hwnas.families.mbconv.lowering import Block, dimensions
from hwnas.families.mbconv.network import FusedResidual, InvertedResidual, MBConvNet
from hwnas.op import Task
from hwnas.space import Genotype, SearchSpace


@final
class ElasticGate(nn.Module):
    """Squeeze-excitation over the first channels."""

    def __init__(self, channels: int, reduced: int):
        super().__init__()
        self.reduce = ElasticLinear(channels, reduced)
        self.excite = ElasticLinear(reduced, channels)

    def forward(self, x: Tensor, reduced: int) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        small = activated(self.reduce(x.mean((2, 3)), reduced), "relu")
        gate = activated(self.excite(small, x.shape[1]), "hardsigmoid")
        return x * gate[:, :, None, None]

    def copy_to(self, plain: SqueezeExcitation) -> None:
        """Give a plain module copies of the weights."""
        self.reduce.copy_to(plain.reduce.linear)
        self.excite.copy_to(plain.excite.linear)


@final
class ElasticInverted(nn.Module):
    """Inverted residual with elastic channels, kernel, activation and gate."""

    def __init__(self, block: Block, kernels: tuple[int, ...], transforms: bool):
        super().__init__()
        b, mid = block, (block.c_mid, block.c_mid)
        self.expand = ElasticConv((b.c_in, b.c_mid), 1) if b.expands else None
        self.depthwise = ElasticConv(mid, kernels, b.stride, depthwise=True, transforms=transforms)
        self.se = ElasticGate(b.c_mid, b.c_se) if b.c_se else None
        self.project = ElasticConv((b.c_mid, b.c_out), 1)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = x
        act = block.activation
        if block.expands:
            assert self.expand is not None
            out = self.expand(out, block.c_mid, 1, act)
        out = self.depthwise(out, block.c_mid, block.kernel, act)
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

    def __init__(self, block: Block, kernels: tuple[int, ...], transforms: bool):
        super().__init__()
        b, shape = block, (block.c_in, block.c_mid)
        self.fused = ElasticConv(shape, kernels, b.stride, transforms=transforms)
        self.se = ElasticGate(b.c_mid, b.c_se) if b.c_se else None
        self.project = ElasticConv((b.c_mid, b.c_out), 1)

    def forward(self, x: Tensor, block: Block) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = self.fused(x, block.c_mid, block.kernel, block.activation)
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


_KINDS: dict[str, type[ElasticInverted] | type[ElasticFused]] = {
    "inverted": ElasticInverted,
    "fused": ElasticFused,
}


@final
class MBConvSupernet(nn.Module):
    """Shared weights, the largest option of every choice; each kind of block has its own."""

    def __init__(self, space: SearchSpace, task: Task):
        super().__init__()
        self._space, self._task = space, task
        largest = dimensions(space, space.largest())
        stem = (task.in_channels, largest.stem_width)
        self.stem = ElasticConv(stem, largest.stem_kernel, largest.stem_stride)
        # A block reads the widest of what can stand before it: the stem or the stage before for
        # the first block of a stage, its own stage for the others. That is what `largest` has.
        self.stages = nn.ModuleList(
            nn.ModuleList(self._kinds(b) for b in largest.blocks if b.stage == stage)
            for stage in range(n_stages(space))
        )
        last, head = largest.blocks[-1].c_out, largest.head
        self.head = ElasticConv((last, head.width), 1)
        self.features = ElasticLinear(head.width, head.features) if head.features else None
        self.classifier = ElasticLinear(head.features or head.width, task.n_classes)

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        return self

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """``(N, C, R, R)`` to logits ``(N, n_classes)``."""
        dims = dimensions(self._space, genotype)
        head = dims.head
        x: Tensor = self.stem(images, dims.stem_width, dims.stem_kernel, dims.stem_activation)
        for block in dims.blocks:
            x = self._block(block)(x, block)
        x = self.head(x, head.width, 1, head.activation).mean((2, 3))
        if head.features:
            assert self.features is not None
            x = activated(self.features(x, head.features), head.activation)
        logits: Tensor = self.classifier(x)
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a plain network with copies of the weights, in the same mode."""
        dims = dimensions(self._space, genotype)
        network = MBConvNet(dims, self._task)
        self.stem.copy_to(network.stem)
        for block in dims.blocks:
            self._block(block).copy_to(network.get_submodule(block.name))
        self.head.copy_to(network.head)
        if isinstance(network.features, LinearAct):
            assert self.features is not None
            self.features.copy_to(network.features.linear)
        self.classifier.copy_to(network.classifier)
        return network.train(self.training)

    def _kinds(self, block: Block) -> nn.ModuleDict:
        """Return a block of each kind that it can be."""
        space = self._space
        names = {*space.choices, *space.fixed}

        def options(key: str, default: str) -> tuple[str, ...]:
            name = closest(names, block.name, key)
            return (default,) if name is None else tuple(map(str, space.options(name)))

        kernels = tuple(map(int, options("kernel", "")))
        transforms = options("kernel_sharing", "crop") == ("transform",)
        return nn.ModuleDict(
            {kind: _KINDS[kind](block, kernels, transforms) for kind in options("kind", "inverted")}
        )

    def _block(self, block: Block) -> ElasticInverted | ElasticFused:
        stage = self.stages[block.stage]
        assert isinstance(stage, nn.ModuleList)
        kinds = stage[block.index]
        assert isinstance(kinds, nn.ModuleDict)
        elastic = kinds[block.kind]
        assert isinstance(elastic, ElasticInverted | ElasticFused)
        return elastic
