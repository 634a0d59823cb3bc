"""Convolutional networks of several kinds of blocks: dimensions and graph of a genotype.

Source: inverted residuals as in Sandler et al., "MobileNetV2", CVPR 2018,
https://arxiv.org/abs/1801.04381; gates and hard swish as in Howard et al., "Searching for
MobileNetV3", ICCV 2019, https://arxiv.org/abs/1905.02244; fused blocks as in Xiong et al.,
"MobileDets", CVPR 2021, https://arxiv.org/abs/2004.14525; separable ones, and the multiplier of
widths, as in Howard et al., "MobileNets", 2017, https://arxiv.org/abs/1704.04861; residual ones as
in He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.models.families.common_checks import n_stages
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape, Signature
from hwnas.models.spaces import Genotype, Option, SearchSpace, closest

#: Defaults of keys that neither a block, nor its stage, nor the space defines.
DEFAULTS: Mapping[str, Option] = {"kind": "inverted", "se": 0}
#: Keys of each kind of block besides kernel and activation.
KIND_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "inverted": ("expansion", "se"),
    "fused": ("expansion", "se"),
    "plain": (),
    "residual": ("expansion",),
    "separable": (),
}
#: Values of choices that are inactive by ``when``, unless the stage or space defines them.
_ABSENT = {**DEFAULTS, "expansion": 1, "kernel": 3}
_MULTIPLE = 8  #: of channels that are scaled
_MAX_CACHED = 100_000  # lowered blocks


@dataclass(frozen=True)
class MBConvBlock:
    """Dimensions of a block of convolutions, which depend on its kind.

    inverted: 1x1, depthwise, gate, 1x1; plus the input if it has the output's shape
    fused: dense, gate, 1x1; plus the input if it has the output's shape
    plain: dense
    residual: dense, dense; the input, or a projection of it, is added before the activation
    separable: depthwise, 1x1
    """

    name: str  #: ``stages.<i>.blocks.<j>``
    stage: int  #: index of the stage
    index: int  #: in the stage
    c_in: int  #: input channels
    c_out: int  #: output channels
    kernel: int  #: height and width
    stride: int  #: step of the window in the first convolution with this kernel
    kind: str  #: a key of ``KIND_OPTIONS``
    activation: str  #: ``relu6``, ``relu`` or ``hardswish``
    expansion: int  #: inner channels / input channels (of ``residual``: / output channels)
    #: channels between squeeze and excitation, as a fraction of the inner channels; 0: no gate
    se: float

    @property
    def c_mid(self) -> int:
        """Inner channels, for kinds with an expansion."""
        return self.expansion * (self.c_out if self.kind == "residual" else self.c_in)

    @property
    def c_se(self) -> int:
        """Channels between squeeze and excitation, a multiple of 8; 0 without a gate."""
        channels = int(self.c_mid * self.se)
        return round_width(channels) if channels else 0

    @property
    def expands(self) -> bool:
        """True if an inverted residual begins with a 1x1 convolution that adds channels."""
        return self.c_mid != self.c_in

    @property
    def residual(self) -> bool:
        """True if input and output have the same shape, so that they can be added."""
        return self.stride == 1 and self.c_in == self.c_out


@dataclass(frozen=True)
class MBConvHead:
    """Dimensions of the layers between blocks and classifier."""

    width: int  #: channels of the convolution before the pooling; 0: no convolution
    features: int  #: outputs of the fully connected layer after the pooling; 0: no layer
    activation: str


@dataclass(frozen=True)
class MBConvDimensions:
    """Dimensions of a network."""

    resolution: int  #: height and width of the input images
    stem_width: int  #: output channels of the first convolution
    stem_kernel: int  #: height and width of its window
    stem_stride: int
    stem_activation: str
    blocks: tuple[MBConvBlock, ...]
    head: MBConvHead

    @property
    def pooled(self) -> int:
        """Input channels of the pooling."""
        return self.head.width or self.blocks[-1].c_out


def dimensions(
    space: SearchSpace, genotype: Genotype, signature: Signature | None = None
) -> MBConvDimensions:
    """Return the dimensions of a network of a checked space; ``signature`` is not used."""
    return dimensions_of_values(space, space.values(genotype))


def dimensions_of_values(space: SearchSpace, values: Mapping[str, Option]) -> MBConvDimensions:
    """Return the dimensions of a network from values by name.

    Values of choices that ``when`` makes inactive are used like others.
    """
    reader = _Values(values)
    blocks: list[MBConvBlock] = []
    stem_width = width = reader.width("stem.width")
    for stage in range(n_stages(space)):
        for index in range(reader.depth(f"stages.{stage}.depth")):
            stride = reader.number(f"stages.{stage}.stride") if index == 0 else 1
            blocks.append(_block(reader, (stage, index), width, stride))
            width = blocks[-1].c_out
    return MBConvDimensions(
        resolution=reader.number("resolution"),
        stem_width=stem_width,
        stem_kernel=reader.number("stem.kernel"),
        stem_stride=reader.number("stem.stride"),
        stem_activation=str(reader.closest("stem", "activation")),
        blocks=tuple(blocks),
        head=MBConvHead(
            width=reader.width("head.width"),
            features=reader.width("head.features") if "head.features" in values else 0,
            activation=str(reader.closest("head", "activation")),
        ),
    )


@dataclass(frozen=True)
class _Values:
    """Typed access to the values of a genotype and its space."""

    values: Mapping[str, Option]

    def number(self, name: str) -> int:
        return int(self.values[name])

    def width(self, name: str) -> int:
        return scale_width(self.number(name), float(self.values.get("width_multiplier", 1)))

    def depth(self, name: str) -> int:
        return math.ceil(self.number(name) * float(self.values.get("depth_multiplier", 1)))

    def closest(self, place: str, key: str) -> Option:
        name = closest(self.values, place, key)
        return _ABSENT[key] if name is None else self.values[name]


def possible_values(space: SearchSpace, block: str, kind: str, key: str) -> tuple[Option, ...]:
    """Return the possible values of a key (``kernel``) for a block (its name) of a kind.

    If ``when`` makes the block's choice inactive, the stage's or the space's applies, else the
    default.
    """
    names, is_always_defined = defining_names(space, block, kind, key)
    options = tuple(option for name in names for option in space.options(name))
    return options if is_always_defined else (*options, _ABSENT[key])


def defining_names(space: SearchSpace, block: str, kind: str, key: str) -> tuple[list[str], bool]:
    """Return the names that may define a key (``kernel``) of a block (its name) of a kind.

    The second value is True if one of them always does, and False if the default may apply.
    """
    names = {*space.names}
    kind_name, remaining, result = closest(names, block, "kind"), {*names}, list[str]()
    while (name := closest(remaining, block, key)) is not None:
        remaining.remove(name)
        place = name.rpartition(".")[0]
        needs = space.when.get(key, {}) if name in space.choices else {}
        conditions = [(closest(names, place, other), {*ok}) for other, ok in needs.items()]
        values = [
            ({kind} if n == kind_name else {*space.options(n)}, ok) for n, ok in conditions if n
        ]
        if all(options & ok for options, ok in values):
            result.append(name)
        if all(options <= ok for options, ok in values):
            return result, True  # always active: the stage's or the space's never counts
    return result, False


def _block(reader: _Values, place: tuple[int, int], c_in: int, stride: int) -> MBConvBlock:
    stage, index = place
    name = f"stages.{stage}.blocks.{index}"
    return MBConvBlock(
        name=name,
        stage=stage,
        index=index,
        c_in=c_in,
        c_out=reader.width(f"stages.{stage}.width"),
        kernel=int(reader.closest(name, "kernel")),
        stride=stride,
        kind=str(reader.closest(name, "kind")),
        activation=str(reader.closest(name, "activation")),
        expansion=int(reader.closest(name, "expansion")),
        se=float(reader.closest(name, "se")),
    )


def scale_width(width: int, multiplier: float) -> int:
    """Return a width times a multiplier, rounded as in MobileNets; 0 remains 0.

    A multiplier below 1 never widens, and one above 1 never narrows: the largest multiplier gives
    the largest width, which a supernet has.
    """
    if multiplier == 1 or not width:
        return width
    limit = min if multiplier < 1 else max
    return limit(width, round_width(width * multiplier))


def round_width(width: float) -> int:
    """Return the nearest multiple of 8 that is at least 0.9 times the width."""
    rounded = max(_MULTIPLE, int(width + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)
    return rounded + _MULTIPLE if rounded < 0.9 * width else rounded


def lower(dims: MBConvDimensions, signature: Signature) -> Graph:
    """Return the graph of a network."""
    image = (signature.in_channels, dims.resolution, dims.resolution)
    stem = _Conv(dims.stem_kernel, dims.stem_stride, dims.stem_activation)
    nodes = [_conv("stem", INPUT, image, dims.stem_width, stem)]
    for block in dims.blocks:
        nodes += _lower_block(block, nodes[-1].name, nodes[-1].op.out_shape)
    last, head = nodes[-1], dims.head
    if head.width:
        spec = _Conv(activation=head.activation)
        nodes.append(_conv("head", last.name, last.op.out_shape, head.width, spec))
    last, pooled = nodes[-1], (dims.pooled, 1, 1)
    nodes.append(Node("pool", OpSpec("mean", last.op.out_shape, pooled), (last.name,)))
    if head.features:
        kind, features = f"linear+{head.activation}", (head.features, 1, 1)
        nodes.append(Node("features", OpSpec(kind, pooled, features), ("pool",)))
        pooled = features
    logits = OpSpec("linear", pooled, (signature.n_outputs, 1, 1))
    nodes.append(Node("classifier", logits, (nodes[-1].name,)))
    return Graph.of(nodes)


@dataclass(frozen=True)
class _Conv:
    kernel: int = 1
    stride: int = 1
    activation: str = ""
    groups: int = 1


def _conv(name: str, source: str, shape: Shape, c_out: int, conv: _Conv) -> Node:
    out = (c_out, -(-shape[1] // conv.stride), -(-shape[2] // conv.stride))
    kind = f"conv2d+bn+{conv.activation}" if conv.activation else "conv2d+bn"
    return Node(name, OpSpec(kind, shape, out, conv.kernel, conv.stride, conv.groups), (source,))


# Samplers lower thousands of networks, which share most of their blocks.
@functools.lru_cache(_MAX_CACHED)
def _lower_block(b: MBConvBlock, source: str, shape: Shape) -> tuple[Node, ...]:
    nodes: list[Node] = []

    def conv(part: str, c_out: int, spec: _Conv) -> None:
        last, size = (nodes[-1].name, nodes[-1].op.out_shape) if nodes else (source, shape)
        nodes.append(_conv(f"{b.name}.{part}", last, size, c_out, spec))

    match b.kind:
        case "plain":
            conv("conv", b.c_out, _Conv(b.kernel, b.stride, b.activation))
        case "separable":
            conv("depthwise", b.c_in, _Conv(b.kernel, b.stride, b.activation, b.c_in))
            conv("pointwise", b.c_out, _Conv(activation=b.activation))
        case "residual":
            return tuple(_lower_residual(b, source, shape))
        case "fused":
            conv("fused", b.c_mid, _Conv(b.kernel, b.stride, b.activation))
        case _:
            if b.expands:
                conv("expand", b.c_mid, _Conv(activation=b.activation))
            conv("depthwise", b.c_mid, _Conv(b.kernel, b.stride, b.activation, b.c_mid))
    if b.kind in ("inverted", "fused"):
        if b.c_se:
            nodes += _lower_se(f"{b.name}.se", nodes[-1], b.c_se)
        conv("project", b.c_out, _Conv())
        if b.residual:
            added = (source, nodes[-1].name)
            nodes.append(Node(f"{b.name}.add", OpSpec("add", shape, shape), added))
    return tuple(nodes)


def _lower_residual(b: MBConvBlock, source: str, shape: Shape) -> list[Node]:
    other, nodes = source, []
    if not b.residual:
        # The projection first, so that the addition can be fused into the last convolution.
        spec = _Conv(stride=b.stride)
        nodes.append(_conv(f"{b.name}.shortcut", source, shape, b.c_out, spec))
        other = nodes[-1].name
    spec = _Conv(b.kernel, b.stride, b.activation)
    first = _conv(f"{b.name}.first", source, shape, b.c_mid, spec)
    last = _conv(f"{b.name}.second", first.name, first.op.out_shape, b.c_out, _Conv(b.kernel))
    out = last.op.out_shape
    add = Node(f"{b.name}.add", OpSpec(f"add+{b.activation}", out, out), (other, last.name))
    return [*nodes, first, last, add]


def _lower_se(name: str, before: Node, reduced: int) -> list[Node]:
    shape = before.op.out_shape
    squeezed, small = (shape[0], 1, 1), (reduced, 1, 1)
    squeeze, reduce, excite = f"{name}.squeeze", f"{name}.reduce", f"{name}.excite"
    return [
        Node(squeeze, OpSpec("mean", shape, squeezed), (before.name,)),
        Node(reduce, OpSpec("linear+relu", squeezed, small), (squeeze,)),
        Node(excite, OpSpec("linear+hardsigmoid", small, squeezed), (reduce,)),
        Node(f"{name}.scale", OpSpec("mul", shape, shape), (before.name, excite)),
    ]
