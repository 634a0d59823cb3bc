"""In which dtype a network computes: a choice of any space, whatever its family.

``precision`` is said of the network: ``float32`` or ``int8``. With ``float_edges`` an int8 network
keeps in float32 what reads the image, and what stands behind its blocks: pooling and classifier.
"""

from dataclasses import replace

from hwnas.errors import SpaceError, unknown
from hwnas.graph import INPUT, Graph
from hwnas.space import Genotype, SearchSpace

KEY, EDGES = "precision", "float_edges"
FLOAT, INT8 = "float32", "int8"


def annotated(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of a genotype with the dtype of the network, where the space says it."""
    values = space.values(genotype)
    if KEY not in values:
        return lowered
    dtype = str(values[KEY])
    if dtype != INT8 or not values.get(EDGES, 0):
        return replace(lowered, dtype=dtype)
    kept = edges(lowered)
    nodes = (replace(node, in_float=node.name in kept) for node in lowered)
    return replace(lowered, dtype=dtype, nodes=tuple(nodes))


def edges(lowered: Graph) -> frozenset[str]:
    """Return the operators that read the image, and those from the last mean on."""
    steps = {node.name: step for step, node in enumerate(lowered)}
    means = [steps[node.name] for node in lowered if node.op.base == "mean"]
    first = max(means, default=steps[lowered.outputs[0]])
    return frozenset(n.name for n in lowered if INPUT in n.inputs or steps[n.name] >= first)


def names(space: SearchSpace) -> list[str]:
    """Return what a space says of precision, choices and fixed values."""
    return [name for name in (KEY, EDGES) if name in {*space.choices, *space.fixed}]


def chosen(space: SearchSpace) -> tuple[str, ...]:
    """Return the dtypes in which networks of a space compute; none where the target says it."""
    return tuple(map(str, space.options(KEY))) if KEY in names(space) else ()


def in_float(space: SearchSpace, genotype: Genotype) -> Genotype | None:
    """Return the network of a genotype that computes in float32, if another genotype is it."""
    if genotype.to_dict().get(KEY) != INT8 or FLOAT not in space.choices[KEY]:
        return None
    return space.genotype({**genotype.to_dict(), KEY: FLOAT})


def check(space: SearchSpace) -> None:
    """Refuse dtypes that there are not, and edges of a network that is in float32 as a whole.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where, given = f"Space '{space.name}'", {*names(space)}
    for name in (*space.choices, *space.fixed):
        if name.rpartition(".")[2] in (KEY, EDGES) and name not in given:
            raise SpaceError(f"{where}: {unknown('name', name, (KEY, EDGES))}")
    for dtype in chosen(space):
        if dtype not in (FLOAT, INT8):
            raise SpaceError(f"{where}: {unknown(KEY, dtype, (FLOAT, INT8))}")
    if EDGES not in given:
        return
    if strange := [option for option in space.options(EDGES) if option not in (0, 1)]:
        raise SpaceError(f"{where}: '{EDGES}' is {strange[0]}; allowed: 0 and 1.")
    if EDGES in space.fixed and INT8 in chosen(space):
        return  # it makes no second network of one in float32: a genotype holds choices alone
    counts = space.when.get(EDGES, {}).get(KEY, chosen(space))
    if {*counts} != {INT8}:
        when = f" and when: {{{EDGES}: {{{KEY}: [{INT8}]}}}}" if EDGES in space.choices else ""
        raise SpaceError(
            f"{where}: '{EDGES}' counts in {INT8} alone: say {KEY}: [{FLOAT}, {INT8}]{when}."
        )
