"""Throughput of profiled networks: percentiles, batch sizes and runtimes."""

import contextlib
import dataclasses
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.core.errors import ConfigError, HwnasError
from hwnas.core.progress import Progress
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.profiling import throughput
from hwnas.hardware.profiling.operator_measurement import MeasuredNetwork
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import single_runs
from hwnas.workflows.config import ProfileConfig
from hwnas.workflows.networks import Networks

_COMPARED = 8  #: networks that compare runtimes


def throughput_messages(
    config: ProfileConfig, parts: Networks, held_out: Sequence[MeasuredNetwork], phases: Progress
) -> list[str]:
    """Return three messages: latency percentiles, latency by batch size, and latency by runtime.

    The first two are of the median network of ``held_out``, the last is of up to 8 of them. A
    message is the reason if its latencies cannot be measured.
    """
    extras = _Throughput(config, parts, held_out, phases)
    lines = []
    for name, extra in (
        ("Percentiles", extras.percentiles),
        ("Batch sizes", extras.batches),
        ("Runtimes", extras.runtimes),
    ):
        try:
            lines.append(extra())
        except HwnasError as error:  # the table is complete nevertheless
            lines.append(f"{name}: {error}")
    return lines


@dataclass(frozen=True)
class _Throughput:
    """Percentiles, batch sizes and runtimes of the networks measured most recently."""

    config: ProfileConfig
    parts: Networks
    held_out: Sequence[MeasuredNetwork]
    phases: Progress

    @property
    def middle(self) -> MeasuredNetwork:
        """The median network."""
        by_latency = sorted(self.held_out, key=lambda network: network.timing.median_ms)
        return by_latency[len(by_latency) // 2]

    def percentiles(self) -> str:
        """Return the latency percentiles of the median network."""
        genotype, n = self.middle.genotype, single_runs(self.middle.timing.median_ms / 1e3)
        net, target = self.parts.fused_graph(genotype), self.parts.target_of(genotype)
        phase = self.phases.phase("Single inferences", 1)
        with phase as advance, self._worker(target) as worker:
            n_plans = self.config.tuning.n_plans
            plans = {op: worker.tune(op, n_plans) for op in {node.op for node in net}}
            p = worker.percentiles(net, plans, n)
            advance(1)
        return (
            f"Network {genotype.id} (the median): p50 {p['p50_ms']:.4f}, p90 {p['p90_ms']:.4f}, "
            f"p99 {p['p99_ms']:.4f} ms over {n} single inferences, as "
            f"target.facts.p99_over_p50={p['p99_ms'] / p['p50_ms']:.3g}."
        )

    def batches(self) -> str:
        """Return latency and throughput of the median network by batch size."""
        genotype = self.middle.genotype
        lowered = dataclasses.replace(self.parts.lower(genotype), batch=0, threads=0)
        target = self.parts.target_of(genotype)
        timings = throughput.time_batch_sizes(lowered, target, self._worker, self.phases)
        best = throughput.recommended_batch(timings)
        sizes = ", ".join(
            f"{b.size}: {b.latency_ms:.4f} ms {b.images_per_s:.0f}/s" for b in timings
        )
        return f"Batch sizes: {sizes}. Recommended: {best.size}."

    def runtimes(self) -> str:
        """Return the latencies of the installed runtimes relative to this target."""
        n = min(_COMPARED, len(self.held_out))
        chosen = random.Random(self.config.seed).sample(list(self.held_out), n)
        # With each target's dtype and threads, and one image, whatever the network chooses.
        nets = [
            dataclasses.replace(self.parts.lower(network.genotype), dtype="", batch=0, threads=0)
            for network in chosen
        ]
        target = self.config.target
        latencies = throughput.compare_runtimes(
            nets, _comparable_targets(target), self._worker, self.phases
        )
        name = f"{target.runtime} {target.dtype}"
        if name not in latencies:
            return f"{name} cannot run a network of this search space; runtimes are not compared."
        reference = latencies[name]
        ratios = {
            name: statistics.median(a / b for a, b in zip(values, reference, strict=True))
            for name, values in latencies.items()
        }
        fastest = min(ratios, key=lambda name: ratios[name])
        compared = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        return (
            f"Latency of one image relative to this target, median of {len(nets)} networks: "
            f"{compared}. Fastest on this machine: {fastest}."
        )

    def _worker(self, target: Target) -> Worker:
        return Worker(target, self.config.timing, Remote(), self.config.tuning.limit_s)


def _comparable_targets(target: Target) -> list[Target]:
    """Return the device's targets with each installed, measured backend and dtype."""
    targets, plain = [], dataclasses.replace(target, batch=1, batches=[], thread_counts=[])
    for backend in backends.known():
        if not backend.measured or backends.lacking(backend.needs):
            continue
        for dtype in backend.dtypes:
            with contextlib.suppress(ConfigError):  # the target or this CPU does not support it
                other = dataclasses.replace(plain, runtime=backend.name, dtype=dtype)
                base.backend_of(other)
                targets.append(other)
    return targets
