"""Supernets of convolutional networks: elastic blocks with the weights of the largest options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

from torch import Tensor, nn

from hwnas.models.families.common_checks import n_stages
from hwnas.models.families.elastic_layers import ElasticConv, ElasticLinear, apply_activation
from hwnas.models.families.layers import ConvNormAct, LinearAct, SqueezeExcitation, global_mean
from hwnas.models.families.mbconv.lowering import (
    MBConvBlock,
    dimensions,
    dimensions_of_values,
    possible_values,
)
from hwnas.models.families.mbconv.network import (
    BasicResidual,
    FusedResidual,
    InvertedResidual,
    MBConvNet,
    Plain,
    Separable,
)
from hwnas.models.graph import Signature
from hwnas.models.spaces import Genotype, SearchSpace, closest


@runtime_checkable
class ElasticBlock(Protocol):
    """A block whose dimensions are chosen per call."""

    def __call__(self, x: Tensor, block: MBConvBlock) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        ...

    def copy_to(self, plain: nn.Module) -> None:
        """Copy the weights to a plain block."""
        ...


@dataclass(frozen=True)
class Elastic:
    """What the networks of a space may have at the position of one block."""

    kernels: tuple[int, ...]  #: kernel sizes
    transforms: bool  #: smaller kernels are learned maps of larger ones
    projects: bool  #: in some networks the block changes the shape of its input

    def conv(self, shape: tuple[int, int], depthwise: bool = False) -> ElasticConv:
        """Return a convolution with these kernels; ``shape`` is its input and output channels."""
        transforms = self.transforms
        return ElasticConv(shape, self.kernels, depthwise=depthwise, transforms=transforms)


@final
class ElasticGate(nn.Module):
    """Squeeze-excitation over the first channels."""

    def __init__(self, channels: int, reduced: int):
        super().__init__()
        self.reduce = ElasticLinear(channels, reduced)
        self.excite = ElasticLinear(reduced, channels)

    def forward(self, x: Tensor, reduced: int) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        small = apply_activation(self.reduce(global_mean(x), reduced), "relu")
        gate = apply_activation(self.excite(small, x.shape[1]), "hardsigmoid")
        return x * gate[:, :, None, None]

    def copy_to(self, plain: SqueezeExcitation) -> None:
        """Copy the weights to a plain module."""
        self.reduce.copy_to(plain.reduce.linear)
        self.excite.copy_to(plain.excite.linear)


@final
class ElasticInverted(nn.Module):
    """Inverted residual with elastic channels, kernel, activation and gate."""

    def __init__(self, block: MBConvBlock, elastic: Elastic):
        super().__init__()
        b, mid = block, (block.c_mid, block.c_mid)
        self.expand = ElasticConv((b.c_in, b.c_mid), 1) if b.expands else None
        self.depthwise = elastic.conv(mid, depthwise=True)
        self.se = ElasticGate(b.c_mid, b.c_se) if b.c_se else None
        self.project = ElasticConv((b.c_mid, b.c_out), 1)

    def forward(self, x: Tensor, block: MBConvBlock) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        out: Tensor = x
        act = block.activation
        if block.expands:
            assert self.expand is not None
            out = self.expand(out, block.c_mid, 1, act)
        out = self.depthwise(out, block.c_mid, block.kernel, act, block.stride)
        if block.c_se:
            assert self.se is not None
            out = self.se(out, block.c_se)
        out = self.project(out, block.c_out, 1)
        return x + out if block.residual else out

    def copy_to(self, plain: nn.Module) -> None:
        """Copy the weights to a plain block."""
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

    def __init__(self, block: MBConvBlock, elastic: Elastic):
        super().__init__()
        b, shape = block, (block.c_in, block.c_mid)
        self.fused = elastic.conv(shape)
        self.se = ElasticGate(b.c_mid, b.c_se) if b.c_se else None
        self.project = ElasticConv((b.c_mid, b.c_out), 1)

    def forward(self, x: Tensor, block: MBConvBlock) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b = block
        out: Tensor = self.fused(x, b.c_mid, b.kernel, b.activation, b.stride)
        if block.c_se:
            assert self.se is not None
            out = self.se(out, block.c_se)
        out = self.project(out, block.c_out, 1)
        return x + out if block.residual else out

    def copy_to(self, plain: nn.Module) -> None:
        """Copy the weights to a plain block."""
        assert isinstance(plain, FusedResidual)
        self.fused.copy_to(plain.fused)
        if isinstance(plain.se, SqueezeExcitation):
            assert self.se is not None
            self.se.copy_to(plain.se)
        self.project.copy_to(plain.project)


@final
class ElasticPlain(nn.Module):
    """Dense convolution with elastic channels, kernel and activation."""

    def __init__(self, block: MBConvBlock, elastic: Elastic):
        super().__init__()
        self.conv = elastic.conv((block.c_in, block.c_out))

    def forward(self, x: Tensor, block: MBConvBlock) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b = block
        out: Tensor = self.conv(x, b.c_out, b.kernel, b.activation, b.stride)
        return out

    def copy_to(self, plain: nn.Module) -> None:
        """Copy the weights to a plain block."""
        assert isinstance(plain, Plain)
        self.conv.copy_to(plain.conv)


@final
class ElasticBasic(nn.Module):
    """Basic residual block with elastic channels, kernel and activation."""

    def __init__(self, block: MBConvBlock, elastic: Elastic):
        super().__init__()
        b = block
        self.shortcut = ElasticConv((b.c_in, b.c_out), 1) if elastic.projects else None
        self.first = elastic.conv((b.c_in, b.c_mid))
        self.second = elastic.conv((b.c_mid, b.c_out))

    def forward(self, x: Tensor, block: MBConvBlock) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b, other = block, x
        if not b.residual:
            assert self.shortcut is not None
            other = self.shortcut(x, b.c_out, 1, "", b.stride)
        out: Tensor = self.first(x, b.c_mid, b.kernel, b.activation, b.stride)
        return apply_activation(other + self.second(out, b.c_out, b.kernel), b.activation)

    def copy_to(self, plain: nn.Module) -> None:
        """Copy the weights to a plain block."""
        assert isinstance(plain, BasicResidual)
        if isinstance(plain.shortcut, ConvNormAct):
            assert self.shortcut is not None
            self.shortcut.copy_to(plain.shortcut)
        self.first.copy_to(plain.first)
        self.second.copy_to(plain.second)


@final
class ElasticSeparable(nn.Module):
    """Separable convolution with elastic channels, kernel and activation."""

    def __init__(self, block: MBConvBlock, elastic: Elastic):
        super().__init__()
        self.depthwise = elastic.conv((block.c_in, block.c_in), depthwise=True)
        self.pointwise = ElasticConv((block.c_in, block.c_out), 1)

    def forward(self, x: Tensor, block: MBConvBlock) -> Tensor:
        """``(N, c_in, H, W)`` to ``(N, c_out, ceil(H / stride), ceil(W / stride))``."""
        b = block
        out: Tensor = self.depthwise(x, b.c_in, b.kernel, b.activation, b.stride)
        out = self.pointwise(out, b.c_out, 1, b.activation)
        return out

    def copy_to(self, plain: nn.Module) -> None:
        """Copy the weights to a plain block."""
        assert isinstance(plain, Separable)
        self.depthwise.copy_to(plain.depthwise)
        self.pointwise.copy_to(plain.pointwise)


KINDS: Mapping[str, Callable[[MBConvBlock, Elastic], nn.Module]] = {
    "inverted": ElasticInverted,
    "fused": ElasticFused,
    "plain": ElasticPlain,
    "residual": ElasticBasic,
    "separable": ElasticSeparable,
}


@final
class MBConvSupernet(nn.Module):
    """Shared weights of a space; each kind of block has separate ones."""

    def __init__(self, space: SearchSpace, signature: Signature):
        super().__init__()
        self._space, self._task = space, signature
        # Including choices that are inactive in the largest network.
        every = {name: options[-1] for name, options in space.choices.items()}
        largest = dimensions_of_values(space, {**space.fixed, **every})
        stem, kernels = (signature.in_channels, largest.stem_width), space.options("stem.kernel")
        self.stem = ElasticConv(stem, tuple(map(int, kernels)), largest.stem_stride)
        # `largest` has the maximum input width of each block: of the stem or the previous stage for
        # the first block of a stage, of its stage for the others.
        self.stages = nn.ModuleList(
            nn.ModuleList(self._kinds(b) for b in largest.blocks if b.stage == stage)
            for stage in range(n_stages(space))
        )
        last, head = largest.blocks[-1].c_out, largest.head
        self.head = ElasticConv((last, head.width), 1) if head.width else None
        self.features = ElasticLinear(head.width, head.features) if head.features else None
        self.classifier = ElasticLinear(head.features or largest.pooled, signature.n_outputs)
        # Separate classifiers for networks with and without a head.
        head_is_optional = head.width and 0 in space.options("head.width")
        self.headless = ElasticLinear(last, signature.n_outputs) if head_is_optional else None

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
        x = global_mean(x)
        if head.features:
            assert self.features is not None
            x = apply_activation(self.features(x, head.features), head.activation)
        logits: Tensor = self._classifier(head.width)(x)
        return logits

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return the network of a genotype with copies of the shared weights."""
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

    def _kinds(self, block: MBConvBlock) -> nn.ModuleDict:
        """Return an elastic block for each possible kind."""
        space = self._space
        names = {*space.names}

        def options(key: str, default: str) -> tuple[str, ...]:
            name = closest(names, block.name, key)
            return (default,) if name is None else tuple(map(str, space.options(name)))

        def elastic(kind: str) -> Elastic:
            kernels = possible_values(space, block.name, kind, "kernel")
            return Elastic(
                kernels=tuple(sorted({int(kernel) for kernel in kernels})),
                transforms=options("kernel_sharing", "crop") == ("transform",),
                projects=block.index == 0 and self._changes(block.stage),
            )

        def largest(kind: str) -> MBConvBlock:
            # Stage or space may allow larger values than the block's own choice.
            expansions, shares = (
                possible_values(space, block.name, kind, k) for k in ("expansion", "se")
            )
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
        """Return True if the first block of a stage may change the shape of its input."""
        options = self._space.options
        before = f"stages.{stage - 1}.width" if stage else "stem.width"
        widths = {*options(before), *options(f"stages.{stage}.width")}
        return len(widths) > 1 or options(f"stages.{stage}.stride") != (1,)

    def _classifier(self, head_width: int) -> ElasticLinear:
        if head_width or self.headless is None:
            return self.classifier
        return self.headless

    def _block(self, block: MBConvBlock) -> ElasticBlock:
        stage = self.stages[block.stage]
        assert isinstance(stage, nn.ModuleList)
        kinds = stage[block.index]
        assert isinstance(kinds, nn.ModuleDict)
        elastic = kinds[block.kind]
        assert isinstance(elastic, ElasticBlock)
        return elastic
