"""Inverted residuals: from a genotype to its dimensions and its operators.

Source: Sandler et al., "MobileNetV2", CVPR 2018, https://arxiv.org/abs/1801.04381.
"""

from dataclasses import dataclass

from hwnas.errors import SpaceError, unknown
from hwnas.op import INPUT, Lowered, Node, OpSpec, Shape, Task
from hwnas.space import Genotype, Option, SearchSpace

_PER_STAGE = ("depth", "width", "stride")
_PER_BLOCK = ("kernel", "expansion")
_ACTIVATIONS = ("relu6", "relu")
_INELASTIC = ("activation", "stem.kernel")


@dataclass(frozen=True)
class Block:
    """One inverted residual: expand (1x1), depthwise, project (1x1)."""

    name: str
    stage: int
    index: int
    c_in: int
    c_mid: int
    c_out: int
    kernel: int
    stride: int

    @property
    def expands(self) -> bool:
        """Whether there is an expansion layer at all."""
        return self.c_mid != self.c_in

    @property
    def residual(self) -> bool:
        """Whether the input is added to the output."""
        return self.stride == 1 and self.c_in == self.c_out


@dataclass(frozen=True)
class Dimensions:
    """All that is needed to build or lower one network."""

    resolution: int
    stem_width: int
    stem_kernel: int
    stem_stride: int
    blocks: tuple[Block, ...]
    head_width: int
    activation: str


def n_stages(space: SearchSpace) -> int:
    """Return how many stages the space describes."""
    names = {*space.choices, *space.fixed}
    return len({name.split(".")[1] for name in names if name.startswith("stages.")})


def dimensions(space: SearchSpace, genotype: Genotype) -> Dimensions:
    """Return the dimensions of one network of a checked space."""
    values = space.values(genotype)

    def number(name: str) -> int:
        return int(values[name])

    blocks = []
    width = number("stem.width")
    for stage in range(n_stages(space)):
        for index in range(number(f"stages.{stage}.depth")):
            name = f"stages.{stage}.blocks.{index}"
            blocks.append(
                Block(
                    name=name,
                    stage=stage,
                    index=index,
                    c_in=width,
                    c_mid=width * number(f"{name}.expansion"),
                    c_out=number(f"stages.{stage}.width"),
                    kernel=number(f"{name}.kernel"),
                    stride=number(f"stages.{stage}.stride") if index == 0 else 1,
                )
            )
            width = blocks[-1].c_out
    return Dimensions(
        resolution=number("resolution"),
        stem_width=number("stem.width"),
        stem_kernel=number("stem.kernel"),
        stem_stride=number("stem.stride"),
        blocks=tuple(blocks),
        head_width=number("head.width"),
        activation=str(values["activation"]),
    )


def lower(dims: Dimensions, task: Task) -> Lowered:
    """Return the operators of a network in order of execution, for one image."""
    nodes: list[Node] = []

    def conv(name: str, source: str, shape: Shape, c_out: int, spec: tuple[int, int, int]) -> Shape:
        kernel, stride, groups = spec
        out = (c_out, -(-shape[1] // stride), -(-shape[2] // stride))
        linear = name.endswith(".project")
        kind = "conv2d+bn" if linear else f"conv2d+bn+{dims.activation}"
        nodes.append(Node(name, OpSpec(kind, shape, out, kernel, stride, groups), (source,)))
        return out

    image = (task.in_channels, dims.resolution, dims.resolution)
    shape = conv("stem", INPUT, image, dims.stem_width, (dims.stem_kernel, dims.stem_stride, 1))
    for block in dims.blocks:
        source = last = nodes[-1].name
        if block.expands:
            last = f"{block.name}.expand"
            shape = conv(last, source, shape, block.c_mid, (1, 1, 1))
        depthwise = f"{block.name}.depthwise"
        spec = (block.kernel, block.stride, block.c_mid)
        shape = conv(depthwise, last, shape, block.c_mid, spec)
        project = f"{block.name}.project"
        shape = conv(project, depthwise, shape, block.c_out, (1, 1, 1))
        if block.residual:
            nodes.append(Node(f"{block.name}.add", OpSpec("add", shape, shape), (source, project)))
    shape = conv("head", nodes[-1].name, shape, dims.head_width, (1, 1, 1))
    pooled = (dims.head_width, 1, 1)
    nodes.append(Node("pool", OpSpec("mean", shape, pooled), ("head",)))
    logits = OpSpec("linear", pooled, (task.n_classes, 1, 1))
    nodes.append(Node("classifier", logits, ("pool",)))
    return tuple(nodes)


def check(space: SearchSpace) -> None:
    """Refuse a space that does not describe inverted residuals.

    Raises:
        SpaceError: with the name that is missing, unknown or out of range.
    """
    where = f"Space '{space.name}'"
    names, required = {*space.choices, *space.fixed}, _required(space, where)
    for name in sorted(names - required):
        raise SpaceError(f"{where}: {unknown('name', name, required)}")
    for name in sorted(required - {"activation"}):
        _check_numbers(where, name, _numbers(space, name))
    for option in space.options("activation"):
        if option not in _ACTIVATIONS:
            raise SpaceError(f"{where}: {unknown('activation', str(option), _ACTIVATIONS)}")
    for name in space.choices:
        if name in _INELASTIC or name.endswith(".stride"):
            raise SpaceError(f"{where}: '{name}' must be fixed; it is not elastic.")


def _required(space: SearchSpace, where: str) -> set[str]:
    """Return the names that a space must give; refuse one that lacks any of them."""
    stages = range(n_stages(space))
    if not stages:
        raise SpaceError(f"{where} has no stage; it needs stages.0.depth and so on.")
    required = {"resolution", "activation", "head.width"}
    required |= {f"stem.{key}" for key in ("width", "kernel", "stride")}
    required |= {f"stages.{stage}.{key}" for stage in stages for key in _PER_STAGE}
    _refuse_missing(space, where, required)
    for stage in stages:
        deepest = max(_numbers(space, f"stages.{stage}.depth"))
        blocks = [f"stages.{stage}.blocks.{index}" for index in range(deepest)]
        required |= {f"{block}.{key}" for block in blocks for key in _PER_BLOCK}
    _refuse_missing(space, where, required)
    return required


def _refuse_missing(space: SearchSpace, where: str, required: set[str]) -> None:
    for name in sorted(required - {*space.choices, *space.fixed}):
        raise SpaceError(f"{where}: '{name}' is missing; give it under choices or fixed.")


def _numbers(space: SearchSpace, name: str) -> tuple[int, ...]:
    options: tuple[Option, ...] = space.options(name)
    if not all(isinstance(option, int) and option > 0 for option in options):
        raise SpaceError(
            f"Space '{space.name}': '{name}' needs whole numbers above 0, got {list(options)}."
        )
    return tuple(int(option) for option in options)


def _check_numbers(where: str, name: str, options: tuple[int, ...]) -> None:
    if name.endswith(".kernel") and any(option % 2 == 0 for option in options):
        raise SpaceError(f"{where}: '{name}' must be odd, got {list(options)}.")
    if name.endswith(".stride") and not {*options} <= {1, 2}:
        raise SpaceError(f"{where}: '{name}' must be 1 or 2, got {list(options)}.")
