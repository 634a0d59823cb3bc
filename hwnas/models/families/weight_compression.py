"""Weights that compilers compress: fewer than 8 bits or 2:4 sparsity, in spaces of any family.

``weight_bits`` and ``weight_sparsity`` apply to the network, a stage, a block or a layer outside of
stages (``stem``, ``classifier``); the closest one counts. Depthwise layers, which have few weights,
stay unchanged. Layers with fewer than four input channels are not sparse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families.common_checks import blocks
from hwnas.models.graph import NATIVE_BITS, Graph, Node, Signature
from hwnas.models.spaces import Genotype, Option, SearchSpace, closest
from hwnas.models.spaces.space import BLOCK

if TYPE_CHECKING:
    from hwnas.models.families.base import Family

BITS, SPARSITY = "weight_bits", "weight_sparsity"
DENSE, TWO_OF_FOUR = "dense", "2:4"
_GROUP = 4  # input channels, of which two have weights
_ANY = Signature(3, 2)


@dataclass(frozen=True)
class _WeightOption:
    """An option of weights."""

    allowed: tuple[Option, ...]
    description: str  #: of the allowed values
    applies: Callable[[Node], bool]  #: whether the option has an effect on an operator
    apply: Callable[[Node, Option], Node]


def _is_wide(node: Node) -> bool:
    return bool(node.op.weight_shape) and not node.op.depthwise


def _has_fours(node: Node) -> bool:
    return _is_wide(node) and node.op.weight_shape[1] >= _GROUP


KEYS: Mapping[str, _WeightOption] = {
    BITS: _WeightOption(
        tuple(range(3, NATIVE_BITS + 1)),
        f"whole numbers from 3 to {NATIVE_BITS}",
        _is_wide,
        lambda node, bits: replace(node, weight_bits=int(bits)),
    ),
    SPARSITY: _WeightOption(
        (DENSE, TWO_OF_FOUR),
        f"{DENSE} and '{TWO_OF_FOUR}' in quotes, without which YAML reads a number",
        _has_fours,
        lambda node, kind: replace(node, is_sparse=kind == TWO_OF_FOUR),
    ),
}


def with_weight_options(graph: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the graph of a genotype with the options of its weights."""
    if not weight_option_names(space):
        return graph
    values = space.values(genotype)

    def with_options(node: Node) -> Node:
        for key, known in KEYS.items():
            name = closest(values, _place(node.name), key)
            if name is not None and known.applies(node):
                node = known.apply(node, values[name])
        return node

    return replace(graph, nodes=tuple(map(with_options, graph)))


def weight_option_names(space: SearchSpace, *keys: str) -> list[str]:
    """Return the names of a space that define options of weights, of some or of all keys."""
    return [n for n in space.names if n.rpartition(".")[2] in (keys or KEYS)]


def check_weight_options(space: SearchSpace, plain: SearchSpace, family: "Family") -> None:
    """Check that options of weights have allowed values and an effect.

    Args:
        space: The space.
        plain: The same space without annotations, as its family expects it.
        family: The family.

    Raises:
        SpaceError: if an option is invalid.
    """
    where = f"Space '{space.name}'"
    ends = (plain.smallest(), plain.largest())
    nodes = [node for end in ends for node in family.lower(plain, end, _ANY)]
    present = {_place(node.name) for node in nodes}  # families may use other names
    stages = {place.partition(".blocks.")[0] for place in present if ".blocks." in place}
    for key, known in KEYS.items():
        given = {*weight_option_names(space, key)}
        for name in sorted(given):
            if strange := [o for o in space.options(name) if o not in known.allowed]:
                raise SpaceError(
                    f"{where}: '{name}' is {strange[0]}; allowed: {known.description}."
                )
        reading = {_place(node.name) for node in nodes if known.applies(node)}
        places = reading | (present & {*blocks(plain)})
        readers = [key, *(f"{place}.{key}" for place in sorted(places | stages))]
        for name in sorted(given - {*readers}):
            raise SpaceError(f"{where}: {unknown_name('name', name, readers)}")
        for name in sorted(given - {closest(given, place, key) for place in places}):
            raise SpaceError(f"{where}: '{name}' has no effect: closer options override it.")


def _place(node: str) -> str:
    """Return the block, or the layer outside of stages, of a node."""
    match = BLOCK.fullmatch(node)
    return f"{match['stage']}.blocks.{match['index']}" if match else node.partition(".")[0]
