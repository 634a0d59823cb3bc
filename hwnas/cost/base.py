"""What a cost model says of a candidate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hwnas.figure import Figures
from hwnas.space import Genotype


@dataclass(frozen=True)
class LayerCost:
    """One operator as the compiler scheduled it, or as a model sees it."""

    name: str
    operator: str
    placement: str  #: ``NPU`` or ``CPU``; empty where nothing is placed
    cycles: float  #: 0 where unknown
    macs: int
    latency_ms: float | None = None
    bound: str = ""  #: what limits it, where known: ``compute``, ``memory`` or ``launch``


@dataclass(frozen=True)
class Cost:
    """The figures of one network on one target, by column, and how they come about."""

    figures: Figures
    details: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[LayerCost, ...] = ()
    reason: str = ""  #: why the target cannot run the network, if it cannot
    #: of a network with exits: figures of each segment, compiled on its own
    segments: tuple[Figures, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A file as the target's compiler leaves it, and what it costs."""

    artefact: bytes
    cost: Cost


class CostModel(Protocol):
    """Says what a genotype costs on a target."""

    #: How many genotypes a sampler may ask about for each that it proposes; ``None``: any number.
    n_affordable: int | None

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            CompileError: the target's compiler refuses the network.
        """
        ...
