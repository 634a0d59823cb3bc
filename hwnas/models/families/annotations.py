"""Choices of spaces of any family: batch size, threads and precision; lowering with all of them.

An annotation is what hwnas adds to the graph of a family: these choices, options of weights, and
early exits. ``batch`` and ``threads`` affect latency, throughput and energy, not accuracy. Targets
with ``target.batches=[1,8,32]`` or ``target.thread_counts=[1,2,4]`` add the choice to each space.
A space may define ``batch``, but not ``threads``, as the timing process gets the target's cores.

``precision`` is ``float32`` or ``int8``. With ``float_edges``, an int8 network computes in float32
the operators that read the image, and those from the last pooling on.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families import early_exits
from hwnas.models.families.common_checks import blocks
from hwnas.models.graph import INPUT, NATIVE_BITS, Graph, Node, Signature
from hwnas.models.spaces import Genotype, Option, SearchSpace, closest
from hwnas.models.spaces.space import BLOCK

if TYPE_CHECKING:
    from hwnas.models.families.base import Family

BATCH, THREADS = "batch", "threads"
BATCH_KEYS = (BATCH, THREADS)
MAX_VALUES = {BATCH: 65_536, THREADS: 1024}  #: images, and threads
OF_TARGETS = {BATCH: "batches", THREADS: "thread_counts"}  #: names of the choices in targets
KEY, EDGES = "precision", "float_edges"
FLOAT, INT8 = "float32", "int8"
#: Choices that do not affect the weights of a network.
_WEIGHTLESS = (KEY, EDGES, *BATCH_KEYS)


def annotate_run_options(graph: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the graph of a genotype with its batch size and threads, if the space has them."""
    values = space.values(genotype)
    batch, threads = (int(values.get(key, 0)) for key in BATCH_KEYS)
    return replace(graph, batch=batch, threads=threads) if batch or threads else graph


def run_options(space: SearchSpace, key: str) -> tuple[int, ...]:
    """Return the options of ``batch`` or ``threads``; empty if the space does not define it."""
    return tuple(map(int, space.options(key))) if _defines(space, key) else ()


def with_run_choices(space: SearchSpace, numbers: Mapping[str, Sequence[int]]) -> SearchSpace:
    """Return a space with choices of batch size and threads.

    Args:
        space: The space.
        numbers: Options of ``batch`` and ``threads``; without any, the space is returned.

    Raises:
        SpaceError: if the space defines ``threads``, or a choice in ``numbers``.
    """
    if _defines(space, THREADS):
        raise SpaceError(
            f"Space '{space.name}' defines '{THREADS}', an option of targets: remove it from the "
            f"space, and set target.{THREADS}=NUMBER or "
            f"target.{OF_TARGETS[THREADS]}=[NUMBER,NUMBER]."
        )
    given = {key: tuple(numbers[key]) for key in BATCH_KEYS if numbers.get(key)}
    for key, options in given.items():
        if _defines(space, key):
            raise SpaceError(
                f"Space '{space.name}' defines '{key}': remove "
                f"target.{OF_TARGETS[key]}={[*options]}, or '{key}' from the space."
            )
    return replace(space, choices={**given, **space.choices}) if given else space


def run_label(genotype: Genotype) -> str:
    """Return threads and batch size as in names of latency tables: ``2t-b8``; may be empty."""
    options = genotype.to_dict()
    forms = {THREADS: "{}t", BATCH: "b{}"}
    return "-".join(form.format(options[key]) for key, form in forms.items() if key in options)


def check_run_options(space: SearchSpace) -> None:
    """Check the choices ``batch`` and ``threads`` of a space, which are of whole networks.

    Raises:
        SpaceError: if one is defined for a stage or block, or out of range.
    """
    subject = f"Space '{space.name}'"
    for name in space.names:
        if name not in BATCH_KEYS and (key := name.rpartition(".")[2]) in BATCH_KEYS:
            raise SpaceError(
                f"{subject}: '{name}' is not allowed: {key} applies to whole networks, not to a "
                f"stage or block. Rename it to '{key}'."
            )
    for key in BATCH_KEYS:
        for n in space.options(key) if _defines(space, key) else ():
            if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_VALUES[key]:
                raise SpaceError(
                    f"{subject}: '{key}' is {n}; allowed: whole numbers from 1 to "
                    f"{MAX_VALUES[key]}."
                )


