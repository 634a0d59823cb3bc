"""Artefacts of networks with early exits, and the comparison of int8 with float32.

An artefact is a file of a network for one runtime; suffixes such as ``.onnx`` distinguish the files
of a network. A network with exits has a file per segment (part up to an exit), and files of the
full network without exits, for users who always run it to the end.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.hardware.backends.base import (
    Artefacts,
    Batches,
    Files,
    Floats,
    RemeasuredCost,
    TrainedNetwork,
    open_artefact,
)
from hwnas.hardware.costs.cost_model import Cost, sequential_cost
from hwnas.hardware.derived_metrics import DerivedMetrics, ratio_columns
from hwnas.hardware.runtimes.interfaces import Segment
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.graph import Graph, split_at_exits, without_exits


@final
class ExitArtefacts:
    """Writes and evaluates files like ``base.Artefacts``, also of networks with early exits.

    Args:
        artefacts: The backend's writer for networks without exits; it is called for each segment.
        name: Name of the target's artefact, such as ``model.int8.onnx``.
        derive: Adds derived metrics, such as throughput, to all costs.
    """

    def __init__(self, artefacts: Artefacts, name: str, derive: DerivedMetrics):
        self._artefacts, self._name, self._derive = artefacts, name, derive

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the contents of the files on which costs are measured or estimated, by suffix.

        A network with exits has the files of the full network, and of each segment:
        ``.segment0.onnx``.
        """
        full = _part(network, without_exits(network.graph))
        return {**self._artefacts.build(full), **self._segments(network)}

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files that only this target adds to an export, with those of all segments."""
        full = _part(network, without_exits(network.graph))
        return {**self._artefacts.delivered(full), **self._segments(network)}

    def evaluate(self, files: Files, graph: Graph, batches: Batches) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, see ``Artefacts.evaluate``.

        Outputs of a network with exits have the shape ``(n_images, n_exits + 1, n_outputs)``; its
        cost is that of running all segments.
        """
        if not graph.exits:
            outputs, cost = self._artefacts.evaluate(files, graph, batches)
            return outputs, self._with_derived_metrics(cost)
        segments = split_at_exits(graph)
        session = load_segments(files, len(segments), self._name)
        outputs = np.concatenate([session.run(images) for images in batches])
        costs = [
            self._artefacts.evaluate(select_segment(files, i), segment, [_zeros(segment)])[1]
            for i, segment in enumerate(segments)
        ]
        return outputs, self._with_derived_metrics(sequential_cost(costs))

    def remeasure(self, files: Files, graph: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost of existing files, see ``Artefacts.remeasure``.

        The cost of a network with exits is that of running all segments, each on zeros.
        """
        if not graph.exits:
            result = self._artefacts.remeasure(files, graph, images)
            return replace(result, cost=self._with_derived_metrics(result.cost))
        costs, recompiled = list[Cost](), dict[str, bytes]()
        for i, segment in enumerate(split_at_exits(graph)):
            result = self._artefacts.remeasure(select_segment(files, i), segment, _zeros(segment))
            costs.append(result.cost)
            recompiled |= _with_segment_suffix(i, result.recompiled)
        return RemeasuredCost(self._with_derived_metrics(sequential_cost(costs)), recompiled)

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        """Return the latencies of two networks without exits, timed in turns.

        ``None`` if the backend only estimates costs.
        """
        return self._artefacts.interleaved(files, other)

    def _segments(self, network: TrainedNetwork) -> dict[str, bytes]:
        """Return the files of segments by suffix; empty if there are no exits."""
        files = dict[str, bytes]()
        for i, segment in enumerate(split_at_exits(network.graph) if network.graph.exits else ()):
            files |= _with_segment_suffix(i, self._artefacts.build(_part(network, segment)))
        return files

    def _with_derived_metrics(self, cost: Cost) -> Cost:
        return replace(cost, figures=self._derive(cost.figures))


@final
class SequentialSegments:
    """Loaded segments of a network with early exits, which run one after another."""

    def __init__(self, segments: Sequence[Segment]):
        self._segments = segments

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs of each exit and of the end, ``(N, n_exits + 1, n_outputs)``.

        All segments run for all images ``(N, C, H, W)``; no image leaves early.
        """
        results, features = [], images
        for segment in self._segments:
            *further, outputs = segment.outputs(features)
            results.append(outputs)
            if further:
                (features,) = further
        return np.stack(results, axis=1)


def file_names(names: Mapping[str, str], n_segments: int) -> dict[str, str]:
    """Return ``names``, with the file names of a network's segments added, by suffix.

    For example ``{".onnx": "model.onnx", ".segment0.onnx": "segment0.onnx", ...}``.

    Args:
        names: Names of the full network's files, by suffix; ``model`` in them becomes ``segment0``.
        n_segments: Number of segments; none are added if it is 1 (no exits).
    """
    result = dict(names)
    for i in range(n_segments if n_segments > 1 else 0):
        segment = {n: name.replace("model", f"segment{i}", 1) for n, name in names.items()}
        result |= {_segment_suffix(i, suffix): name for suffix, name in segment.items()}
    return result


def select_segment(files: Mapping[str, Path], segment: int) -> dict[str, Path]:
    """Return the files of one segment (its index is from 0), by suffix without ``.segment0``."""
    start = _segment_suffix(segment, "")
    return {n.removeprefix(start): path for n, path in files.items() if n.startswith(start)}


def load_segments(files: Files, n_segments: int, name: str) -> SequentialSegments:
    """Return the segments of a network with exits, loaded in this process.

    ``files`` are by suffix such as ``.segment0.onnx``; ``name`` is the artefact's name.

    Raises:
        CompileError: the runtime cannot load a segment.
        ConfigError: a required package is not installed.
    """
    segments = []
    for i in range(n_segments):
        contents = {n: path.read_bytes() for n, path in select_segment(files, i).items()}
        session = open_artefact(name, contents)
        assert isinstance(session, Segment)
        segments.append(session)
    return SequentialSegments(segments)


def compare_with_float32(
    network: TrainedNetwork, files: Files, artefacts: Artefacts
) -> Mapping[str, float]:
    """Time an int8 network and its float32 version in turns, and return the ratio of latencies.

    Keys and values are those of ``derived_metrics.ratio_columns``. Empty if the graph's own dtype
    is not int8, or the backend only estimates costs. ``files`` are the int8 files; those in float32
    are written to a temporary folder.
    """
    if network.graph.dtype != "int8":
        return {}
    float32 = replace(network, graph=replace(network.graph, dtype="float32"), int8=None)
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder:
        others = {}
        for suffix, content in artefacts.build(float32).items():
            others[suffix] = Path(folder, f"float32{suffix}")
            others[suffix].write_bytes(content)
        timings = artefacts.interleaved(files, others)
    return {} if timings is None else ratio_columns(timings)


def _segment_suffix(segment: int, suffix: str) -> str:
    return f".segment{segment}{suffix}"


def _with_segment_suffix(segment: int, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {_segment_suffix(segment, suffix): content for suffix, content in files.items()}


def _part(network: TrainedNetwork, graph: Graph) -> TrainedNetwork:
    """Return the part of a network that a graph contains."""
    if graph == network.graph:
        return network
    int8 = None if network.int8 is None else network.int8.subnetwork(graph)
    return replace(network, graph=graph, int8=int8)


def _zeros(segment: Graph) -> Floats:
    return np.zeros((1, *segment[0].op.in_shape), np.float32)
