"""What can be written as a file for a target; no weights are needed to know it."""

import random
from collections.abc import Callable

from hwnas.backends.base import Backend
from hwnas.errors import CompileError
from hwnas.graph import Graph
from hwnas.space import Genotype, SearchSpace
from hwnas.target import Target

_DRAWN = 100  #: networks of a space that are looked at before it is refused


def check_space(
    space: SearchSpace, lower: Callable[[Genotype], Graph], target: Target, backend: Backend
) -> None:
    """Refuse a space of which no network can be written for a target.

    Raises:
        CompileError: it names the operator of the smallest network.
    """
    rng, reasons = random.Random(0), list[str]()
    ends = [space.smallest(), space.largest()]
    for genotype in [*ends, *(space.sample(rng) for _ in range(_DRAWN))]:
        try:
            return backend.check(lower(genotype))
        except CompileError as error:
            reasons.append(str(error))
    raise CompileError(
        f"Target '{target.name}' ({target.runtime}, {target.dtype}) can run no network of space "
        f"'{space.name}', of {len(reasons)} looked at. {reasons[0]}"
    )
