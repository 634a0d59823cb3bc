"""A network that is ready for a target, in float32 and in int8."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from hwnas.graph import Graph
from hwnas.int8.network import QuantisedNetwork
from hwnas.int8.simulated import Simulated
from hwnas.segments import without_exits


@dataclass(frozen=True)
class Finished:
    """A network that is ready for export."""

    network: nn.Module  #: float32, its batch norm folded, in evaluation mode
    lowered: Graph  #: its operators, narrower than the family's where it was pruned
    int8: QuantisedNetwork | None  #: ``None`` where it cannot be written in int8
    #: What ``int8`` was trained as; ``None`` where it is ``network``, calibrated.
    simulated: Simulated | None = None
    record: dict[str, Any] = field(
        default_factory=dict
    )  #: what was done to the weights, for the proof
    in_haste: bool = False  #: whether it loses too much in int8, and there was no time to train

    @property
    def whole(self) -> "Finished":
        """The network without its exits."""
        lowered = without_exits(self.lowered)
        int8 = None if self.int8 is None else self.int8.part(lowered)
        return replace(self, lowered=lowered, int8=int8)
