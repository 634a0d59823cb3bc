"""Tunes and times operators and networks with an engine, watching the machine meanwhile."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.hardware.meters.meter import EnergyMeter
from hwnas.hardware.meters.meter import measure as measure_energy
from hwnas.hardware.runtimes.interfaces import DeviceEvaluation, Engine, OperatorPlans
from hwnas.hardware.timing import (
    InterleavedTimings,
    Sentinel,
    Timer,
    Timing,
    TimingConfig,
    interleaved,
    measure,
    p99_latency,
    percentiles,
)
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.parameters import Parameters

_QUICK_S = 2e-3  #: of each of three repeats, when plans are compared
_IDLE_S, _BLOCK_S = (
    4.0,
    1.0,
)  #: of measuring energy; meters renew their value some 10 times a second
_HOPELESS = 3.0  #: a plan that is so many times slower than another is not timed to the end


@final
class DeviceBench:
    """Times on one device."""

    def __init__(
        self,
        engine: Engine,
        config: TimingConfig,
        dtype: str,
        meter: EnergyMeter | None = None,
        tail_s: float | None = None,
    ):
        """Take what is timed with.

        Args:
            engine: Compiles and runs.
            config: How long is measured.
            dtype: Of the sentinel.
            meter: Of energy, if there is one.
            tail_s: Seconds that the p99 of a network may take to measure; ``None``: it is not.
        """
        self._engine, self._config, self._meter, self._tail_s = engine, config, meter, tail_s
        work = OpSpec("conv2d+bn+relu", (32, 16, 16), (32, 16, 16), 3, dtype=dtype)
        (plan,) = engine.plans(work, 1)
        self._sentinel = Sentinel(engine.operator(work, plan), config)

    def tune(self, op: OpSpec, limit: int, first: str = "") -> str:
        """Return the fastest of at most ``limit`` plans, and of one that is tried first.

        Raises:
            CompileError: no plan compiles.
        """
        promising = [*filter(None, [first]), *self._engine.plans(op, limit)]
        plans = list(dict.fromkeys(promising))
        if len(plans) == 1:
            return plans[0]
        seconds: dict[str, float] = {}
        problem = CompileError(f"There is no plan for {op}.")
        for plan in plans:
            try:
                timer = self._engine.operator(op, plan)
                seconds[plan] = _quick(timer, min(seconds.values(), default=float("inf")))
            except CompileError as error:
                problem = error
        if not seconds:
            raise problem
        fastest = min(seconds, key=lambda plan: seconds[plan])
        for plan in seconds:
            if plan != fastest:
                self._engine.forget(op, plan)
        return fastest

    def time_operators(self, work: Sequence[tuple[OpSpec, str]]) -> list[Timing]:
        """Return the latency of operators, measured between two readings of the sentinel."""
        engine, config = self._engine, self._config
        return self._sentinel.watch(
            lambda: [engine.time_operator(op, plan, config) for op, plan in work]
        )

    def time_network(self, graph: Graph, plans: OperatorPlans) -> Timing:
        """Return the latency of a whole network."""
        timer = self._engine.network(graph, plans)
        return self._sentinel.watch(lambda: [measure(timer, self._config)])[0]

    def interleaved_networks(self, first: Graph, second: Graph) -> InterleavedTimings:
        """Return the latencies of two networks, as the runtime compiles them by itself."""
        one, other = (self._engine.network(graph, {}) for graph in (first, second))
        return interleaved(one, other, self._config)

    def percentiles(self, graph: Graph, plans: OperatorPlans, n: int) -> dict[str, float]:
        """Return p50, p90 and p99 of ``n`` single inferences, in ms."""
        return percentiles(self._engine.network(graph, plans), n)

    def export(self, graph: Graph, plans: OperatorPlans, weights: Parameters) -> dict[str, bytes]:
        """Return the files of a compiled network, by suffix."""
        return dict(self._engine.export(graph, plans, weights))

    def evaluate(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> DeviceEvaluation:
        """Return what a compiled network, loaded from its files, shows on its device."""
        loaded = self._engine.open(files)
        outputs = loaded.session.run(images)
        timing = self._sentinel.watch(lambda: [measure(loaded.timer, self._config)])[0]
        p99 = None
        if self._tail_s is not None:
            p99 = p99_latency(loaded.timer, self._tail_s, loaded.uncounted)
        energy = None
        if self._meter is not None:
            energy = measure_energy(
                self._meter, loaded.timer, _IDLE_S, _BLOCK_S, uncounted=loaded.uncounted
            )
        return DeviceEvaluation(outputs, timing, energy, p99)

    def interleaved(
        self, first: Mapping[str, Path], second: Mapping[str, Path]
    ) -> InterleavedTimings:
        """Return the latencies of two compiled networks, loaded from their files."""
        one, other = (self._engine.open(files).timer for files in (first, second))
        return interleaved(one, other, self._config)

    def run(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs of a compiled network, loaded from its files, without timing it."""
        return self._engine.open(files).session.run(images)

    def sentinel_ms(self) -> tuple[float, ...]:
        """Return all readings of the sentinel, in ms."""
        return self._sentinel.readings_ms


def _quick(timer: Timer, fastest: float) -> float:
    """Return roughly the seconds of one run; stop early where it is hopeless."""
    timer(1)
    once = timer(3) / 3
    if once > _HOPELESS * fastest:
        return once
    number = max(1, int(_QUICK_S / max(once, 1e-8)))
    return statistics.median(timer(number) / number for _ in range(3))
