"""Inverted and fused residuals: from a genotype to its dimensions and its operators.

Source: Sandler et al., "MobileNetV2", CVPR 2018, https://arxiv.org/abs/1801.04381; gates and hard
swish as in Howard et al., "Searching for MobileNetV3", ICCV 2019, https://arxiv.org/abs/1905.02244;
fused blocks as in Xiong et al., "MobileDets", CVPR 2021, https://arxiv.org/abs/2004.14525.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.families.checks import closest, n_stages
from hwnas.op import INPUT, Lowered, Node, OpSpec, Shape, Task
from hwnas.space import Genotype, Option, SearchSpace

#: What counts where neither a block, nor its stage, nor the space says it.
DEFAULTS: Mapping[str, Option] = {"kind": "inverted", "se": 0}


@dataclass(frozen=True)
class Block:
    """One residual: inverted (1x1, depthwise, 1x1) or fused (dense, 1x1)."""

    name: str
    stage: int
    index: int
    c_in: int
    c_mid: int
    c_out: int
    kernel: int
    stride: int
    kind: str
    activation: str
    c_se: int  #: channels between squeeze and excitation; 0: there is none

    @property
    def expands(self) -> bool:
        """Whether an inverted residual has an expansion layer at all."""
        return self.c_mid != self.c_in

    @property
    def residual(self) -> bool:
        """Whether the input is added to the output."""
        return self.stride == 1 and self.c_in == self.c_out


@dataclass(frozen=True)
class Head:
    """What stands behind the blocks, before the classifier."""

    width: int
    features: int  #: of a fully connected layer behind the pooling; 0: there is none
    activation: str


@dataclass(frozen=True)
class Dimensions:
    """All that is needed to build or lower one network."""

    resolution: int
    stem_width: int
    stem_kernel: int
    stem_stride: int
    stem_activation: str
    blocks: tuple[Block, ...]
    head: Head


def dimensions(space: SearchSpace, genotype: Genotype) -> Dimensions:
    """Return the dimensions of one network of a checked space."""
    values = space.values(genotype)

    def number(name: str) -> int:
        return int(values[name])

    def said(place: str, key: str) -> Option:
        name = closest(values, place, key)
        return DEFAULTS[key] if name is None else values[name]

    blocks = []
    width = number("stem.width")
    for stage in range(n_stages(space)):
        for index in range(number(f"stages.{stage}.depth")):
            name = f"stages.{stage}.blocks.{index}"
            c_mid = width * int(said(name, "expansion"))
            blocks.append(
                Block(
                    name=name,
                    stage=stage,
                    index=index,
                    c_in=width,
                    c_mid=c_mid,
                    c_out=number(f"stages.{stage}.width"),
                    kernel=int(said(name, "kernel")),
                    stride=number(f"stages.{stage}.stride") if index == 0 else 1,
                    kind=str(said(name, "kind")),
                    activation=str(said(name, "activation")),
                    c_se=squeezed(c_mid, float(said(name, "se"))),
                )
            )
            width = blocks[-1].c_out
    return Dimensions(
        resolution=number("resolution"),
        stem_width=number("stem.width"),
        stem_kernel=number("stem.kernel"),
        stem_stride=number("stem.stride"),
        stem_activation=str(said("stem", "activation")),
        blocks=tuple(blocks),
        head=Head(
            width=number("head.width"),
            features=int(values.get("head.features", 0)),
            activation=str(said("head", "activation")),
        ),
    )


def squeezed(channels: int, ratio: float) -> int:
    """Return the channels between squeeze and excitation: a multiple of 8, as in MobileNetV3."""
    wanted = int(channels * ratio)
    if not wanted:
        return 0
    rounded = max(8, (wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def lower(dims: Dimensions, task: Task) -> Lowered:
    """Return the operators of a network in order of execution, for one image."""
    image = (task.in_channels, dims.resolution, dims.resolution)
    stem = _Conv(dims.stem_kernel, dims.stem_stride, dims.stem_activation)
    nodes = [_conv("stem", INPUT, image, dims.stem_width, stem)]
    for block in dims.blocks:
        nodes += _lower_block(block, nodes[-1])
    last, head = nodes[-1], dims.head
    spec = _Conv(activation=head.activation)
    nodes.append(_conv("head", last.name, last.op.out_shape, head.width, spec))
    pooled = (head.width, 1, 1)
    nodes.append(Node("pool", OpSpec("mean", nodes[-1].op.out_shape, pooled), ("head",)))
    if head.features:
        kind, features = f"linear+{head.activation}", (head.features, 1, 1)
        nodes.append(Node("features", OpSpec(kind, pooled, features), ("pool",)))
        pooled = features
    logits = OpSpec("linear", pooled, (task.n_classes, 1, 1))
    nodes.append(Node("classifier", logits, (nodes[-1].name,)))
    return tuple(nodes)


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


def _lower_block(block: Block, before: Node) -> list[Node]:
    b, nodes = block, [before]

    def conv(part: str, c_out: int, spec: _Conv) -> None:
        last = nodes[-1]
        nodes.append(_conv(f"{b.name}.{part}", last.name, last.op.out_shape, c_out, spec))

    if b.kind == "fused":
        conv("fused", b.c_mid, _Conv(b.kernel, b.stride, b.activation))
    else:
        if b.expands:
            conv("expand", b.c_mid, _Conv(activation=b.activation))
        conv("depthwise", b.c_mid, _Conv(b.kernel, b.stride, b.activation, b.c_mid))
    if b.c_se:
        nodes += _lower_se(f"{b.name}.se", nodes[-1], b.c_se)
    conv("project", b.c_out, _Conv())
    if b.residual:
        shape, project = before.op.out_shape, nodes[-1].name
        nodes.append(Node(f"{b.name}.add", OpSpec("add", shape, shape), (before.name, project)))
    return nodes[1:]


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
