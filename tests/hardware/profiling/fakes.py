"""Devices that know the answer, and a pool that uses them in this process."""

import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hwnas.core.errors import CompileError, HwnasError
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.latency_tables.latency_table import LatencyTable, OperatorEntry
from hwnas.hardware.memory import activation_bytes, parameter_bytes
from hwnas.hardware.profiling.passes import ProfiledSpace
from hwnas.hardware.profiling.table_transfer import group
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.hardware.target import PowerModel, Target
from hwnas.hardware.timing import Timing
from hwnas.models import families
from hwnas.models.graph import Graph, OpSpec, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from tests.conftest import TVM

CPU = Target(
    "fake",
    "A CPU that does not exist",
    "made up",
    "made up",
    runtime="tvm",
    dtype="float32",
    **TVM,
    power=PowerModel(2.0, 6.0, "made up"),
)


def subject(space: SearchSpace, task: Signature, target: Target = CPU) -> ProfiledSpace:
    """Return a space as a target runs it."""
    family = families.get(space.family)
    return ProfiledSpace(
        space, lambda genotype: fused_graph(family.lower(space, genotype, task), target)
    )


@dataclass(frozen=True)
class _DrawnOnce(ProfiledSpace):
    drawn: dict[Any, Any] = field(default_factory=dict)

    def operators(self, seed: int) -> tuple[OpSpec, ...]:
        if seed not in self.drawn:
            self.drawn[seed] = super().operators(seed)
        result: tuple[OpSpec, ...] = self.drawn[seed]
        return result

    def sample(self, n: int, seed: int) -> list[Genotype]:
        if (n, seed) not in self.drawn:
            self.drawn[n, seed] = super().sample(n, seed)
        return [*self.drawn[n, seed]]


def drawn_once(space: SearchSpace, task: Signature, target: Target = CPU) -> ProfiledSpace:
    """Return a profiled space that caches its samples."""
    return _DrawnOnce(space, functools.cache(subject(space, task, target).lower))


def timing(ms: float, drifted: bool = False) -> Timing:
    return Timing(ms, 0.99 * ms, 1.02 * ms, 5, drifted)


@dataclass
class Device:
    """A device whose latencies follow from work and bytes, times a factor per group."""

    factors: Mapping[str, float] = field(default_factory=dict)
    scale: float = 1.0  #: of operators in a network, relative to single operators
    operator_ms: float = 0.0
    noise: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def operator(self, op: OpSpec) -> float:
        work = 1e-7 * op.n_macs + 2e-8 * (activation_bytes(op) + parameter_bytes(op)) + 1e-4
        return self.factors.get(group(op), 1.0) * work

    def network(self, lowered: Graph) -> float:
        alone = sum(self.operator(node.op) for node in lowered)
        return self._noisy(self.scale * alone + self.operator_ms * len(lowered))

    def table(self, path: Path, ops: Sequence[OpSpec]) -> LatencyTable:
        return LatencyTable(
            path, {op: OperatorEntry("plan", timing(self.operator(op))) for op in ops}
        )

    def _noisy(self, ms: float) -> float:
        return ms * math.exp(self.rng.gauss(0.0, self.noise))


@dataclass
class FakeWorker:
    """A worker with a simulated device."""

    device: Device = field(default_factory=Device)
    refuses: Sequence[OpSpec] = ()
    #: Timings of an operator or a network in order, instead of those of the device.
    script: dict[Any, list[Timing]] = field(default_factory=dict)
    tuned: list[OpSpec] = field(default_factory=list)
    timed: list[OpSpec] = field(default_factory=list)
    networks: list[tuple[Graph, Mapping[OpSpec, str]]] = field(default_factory=list)

    def tune(self, op: OpSpec, limit: int, first: str = "") -> str:
        self.tuned.append(op)
        if op in self.refuses:
            raise CompileError(f"no plan for {op}")
        return f"plan of {op.out_shape[0]} out of {limit}"

    def time_operators(self, work: Sequence[tuple[OpSpec, str]]) -> list[Timing]:
        assert all(plan == f"plan of {op.out_shape[0]} out of 4" for op, plan in work)
        self.timed += [op for op, _ in work]
        return [self._next(op, self.device.operator(op)) for op, _ in work]

    def time_network(self, lowered: Graph, plans: Mapping[OpSpec, str]) -> Timing:
        if missing := {node.op for node in lowered} - {*plans}:
            raise CompileError(f"{len(missing)} operators are not tuned")
        self.networks.append((lowered, plans))
        return self._next(lowered, self.device.network(lowered))

    def _next(self, key: Any, ms: float) -> Timing:
        return self.script[key].pop(0) if self.script.get(key) else timing(ms)


class FakePool:
    """Runs tasks in random order; optionally raises an error after some."""

    def __init__(self, worker: Any, error: BaseException | None = None, after: int = 0):
        self.worker, self._error, self._left = worker, error, after

    def run(self, tasks: Sequence[Callable[[Any], Any]]) -> Iterator[tuple[int, Any]]:
        order = list(enumerate(tasks))
        random.Random(7).shuffle(order)
        for index, task in order:
            if self._error is not None and self._left == 0:
                if not isinstance(self._error, HwnasError):
                    raise self._error
                yield index, self._error
            self._left -= 1
            yield index, self._outcome(task)

    def _outcome(self, task: Callable[[Any], Any]) -> Any:
        try:
            return task(self.worker)
        except HwnasError as error:
            return error


def pool(worker: FakeWorker, error: BaseException | None = None, after: int = 0) -> DevicePool:
    return cast(DevicePool, FakePool(worker, error, after))
