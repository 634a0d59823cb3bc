"""What any space may say of networks of any family: bits, zeros, precision, how they run, exits."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from hwnas.families import exits, packing, precision, running
from hwnas.graph import Graph
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.families.base import Family

#: What decides nothing of a network's weights.
_WEIGHTLESS = (precision.KEY, precision.EDGES, *running.KEYS)


def lower(family: "Family", space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
    """Return the operators of a genotype with all that its space says of them."""
    lowered = packing.annotated(family.lower(space, genotype, signature), space, genotype)
    lowered = precision.annotated(lowered, space, genotype)
    lowered = running.annotated(lowered, space, genotype)
    return exits.annotated(lowered, space, genotype, signature.n_outputs)


def bare(genotype: Genotype) -> Genotype:
    """Return what decides the weights of a network: trained in floats, in batches of their own."""
    said = tuple((n, option) for n, option in genotype.options if n not in _WEIGHTLESS)
    return replace(genotype, options=said)


def bare_space(space: SearchSpace) -> SearchSpace:
    """Return a space whose genotypes are ``bare``: all that the weights of its networks know."""
    return _without(space, _WEIGHTLESS)


def check(space: SearchSpace, family: "Family") -> None:
    """Refuse what a family cannot build, and what makes no sense of its networks.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    known_to = _without(exits.without(space), (*packing.KEYS, *_WEIGHTLESS))
    family.check(known_to)
    packing.check(space, known_to, family)
    precision.check(space)
    running.check(space)
    exits.check(space, family)


def _without(space: SearchSpace, keys: Collection[str]) -> SearchSpace:
    """Return a space that says nothing of some keys."""
    said = {n for n in (*space.choices, *space.fixed) if n.rpartition(".")[2] in keys}
    return replace(
        space,
        choices={n: options for n, options in space.choices.items() if n not in said},
        fixed={n: value for n, value in space.fixed.items() if n not in said},
        when={key: needs for key, needs in space.when.items() if key not in keys},
    )
