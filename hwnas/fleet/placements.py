"""Stations: where a model can run, and within which limit on its latency.

A station is a model on a device with a limit of its own on the latency of its pool. It has
variants: batch size, wait and a least number of replicas, each with its goodput, so that latencies
never enter the program.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hwnas.core.progress import Progress
from hwnas.fleet import events
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.fleet_file import DeviceType
from hwnas.fleet.problem import PlanningProblem

# Goodput: how many requests a second a replica takes such that its pool's p99 keeps a limit.
#
# What comes of simulations in units of a batch of one serves all devices and models: the latest
# hundredth depends on the pool's size, the largest batch, which part of a batch's time is fixed,
# and
# the load. It is simulated on a grid of these, and read in between; where batches wait, for powers
# of 2 of that wait too. A pool is told its longest latency at any load below: one whose batches
# wait
# may answer sooner where they fill sooner, but must keep its limit when less comes, too.

Array = NDArray[np.float64]

SIZES = (1, 4, 16)  #: replicas that a pool has at least
QUANTILE = 0.99  #: of latencies, which limits are held against
_FIXED = np.linspace(0.0, 1.0, 4)
_LOADS = np.concatenate(
    [[0.001, 0.005, 0.02], np.linspace(0.06, 0.6, 7), np.linspace(0.66, 0.98, 9)]
)
_REQUESTS, _SEED = 20_000, 1


def service_times(latency_ms: dict[int, float], largest: int) -> Array:
    """Return seconds of batches of 1 to ``largest``, in between those that were timed ``(n,)``."""
    known = sorted(latency_ms)
    times = np.interp(np.arange(1, largest + 1), known, [latency_ms[b] for b in known])
    found: Array = np.maximum.accumulate(times) / 1e3
    return found


@dataclass
class Goodputs:
    """Goodputs by simulation; what was simulated once is kept."""

    jitter: float  #: of service times
    _known: dict[tuple[int, int, int, float], Array] = field(default_factory=dict)

    def curve(
        self, arrivals: Arrivals, service_s: Array, replicas: int, wait_s: float = 0.0
    ) -> Array:
        """Return the late end of latencies in seconds at each of the loads of ``rates``."""
        one, whole, batch = service_s[0], service_s[-1], service_s.size
        each = (whole - one) / (batch - 1) if batch > 1 else one
        fixed = float(np.clip((one - each) / one, 0.0, 1.0)) if batch > 1 else 0.0
        grid = np.zeros((len(_FIXED), len(_LOADS)))
        for wait, weight in _waits(wait_s / one):
            grid += weight * self._grid(arrivals, replicas, batch, wait)
        place = fixed * (len(_FIXED) - 1)
        i = min(int(place), len(_FIXED) - 2)
        unit = grid[i] + (place - i) * (grid[i + 1] - grid[i])
        found: Array = np.maximum.accumulate(unit) * one
        return found

    @staticmethod
    def rates(service_s: Array) -> Array:
        """Return the rates of one replica at which ``curve`` knows latencies."""
        found: Array = _LOADS * (service_s.size / service_s[-1])
        return found

    def rate(self, limit_s: float, curve: Array, service_s: Array) -> float:
        """Return the rate of one replica at which the late end reaches a limit; 0: it is above."""
        if curve[0] > limit_s:
            return 0.0
        return float(np.interp(limit_s, curve, self.rates(service_s)))

    def prepare(
        self, asked: Iterable[tuple[Arrivals, Array, int, float]], progress: Progress
    ) -> None:
        """Simulate all that ``curve`` will be asked for."""
        wanted = {
            (id(arrivals), replicas, service_s.size, wait): arrivals
            for arrivals, service_s, replicas, wait_s in asked
            for wait, _ in _waits(wait_s / service_s[0])
        }
        with progress.phase("Goodputs", len(wanted)) as advance:
            for (_, replicas, batch, wait), arrivals in wanted.items():
                self._grid(arrivals, replicas, batch, wait)
                advance(1)

    def _grid(self, arrivals: Arrivals, replicas: int, batch: int, wait: float) -> Array:
        key = (id(arrivals), replicas, batch, wait)
        if key not in self._known:
            kinds = _FIXED if batch > 1 else _FIXED[:1]
            found = np.array([self._row(arrivals, replicas, batch, f, wait) for f in kinds])
            self._known[key] = np.broadcast_to(found, (len(_FIXED), len(_LOADS)))
        return self._known[key]

    def _row(
        self, arrivals: Arrivals, replicas: int, batch: int, fixed: float, wait: float
    ) -> Array:
        service = fixed + (1 - fixed) * np.arange(1.0, batch + 1)
        noise = events.lognormal(self.jitter)
        found = [late_end(arrivals, service, replicas, load, noise, wait) for load in _LOADS]
        return np.array(found)


def _waits(wait: float) -> list[tuple[float, float]]:
    """Return the powers of 2 on both sides of a wait, and how much each counts."""
    if not wait:
        return [(0.0, 1.0)]
    below = 2.0 ** float(np.floor(np.log2(wait)))
    part = wait / below - 1
    return [(power, share) for power, share in ((below, 1 - part), (2 * below, part)) if share]


def late_end(
    arrivals: Arrivals, service_s: Array, replicas: int, load: float, noise: Array,
    wait_s: float = 0.0,
) -> float:  # fmt: skip
    """Return the late end of latencies of one pool at a share of what it can take at most.

    A pool that falls behind for good is seen by what its last requests wait for.
    """
    rate = load * replicas * service_s.size / service_s[-1]
    times = arrivals.at(rate, _REQUESTS, np.random.default_rng(_SEED))
    pools, routes = events.single(service_s, wait_s, replicas, noise)
    found = events.simulate(times, np.zeros(times.size, np.int32), pools, routes, seed=_SEED)
    return float(np.quantile(found.latency_s[_REQUESTS // 20 :], QUANTILE))


PARTS = (0.3, 0.6)  #: of the time that is left: what the first stage of a cascade may take
_BETTER = 1.02  # a variant that is hardly better is left out
_NEAR = 0.03  # limits of pools that are so near are one


@dataclass(frozen=True)
class ServingConfig:
    """How a station may run."""

    batch: int
    wait_ms: float
    least: int  #: replicas that answer, at least
    goodput: float  #: requests a second of a replica
    most: float  #: goodput that no correction may go beyond: it would fall behind


@dataclass(frozen=True)
class Placement:
    """A model on a device, for arrivals of a kind, within a limit."""

    device: int
    model: str
    process: int
    limit_ms: float
    variants: tuple[ServingConfig, ...]

    @property
    def best(self) -> float:
        """The highest goodput of a replica."""
        return max(v.goodput for v in self.variants)


def limits_of(problem: PlanningProblem) -> Array:
    """Return the limits that pools may have, ascending."""
    if problem.service.tiers_ms is not None:
        return np.unique(np.array(problem.service.tiers_ms))
    left = {
        round(asked.p99_ms - way.ms(asked.payload_kib), 3)
        for _, asked in problem.classes
        for region, way in problem.ways[asked.source].items()
        if region in asked.regions
    }
    wanted = sorted(t * part for t in left if t > 0 for part in (1.0, *PARTS, 1 - PARTS[1]))
    kept: list[float] = []
    for t in sorted(left) + wanted:  # of those that are near, the shorter one suits both
        if t > 0 and all(abs(t - other) > _NEAR * other for other in kept):
            kept.append(t)
    return np.array(sorted(kept))


def stations_of(problem: PlanningProblem, goodputs: Goodputs, limits: Array) -> Iterator[Placement]:
    """Yield all stations that keep one of the limits."""
    for where, upper in _places(problem):
        yield from _at_limits(where, upper, limits, problem, goodputs)


def curves_of(problem: PlanningProblem) -> Iterator[tuple[Arrivals, Array, int, float]]:
    """Yield what ``stations_of`` asks goodputs for: as ``Goodputs.curve`` takes it."""
    for (*_, process), upper in _places(problem):
        for batch in upper:
            service = service_times(upper, batch)
            for wait in _waits_of(problem, batch):
                for size in SIZES:
                    yield problem.arrivals[process], service, size, wait / 1e3


def _places(problem: PlanningProblem) -> Iterator[tuple[tuple[int, str, int], dict[int, float]]]:
    """Yield where models can run, for which arrivals, with milliseconds of batches."""
    parts = {name for s in problem.splits for name in (s.head, s.tail)}
    for d, (device, at) in enumerate(problem.devices):
        for name in [*problem.catalogue.models, *sorted(parts - {*problem.catalogue.models})]:
            timed = problem.catalogue.on(problem.fleet, device, name)
            if timed and has_room(problem, at, name):
                upper = {batch: figure.upper for batch, figure in timed.items()}
                for process in dict.fromkeys(problem.process_of):
                    yield (d, name, process), upper


def has_room(problem: PlanningProblem, at: DeviceType, name: str) -> bool:
    """Return whether a machine has memory for a model, or a part of one, in each of its slots."""
    needed = (problem.catalogue.memory_mib(name) or 0.0) * at.slots
    return at.memory_mib is None or needed <= at.memory_mib


def _waits_of(problem: PlanningProblem, batch: int) -> list[float]:
    """Return the milliseconds that batches may wait."""
    return problem.service.wait_ms if batch > 1 else [0.0]


def _at_limits(
    where: tuple[int, str, int],
    latency_ms: dict[int, float],
    limits: Array,
    problem: PlanningProblem,
    goodputs: Goodputs,
) -> Iterator[Placement]:
    """Yield a station for each limit that can be kept; larger pools only where they do better."""
    arrivals = problem.arrivals[where[2]]
    best: dict[tuple[int, int], ServingConfig] = {}
    for batch in latency_ms:
        service = service_times(latency_ms, batch)
        most = float(goodputs.rates(service)[-1])
        for wait in _waits_of(problem, batch):
            for size in SIZES:
                curve = goodputs.curve(arrivals, service, size, wait / 1e3)
                for i, limit in enumerate(limits):
                    rate = goodputs.rate(limit / 1e3, curve, service)
                    known = best.get((i, size))
                    if rate > 0 and (known is None or rate > known.goodput):
                        best[i, size] = ServingConfig(batch, wait, size, rate, most)
    for i, limit in enumerate(limits):
        kept: list[ServingConfig] = []
        for size in SIZES:
            v = best.get((i, size))
            if v is not None and (not kept or v.goodput > _BETTER * kept[-1].goodput):
                kept.append(v)
        if kept:
            yield Placement(*where, float(limit), tuple(kept))
