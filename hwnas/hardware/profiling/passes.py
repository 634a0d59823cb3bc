"""Times things in passes, minutes apart: what disturbs a machine once is seldom there again.

Everything measured is saved as it comes: a profile that is cut off goes on where it was.
"""

import math
import random
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar, final

from hwnas.core.errors import HwnasError
from hwnas.core.progress import Progress
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.timing import Timing
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.spaces import Genotype, Space

K = TypeVar("K", bound=Hashable)

_SAVE_S = 5.0  #: at most so much work is lost by a kill
MAX_PASSES = 6  #: passes, at most
_AGREE = 0.03  #: what is measured is timed until two quiet passes differ by no more


@dataclass(frozen=True)
class RepeatedMeasurement:
    """What is known of one thing."""

    timing: Timing
    n_passes: int = 1


@dataclass(frozen=True)
class MeasurementPasses(Generic[K]):
    """Times things that a table keeps, as often as each needs."""

    title: str  #: of the progress bar
    measured: Callable[[K], RepeatedMeasurement | None]  #: what the table has
    keep: Callable[[K, RepeatedMeasurement], None]  #: put it into the table
    time: Callable[[Worker, Sequence[K]], Sequence[Timing]]
    block: int = 1  #: things that one worker times in a row
    most: int = MAX_PASSES  #: passes

    def run(
        self,
        table: LatencyTable,
        things: Sequence[K],
        pool: DevicePool,
        progress: Progress,
    ) -> None:
        """Time everything, what the table has included, until two passes confirm the fastest.

        Raises:
            HwnasError: something cannot be timed; what was timed before is kept.
        """
        found: dict[K, list[Timing]] = {}
        for thing in things:
            known = self.measured(thing)
            found[thing] = [known.timing] if known else []
        for number in range(1, self.most + 1):
            todo = [thing for thing in things if self._wants(thing, found[thing], number)]
            random.Random(number).shuffle(todo)
            blocks = [todo[i : i + self.block] for i in range(0, len(todo), self.block)]
            if not blocks:
                continue
            tasks = [partial(self._block, block) for block in blocks]
            phase = progress.phase(f"{self.title}, {number}", len(todo))
            with phase as advance, PeriodicSaver(table) as saver:
                for index, outcome in pool.run(tasks):
                    if isinstance(outcome, HwnasError):
                        raise outcome
                    for thing, timing in zip(blocks[index], outcome, strict=True):
                        found[thing].append(timing)
                        self.keep(thing, _with(self.measured(thing), timing))
                    saver.soon()
                    advance(len(blocks[index]))

    def _block(self, things: Sequence[K], worker: Worker) -> Sequence[Timing]:
        return self.time(worker, things)

    def _wants(self, thing: K, found: Sequence[Timing], number: int) -> bool:
        """Return whether something needs the pass of that number, after those of this run."""
        known = self.measured(thing)
        n_passes = known.n_passes if known else 0
        if len(found) == 1 and n_passes > 1:  # confirmed by an earlier run, if it was quiet then
            return found[0].drifted and number == 1
        return n_passes < number and not confirmed(found)


def confirmed(timings: Sequence[Timing]) -> bool:
    """Return whether two quiet passes agree on the fastest latency."""
    quiet = sorted(timing.median_ms for timing in timings if not timing.drifted)
    return len(quiet) > 1 and quiet[1] <= quiet[0] * (1 + _AGREE)


def combine_passes(timings: Sequence[Timing]) -> Timing:
    """Return one timing of several passes: the fastest quiet one.

    What disturbs a machine makes it slower, never faster. The interval is that of all quiet passes.
    """
    quiet = [timing for timing in timings if not timing.drifted] or list(timings)
    fastest = min(quiet, key=lambda timing: timing.median_ms)
    low = min(timing.low_ms for timing in quiet)
    high = max(timing.high_ms for timing in quiet)
    n = sum(timing.n_repeats for timing in quiet)
    return Timing(fastest.median_ms, low, high, n, all(timing.drifted for timing in timings))


def _with(known: RepeatedMeasurement | None, timing: Timing) -> RepeatedMeasurement:
    if known is None:
        return RepeatedMeasurement(timing)
    return RepeatedMeasurement(combine_passes([known.timing, timing]), known.n_passes + 1)


