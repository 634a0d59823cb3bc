"""Latency of networks at several batch sizes, and in all runtimes of the machine."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.progress import Progress
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph

BATCHES = (1, 2, 4, 8, 16, 32)  #: batch sizes that are timed
_ENOUGH = 0.95  #: fraction of the highest throughput; larger batches only add latency
_ROUNDS = 3  #: rounds of alternating runtimes
_PLANS = 3


@dataclass(frozen=True)
class BatchThroughput:
    """The latency of a network at one batch size."""

    size: int  #: images per inference
    latency_ms: float  #: of the whole batch

    @property
    def images_per_s(self) -> float:
        """Throughput in images per second."""
        return self.size / self.latency_ms * 1e3


def time_batch_sizes(
    graph: Graph, target: Target, open_worker: Callable[[Target], Worker], progress: Progress
) -> list[BatchThroughput]:
    """Return the latency of a network (not fused) at each of ``BATCHES``, tuned for each.

    Sizes from the first one that cannot be compiled or takes too long are left out.

    Raises:
        CompileError: none can be compiled.
    """
    throughputs = list[BatchThroughput]()
    with progress.phase("Batch sizes", len(BATCHES)) as advance:
        for size in BATCHES:
            sized = replace(target, batch=size)
            with open_worker(sized) as worker:
                net = fused_graph(graph, sized)
                try:
                    plans = {op: worker.tune(op, _PLANS) for op in {node.op for node in net}}
                    latency_ms = worker.time_network(net, plans).median_ms
                except CompileError:
                    if not throughputs:
                        raise
                    break
                throughputs.append(BatchThroughput(size, latency_ms))
            advance(1)
    return throughputs


def recommended_batch(batches: Sequence[BatchThroughput]) -> BatchThroughput:
    """Return the batch of the smallest size whose throughput is at least 95 % of the highest."""
    highest = max(batch.images_per_s for batch in batches)
    return min((b for b in batches if b.images_per_s >= _ENOUGH * highest), key=lambda b: b.size)


def compare_runtimes(
    networks: Sequence[Graph],
    targets: Sequence[Target],
    open_worker: Callable[[Target], Worker],
    progress: Progress,
) -> dict[str, list[float]]:
    """Return the latency of each network in ms, by runtime and dtype: ``onnxruntime int8``.

    Each is the median of three turns: runtimes take turns, so that all see the same speed of the
    machine. Those that cannot compile a network are left out. The networks are not fused.
    """
    names = [f"{target.runtime} {target.dtype}" for target in targets]
    timings: dict[str, list[list[float]]] = {name: [[] for _ in networks] for name in names}
    with progress.phase("Compare runtimes", _ROUNDS * len(targets)) as advance:
        workers = [open_worker(target) for target in targets]
        try:
            plans: list[dict[object, str]] = [{} for _ in targets]
            for turn in range(_ROUNDS):
                order = list(enumerate(zip(names, targets, workers, strict=True)))
                random.Random(turn).shuffle(order)
                for which, (name, target, worker) in order:
                    if name not in timings:
                        continue
                    try:
                        for index, graph in enumerate(networks):
                            net = fused_graph(graph, target)
                            known = plans[which]
                            for node in net:
                                if node.op not in known:
                                    known[node.op] = worker.tune(node.op, _PLANS)
                            used = {node.op: known[node.op] for node in net}
                            timing = worker.time_network(net, used)
                            timings[name][index].append(timing.median_ms)
                    except (CompileError, ConfigError):  # or the CPU lacks instructions
                        del timings[name]
                    advance(1)
        finally:
            for worker in workers:
                worker.close()
    return {name: [statistics.median(v) for v in values] for name, values in timings.items()}
