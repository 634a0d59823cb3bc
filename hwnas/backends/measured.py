"""What backends share whose latencies are measured: cost models, and files judged on the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from hwnas.backends import portable
from hwnas.backends.base import (
    Bench,
    Costed,
    CostModels,
    Files,
    Floats,
    Recosted,
    Trained,
    roofline,
)
from hwnas.cost.base import Cost, CostModel
from hwnas.cost.host import as_run, dtype_of, host_cost
from hwnas.graph import Graph
from hwnas.int8.network import QuantisedNetwork
from hwnas.metrics.builtin import latency_p99
from hwnas.runtimes.base import Judged, Session
from hwnas.target import Remote, Target
from hwnas.timing import Compared

#: Writes the files of a network by suffix: on a target, with what compiles for it.
Write = Callable[[Trained, Target, Bench], Mapping[str, bytes]]

_PIECE = 256  #: images that are sent at once: each call of a worker has a limit of its own


def check_int8(lowered: Graph, target: Target) -> None:
    """Refuse a network that cannot be written in int8, where the target computes it so.

    Raises:
        CompileError: it names the operator.
    """
    if dtype_of(lowered, target) == "int8":
        from hwnas.runtimes import onnx_writer

        onnx_writer.check_int8(lowered)


def nowhere_else(target: Target, artefact: str, remote: Remote) -> str:
    """Return that every artefact runs on this machine."""
    return ""


def nothing_more(network: Trained, target: Target, bench: Bench) -> Mapping[str, bytes]:
    """Return no files: what every export holds is enough."""
    return {}


@final
@dataclass(frozen=True)
class MeasuredBackend:
    """A backend of engines; what differs between them are the files that they run."""

    target: Target
    write: Write  #: files that are verified
    delivered: Write = nothing_more  #: files of an export that are the target's alone
    written: Callable[[Graph, Target], None] = check_int8  #: refuses what cannot be written
    away: Callable[[Target, str, Remote], str] = nowhere_else  #: as ``Backend.elsewhere``

    @property
    def cost_models(self) -> CostModels:
        """A latency table, measurement of each network, and the model of all targets."""
        return {"table": _table, "measured": _measured, "roofline": roofline}

    def check(self, lowered: Graph) -> None:
        """Refuse a network that cannot be written for the target."""
        self.written(lowered, self.target)

    def estimate(self, lowered: Graph) -> Cost | None:
        """Return nothing: the target is measured."""
        return None

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network as this machine runs its ONNX file."""
        return portable.int8_session(network)

    def artefacts(self, bench: Bench | None, cost: str | None = None) -> "MeasuredArtefacts":
        """Return what makes files and judges them on the device."""
        assert bench is not None
        return MeasuredArtefacts(self, bench)

    def elsewhere(self, artefact: str, remote: Remote) -> str:
        """Return why an artefact of the target does not run from here; empty if it does."""
        return self.away(self.target, artefact, remote)

    def user_file(self) -> Path | None:
        """Return nothing: there is none."""
        return None


@final
class MeasuredArtefacts:
    """Files that are loaded from disk, run on the device and timed whole."""

    def __init__(self, backend: MeasuredBackend, bench: Bench):
        self._backend, self._target, self._bench = backend, backend.target, bench

    def build(self, network: Trained) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return self._backend.write(network, self._target, self._bench)

    def delivered(self, network: Trained) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        return self._backend.delivered(network, self._target, self._bench)

    def judge(self, files: Files, lowered: Graph, batches: Iterable[Floats]) -> tuple[Floats, Cost]:
        """Run the files over the images on the device, and time them."""
        left = _pieces(batches, as_run(lowered, self._target)[0].op.batch)
        judged = self._bench.worker.judge(files, next(left))
        others = [self._bench.worker.run(files, images) for images in left]
        return np.concatenate([judged.outputs, *others]), self._cost(judged, lowered)

    def recost(self, files: Files, lowered: Graph, images: Floats) -> Recosted:
        """Return the cost of files, timed on the device."""
        return Recosted(self._cost(self._bench.worker.judge(files, images), lowered), {})

    def in_turns(self, files: Files, other: Files) -> Compared:
        """Return the latencies of two networks, timed alternately on the device."""
        return self._bench.worker.in_turns(files, other)

    def _cost(self, judged: Judged, lowered: Graph) -> Cost:
        fused, timing = as_run(lowered, self._target), judged.timing
        cost = host_cost(fused, self._target, timing.figure, judged.energy)
        tail = {} if judged.p99 is None else {latency_p99.METRIC.name: judged.p99}
        details = {**cost.details, "drifted": float(timing.drifted)}
        return Cost({**cost.figures, **tail}, details)


def _pieces(batches: Iterable[Floats], batch: int) -> Iterator[Floats]:
    """Yield the images in pieces of whole inferences, which the slowest network answers in time."""
    size = max(1, _PIECE // batch) * batch
    for images in batches:
        for start in range(0, max(1, len(images)), size):
            yield images[start : start + size]


def _table(costed: Costed) -> CostModel:
    from hwnas.cost.table import TableCostModel  # by scipy, which files on devices do without

    assert costed.bench is not None
    table = costed.bench.table
    return TableCostModel(table, costed.target, costed.as_run, costed.spaces, costed.command)


def _measured(costed: Costed) -> CostModel:
    from hwnas.cost.measured import MeasuredCostModel

    bench = costed.bench
    assert bench is not None
    return MeasuredCostModel(bench.worker, costed.target, costed.as_written, bench.plan)
