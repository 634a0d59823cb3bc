"""Early exits: a choice of any space whose stages end in one tensor, whatever its family.

``exits.<i>.active`` says whether there is one, ``exits.<i>.at`` behind which stage: a mean over
height and width, and a linear layer. Their weights have eight bits.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families.common_checks import check_one_of, n_stages, whole_numbers
from hwnas.models.graph import Graph, Node, OpSpec, Signature
from hwnas.models.partition import crossings
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.models.families.base import Family

PREFIX = "exits."
_KEYS = ("active", "at")
_ANY = Signature(3, 2)


def names(space: SearchSpace) -> list[str]:
    """Return what a space says of exits, choices and fixed values."""
    return [name for name in (*space.choices, *space.fixed) if name.startswith(PREFIX)]


def without(space: SearchSpace) -> SearchSpace:
    """Return a space as its family knows it."""
    said = {*names(space)}
    return replace(
        space,
        choices={n: options for n, options in space.choices.items() if n not in said},
        fixed={n: value for n, value in space.fixed.items() if n not in said},
        when={key: needs for key, needs in space.when.items() if key not in _KEYS},
    )


def annotated(lowered: Graph, space: SearchSpace, genotype: Genotype, n_outputs: int) -> Graph:
    """Return the operators of a genotype with its exits."""
    values = space.values(genotype)
    active = [i for i in range(_n_exits(space)) if values[f"{PREFIX}{i}.active"]]
    nodes, outputs = list(lowered), list[str]()
    for i in active:
        place = _end(nodes, int(values[f"{PREFIX}{i}.at"]))
        head = _head(f"{PREFIX}{i}", nodes[place], n_outputs)
        nodes[place + 1 : place + 1] = head
        outputs.append(head[-1].name)
    return replace(lowered, nodes=tuple(nodes), outputs=(*outputs, *lowered.outputs))


def _head(name: str, last: Node, n_outputs: int) -> list[Node]:
    shape, answered = last.op.out_shape, (n_outputs, 1, 1)
    pooled = (shape[0], 1, 1)
    return [
        Node(f"{name}.pool", OpSpec("mean", shape, pooled), (last.name,)),
        Node(f"{name}.classifier", OpSpec("linear", pooled, answered), (f"{name}.pool",)),
    ]


def _end(nodes: list[Node], stage: int) -> int:
    """Return the place of the last operator of a stage."""
    return max(i for i, node in enumerate(nodes) if node.name.startswith(f"stages.{stage}."))


def _n_exits(space: SearchSpace) -> int:
    return len({name.split(".")[1] for name in names(space)})


def check_exits(space: SearchSpace, family: "Family") -> None:
    """Refuse exits that are nowhere, out of order, or say nothing.

    Args:
        space: That its family accepts, but for these.
        family: Its family.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where, given = f"Space '{space.name}'", names(space)
    known = [f"{PREFIX}{i}.{key}" for i in range(_n_exits(space)) for key in _KEYS]
    for name in sorted({*given} - {*known}):
        raise SpaceError(f"{where}: {unknown_name('name', name, known)}")
    for name in known:
        if name not in given:
            raise SpaceError(f"{where}: '{name}' is missing; give it under choices or fixed.")
    if _n_exits(space):
        _check_values(space)
        _check_places(space, family)


def check_none(space: SearchSpace) -> None:
    """Refuse a space with exits where a supernet would be made of it.

    Raises:
        SpaceError: it has some.
    """
    if names(space):
        raise SpaceError(
            f"Space '{space.name}' has exits, which supernets do not have: train one network from "
            "scratch (train genotype=largest), or search with accuracy=trained."
        )


def _check_values(space: SearchSpace) -> None:
    where, last = f"Space '{space.name}'", n_stages(space) - 1
    behind = -1
    for i in range(_n_exits(space)):
        active, at = (f"{PREFIX}{i}.{key}" for key in _KEYS)
        check_one_of(space, active, (0, 1))
        stages = whole_numbers(space, at, least=0)
        if not behind < min(stages) <= max(stages) < last:
            raise SpaceError(
                f"{where}: '{at}' is {', '.join(map(str, stages))}; allowed: stages from "
                f"{behind + 1} to {last - 1}, in the order of the exits, the last stage left out."
            )
        behind = max(stages)
        if at in space.choices and 0 in space.options(active) and at not in space.optional():
            raise SpaceError(
                f"{where}: '{at}' has no effect where '{active}' is 0; say "
                "when: {at: {active: [1]}}."
            )


def _check_places(space: SearchSpace, family: "Family") -> None:
    """Refuse exits behind stages that no operator is of, or whose networks cannot be cut there."""
    for genotype in (space.smallest(), space.largest()):
        nodes = list(family.lower(space, genotype, _ANY))
        for stage in range(n_stages(space) - 1):
            if not any(node.name.startswith(f"stages.{stage}.") for node in nodes):
                raise SpaceError(
                    f"Space '{space.name}' has exits, but family '{space.family}' has no operator "
                    f"whose name begins with 'stages.{stage}.': an exit stands behind the last."
                )
            end = _end(nodes, stage) + 1
            if len(found := crossings(nodes[:end], nodes[end:])) != 1:
                raise SpaceError(
                    f"Space '{space.name}' has exits, but family '{space.family}' reads "
                    f"{' and '.join(found)} behind stage {stage}: it must be one tensor."
                )
