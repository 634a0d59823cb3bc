"""Vision transformers: dimensions and graph of a genotype.

Tokens are pixels of an image ``(C, H, W)`` at the positions of their patches. Positions are encoded
by a depthwise convolution, so that the resolution can be elastic. The classifier reads the mean of
all tokens.

Source: Chen et al., "AutoFormer", ICCV 2021, https://arxiv.org/abs/2107.00651; Chu et al.,
"Conditional Positional Encodings for Vision Transformers", https://arxiv.org/abs/2102.10882.
"""

from dataclasses import dataclass

from hwnas.core.errors import SpaceError
from hwnas.models.families import common_checks
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape, Signature
from hwnas.models.spaces import Genotype, SearchSpace

POSITION_KERNEL = 3  #: of the convolution for positions

_DEPTH = "stages.0.depth"
_ACTIVATIONS = ("gelu", "relu", "hardswish")
_INELASTIC = ("patch", "head_width", "activation")
_NAMES = common_checks.ReadNames(
    network=("resolution", "embedding", *_INELASTIC), stage=(), block=("heads", "mlp_ratio")
)


@dataclass(frozen=True)
class EncoderBlock:
    """Dimensions of a block of attention and a perceptron."""

    name: str  #: ``stages.0.blocks.<index>``
    index: int  #: in the network
    heads: int  #: number of attention heads
    head_width: int  #: channels of a head
    hidden: int  #: channels of the perceptron's hidden layer

    @property
    def inner(self) -> int:
        """Channels of queries, keys and values each."""
        return self.heads * self.head_width


@dataclass(frozen=True)
class ViTDimensions:
    """Dimensions of a network."""

    resolution: int  #: height and width of the input images
    patch: int  #: height and width of a patch in pixels
    embedding: int  #: channels of a token
    blocks: tuple[EncoderBlock, ...]
    activation: str


def dimensions(
    space: SearchSpace, genotype: Genotype, signature: Signature | None = None
) -> ViTDimensions:
    """Return the dimensions of a network of a checked space; ``signature`` is not used."""
    values = space.values(genotype)

    def number(name: str) -> int:
        return int(values[name])

    embedding = number("embedding")
    blocks = []
    for index in range(number(_DEPTH)):
        name = f"stages.0.blocks.{index}"
        blocks.append(
            EncoderBlock(
                name=name,
                index=index,
                heads=int(common_checks.closest_value(values, name, "heads")),
                head_width=number("head_width"),
                hidden=round(
                    embedding * float(common_checks.closest_value(values, name, "mlp_ratio"))
                ),
            )
        )
    return ViTDimensions(
        resolution=number("resolution"),
        patch=number("patch"),
        embedding=embedding,
        blocks=tuple(blocks),
        activation=str(values["activation"]),
    )


def lower(dims: ViTDimensions, signature: Signature) -> Graph:
    """Return the graph of a network."""
    c, side = dims.embedding, dims.resolution // dims.patch
    tokens = (c, side, side)
    image = (signature.in_channels, dims.resolution, dims.resolution)
    patches = OpSpec("conv2d+bn", image, tokens, kernel=dims.patch, stride=dims.patch)
    position = OpSpec("conv2d+bn", tokens, tokens, kernel=POSITION_KERNEL, groups=c)
    nodes = [
        Node("patches", patches, (INPUT,)),
        Node("position", position, ("patches",)),
        Node("tokens", OpSpec("add", tokens, tokens), ("patches", "position")),
    ]
    for block in dims.blocks:
        nodes += _block(block, tokens, nodes[-1].name, dims.activation)
    nodes.append(Node("norm", OpSpec("layernorm", tokens, tokens), (nodes[-1].name,)))
    pooled = (c, 1, 1)
    nodes.append(Node("pool", OpSpec("mean", tokens, pooled), ("norm",)))
    logits = OpSpec("linear", pooled, (signature.n_outputs, 1, 1))
    nodes.append(Node("classifier", logits, ("pool",)))
    return Graph.of(nodes)


def _block(block: EncoderBlock, tokens: Shape, source: str, activation: str) -> list[Node]:
    """Return the operators of a block with the input ``source``."""
    _, h, w = tokens
    inner, hidden = (block.inner, h, w), (block.hidden, h, w)
    qkv = (3 * block.inner, h, w)
    nodes: list[Node] = []

    def append(name: str, op: OpSpec, *inputs: str) -> str:
        nodes.append(Node(f"{block.name}.{name}", op, inputs))
        return nodes[-1].name

    last = append("norm1", OpSpec("layernorm", tokens, tokens), source)
    last = append("qkv", OpSpec("linear", tokens, qkv), last)
    last = append("attention", OpSpec("attention", qkv, inner, groups=block.heads), last)
    last = append("project", OpSpec("linear", inner, tokens), last)
    middle = append("add1", OpSpec("add", tokens, tokens), source, last)
    last = append("norm2", OpSpec("layernorm", tokens, tokens), middle)
    last = append("expand", OpSpec(f"linear+{activation}", tokens, hidden), last)
    last = append("reduce", OpSpec("linear", hidden, tokens), last)
    append("add2", OpSpec("add", tokens, tokens), middle, last)
    return nodes


def check_vit_space(space: SearchSpace) -> None:
    """Check a space of vision transformers.

    Raises:
        SpaceError: if a name is missing or unknown, or an option is not allowed.
    """
    if common_checks.n_stages(space) > 1:
        raise SpaceError(
            f"Space '{space.name}' has {common_checks.n_stages(space)} stages; family 'vit' has "
            "one. Move all blocks to stages.0."
        )
    common_checks.check_names(space, _NAMES)
    common_checks.check_fixed(space, _INELASTIC)
    common_checks.check_one_of(space, "activation", _ACTIVATIONS)
    names = sorted({*space.names} - {"activation"})
    for name in names:
        if name.endswith("mlp_ratio"):
            common_checks.check_positive(space, name)
            _check_ratios(space, name)
        else:
            common_checks.whole_numbers(space, name)
    patch = int(space.fixed["patch"])
    if odd := [option for option in space.options("resolution") if int(option) % patch]:
        raise SpaceError(
            f"Space '{space.name}': 'resolution' must be a multiple of 'patch' {patch}, got {odd}."
        )


def _check_ratios(space: SearchSpace, name: str) -> None:
    """Check that ratios result in whole numbers of channels with every embedding."""
    for ratio in space.options(name):
        for embedding in common_checks.whole_numbers(space, "embedding"):
            hidden = embedding * float(ratio)
            if abs(hidden - round(hidden)) > 1e-6:
                raise SpaceError(
                    f"Space '{space.name}': '{name}' {ratio} times 'embedding' {embedding} is "
                    f"{hidden:g}; it must be a whole number of channels. Change one of them."
                )
