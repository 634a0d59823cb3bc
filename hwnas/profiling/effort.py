"""How much is measured before a search, and of which networks."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hwnas.op import OpSpec
from hwnas.profiling.passes import MOST
from hwnas.profiling.subject import Subject
from hwnas.space import Genotype

_DRAWN, _SHARES = 400, (0.0, 0.5, 0.75, 0.9)  #: of which networks are chosen


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    n: int  #: networks of each space at first
    n_plans: int  #: ways to compile an operator that are tried where its plan is not taken over
    plans: Mapping[OpSpec, str] = field(default_factory=dict)  #: those that are
    within: float = 0.05  #: of their latency: so well left-out networks must be foretold
    share: float = 0.9  #: so many of them
    long_s: float = 25.0  #: after which no other round begins
    n_passes: int = MOST  #: times, at most, that an operator is timed
    rounds: int = 4  #: at most; each measures as many networks again

    @property
    def counts(self) -> Iterable[int]:
        """Of how many networks the rounds are, each with those of the round before."""
        return range(self.n, self.rounds * self.n + 1, self.n)


def drawn(subject: Subject) -> list[Genotype]:
    """Return different networks: random ones, and some with more and more of the first options.

    Fronts end with networks that are much faster than random ones.
    """
    rng, space = random.Random(0), subject.space
    found = [space.smallest(), space.largest()]
    for member in space.members:
        for share in _SHARES:
            for _ in range(_DRAWN // len(_SHARES)):
                choices = {
                    name: options[0] if rng.random() < share else rng.choice(options)
                    for name, options in member.choices.items()
                }
                found.append(member.genotype(choices))
    return list({genotype.id: genotype for genotype in found}.values())


def apart(logs: Mapping[Genotype, float], n: int) -> list[Genotype]:
    """Return at most ``n`` networks, spread over all of what is said of each.

    The first of more networks are those of fewer.
    """
    order = sorted(logs, key=lambda genotype: logs[genotype])
    found, distances = list[Genotype](), dict.fromkeys(order, math.inf)
    while distances and len(found) < n:
        found.append(max(distances, key=lambda genotype: distances[genotype]))
        del distances[found[-1]]
        distances = {g: min(d, abs(logs[g] - logs[found[-1]])) for g, d in distances.items()}
    return found
