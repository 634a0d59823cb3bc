"""Residual networks: dimensions and graph of a genotype.

Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385. The stride of a bottleneck is in its spatial convolution, as usual
today.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hwnas.models.families import common_checks
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature
from hwnas.models.spaces import Genotype, Option, SearchSpace

_STEM = ("stem.width", "stem.kernel", "stem.stride", "stem.pool")
_NAMES = common_checks.ReadNames(
    network=("resolution", "activation", "block", *_STEM),
    stage=("width", "stride"),
    block=("kernel", "expansion"),
)
_ACTIVATIONS = ("relu", "relu6")
_BLOCKS = ("basic", "bottleneck")
_MULTIPLE = 8  # of the inner channels

POOL_KERNEL, POOL_STRIDE = 3, 2  #: of the max pooling after the stem


@dataclass(frozen=True)
class Conv:
    """A convolution with batch norm and, if it has one, an activation."""

    name: str  #: path of the module
    c_in: int  #: input channels
    c_out: int  #: output channels
    kernel: int  #: height and width of the window
    stride: int
    act: str  #: activation; ``""``: none


@dataclass(frozen=True)
class ResidualBlock:
    """A sequence of convolutions, plus the input or its projection."""

    name: str  #: ``stages.<i>.blocks.<j>``
    stage: int  #: index of the stage
    convs: tuple[Conv, ...]  #: in order; the last has no activation
    shortcut: Conv | None  #: the projection; ``None`` for the input itself
    act: str  #: activation after the addition


@dataclass(frozen=True)
class ResNetDimensions:
    """Dimensions of a network."""

    resolution: int  #: height and width of the input images
    stem: Conv
    pool: bool  #: True if max pooling follows the stem
    blocks: tuple[ResidualBlock, ...]

    @property
    def width(self) -> int:
        """Output channels of the last block."""
        return self.blocks[-1].convs[-1].c_out

    def convs(self) -> Iterator[Conv]:
        """Yield every convolution: the stem, then projection and convolutions of each block."""
        yield self.stem
        for block in self.blocks:
            if block.shortcut is not None:
                yield block.shortcut
            yield from block.convs


def dimensions(space: SearchSpace, genotype: Genotype, signature: Signature) -> ResNetDimensions:
    """Return the dimensions of a network of a checked space."""
    values = space.values(genotype)

    def number(name: str) -> int:
        return int(values[name])

    act, width = str(values["activation"]), number("stem.width")
    kernel, stride = number("stem.kernel"), number("stem.stride")
    stem = Conv("stem", signature.in_channels, width, kernel, stride, act)
    blocks = []
    for stage in range(common_checks.n_stages(space)):
        c_out = number(f"stages.{stage}.width")
        for index in range(number(f"stages.{stage}.depth")):
            name = f"stages.{stage}.blocks.{index}"
            stride = number(f"stages.{stage}.stride") if index == 0 else 1
            shortcut = None
            if index == 0 and _projects(space, stage):
                shortcut = Conv(f"{name}.shortcut", width, c_out, 1, stride, "")
            convs = _convs(values, name, (width, c_out), stride)
            blocks.append(ResidualBlock(name, stage, convs, shortcut, act))
            width = c_out
    return ResNetDimensions(number("resolution"), stem, bool(number("stem.pool")), tuple(blocks))


def _convs(
    values: Mapping[str, Option], name: str, widths: tuple[int, int], stride: int
) -> tuple[Conv, ...]:
    """Return the convolutions of a block; the last has no activation."""
    c_in, c_out = widths
    expansion = float(common_checks.closest_value(values, name, "expansion"))
    kernel = int(common_checks.closest_value(values, name, "kernel"))
    inner = max(_MULTIPLE, int(c_out * expansion / _MULTIPLE + 0.5) * _MULTIPLE)
    rows = [(c_in, inner, kernel, stride), (inner, c_out, kernel, 1)]
    if values["block"] == "bottleneck":
        rows = [(c_in, inner, 1, 1), (inner, inner, kernel, stride), (inner, c_out, 1, 1)]
    acts = [str(values["activation"])] * (len(rows) - 1) + [""]
    return tuple(
        Conv(f"{name}.convs.{i}", *row, act)
        for i, (row, act) in enumerate(zip(rows, acts, strict=True))
    )


def _projects(space: SearchSpace, stage: int) -> bool:
    """Return True if the first block of a stage has a projection.

    This depends on the space, not on the genotype, as in Once-for-all: a supernet then trains
    projections as often as other weights.
    """
    before = f"stages.{stage - 1}.width" if stage else "stem.width"
    widths = {*space.options(before), *space.options(f"stages.{stage}.width")}
    return len(widths) > 1 or space.fixed[f"stages.{stage}.stride"] != 1


def lower(dims: ResNetDimensions, signature: Signature) -> Graph:
    """Return the graph of a network."""
    nodes: dict[str, Node] = {}
    image = (signature.in_channels, dims.resolution, dims.resolution)

    def append(name: str, op: OpSpec, *inputs: str) -> str:
        nodes[name] = Node(name, op, inputs)
        return name

    def window(name: str, kind: str, source: str, c_out: int, spec: tuple[int, int]) -> str:
        kernel, stride = spec
        c, h, w = nodes[source].op.out_shape if source in nodes else image
        out = (c_out, -(-h // stride), -(-w // stride))
        return append(name, OpSpec(kind, (c, h, w), out, kernel, stride), source)

    def conv(conv: Conv, source: str) -> str:
        kind = f"conv2d+bn+{conv.act}" if conv.act else "conv2d+bn"
        return window(conv.name, kind, source, conv.c_out, (conv.kernel, conv.stride))

    last = conv(dims.stem, INPUT)
    if dims.pool:
        spec = (POOL_KERNEL, POOL_STRIDE)
        last = window("stem_pool", "max_pool2d", last, dims.stem.c_out, spec)
    for block in dims.blocks:
        # The projection first, so that the addition can be fused into the last convolution.
        other = last if block.shortcut is None else conv(block.shortcut, last)
        for layer in block.convs:
            last = conv(layer, last)
        shape = nodes[last].op.out_shape
        last = append(f"{block.name}.add", OpSpec(f"add+{block.act}", shape, shape), other, last)
    pooled = (dims.width, 1, 1)
    last = append("pool", OpSpec("mean", nodes[last].op.out_shape, pooled), last)
    append("classifier", OpSpec("linear", pooled, (signature.n_outputs, 1, 1)), last)
    return Graph.of(nodes.values())


def check_resnet_space(space: SearchSpace) -> None:
    """Check a space of residual networks.

    Raises:
        SpaceError: if a name is missing or unknown, or an option is not allowed.
    """
    common_checks.check_names(space, _NAMES)
    names = sorted(space.names)
    strides = [name for name in names if name.endswith(".stride")]
    common_checks.check_fixed(space, ["activation", "block", "stem.kernel", "stem.pool", *strides])
    common_checks.check_one_of(space, "activation", _ACTIVATIONS)
    common_checks.check_one_of(space, "block", _BLOCKS)
    common_checks.check_one_of(space, "stem.pool", (0, 1))
    for name in names:
        match name.rpartition(".")[2]:
            case "resolution" | "width" | "depth":
                common_checks.whole_numbers(space, name)
            case "stride":
                common_checks.check_one_of(space, name, (1, 2))
            case "kernel":
                common_checks.check_odd(space, name)
            case "expansion":
                common_checks.check_positive(space, name)
