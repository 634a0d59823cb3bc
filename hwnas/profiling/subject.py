"""What is profiled: the networks of a space, as one target runs them."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hwnas.graph import Graph
from hwnas.op import OpSpec
from hwnas.space import Genotype, Space

_PATIENCE = 1000  #: networks without a new operator after which a space is exhausted


@dataclass(frozen=True)
class Subject:
    """What is profiled: a space as one target runs it."""

    space: Space
    lower: Callable[[Genotype], Graph]  #: fused for the target

    def lowered(self, genotypes: Iterable[Genotype]) -> dict[Genotype, Graph]:
        """Return networks, fused for the target."""
        return {genotype: self.lower(genotype) for genotype in genotypes}

    def operators(self, seed: int) -> tuple[OpSpec, ...]:
        """Return the operators of the space, found by drawing networks until none is new."""
        rng, found, idle = random.Random(seed), dict[OpSpec, None](), 0
        genotypes = [self.space.smallest(), self.space.largest()]
        while idle < max(_PATIENCE, len(found)):
            genotype = genotypes.pop() if genotypes else self.space.sample(rng)
            before = len(found)
            found |= dict.fromkeys(node.op for node in self.lower(genotype))
            idle = 0 if len(found) > before else idle + 1
        return tuple(found)

    def sample(self, n: int, seed: int) -> list[Genotype]:
        """Return at most ``n`` different genotypes; fewer where the space has no more."""
        rng, found = random.Random(seed), dict[str, Genotype]()
        for _ in range(50 * n):
            genotype = self.space.sample(rng)
            found.setdefault(genotype.id, genotype)
            if len(found) == n:
                break
        return list(found.values())
