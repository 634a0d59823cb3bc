"""How an inference runs: how many images it reads, and on how many threads; choices of any space.

``batch`` and ``threads`` are said of the network. They decide latency, throughput and energy, not
how well a network answers. Targets that have ``target.batches=[1,8,32]`` or
``target.thread_counts=[1,2,4]`` add the choice to each space; a space's file may say ``batch``. It
cannot say ``threads``: the process that times networks is given as many cores as its target says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwnas.errors import SpaceError
from hwnas.graph import Graph
from hwnas.space import Genotype, SearchSpace

BATCH, THREADS = "batch", "threads"
KEYS = (BATCH, THREADS)
MOST = {BATCH: 65_536, THREADS: 1024}
OF_TARGETS = {BATCH: "batches", THREADS: "thread_counts"}  #: what targets call the choices


def annotated(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of a genotype with how they run, where the space says it."""
    values = space.values(genotype)
    batch, threads = (int(values.get(key, 0)) for key in KEYS)
    return replace(lowered, batch=batch, threads=threads) if batch or threads else lowered


def chosen(space: SearchSpace, key: str) -> tuple[int, ...]:
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


def check(space: SearchSpace) -> None:
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
