"""How an inference runs: how many images it reads, and on how many threads; choices of any space.

``batch`` and ``threads`` are said of the network. They decide latency, throughput and energy, not
how well a network answers. Targets that have ``target.batches=[1,8,32]`` or
``target.thread_counts=[1,2,4]`` add the choice to each space; a space's file may say ``batch``. It
cannot say ``threads``: the process that times networks is given as many cores as its target says.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families import early_exits, weight_compression
from hwnas.models.graph import INPUT, Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.models.families.base import Family

BATCH, THREADS = "batch", "threads"
KEYS = (BATCH, THREADS)
MOST = {BATCH: 65_536, THREADS: 1024}
OF_TARGETS = {BATCH: "batches", THREADS: "thread_counts"}  #: what targets call the choices


def annotate_run_options(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of a genotype with how they run, where the space says it."""
    values = space.values(genotype)
    batch, threads = (int(values.get(key, 0)) for key in KEYS)
    return replace(lowered, batch=batch, threads=threads) if batch or threads else lowered


def run_options(space: SearchSpace, key: str) -> tuple[int, ...]:
    """Return the numbers that a space says; none where the target says it."""
    return tuple(map(int, space.options(key))) if _says(space, key) else ()


def chosen_of(space: SearchSpace, numbers: Mapping[str, Sequence[int]]) -> SearchSpace:
    """Return a space whose networks choose how they run; as it is where there are no numbers.

    Args:
        space: Of the networks.
        numbers: What each chooses from, by key; may be empty.

    Raises:
        SpaceError: it says so itself, or says threads.
    """
    if _says(space, THREADS):
        raise SpaceError(
            f"Space '{space.name}' says '{THREADS}', which targets say: leave it out, and say "
            f"target.{THREADS}=NUMBER or target.{OF_TARGETS[THREADS]}=[NUMBER,NUMBER]."
        )
    given = {key: tuple(numbers[key]) for key in KEYS if numbers.get(key)}
    for key, options in given.items():
        if _says(space, key):
            raise SpaceError(
                f"Space '{space.name}' says '{key}' itself: leave "
                f"target.{OF_TARGETS[key]}={[*options]} out."
            )
    return replace(space, choices={**given, **space.choices}) if given else space


def words(genotype: Genotype) -> str:
    """Return how a network chose to run, as names of latency tables say it: ``2t-b8``."""
    said = genotype.to_dict()
    forms = {THREADS: "{}t", BATCH: "b{}"}
    return "-".join(form.format(said[key]) for key, form in forms.items() if key in said)


def check_run_options(space: SearchSpace) -> None:
    """Refuse numbers that there are not, and numbers of parts of a network.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where = f"Space '{space.name}'"
    for name in (*space.choices, *space.fixed):
        if name not in KEYS and (key := name.rpartition(".")[2]) in KEYS:
            raise SpaceError(f"{where}: '{name}': {key} is said of networks, as '{key}'.")
    for key in KEYS:
        for n in space.options(key) if _says(space, key) else ():
            if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST[key]:
                raise SpaceError(
                    f"{where}: '{key}' is {n}; allowed: whole numbers from 1 to {MOST[key]}."
                )


def _says(space: SearchSpace, key: str) -> bool:
    return key in {*space.choices, *space.fixed}


# In which dtype a network computes: a choice of any space, whatever its family.
#
# ``precision`` is said of the network: ``float32`` or ``int8``. With ``float_edges`` an int8
# network
# keeps in float32 what reads the image, and what stands behind its blocks: pooling and classifier.

KEY, EDGES = "precision", "float_edges"
FLOAT, INT8 = "float32", "int8"


def annotate_precision(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
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


def precision_options(space: SearchSpace) -> tuple[str, ...]:
    """Return the dtypes in which networks of a space compute; none where the target says it."""
    return tuple(map(str, space.options(KEY))) if KEY in names(space) else ()


def in_float(space: SearchSpace, genotype: Genotype) -> Genotype | None:
    """Return the network of a genotype that computes in float32, if another genotype is it."""
    if genotype.to_dict().get(KEY) != INT8 or FLOAT not in space.choices[KEY]:
        return None
    return space.genotype({**genotype.to_dict(), KEY: FLOAT})


def check_precision(space: SearchSpace) -> None:
    """Refuse dtypes that there are not, and edges of a network that is in float32 as a whole.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where, given = f"Space '{space.name}'", {*names(space)}
    for name in (*space.choices, *space.fixed):
        if name.rpartition(".")[2] in (KEY, EDGES) and name not in given:
            raise SpaceError(f"{where}: {unknown_name('name', name, (KEY, EDGES))}")
    for dtype in precision_options(space):
        if dtype not in (FLOAT, INT8):
            raise SpaceError(f"{where}: {unknown_name(KEY, dtype, (FLOAT, INT8))}")
    if EDGES not in given:
        return
    if strange := [option for option in space.options(EDGES) if option not in (0, 1)]:
        raise SpaceError(f"{where}: '{EDGES}' is {strange[0]}; allowed: 0 and 1.")
    if EDGES in space.fixed and INT8 in precision_options(space):
        return  # it makes no second network of one in float32: a genotype holds choices alone
    counts = space.when.get(EDGES, {}).get(KEY, precision_options(space))
    if {*counts} != {INT8}:
        when = f" and when: {{{EDGES}: {{{KEY}: [{INT8}]}}}}" if EDGES in space.choices else ""
        raise SpaceError(
            f"{where}: '{EDGES}' counts in {INT8} alone: say {KEY}: [{FLOAT}, {INT8}]{when}."
        )


# What any space may say of networks of any family: bits, zeros, precision, how they run, exits.

#: What decides nothing of a network's weights.
_WEIGHTLESS = (KEY, EDGES, *KEYS)


def lower(family: "Family", space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
    """Return the operators of a genotype with all that its space says of them."""
    lowered = weight_compression.annotated(
        family.lower(space, genotype, signature), space, genotype
    )
    lowered = annotate_precision(lowered, space, genotype)
    lowered = annotate_run_options(lowered, space, genotype)
    return early_exits.annotated(lowered, space, genotype, signature.n_outputs)


def weight_relevant_genotype(genotype: Genotype) -> Genotype:
    """Return what decides the weights of a network: trained in floats, in batches of their own."""
    said = tuple((n, option) for n, option in genotype.options if n not in _WEIGHTLESS)
    return replace(genotype, options=said)


def weight_relevant_space(space: SearchSpace) -> SearchSpace:
    """Return a space of the choices that change the weights of a network."""
    return _without(space, _WEIGHTLESS)


def check_annotations(space: SearchSpace, family: "Family") -> None:
    """Refuse what a family cannot build, and what makes no sense of its networks.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    known_to = _without(early_exits.without(space), (*weight_compression.KEYS, *_WEIGHTLESS))
    family.check(known_to)
    weight_compression.check_weight_options(space, known_to, family)
    check_precision(space)
    check_run_options(space)
    early_exits.check_exits(space, family)


def _without(space: SearchSpace, keys: Collection[str]) -> SearchSpace:
    """Return a space that says nothing of some keys."""
    said = {n for n in (*space.choices, *space.fixed) if n.rpartition(".")[2] in keys}
    return replace(
        space,
        choices={n: options for n, options in space.choices.items() if n not in said},
        fixed={n: value for n, value in space.fixed.items() if n not in said},
        when={key: needs for key, needs in space.when.items() if key not in keys},
    )
