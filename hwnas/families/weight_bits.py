"""Weights of fewer than eight bits: a choice of any space, whatever its family.

``weight_bits`` is said of the network, a stage, a block or a layer outside of stages (``stem``,
``classifier``); what stands closest counts. Depthwise layers stay at eight bits: they have few
weights.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hwnas.errors import SpaceError, unknown
from hwnas.families.checks import blocks, n_stages
from hwnas.graph import NATIVE_BITS, Graph, Node
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace, closest
from hwnas.space.base import BLOCK

if TYPE_CHECKING:
    from hwnas.families.base import Family

KEY = "weight_bits"
ALLOWED = range(3, NATIVE_BITS + 1)
_ANY = Signature(3, 2)


def annotated(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of a genotype, each with the bits of its weights."""
    if not names(space):
        return lowered
    values = space.values(genotype)

    def bits(node: Node) -> int:
        name = closest(values, _place(node.name), KEY)
        return NATIVE_BITS if name is None or not _reads(node) else int(values[name])

    nodes = (replace(node, weight_bits=bits(node)) for node in lowered)
    return replace(lowered, nodes=tuple(nodes))


def names(space: SearchSpace) -> list[str]:
    """Return what a space says of bits, choices and fixed values."""
    return [n for n in (*space.choices, *space.fixed) if n.rpartition(".")[2] == KEY]


def check(space: SearchSpace, known_to: SearchSpace, family: "Family") -> None:
    """Refuse bits that no weights have, or that nothing reads.

    Args:
        space: What is checked.
        known_to: The same as its family accepts it, without bits.
        family: Its family.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where = f"Space '{space.name}'"
    for name in names(space):
        if strange := [bits for bits in space.options(name) if bits not in ALLOWED]:
            raise SpaceError(
                f"{where}: '{name}' is {strange[0]}; allowed: whole numbers from {ALLOWED[0]} to "
                f"{ALLOWED[-1]}."
            )
    ends = (known_to.smallest(), known_to.largest())
    nodes = [node for end in ends for node in family.lower(known_to, end, _ANY) if _reads(node)]
    places = {*blocks(known_to), *(_place(node.name) for node in nodes)}
    stages = {f"stages.{i}" for i in range(n_stages(known_to))}
    given = {*names(space)}
    for name in sorted(given - {KEY, *(f"{place}.{KEY}" for place in places | stages)}):
        known = [KEY, *(f"{place}.{KEY}" for place in sorted(places | stages))]
        raise SpaceError(f"{where}: {unknown('name', name, known)}")
    for name in sorted(given - {closest(given, place, KEY) for place in places}):
        raise SpaceError(f"{where}: nothing reads '{name}': what stands closer counts.")


def _reads(node: Node) -> bool:
    return bool(node.op.weight_shape) and not node.op.depthwise


def _place(node: str) -> str:
    """Return the place in a space of what a node's name is a part of."""
    match = BLOCK.fullmatch(node)
    return f"{match['stage']}.blocks.{match['index']}" if match else node.partition(".")[0]
