"""Weights that compilers pack: of fewer than eight bits, or half of them zero; in any space.

``weight_bits`` and ``weight_sparsity`` are said of the network, a stage, a block or a layer outside
of stages (``stem``, ``classifier``); what stands closest counts. Depthwise layers stay as they are:
they have few weights. So does what reads fewer than four channels, of two in four.
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
_GROUP = 4  # of channels that are read, of which two in four count
_ANY = Signature(3, 2)


@dataclass(frozen=True)
class _WeightOption:
    """What may be said of weights."""

    allowed: tuple[Option, ...]
    words: str  #: what is allowed
    reads: Callable[[Node], bool]  #: whether it is of any concern to an operator
    put: Callable[[Node, Option], Node]


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


def annotated(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of a genotype, each with what its weights are like."""
    if not names(space):
        return lowered
    values = space.values(genotype)

    def said(node: Node) -> Node:
        for key, known in KEYS.items():
            name = closest(values, _place(node.name), key)
            if name is not None and known.reads(node):
                node = known.put(node, values[name])
        return node

    return replace(lowered, nodes=tuple(said(node) for node in lowered))


def names(space: SearchSpace, *keys: str) -> list[str]:
    """Return what a space says of weights, choices and fixed values.

    Args:
        space: The space.
        keys: Which are meant; none: all.
    """
    of = keys or tuple(KEYS)
    return [n for n in (*space.choices, *space.fixed) if n.rpartition(".")[2] in of]


def check_weight_options(space: SearchSpace, known_to: SearchSpace, family: "Family") -> None:
    """Refuse what no weights can be, or what nothing reads.

    Args:
        space: What is checked.
        known_to: The same as its family accepts it, without what this says.
        family: Its family.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where = f"Space '{space.name}'"
    ends = (known_to.smallest(), known_to.largest())
    nodes = [node for end in ends for node in family.lower(known_to, end, _ANY)]
    there = {_place(node.name) for node in nodes}  # a family may name its operators otherwise
    stages = {place.partition(".blocks.")[0] for place in there if ".blocks." in place}
    for key, known in KEYS.items():
        given = {*names(space, key)}
        for name in sorted(given):
            if strange := [o for o in space.options(name) if o not in known.allowed]:
                raise SpaceError(f"{where}: '{name}' is {strange[0]}; allowed: {known.words}.")
        reading = {_place(node.name) for node in nodes if known.reads(node)}
        places = reading | (there & {*blocks(known_to)})
        readers = [key, *(f"{place}.{key}" for place in sorted(places | stages))]
        for name in sorted(given - {*readers}):
            raise SpaceError(f"{where}: {unknown_name('name', name, readers)}")
        for name in sorted(given - {closest(given, place, key) for place in places}):
            raise SpaceError(f"{where}: nothing reads '{name}': what stands closer counts.")


def _place(node: str) -> str:
    """Return the place in a space of what a node's name is a part of."""
    match = BLOCK.fullmatch(node)
    return f"{match['stage']}.blocks.{match['index']}" if match else node.partition(".")[0]