@final
class PeriodicSaver:
    """Saves a table every few seconds, and at the end, whatever the end is."""

    def __init__(self, table: LatencyTable):
        self._table, self._last = table, time.monotonic()

    def soon(self) -> None:
        """Save if the last time is long ago."""
        if time.monotonic() - self._last > _SAVE_S:
            self._table.save()
            self._last = time.monotonic()

    def __enter__(self) -> "PeriodicSaver":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._table.entries:
            self._table.save()


# What is profiled: the networks of a space, as one target runs them.

_PATIENCE = 1000  #: networks without a new operator after which a space is exhausted


@dataclass(frozen=True)
class ProfiledSpace:
    """What is profiled: a space as one target runs it."""

    space: Space
    lower: Callable[[Genotype], Graph]  #: fused for the target

    def graphs(self, genotypes: Iterable[Genotype]) -> dict[Genotype, Graph]:
        """Return networks, fused for the target."""
        return {genotype: self.lower(genotype) for genotype in genotypes}

    def operators(self, seed: int) -> tuple[OpSpec, ...]:
        """Return the operators of the space, found by drawing networks until none is new."""
        rng, found, idle = random.Random(seed), dict[OpSpec, None](), 0
        genotypes = [self.space.smallest(), self.space.largest()]
        while idle < max(_PATIENCE, len(found)):
            genotype = genotypes.pop() if genotypes else self.space.sample(rng)
            before = len(found)
            found |= dict.fromkeys(node.op for node in self.lower(genotype))
            idle = 0 if len(found) > before else idle + 1
        return tuple(found)

    def sample(self, n: int, seed: int) -> list[Genotype]:
        """Return at most ``n`` different genotypes; fewer where the space has no more."""
        rng, found = random.Random(seed), dict[str, Genotype]()
        for _ in range(50 * n):
            genotype = self.space.sample(rng)
            found.setdefault(genotype.id, genotype)
            if len(found) == n:
                break
        return list(found.values())


# How much is measured before a search, and of which networks.

_DRAWN, _SHARES = 400, (0.0, 0.5, 0.75, 0.9)  #: of which networks are chosen


@dataclass(frozen=True)
class MeasurementEffort:
    """How much is measured."""

    n: int  #: networks of each space at first
    n_plans: int  #: ways to compile an operator that are tried where its plan is not taken over
    plans: Mapping[OpSpec, str] = field(default_factory=dict)  #: those that are
    within: float = 0.05  #: of their latency: so well left-out networks must be foretold
    share: float = 0.9  #: so many of them
    long_s: float = 25.0  #: after which no other round begins
    n_passes: int = MAX_PASSES  #: times, at most, that an operator is timed
    rounds: int = 4  #: at most; each measures as many networks again

    @property
    def counts(self) -> Iterable[int]:
        """Of how many networks the rounds are, each with those of the round before."""
        return range(self.n, self.rounds * self.n + 1, self.n)


def candidate_networks(subject: ProfiledSpace) -> list[Genotype]:
    """Return different networks: random ones, and some with more and more of the first options.

    Fronts end with networks that are much faster than random ones.
    """
    rng, space = random.Random(0), subject.space
    found = [space.smallest(), space.largest()]
    for member in space.members:
        for share in _SHARES:
            for _ in range(_DRAWN // len(_SHARES)):
                choices = {
                    name: options[0] if rng.random() < share else rng.choice(options)
                    for name, options in member.choices.items()
                }
                found.append(member.genotype(choices))
    return list({genotype.id: genotype for genotype in found}.values())


def spread_out(logs: Mapping[Genotype, float], n: int) -> list[Genotype]:
    """Return at most ``n`` networks, spread over all of what is said of each.

    The first of more networks are those of fewer.
    """
    order = sorted(logs, key=lambda genotype: logs[genotype])
    found, distances = list[Genotype](), dict.fromkeys(order, math.inf)
    while distances and len(found) < n:
        found.append(max(distances, key=lambda genotype: distances[genotype]))
        del distances[found[-1]]
        distances = {g: min(d, abs(logs[g] - logs[found[-1]])) for g, d in distances.items()}
    return found
