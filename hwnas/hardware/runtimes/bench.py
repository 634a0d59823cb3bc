"""A bench: tunes and times operators and networks with an engine, and detects drift.

Drift is a change of the machine's speed. A sentinel, a small constant workload, is timed between
measurements to detect it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    median_and_p99,
    percentiles,
)
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import Parameters

_QUICK_S = 2e-3  #: seconds of each of three repeats that compare plans
#: of energy measurements; meters update about 10 times a second
_IDLE_S, _BLOCK_S = 4.0, 1.0
_MAX_SLOWDOWN = 3.0  #: a plan slower than another by this factor is not timed further


@final
class DeviceBench:
    """Tunes and times operators and networks on one device, and evaluates compiled networks.

    Methods raise ``CompileError`` for what the runtime cannot compile, and ``DeviceError`` if the
    device does not answer.
    """

    def __init__(
        self,
        engine: Engine,
        config: TimingConfig,
        dtype: str,
        meter: EnergyMeter | None = None,
        p99_limit_s: float | None = None,
    ):
        """Create a bench.

        It times the sentinel for the first time.

        Args:
            engine: The runtime on the device.
            config: Duration of measurements.
            dtype: Dtype of the sentinel, a convolution.
            meter: Energy meter; ``None``: energy is not measured.
            p99_limit_s: Time limit for the runs of the p99 latency in ``evaluate``; ``None``: it is
                not measured.
        """
        self._engine, self._config, self._meter, self._p99_limit_s = (
            engine,
            config,
            meter,
            p99_limit_s,
        )
        sentinel = OpSpec("conv2d+bn+relu", (32, 16, 16), (32, 16, 16), 3, dtype=dtype)
        (plan,) = engine.plans(sentinel, 1)
        self._sentinel = Sentinel(engine.operator(sentinel, plan), config)

    def tune(self, op: OpSpec, limit: int, first: str = "") -> str:
        """Return the fastest compilation plan of an operator.

        Candidates are at most ``limit`` plans of the engine, and ``first`` if it is not empty. Each
        is compiled and timed; a single candidate is returned without that.

        Raises:
            CompileError: no plan compiles.
        """
        plans = list(dict.fromkeys([*filter(None, [first]), *self._engine.plans(op, limit)]))
        if len(plans) == 1:
            return plans[0]
        seconds: dict[str, float] = {}
        problem = CompileError(
            f"The runtime has no compilation plan for {op}. This is an error in hwnas; please "
            "report it."
        )
        for plan in plans:
            try:
                timer = self._engine.operator(op, plan)
                seconds[plan] = _quick_seconds(timer, min(seconds.values(), default=float("inf")))
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
        """Return the latency of each pair ``(operator, compilation plan)`` in ``work``, in order.

        If the machine was slower than normal, timings are marked ``drifted``.
        """
        engine, config = self._engine, self._config
        return self._sentinel.watch(
            lambda: [engine.time_operator(op, plan, config) for op, plan in work]
        )

    def time_network(self, graph: Graph, plans: OperatorPlans) -> Timing:
        """Return the latency of an inference of a fused network, with random weights and images.

        If the machine was slower than normal, the timing is marked ``drifted``.
        """
        timer = self._engine.network(graph, plans)
        return self._sentinel.watch(lambda: [measure(timer, self._config)])[0]

    def interleaved_networks(self, first: Graph, second: Graph) -> InterleavedTimings:
        """Return the latencies of two fused networks, timed in turns with random weights.

        Raises:
            CompileError: the runtime needs compilation plans.
        """
        first_timer, second_timer = (self._engine.network(graph, {}) for graph in (first, second))
        return interleaved(first_timer, second_timer, self._config)

    def percentiles(self, graph: Graph, plans: OperatorPlans, n: int) -> dict[str, float]:
        """Return ``p50_ms``, ``p90_ms`` and ``p99_ms`` of ``n`` single inferences of a network."""
        return percentiles(self._engine.network(graph, plans), n)

    def export(self, graph: Graph, plans: OperatorPlans, weights: Parameters) -> dict[str, bytes]:
        """Compile a fused network; return the contents of its files, by suffix such as ``.so``."""
        return dict(self._engine.export(graph, plans, weights))

    def evaluate(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> DeviceEvaluation:
        """Return outputs and measurements of a network, loaded from its files (by suffix).

        Outputs are for the normalised images ``(N, C, H, W)``. Latency is always measured; energy
        and p99 latency if the bench was created for them.

        Raises:
            ConfigError: the energy meter cannot be read.
            RunError: the energy cannot be measured, see ``meter.measure``.
        """
        loaded = self._engine.open(files)
        outputs = loaded.session.run(images)
        timing = self._sentinel.watch(lambda: [measure(loaded.timer, self._config)])[0]
        p99 = None
        if self._p99_limit_s is not None and (
            runs := median_and_p99(loaded.timer, self._p99_limit_s, loaded.uncounted)
        ):
            drifted = self._sentinel.disturbed() or timing.drifted
            timing, p99 = replace(runs[0], drifted=drifted), runs[1]
        energy = None
        if self._meter is not None:
            energy = measure_energy(
                self._meter, loaded.timer, _IDLE_S, _BLOCK_S, uncounted=loaded.uncounted
            )
        return DeviceEvaluation(outputs, timing, energy, p99)

    def interleaved(
        self, first: Mapping[str, Path], second: Mapping[str, Path]
    ) -> InterleavedTimings:
        """Return the latencies of two networks, loaded from files by suffix and timed in turns."""
        first_timer, second_timer = (self._engine.open(files).timer for files in (first, second))
        return interleaved(first_timer, second_timer, self._config)

    def run(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` of a network, loaded from its files (by suffix).

        They are for the normalised images ``(N, C, H, W)``; nothing is timed.
        """
        return self._engine.open(files).session.run(images)

    def sentinel_ms(self) -> tuple[float, ...]:
        """Return all readings of the sentinel in ms, the oldest first."""
        return self._sentinel.readings_ms


def _quick_seconds(timer: Timer, fastest: float) -> float:
    """Return the approximate seconds of one run; stop early if it is far slower."""
    timer(1)
    once = timer(3) / 3
    if once > _MAX_SLOWDOWN * fastest:
        return once
    number = max(1, int(_QUICK_S / max(once, 1e-8)))
    return statistics.median(timer(number) / number for _ in range(3))
