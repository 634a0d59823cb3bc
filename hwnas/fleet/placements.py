"""Placements: a model on a device, in a pool of equal replicas with a latency limit.

A placement has serving configs: batch size, wait and minimum number of replicas, each with its
goodput, so that the mixed-integer program contains no latencies.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwnas.core.progress import Progress
from hwnas.fleet import events
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.fleet_file import DeviceType
from hwnas.fleet.problem import PlanningProblem

# Goodput: the requests/s of a replica at which its pool's p99 keeps a limit.
#
# In units of the time of a batch of 1, p99 depends on the pool's size, the largest batch, the fixed
# fraction of a batch's time, the load and the wait. It is simulated on a grid (for waits: powers of
# 2) and interpolated. p99 is made monotonic in the load: with waits it may decrease as batches fill
# sooner, but the limit must hold at lower loads, too.

Array = NDArray[np.float64]

SIZES = (1, 4, 16)  #: minimum replicas of serving configs
QUANTILE = 0.99  #: of latencies, compared with limits
_FIXED = np.linspace(0.0, 1.0, 4)
_LOADS = np.concatenate(
    [[0.001, 0.005, 0.02], np.linspace(0.06, 0.6, 7), np.linspace(0.66, 0.98, 9)]
)
_REQUESTS, _SEED = 20_000, 1


def service_times(latency_ms: dict[int, float], largest: int) -> Array:
    """Return the seconds of batches of 1, 2, ..., ``largest`` images ``(largest,)``.

    Args:
        latency_ms: ms by batch size; values between are interpolated, those outside are equal to
            the nearest, and they never decrease.
        largest: Maximum batch size.
    """
    known = sorted(latency_ms)
    times = np.interp(np.arange(1, largest + 1), known, [latency_ms[b] for b in known])
    result: Array = np.maximum.accumulate(times) / 1e3
    return result


@dataclass
class Goodputs:
    """Latencies and goodputs of pools by simulation, cached.

    The goodput is the requests/s of a replica at which the p99 latency of its pool keeps a limit.
    """

    jitter: float  #: standard deviation of the log of service times
    _known: dict[tuple[int, int, int, float], Array] = field(default_factory=dict)

    def curve(
        self, arrivals: Arrivals, service_s: Array, replicas: int, wait_s: float = 0.0
    ) -> Array:
        """Return the p99 latency of a pool in s at each of the loads of ``rates`` ``(loads,)``.

        Args:
            arrivals: Arrival process.
            service_s: Seconds of batches of 1, 2, ... images, as ``service_times``.
            replicas: Number of replicas.
            wait_s: Maximum seconds that a request waits for a full batch.
        """
        single_s, full_s, batch = service_s[0], service_s[-1], service_s.size
        image_s = (full_s - single_s) / (batch - 1) if batch > 1 else single_s
        fixed = float(np.clip((single_s - image_s) / single_s, 0.0, 1.0)) if batch > 1 else 0.0
        grid = np.zeros((len(_FIXED), len(_LOADS)))
        for wait, weight in _wait_weights(wait_s / single_s):
            grid += weight * self._grid(arrivals, replicas, batch, wait)
        place = fixed * (len(_FIXED) - 1)
        i = min(int(place), len(_FIXED) - 2)
        unit = grid[i] + (place - i) * (grid[i + 1] - grid[i])
        result: Array = np.maximum.accumulate(unit) * single_s
        return result

    @staticmethod
    def rates(service_s: Array) -> Array:
        """Return the requests/s per replica to which ``curve`` belongs ``(loads,)``, ascending."""
        result: Array = _LOADS * (service_s.size / service_s[-1])
        return result

    def rate(self, limit_s: float, curve: Array, service_s: Array) -> float:
        """Return the goodput: the requests/s per replica at which p99 reaches ``limit_s``.

        It is interpolated; 0 if p99 is above the limit at all loads, at most the last of ``rates``.
        ``curve`` is the result of the method ``curve`` for ``service_s``.
        """
        if curve[0] > limit_s:
            return 0.0
        return float(np.interp(limit_s, curve, self.rates(service_s)))

    def prepare(
        self, arguments: Iterable[tuple[Arrivals, Array, int, float]], progress: Progress
    ) -> None:
        """Run and cache the simulations that calls of ``curve`` with these arguments need.

        ``arguments`` are (arrivals, service times in s, replicas, wait in s).
        """
        simulations = {
            (id(arrivals), replicas, service_s.size, wait): arrivals
            for arrivals, service_s, replicas, wait_s in arguments
            for wait, _ in _wait_weights(wait_s / service_s[0])
        }
        with progress.phase("Goodputs", len(simulations)) as advance:
            for (_, replicas, batch, wait), arrivals in simulations.items():
                self._grid(arrivals, replicas, batch, wait)
                advance(1)

    def _grid(self, arrivals: Arrivals, replicas: int, batch: int, wait: float) -> Array:
        key = (id(arrivals), replicas, batch, wait)
        if key not in self._known:
            kinds = _FIXED if batch > 1 else _FIXED[:1]
            result = np.array([self._row(arrivals, replicas, batch, f, wait) for f in kinds])
            self._known[key] = np.broadcast_to(result, (len(_FIXED), len(_LOADS)))
        return self._known[key]

    def _row(
        self, arrivals: Arrivals, replicas: int, batch: int, fixed: float, wait: float
    ) -> Array:
        service = fixed + (1 - fixed) * np.arange(1.0, batch + 1)
        noise = events.lognormal_noise(self.jitter)
        result = [
            latency_quantile(arrivals, service, replicas, load, noise, wait) for load in _LOADS
        ]
        return np.array(result)


def _wait_weights(wait: float) -> list[tuple[float, float]]:
    """Return the powers of 2 around a wait with their interpolation weights."""
    if not wait:
        return [(0.0, 1.0)]
    below = 2.0 ** float(np.floor(np.log2(wait)))
    part = wait / below - 1
    return [(power, share) for power, share in ((below, 1 - part), (2 * below, part)) if share]


def latency_quantile(
    arrivals: Arrivals, service_s: Array, replicas: int, load: float, noise: Array,
    wait_s: float = 0.0,
) -> float:  # fmt: skip
    """Return the p99 latency in s of one pool by simulation, without the first 5 % of requests.

    Args:
        arrivals: Arrival process.
        service_s: Seconds of batches of 1, 2, ... images.
        replicas: Number of replicas.
        load: Demand as a fraction of the pool's capacity with full batches.
        noise: Factors of service times, of mean 1.
        wait_s: Maximum seconds that a request waits for a full batch.
    """
    rate = load * replicas * service_s.size / service_s[-1]
    times = arrivals.at(rate, _REQUESTS, np.random.default_rng(_SEED))
    pools, routes = events.single_pool(service_s, wait_s, replicas, noise)
    result = events.simulate(times, np.zeros(times.size, np.int32), pools, routes, seed=_SEED)
    return float(np.quantile(result.latency_s[_REQUESTS // 20 :], QUANTILE))


PARTS = (0.3, 0.6)  #: fractions of the remaining time for the first stage of a cascade
_BETTER = 1.02  # minimum gain of a config with more replicas
_NEAR = 0.03  # relative distance below which limits are merged


@dataclass(frozen=True)
class ServingConfig:
    """Batch size, wait and minimum number of replicas of a placement, with its goodput."""

    batch: int  #: maximum batch size
    wait_ms: float  #: maximum time that a request waits for a full batch
    least: int  #: minimum number of replicas
    goodput: float  #: requests/s of a replica at which the limit holds
    most: float  #: highest requests/s of a replica: 98 % of the rate with full batches


@dataclass(frozen=True)
class Placement:
    """A model on a device for one arrival process, within a latency limit."""

    device: int  #: index of the device type
    model: str  #: ``ID-PRECISION``
    process: int  #: index of the arrival process
    limit_ms: float  #: limit of the p99 latency of its pool, without the network
    configs: tuple[ServingConfig, ...]

    @property
    def best(self) -> float:
        """Highest goodput of its serving configs, in requests/s of a replica."""
        return max(v.goodput for v in self.configs)


def pool_limits(problem: PlanningProblem) -> Array:
    """Return the limits in ms of the p99 latency that pools may have, ascending ``(limits,)``.

    They are those of ``tiers_ms``; by default what the limits of classes leave after the network,
    and fractions of it for the stages of cascades.
    """
    if problem.service.tiers_ms is not None:
        return np.unique(np.array(problem.service.tiers_ms))
    rest = {
        _rounded_down(request_class.p99_ms - way.ms(request_class.payload_kib))
        for _, request_class in problem.classes
        for region, way in problem.network_paths[request_class.source].items()
        if region in request_class.regions
    }
    fractions = sorted(t * part for t in rest if t > 0 for part in (1.0, *PARTS, 1 - PARTS[1]))
    limits: list[float] = []
    for t in sorted(rest) + fractions:  # of close limits the shorter one suits both
        if t > 0 and all(abs(t - other) > _NEAR * other for other in limits):
            limits.append(t)
    return np.array(sorted(limits))


def _rounded_down(ms: float) -> float:
    """Return a limit with three decimals that is not above what a class leaves."""
    return math.floor(round(ms * 1e3, 6)) / 1e3


def placements_of(
    problem: PlanningProblem, goodputs: Goodputs, limits: Array
) -> Iterator[Placement]:
    """Yield a placement per device, model, arrival process and limit that a pool can keep.

    ``limits`` are p99 latencies in ms. Models without a latency on a device, or too large for its
    memory, have none.
    """
    for key, upper in _device_models(problem):
        yield from _placements_at_limits(key, upper, limits, problem, goodputs)


def curve_arguments(problem: PlanningProblem) -> Iterator[tuple[Arrivals, Array, int, float]]:
    """Yield the arguments with which ``placements_of`` calls ``Goodputs.curve``."""
    for (*_, process), upper in _device_models(problem):
        for batch in upper:
            service = service_times(upper, batch)
            for wait in _wait_options(problem, batch):
                for size in SIZES:
                    yield problem.arrivals[process], service, size, wait / 1e3


def _device_models(
    problem: PlanningProblem,
) -> Iterator[tuple[tuple[int, str, int], dict[int, float]]]:
    """Yield (device, model, arrival process) and milliseconds by batch size."""
    parts = {name for s in problem.splits for name in (s.head, s.tail)}
    for d, (device, device_type) in enumerate(problem.devices):
        for name in [*problem.catalogue.models, *sorted(parts - {*problem.catalogue.models})]:
            timed = problem.catalogue.on(problem.fleet, device, name)
            if timed and has_room(problem, device_type, name):
                upper = {batch: figure.upper for batch, figure in timed.items()}
                for process in dict.fromkeys(problem.process_of):
                    yield (d, name, process), upper


def has_room(problem: PlanningProblem, at: DeviceType, name: str) -> bool:
    """Return True if a machine has memory for as many replicas of a model as it has slots.

    True if either memory is unknown.
    """
    needed = (problem.catalogue.memory_mib(name) or 0.0) * at.slots
    return at.memory_mib is None or needed <= at.memory_mib


def _wait_options(problem: PlanningProblem, batch: int) -> list[float]:
    """Return the milliseconds that batches may wait."""
    return problem.service.wait_ms if batch > 1 else [0.0]


def _placements_at_limits(
    key: tuple[int, str, int],
    latency_ms: dict[int, float],
    limits: Array,
    problem: PlanningProblem,
    goodputs: Goodputs,
) -> Iterator[Placement]:
    """Yield a placement per feasible limit; larger pools only if they gain."""
    arrivals = problem.arrivals[key[2]]
    best: dict[tuple[int, int], ServingConfig] = {}
    for batch in latency_ms:
        service = service_times(latency_ms, batch)
        capacity = float(goodputs.rates(service)[-1])
        for wait in _wait_options(problem, batch):
            for size in SIZES:
                curve = goodputs.curve(arrivals, service, size, wait / 1e3)
                for i, limit in enumerate(limits):
                    rate = goodputs.rate(limit / 1e3, curve, service)
                    known = best.get((i, size))
                    if rate > 0 and (known is None or rate > known.goodput):
                        best[i, size] = ServingConfig(batch, wait, size, rate, capacity)
    for i, limit in enumerate(limits):
        configs: list[ServingConfig] = []
        for size in SIZES:
            v = best.get((i, size))
            if v is not None and (not configs or v.goodput > _BETTER * configs[-1].goodput):
                configs.append(v)
        if configs:
            yield Placement(*key, float(limit), tuple(configs))
