"""Files of networks with exits: one for each segment, whichever backend makes and judges them.

Beside them is the whole network without exits, for those who always run to the end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np

from hwnas.backends.base import Artefacts, Files, Floats, Recosted, Trained, opened
from hwnas.cost.base import Cost
from hwnas.cost.segments import in_a_row
from hwnas.graph import Graph
from hwnas.runtimes.base import Segment
from hwnas.runtimes.in_a_row import InARow
from hwnas.segments import cut, without_exits
from hwnas.timing import Compared


def whole(network: Trained) -> Trained:
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


def loaded(files: Files, n_segments: int, own: str) -> InARow:
    """Return the segments of a network as something that runs.

    Args:
        files: Of all of them, by suffix.
        n_segments: How many there are.
        own: The artefact of exports that whole networks of the target are.
    """
    segments = []
    for i in range(n_segments):
        contents = {n: path.read_bytes() for n, path in of_segment(files, i).items()}
        session = opened(own, contents)
        assert isinstance(session, Segment)
        segments.append(session)
    return InARow(segments)


@final
class ExitArtefacts:
    """Files as a backend makes and judges them; those of networks with exits by segments.

    Args:
        artefacts: Of the backend.
        own: The artefact of exports that its whole networks are.
    """

    def __init__(self, artefacts: Artefacts, own: str):
        self._artefacts, self._own = artefacts, own

    def build(self, network: Trained) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return {**self._artefacts.build(whole(network)), **self._segments(network)}

    def delivered(self, network: Trained) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        return {**self._artefacts.delivered(whole(network)), **self._segments(network)}

    def _segments(self, network: Trained) -> dict[str, bytes]:
        """Return the files of segments by suffix; none where there are no exits."""
        found = dict[str, bytes]()
        for i, segment in enumerate(cut(network.lowered) if network.lowered.exits else ()):
            made = self._artefacts.build(_part(network, segment))
            found |= {suffix_of(i, suffix): content for suffix, content in made.items()}
        return found

    def judge(self, files: Files, lowered: Graph, batches: Iterable[Floats]) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, both from the files.

        Shapes:
            Of a network with exits, outputs ``(sum of N, n_exits + 1, n_outputs)``.
        """
        if not lowered.exits:
            return self._artefacts.judge(files, lowered, batches)
        segments = cut(lowered)
        session = loaded(files, len(segments), self._own)
        outputs = np.concatenate([session.run(images) for images in batches])
        costs = [
            self._artefacts.judge(of_segment(files, i), segment, [_nothing(segment)])[1]
            for i, segment in enumerate(segments)
        ]
        return outputs, in_a_row(costs)

    def recost(self, files: Files, lowered: Graph, images: Floats) -> Recosted:
        """Return the cost from the files alone."""
        if not lowered.exits:
            return self._artefacts.recost(files, lowered, images)
        costs, made = list[Cost](), dict[str, bytes]()
        for i, segment in enumerate(cut(lowered)):
            found = self._artefacts.recost(of_segment(files, i), segment, _nothing(segment))
            costs.append(found.cost)
            made |= {suffix_of(i, suffix): content for suffix, content in found.made.items()}
        return Recosted(in_a_row(costs), made)

    def in_turns(self, files: Files, other: Files) -> Compared | None:
        """Return the latencies of two whole networks, timed alternately; none where nothing is."""
        return self._artefacts.in_turns(files, other)


def _part(network: Trained, lowered: Graph) -> Trained:
    if lowered == network.lowered:
        return network
    int8 = None if network.int8 is None else network.int8.part(lowered)
    return replace(network, lowered=lowered, int8=int8)


def _nothing(segment: Graph) -> Floats:
    return np.zeros((1, *segment[0].op.in_shape), np.float32)
