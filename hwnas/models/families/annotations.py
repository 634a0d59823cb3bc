"""Choices of spaces of any family: batch size, threads and precision; lowering with all of them.

``batch`` and ``threads`` affect latency, throughput and energy, not accuracy. Targets with
``target.batches=[1,8,32]`` or ``target.thread_counts=[1,2,4]`` add the choice to each space. A
space may define ``batch``, but not ``threads``, as the timing process gets the target's cores.

``precision`` is ``float32`` or ``int8``. With ``float_edges``, an int8 network computes in float32
the operators that read the image, and those from the last pooling on.
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
MAX_VALUES = {BATCH: 65_536, THREADS: 1024}
OF_TARGETS = {BATCH: "batches", THREADS: "thread_counts"}  #: names of the choices in targets
KEY, EDGES = "precision", "float_edges"
FLOAT, INT8 = "float32", "int8"
#: Choices that do not affect the weights of a network.
_WEIGHTLESS = (KEY, EDGES, *KEYS)


def annotate_run_options(graph: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the graph of a genotype with its batch size and threads, if the space has them."""
    values = space.values(genotype)
    batch, threads = (int(values.get(key, 0)) for key in KEYS)
    return replace(graph, batch=batch, threads=threads) if batch or threads else graph


def run_options(space: SearchSpace, key: str) -> tuple[int, ...]:
    """Return the options of ``batch`` or ``threads``; empty if the space does not define it."""
    return tuple(map(int, space.options(key))) if _defines(space, key) else ()


def with_run_choices(space: SearchSpace, numbers: Mapping[str, Sequence[int]]) -> SearchSpace:
    """Return a space with choices of batch size and threads.

    Args:
        space: The space.
        numbers: Options by key; may be empty.

    Raises:
        SpaceError: if the space defines such a choice itself, or threads.
    """
    if _defines(space, THREADS):
        raise SpaceError(
            f"Space '{space.name}' defines '{THREADS}', an option of targets: remove it, and set "
            f"target.{THREADS}=NUMBER or target.{OF_TARGETS[THREADS]}=[NUMBER,NUMBER]."
        )
    given = {key: tuple(numbers[key]) for key in KEYS if numbers.get(key)}
    for key, options in given.items():
        if _defines(space, key):
            raise SpaceError(
                f"Space '{space.name}' defines '{key}': remove "
                f"target.{OF_TARGETS[key]}={[*options]}."
            )
    return replace(space, choices={**given, **space.choices}) if given else space


def run_label(genotype: Genotype) -> str:
    """Return threads and batch size as in names of latency tables: ``2t-b8``."""
    options = genotype.to_dict()
    forms = {THREADS: "{}t", BATCH: "b{}"}
    return "-".join(form.format(options[key]) for key, form in forms.items() if key in options)


def check_run_options(space: SearchSpace) -> None:
    """Check batch sizes and threads, which are options of networks, not of their parts.

    Raises:
        SpaceError: if one is invalid.
    """
    where = f"Space '{space.name}'"
    for name in space.names:
        if name not in KEYS and (key := name.rpartition(".")[2]) in KEYS:
            raise SpaceError(f"{where}: '{name}': {key} is an option of networks: name it '{key}'.")
    for key in KEYS:
        for n in space.options(key) if _defines(space, key) else ():
            if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_VALUES[key]:
                raise SpaceError(
                    f"{where}: '{key}' is {n}; allowed: whole numbers from 1 to {MAX_VALUES[key]}."
                )


def _defines(space: SearchSpace, key: str) -> bool:
    return key in space.names


def annotate_precision(graph: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the graph of a genotype with its precision, if the space has one."""
    values = space.values(genotype)
    if KEY not in values:
        return graph
    dtype = str(values[KEY])
    if dtype != INT8 or not values.get(EDGES, 0):
        return replace(graph, dtype=dtype)
    in_float = float_edges(graph)
    nodes = (replace(node, in_float=node.name in in_float) for node in graph)
    return replace(graph, dtype=dtype, nodes=tuple(nodes))


def float_edges(graph: Graph) -> frozenset[str]:
    """Return the operators that read the image, and those from the last pooling on."""
    steps = {node.name: step for step, node in enumerate(graph)}
    means = [steps[node.name] for node in graph if node.op.base == "mean"]
    first = max(means, default=steps[graph.outputs[0]])
    return frozenset(n.name for n in graph if INPUT in n.inputs or steps[n.name] >= first)


def precision_names(space: SearchSpace) -> list[str]:
    """Return the names of a space that define the precision."""
    return [name for name in (KEY, EDGES) if name in space.names]


def precision_options(space: SearchSpace) -> tuple[str, ...]:
    """Return the precisions of networks of a space; empty if the space does not define it."""
    return tuple(map(str, space.options(KEY))) if KEY in precision_names(space) else ()


def float_genotype(space: SearchSpace, genotype: Genotype) -> Genotype | None:
    """Return the genotype of the same network in float32, if the space has it."""
    if genotype.to_dict().get(KEY) != INT8 or FLOAT not in space.choices[KEY]:
        return None
    return space.genotype({**genotype.to_dict(), KEY: FLOAT})


def check_precision(space: SearchSpace) -> None:
    """Check precisions, and that ``float_edges`` is active for int8 only.

    Raises:
        SpaceError: if an option is invalid.
    """
    where, given = f"Space '{space.name}'", {*precision_names(space)}
    for name in space.names:
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
        return  # fixed values cause no second genotype of a float32 network
    active = space.when.get(EDGES, {}).get(KEY, precision_options(space))
    if {*active} != {INT8}:
        when = f" and when: {{{EDGES}: {{{KEY}: [{INT8}]}}}}" if EDGES in space.choices else ""
        raise SpaceError(
            f"{where}: '{EDGES}' has an effect in {INT8} only: set {KEY}: [{FLOAT}, {INT8}]{when}."
        )


def lower(family: "Family", space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
    """Return the graph of a genotype with all annotations of its space."""
    graph = weight_compression.with_weight_options(
        family.lower(space, genotype, signature), space, genotype
    )
    graph = annotate_precision(graph, space, genotype)
    graph = annotate_run_options(graph, space, genotype)
    return early_exits.with_exits(graph, space, genotype, signature.n_outputs)


def weight_relevant_genotype(genotype: Genotype) -> Genotype:
    """Return the genotype without choices that do not affect the weights."""
    options = tuple((n, option) for n, option in genotype.options if n not in _WEIGHTLESS)
    return replace(genotype, options=options)


def weight_relevant_space(space: SearchSpace) -> SearchSpace:
    """Return the space without choices that do not affect the weights."""
    return _without_keys(space, _WEIGHTLESS)


def check_annotations(space: SearchSpace, family: "Family") -> None:
    """Check a space with its family, and all annotations.

    Raises:
        SpaceError: if the space is invalid.
    """
    plain = _without_keys(
        early_exits.without_exit_choices(space), (*weight_compression.KEYS, *_WEIGHTLESS)
    )
    family.check(plain)
    weight_compression.check_weight_options(space, plain, family)
    check_precision(space)
    check_run_options(space)
    early_exits.check_exits(space, family)


def _without_keys(space: SearchSpace, keys: Collection[str]) -> SearchSpace:
    return space.without(lambda name: name.rpartition(".")[2] in keys, keys)
