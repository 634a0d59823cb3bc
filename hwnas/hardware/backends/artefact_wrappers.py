"""Files of networks with exits: one for each segment, whichever backend makes and judges them.

Beside them is the whole network without exits, for those who always run to the end.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.hardware.backends.base import (
    Artefacts,
    Files,
    Floats,
    RemeasuredCost,
    TrainedNetwork,
    open_artefact,
)
from hwnas.hardware.costs.cost_model import Cost, sequential_cost
from hwnas.hardware.costs.int8_speed import columns
from hwnas.hardware.derived_metrics import DerivedMetrics
from hwnas.hardware.runtimes.interfaces import Segment
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.graph import Graph
from hwnas.models.partition import cut, without_exits

# Files with what is derived from their costs, whichever backend makes and judges them.


@final
class DerivedArtefacts:
    """Files as others make and judge them, with what is derived from their costs."""

    def __init__(self, artefacts: Artefacts, deriving: DerivedMetrics):
        self._artefacts, self._deriving = artefacts, deriving

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return self._artefacts.build(network)

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        return self._artefacts.delivered(network)

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[Floats]
    ) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, both from the files."""
        outputs, cost = self._artefacts.evaluate(files, lowered, batches)
        return outputs, replace(cost, figures=self._deriving(cost.figures))

    def remeasure(self, files: Files, lowered: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost from the files alone."""
        found = self._artefacts.remeasure(files, lowered, images)
        cost = replace(found.cost, figures=self._deriving(found.cost.figures))
        return replace(found, cost=cost)

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        """Return the latencies of two networks, timed alternately."""
        return self._artefacts.interleaved(files, other)


# Is a network faster in int8? Its files are timed in turns with those of the same in float32.


def compared(network: TrainedNetwork, files: Files, artefacts: Artefacts) -> Mapping[str, float]:
    """Return how fast a network is beside the same in float32, by column.

    Args:
        network: Whose space says in which dtype it computes; of others there is nothing to be said.
        files: Its own, on the disk.
        artefacts: What makes files and times them; nothing is said where nothing is measured.
    """
    if network.lowered.dtype != "int8":
        return {}
    real = replace(network, lowered=replace(network.lowered, dtype="float32"), int8=None)
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder:
        others = {}
        for suffix, content in artefacts.build(real).items():
            others[suffix] = Path(folder, f"float32{suffix}")
            others[suffix].write_bytes(content)
        found = artefacts.interleaved(files, others)
    return {} if found is None else columns(found)


# Segments of a network with exits, run one after the other to the end.


@final
class SequentialSegments:
    """Loaded segments, of which each reads what the one before answers."""

    def __init__(self, segments: Sequence[Segment]):
        self._segments = segments

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs of every exit and of the end, ``(N, n_exits + 1, n_outputs)``."""
        found, read = [], images
        for segment in self._segments:
            *further, outputs = segment.outputs(read)
            found.append(outputs)
            if further:
                (read,) = further
        return np.stack(found, axis=1)


def whole(network: TrainedNetwork) -> TrainedNetwork:
    """Return a network without its exits."""
    return _part(network, without_exits(network.lowered))


def suffix_of(segment: int, suffix: str) -> str:
    """Return the suffix of a segment's file, beside which a whole network has ``suffix``."""
    return f".segment{segment}{suffix}"


def file_names(names: Mapping[str, str], n_segments: int) -> dict[str, str]:
    """Return the names of files in an export by suffix, those of segments among them.

    Args:
        names: Of whole networks, ``model...``.
        n_segments: Of the network; with one alone there are no others.
    """
    found = dict(names)
    for i in range(n_segments if n_segments > 1 else 0):
        own = {n: name.replace("model", f"segment{i}", 1) for n, name in names.items()}
        found |= {suffix_of(i, suffix): name for suffix, name in own.items()}
    return found


def of_segment(files: Mapping[str, Path], segment: int) -> dict[str, Path]:
    """Return the files of a segment by the suffixes of whole networks."""
    start = suffix_of(segment, "")
    return {n.removeprefix(start): path for n, path in files.items() if n.startswith(start)}


def loaded(files: Files, n_segments: int, own: str) -> SequentialSegments:
    """Return the segments of a network as something that runs.

    Args:
        files: Of all of them, by suffix.
        n_segments: How many there are.
        own: The artefact of exports that whole networks of the target are.
    """
    segments = []
    for i in range(n_segments):
        contents = {n: path.read_bytes() for n, path in of_segment(files, i).items()}
        session = open_artefact(own, contents)
        assert isinstance(session, Segment)
        segments.append(session)
    return SequentialSegments(segments)


@final
class ExitArtefacts:
    """Files as a backend makes and judges them; those of networks with exits by segments.

    Args:
        artefacts: Of the backend.
        own: The artefact of exports that its whole networks are.
    """

    def __init__(self, artefacts: Artefacts, own: str):
        self._artefacts, self._own = artefacts, own

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return {**self._artefacts.build(whole(network)), **self._segments(network)}

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        return {**self._artefacts.delivered(whole(network)), **self._segments(network)}

    def _segments(self, network: TrainedNetwork) -> dict[str, bytes]:
        """Return the files of segments by suffix; none where there are no exits."""
        found = dict[str, bytes]()
        for i, segment in enumerate(cut(network.lowered) if network.lowered.exits else ()):
            made = self._artefacts.build(_part(network, segment))
            found |= {suffix_of(i, suffix): content for suffix, content in made.items()}
        return found

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[Floats]
    ) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, both from the files.

        Shapes:
            Of a network with exits, outputs ``(sum of N, n_exits + 1, n_outputs)``.
        """
        if not lowered.exits:
            return self._artefacts.evaluate(files, lowered, batches)
        segments = cut(lowered)
        session = loaded(files, len(segments), self._own)
        outputs = np.concatenate([session.run(images) for images in batches])
        costs = [
            self._artefacts.evaluate(of_segment(files, i), segment, [_nothing(segment)])[1]
            for i, segment in enumerate(segments)
        ]
        return outputs, sequential_cost(costs)

    def remeasure(self, files: Files, lowered: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost from the files alone."""
        if not lowered.exits:
            return self._artefacts.remeasure(files, lowered, images)
        costs, made = list[Cost](), dict[str, bytes]()
        for i, segment in enumerate(cut(lowered)):
            found = self._artefacts.remeasure(of_segment(files, i), segment, _nothing(segment))
            costs.append(found.cost)
            made |= {suffix_of(i, suffix): content for suffix, content in found.made.items()}
        return RemeasuredCost(sequential_cost(costs), made)

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        """Return the latencies of two whole networks, timed alternately; none where nothing is."""
        return self._artefacts.interleaved(files, other)


def _part(network: TrainedNetwork, lowered: Graph) -> TrainedNetwork:
    if lowered == network.lowered:
        return network
    int8 = None if network.int8 is None else network.int8.part(lowered)
    return replace(network, lowered=lowered, int8=int8)


def _nothing(segment: Graph) -> Floats:
    return np.zeros((1, *segment[0].op.in_shape), np.float32)
