"""Stations: where a model can run, and within which limit on its latency.

A station is a model on a device with a limit of its own on the latency of its pool. It has
variants: batch size, wait and a least number of replicas, each with its goodput, so that latencies
never enter the program.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.planning.arrivals import Arrivals
from hwnas.planning.fleet import Device
from hwnas.planning.goodput import SIZES, Goodputs, service_times
from hwnas.planning.problem import Problem

Array = NDArray[np.float64]

PARTS = (0.3, 0.6)  #: of the time that is left: what the first stage of a cascade may take
_BETTER = 1.02  # a variant that is hardly better is left out
_NEAR = 0.03  # limits of pools that are so near are one


@dataclass(frozen=True)
class Variant:
    """How a station may run."""

    batch: int
    wait_ms: float
    least: int  #: replicas that answer, at least
    goodput: float  #: requests a second of a replica
    most: float  #: goodput that no correction may go beyond: it would fall behind


@dataclass(frozen=True)
class Station:
    """A model on a device, for arrivals of a kind, within a limit."""

    device: int
    model: str
    process: int
    limit_ms: float
    variants: tuple[Variant, ...]

    @property
    def best(self) -> float:
        """The highest goodput of a replica."""
        return max(v.goodput for v in self.variants)


def limits_of(problem: Problem) -> Array:
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


def stations_of(problem: Problem, goodputs: Goodputs, limits: Array) -> Iterator[Station]:
    """Yield all stations that keep one of the limits."""
    for where, upper in _places(problem):
        yield from _at_limits(where, upper, limits, problem, goodputs)


def curves_of(problem: Problem) -> Iterator[tuple[Arrivals, Array, int, float]]:
    """Yield what ``stations_of`` asks goodputs for: as ``Goodputs.curve`` takes it."""
    for (*_, process), upper in _places(problem):
        for batch in upper:
            service = service_times(upper, batch)
            for wait in _waits_of(problem, batch):
                for size in SIZES:
                    yield problem.arrivals[process], service, size, wait / 1e3


def _places(problem: Problem) -> Iterator[tuple[tuple[int, str, int], dict[int, float]]]:
    """Yield where models can run, for which arrivals, with milliseconds of batches."""
    parts = {name for s in problem.splits for name in (s.head, s.tail)}
    for d, (device, at) in enumerate(problem.devices):
        for name in [*problem.catalogue.models, *sorted(parts - {*problem.catalogue.models})]:
            timed = problem.catalogue.on(problem.fleet, device, name)
            if timed and has_room(problem, at, name):
                upper = {batch: figure.upper for batch, figure in timed.items()}
                for process in dict.fromkeys(problem.process_of):
                    yield (d, name, process), upper


def has_room(problem: Problem, at: Device, name: str) -> bool:
    """Return whether a machine has memory for a model, or a part of one, in each of its slots."""
    needed = (problem.catalogue.memory_mib(name) or 0.0) * at.slots
    return at.memory_mib is None or needed <= at.memory_mib


def _waits_of(problem: Problem, batch: int) -> list[float]:
    """Return the milliseconds that batches may wait."""
    return problem.service.wait_ms if batch > 1 else [0.0]


def _at_limits(
    where: tuple[int, str, int],
    latency_ms: dict[int, float],
    limits: Array,
    problem: Problem,
    goodputs: Goodputs,
) -> Iterator[Station]:
    """Yield a station for each limit that can be kept; larger pools only where they do better."""
    arrivals = problem.arrivals[where[2]]
    best: dict[tuple[int, int], Variant] = {}
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
                        best[i, size] = Variant(batch, wait, size, rate, most)
    for i, limit in enumerate(limits):
        kept: list[Variant] = []
        for size in SIZES:
            v = best.get((i, size))
            if v is not None and (not kept or v.goodput > _BETTER * kept[-1].goodput):
                kept.append(v)
        if kept:
            yield Station(*where, float(limit), tuple(kept))
