"""How many images an inference reads: a choice of any space, whatever its family.

``batch`` is said of the network. It decides latency and throughput, not how well a network answers.
Targets that have ``target.batches=[1,8,32]`` add the choice to each space.
"""

from collections.abc import Sequence
from dataclasses import replace

from hwnas.errors import SpaceError
from hwnas.graph import Graph
from hwnas.space import Genotype, SearchSpace

KEY = "batch"
MOST = 65_536


def annotated(lowered: Graph, space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of a genotype with its number of images, where the space says it."""
    said = space.values(genotype).get(KEY)
    return lowered if said is None else replace(lowered, batch=int(said))


def chosen(space: SearchSpace) -> tuple[int, ...]:
    """Return the numbers of images that a space says; none where the target says it."""
    return tuple(map(int, space.options(KEY))) if KEY in {*space.choices, *space.fixed} else ()


def chosen_of(space: SearchSpace, batches: Sequence[int]) -> SearchSpace:
    """Return a space whose networks choose how many images they read; as it is for no numbers.

    Raises:
        SpaceError: it says so itself.
    """
    if not batches:
        return space
    if chosen(space):
        raise SpaceError(
            f"Space '{space.name}' says '{KEY}' itself: leave target.batches={[*batches]} out."
        )
    return replace(space, choices={KEY: tuple(batches), **space.choices})


def check(space: SearchSpace) -> None:
    """Refuse numbers that there are not, and numbers of parts of a network.

    Raises:
        SpaceError: with the name, and what is allowed.
    """
    where = f"Space '{space.name}'"
    for name in (*space.choices, *space.fixed):
        if name != KEY and name.rpartition(".")[2] == KEY:
            raise SpaceError(f"{where}: '{name}': {KEY} is said of networks, as '{KEY}'.")
    known = space.options(KEY) if KEY in {*space.choices, *space.fixed} else ()
    for n in known:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST:
            raise SpaceError(f"{where}: '{KEY}' is {n}; allowed: whole numbers from 1 to {MOST}.")