def _defines(space: SearchSpace, key: str) -> bool:
    return key in space.names


def annotate_precision(graph: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the graph of a genotype with its precision, if the space defines ``precision``."""
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
    """Return the names of the operators that read the image, and of the last ones.

    The last ones begin with the last pooling; without pooling, only the output is one.
    """
    steps = {node.name: step for step, node in enumerate(graph)}
    means = [steps[node.name] for node in graph if node.op.base == "mean"]
    first = max(means, default=steps[graph.outputs[0]])
    return frozenset(n.name for n in graph if INPUT in n.inputs or steps[n.name] >= first)


def precision_names(space: SearchSpace) -> list[str]:
    """Return those of ``precision`` and ``float_edges`` that a space defines."""
    return [name for name in (KEY, EDGES) if name in space.names]


def precision_options(space: SearchSpace) -> tuple[str, ...]:
    """Return the options of ``precision``; empty if the space does not define it."""
    return tuple(map(str, space.options(KEY))) if KEY in precision_names(space) else ()


def float_genotype(space: SearchSpace, genotype: Genotype) -> Genotype | None:
    """Return the genotype of the same network in float32.

    ``None`` if the genotype is not in int8, or the space does not have it in float32.
    """
    if genotype.to_dict().get(KEY) != INT8 or FLOAT not in space.choices[KEY]:
        return None
    return space.genotype({**genotype.to_dict(), KEY: FLOAT})


def check_precision(space: SearchSpace) -> None:
    """Check the options of ``precision`` and ``float_edges``.

    Raises:
        SpaceError: if an option is unknown, or ``float_edges`` is active without int8.
    """
    subject, given = f"Space '{space.name}'", {*precision_names(space)}
    for name in space.names:
        if name.rpartition(".")[2] in (KEY, EDGES) and name not in given:
            raise SpaceError(f"{subject}: {unknown_name('name', name, (KEY, EDGES))}")
    for dtype in precision_options(space):
        if dtype not in (FLOAT, INT8):
            raise SpaceError(f"{subject}: {unknown_name(KEY, dtype, (FLOAT, INT8))}")
    if EDGES not in given:
        return
    if strange := [option for option in space.options(EDGES) if option not in (0, 1)]:
        raise SpaceError(f"{subject}: '{EDGES}' is {strange[0]}; allowed: 0 and 1.")
    if EDGES in space.fixed and INT8 in precision_options(space):
        return  # fixed values cause no second genotype of a float32 network
    active = space.when.get(EDGES, {}).get(KEY, precision_options(space))
    if {*active} != {INT8}:
        when = f" and when: {{{EDGES}: {{{KEY}: [{INT8}]}}}}" if EDGES in space.choices else ""
        raise SpaceError(
            f"{subject}: '{EDGES}' has an effect in {INT8} only: set {KEY}: "
            f"[{FLOAT}, {INT8}]{when}."
        )


def lower(family: "Family", space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
    """Return the graph of a genotype: the family's, with all annotations of the space.

    These are weight options, precision, batch size, threads and early exits.
    """
    graph = with_weight_options(family.lower(space, genotype, signature), space, genotype)
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
    """Check a space by its family, and all annotations.

    Raises:
        SpaceError: if a name or option is missing, unknown, out of range or without effect.
    """
    plain = _without_keys(early_exits.without_exit_choices(space), (*WEIGHT_KEYS, *_WEIGHTLESS))
    family.check(plain)
    check_weight_options(space, plain, family)
    check_precision(space)
    check_run_options(space)
    early_exits.check_exits(space, family)
    _check_int8(space, family)


def _check_int8(space: SearchSpace, family: "Family") -> None:
    """Refuse int8 if the networks have operators without an int8 version, except at float edges."""
    if INT8 not in precision_options(space):
        return
    smallest = {name: options[0] for name, options in space.choices.items()} | {KEY: INT8}
    if EDGES in space.choices:
        smallest[EDGES] = 1
    for node in lower(family, space, space.genotype(smallest), _ANY):
        if node.op.base in _WITHOUT_INT8 and not node.in_float:
            raise SpaceError(
                f"Space '{space.name}': {KEY} has {INT8}, but {INT8} has no {node.op.base} "
                f"('{node.name}'). Remove {INT8} from {KEY}."
            )


def _without_keys(space: SearchSpace, keys: Collection[str]) -> SearchSpace:
    return space.without(lambda name: name.rpartition(".")[2] in keys, keys)


BITS, SPARSITY = "weight_bits", "weight_sparsity"
DENSE, TWO_OF_FOUR = "dense", "2:4"
_GROUP = 4  # input channels, of which two have weights
_ANY = Signature(3, 2)
_WITHOUT_INT8 = ("layernorm", "attention")
_MAX_CACHED = 100_000  # nodes


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


WEIGHT_KEYS: Mapping[str, _WeightOption] = {
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
    """Return the graph with the bits and sparsity that the genotype gives to weights.

    Operators on which an option has no effect, such as depthwise convolutions, stay as they are.
    """
    if not weight_option_names(space):
        return graph
    values = space.values(genotype)

    def with_options(node: Node) -> Node:
        place = _place(node.name)
        for key in WEIGHT_KEYS:
            if (name := closest(values, place, key)) is not None:
                node = _with_weight_option(node, key, values[name])
        return node

    return replace(graph, nodes=tuple(map(with_options, graph)))


@functools.lru_cache(_MAX_CACHED)
def _with_weight_option(node: Node, key: str, option: Option) -> Node:
    known = WEIGHT_KEYS[key]
    return known.apply(node, option) if known.applies(node) else node


def weight_option_names(space: SearchSpace, *keys: str) -> list[str]:
    """Return the names of a space that define bits or sparsity of weights.

    With ``keys`` (of ``WEIGHT_KEYS``), only names that end with one of them.
    """
    return [n for n in space.names if n.rpartition(".")[2] in (keys or WEIGHT_KEYS)]


def check_weight_options(space: SearchSpace, plain: SearchSpace, family: "Family") -> None:
    """Check that options of weights have allowed values and an effect.

    Args:
        space: The space.
        plain: The same space without annotations, as its family expects it.
        family: The family.

    Raises:
        SpaceError: if an option is not allowed, or has no effect.
    """
    subject = f"Space '{space.name}'"
    ends = (plain.smallest(), plain.largest())
    nodes = [node for end in ends for node in family.lower(plain, end, _ANY)]
    present = {_place(node.name) for node in nodes}  # families may use other names
    stages = {place.partition(".blocks.")[0] for place in present if ".blocks." in place}
    for key, known in WEIGHT_KEYS.items():
        given = {*weight_option_names(space, key)}
        for name in sorted(given):
            if strange := [o for o in space.options(name) if o not in known.allowed]:
                raise SpaceError(
                    f"{subject}: '{name}' is {strange[0]}; allowed: {known.description}."
                )
        reading = {_place(node.name) for node in nodes if known.applies(node)}
        places = reading | (present & {*blocks(plain)})
        readers = [key, *(f"{place}.{key}" for place in sorted(places | stages))]
        for name in sorted(given - {*readers}):
            raise SpaceError(f"{subject}: {unknown_name('name', name, readers)}")
        for name in sorted(given - {closest(given, place, key) for place in places}):
            raise SpaceError(
                f"{subject}: '{name}' has no effect: each block or stage defines its own '{key}'. "
                f"Remove '{name}'."
            )


@functools.lru_cache(_MAX_CACHED)
def _place(node: str) -> str:
    """Return the block, or the layer outside of stages, of a node."""
    match = BLOCK.fullmatch(node)
    return f"{match['stage']}.blocks.{match['index']}" if match else node.partition(".")[0]
