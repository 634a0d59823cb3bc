"""Early exits: a choice of spaces of any family whose stages end in one tensor.

``exits.<i>.active`` is 1 if there is an exit, and ``exits.<i>.at`` the stage before it. An exit is
global pooling and a linear layer, with 8-bit weights.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families.common_checks import check_one_of, n_stages, whole_numbers
from hwnas.models.graph import Graph, Node, OpSpec, Signature, boundary_tensors
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.models.families.base import Family

PREFIX = "exits."
_KEYS = ("active", "at")
_ANY = Signature(3, 2)


def exit_names(space: SearchSpace) -> list[str]:
    """Return the names of a space that define exits: those that begin with ``exits.``."""
    return [name for name in space.names if name.startswith(PREFIX)]


def without_exit_choices(space: SearchSpace) -> SearchSpace:
    """Return a space without the choices of exits, as its family expects it."""
    return space.without(lambda name: name.startswith(PREFIX), _KEYS)


def with_exits(graph: Graph, space: SearchSpace, genotype: Genotype, n_outputs: int) -> Graph:
    """Return the graph of a genotype with pooling and classifier of each active exit.

    ``n_outputs`` is the number of outputs of each classifier.
    """
    values = space.values(genotype)
    active = [i for i in range(_n_exits(space)) if values[f"{PREFIX}{i}.active"]]
    nodes, outputs = list(graph), list[str]()
    for i in active:
        index = _last_of_stage(nodes, int(values[f"{PREFIX}{i}.at"]))
        head = _head(f"{PREFIX}{i}", nodes[index], n_outputs)
        nodes[index + 1 : index + 1] = head
        outputs.append(head[-1].name)
    return replace(graph, nodes=tuple(nodes), outputs=(*outputs, *graph.outputs))


def _head(name: str, last: Node, n_outputs: int) -> list[Node]:
    shape, pooled = last.op.out_shape, (last.op.out_shape[0], 1, 1)
    return [
        Node(f"{name}.pool", OpSpec("mean", shape, pooled), (last.name,)),
        Node(f"{name}.classifier", OpSpec("linear", pooled, (n_outputs, 1, 1)), (f"{name}.pool",)),
    ]


def _last_of_stage(nodes: list[Node], stage: int) -> int:
    """Return the index of the last operator of a stage."""
    return max(i for i, node in enumerate(nodes) if node.name.startswith(f"stages.{stage}."))


def _n_exits(space: SearchSpace) -> int:
    return len({name.split(".")[1] for name in exit_names(space)})


def check_exits(space: SearchSpace, family: "Family") -> None:
    """Check that exits are complete, in order and at valid stages.

    Args:
        space: A space that its family accepts without exits.
        family: The family.

    Raises:
        SpaceError: if a name is missing or unknown, stages are out of range or order, or the
            family has no single tensor after a stage.
    """
    subject, given = f"Space '{space.name}'", exit_names(space)
    known = [f"{PREFIX}{i}.{key}" for i in range(_n_exits(space)) for key in _KEYS]
    for name in sorted({*given} - {*known}):
        raise SpaceError(f"{subject}: {unknown_name('name', name, known)}")
    for name in known:
        if name not in given:
            raise SpaceError(f"{subject}: '{name}' is missing; add it to choices or fixed.")
    if _n_exits(space):
        _check_values(space)
        _check_boundaries(space, family)


def check_no_exits(space: SearchSpace) -> None:
    """Check that a space for a supernet has no exits.

    Raises:
        SpaceError: if it has exits.
    """
    if exit_names(space):
        raise SpaceError(
            f"Space '{space.name}' has exits, which supernets do not have: train one network from "
            "scratch (train genotype=largest), or search with accuracy=trained."
        )


def _check_values(space: SearchSpace) -> None:
    subject, last = f"Space '{space.name}'", n_stages(space) - 1
    previous_stage = -1
    for i in range(_n_exits(space)):
        active, position = (f"{PREFIX}{i}.{key}" for key in _KEYS)
        check_one_of(space, active, (0, 1))
        stages = whole_numbers(space, position, minimum=0)
        if not previous_stage < min(stages) <= max(stages) < last:
            between = "after the stages of earlier exits and before the last stage."
            allowed = (
                f"allowed: stages from {previous_stage + 1} to {last - 1}, that is, {between}"
                if previous_stage + 1 < last
                else f"no stage is left {between} Remove '{active}' and '{position}'."
            )
            raise SpaceError(f"{subject}: '{position}' is {', '.join(map(str, stages))}; {allowed}")
        previous_stage = max(stages)
        if (
            position in space.choices
            and 0 in space.options(active)
            and position not in space.optional()
        ):
            raise SpaceError(
                f"{subject}: '{position}' has no effect if '{active}' is 0; add "
                "when: {at: {active: [1]}} to the space."
            )


def _check_boundaries(space: SearchSpace, family: "Family") -> None:
    """Check that every stage has operators and ends in one tensor."""
    for genotype in (space.smallest(), space.largest()):
        nodes = list(family.lower(space, genotype, _ANY))
        for stage in range(n_stages(space) - 1):
            if not any(node.name.startswith(f"stages.{stage}.") for node in nodes):
                raise SpaceError(
                    f"Space '{space.name}' has exits, but family '{space.family}' has no operator "
                    f"whose name begins with 'stages.{stage}.', after which an exit could be. "
                    "Remove the exits from the space."
                )
            end = _last_of_stage(nodes, stage) + 1
            if len(tensors := boundary_tensors(nodes[:end], nodes[end:])) != 1:
                raise SpaceError(
                    f"Space '{space.name}' has exits, but networks of family '{space.family}' read "
                    f"several tensors ({' and '.join(tensors)}) after stage {stage}; exits need a "
                    "single one. Remove the exits from the space."
                )
