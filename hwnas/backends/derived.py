"""Files with what is derived from their costs, whichever backend makes and judges them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import final

from hwnas.backends.base import Artefacts, Files, Floats, Recosted, Trained
from hwnas.cost.base import Cost
from hwnas.graph import Graph
from hwnas.metrics.deriving import Deriving
from hwnas.timing import Compared


@final
class DerivedArtefacts:
    """Files as others make and judge them, with what is derived from their costs."""

    def __init__(self, artefacts: Artefacts, deriving: Deriving):
        self._artefacts, self._deriving = artefacts, deriving

    def build(self, network: Trained) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return self._artefacts.build(network)

    def delivered(self, network: Trained) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        return self._artefacts.delivered(network)

    def judge(self, files: Files, lowered: Graph, batches: Iterable[Floats]) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, both from the files."""
        outputs, cost = self._artefacts.judge(files, lowered, batches)
        return outputs, replace(cost, figures=self._deriving(cost.figures))

    def recost(self, files: Files, lowered: Graph, images: Floats) -> Recosted:
        """Return the cost from the files alone."""
        found = self._artefacts.recost(files, lowered, images)
        cost = replace(found.cost, figures=self._deriving(found.cost.figures))
        return replace(found, cost=cost)

    def in_turns(self, files: Files, other: Files) -> Compared | None:
        """Return the latencies of two networks, timed alternately."""
        return self._artefacts.in_turns(files, other)
