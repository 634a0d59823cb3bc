"""Timing in passes, minutes apart, so that a disturbance rarely affects all of them.

A pass times each item (operator or network) once, in random order. A timing is quiet if it was not
disturbed by other programs. Results are saved as they arrive, so that an interrupted profile can be
resumed.
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

_SAVE_S = 5.0  #: seconds between two saves
MAX_PASSES = 6  #: maximum number of passes
_AGREE = 0.03  #: passes continue until two quiet ones differ by at most this fraction


@dataclass(frozen=True)
class RepeatedMeasurement:
    """A measured latency, and the number of passes that it combines."""

    timing: Timing  #: combined from all passes, see ``combine_passes``
    n_passes: int = 1  #: number of passes


@dataclass(frozen=True)
class MeasurementPasses(Generic[K]):
    """Passes over items of a table, as many as each item needs."""

    title: str  #: title of the progress bar
    #: returns an item's measurement in the table; ``None`` if it has none
    measured: Callable[[K], RepeatedMeasurement | None]
    keep: Callable[[K, RepeatedMeasurement], None]  #: stores a measurement in the table
    time: Callable[[Worker, Sequence[K]], Sequence[Timing]]  #: times items with a worker process
    block: int = 1  #: number of items of one call of ``time``
    max_passes: int = MAX_PASSES  #: maximum number of timings of an item

    def run(
        self, table: LatencyTable, items: Sequence[K], pool: DevicePool, progress: Progress
    ) -> None:
        """Time each item until its two fastest quiet timings agree, at most ``max_passes`` times.

        They agree if they differ by at most 3 %. Items that the table has from two or more passes,
        undisturbed, are not timed again. The table is saved during the passes and after each one.

        Raises:
            HwnasError: an item cannot be timed; earlier results are kept.
        """
        timings: dict[K, list[Timing]] = {}
        for item in items:
            known = self.measured(item)
            timings[item] = [known.timing] if known else []
        for number in range(1, self.max_passes + 1):
            todo = [item for item in items if self._needs_pass(item, timings[item], number)]
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
                    for item, timing in zip(blocks[index], outcome, strict=True):
                        timings[item].append(timing)
                        self.keep(item, _add_pass(self.measured(item), timing))
                    saver.soon()
                    advance(len(blocks[index]))

    def _block(self, items: Sequence[K], worker: Worker) -> Sequence[Timing]:
        return self.time(worker, items)

    def _needs_pass(self, item: K, timings: Sequence[Timing], number: int) -> bool:
        """Return whether an item needs another pass, given the timings of this run."""
        known = self.measured(item)
        n_passes = known.n_passes if known else 0
        if len(timings) == 1 and n_passes > 1:  # confirmed by an earlier run, if it was quiet
            return timings[0].drifted and number == 1
        return n_passes < number and not confirmed(timings)


def confirmed(timings: Sequence[Timing]) -> bool:
    """Return True if the two fastest timings that are not ``drifted`` differ by at most 3 %.

    False if there are fewer than two.
    """
    quiet = sorted(timing.median_ms for timing in timings if not timing.drifted)
    return len(quiet) > 1 and quiet[1] <= quiet[0] * (1 + _AGREE)


def combine_passes(timings: Sequence[Timing]) -> Timing:
    """Return the combined timing of several passes, with the latency of the fastest one.

    Only passes that are not ``drifted`` count: disturbances make a machine slower, never faster.
    The interval covers their intervals, and their repeats are added up. If all are ``drifted``, all
    count, and the result is marked ``drifted``.
    """
    quiet = [timing for timing in timings if not timing.drifted] or list(timings)
    fastest = min(quiet, key=lambda timing: timing.median_ms)
    low = min(timing.low_ms for timing in quiet)
    high = max(timing.high_ms for timing in quiet)
    n = sum(timing.n_repeats for timing in quiet)
    return Timing(fastest.median_ms, low, high, n, all(timing.drifted for timing in timings))


def _add_pass(known: RepeatedMeasurement | None, timing: Timing) -> RepeatedMeasurement:
    if known is None:
        return RepeatedMeasurement(timing)
    return RepeatedMeasurement(combine_passes([known.timing, timing]), known.n_passes + 1)


@final
class PeriodicSaver:
    """A context that saves a table at its end, also after an error.

    A table without operators is not saved then. ``soon`` saves it earlier.
    """

    def __init__(self, table: LatencyTable):
        self._table, self._last = table, time.monotonic()

    def soon(self) -> None:
        """Save the table if the last save, or the start, was more than five seconds ago."""
        if time.monotonic() - self._last > _SAVE_S:
            self._table.save()
            self._last = time.monotonic()

    def __enter__(self) -> "PeriodicSaver":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._table.entries:
            self._table.save()


_PATIENCE = 1000  #: sampled networks without a new operator after which a space is exhausted


@dataclass(frozen=True)
class ProfiledSpace:
    """A search space, with the graphs of its networks on one target."""

    space: Space  #: the search space
    lower: Callable[[Genotype], Graph]  #: returns the graph of a genotype, fused for the target

    def graphs(self, genotypes: Iterable[Genotype]) -> dict[Genotype, Graph]:
        """Return the fused graph of each genotype."""
        return {genotype: self.lower(genotype) for genotype in genotypes}

    def operators(self, seed: int) -> tuple[OpSpec, ...]:
        """Return the different operators of the space's networks, except rare ones.

        Networks are sampled with the random seed until 1000 or more consecutive ones have no new
        operator.
        """
        rng, operators, idle = random.Random(seed), dict[OpSpec, None](), 0
        genotypes = [self.space.smallest(), self.space.largest()]
        while idle < max(_PATIENCE, len(operators)):
            genotype = genotypes.pop() if genotypes else self.space.sample(rng)
            before = len(operators)
            operators |= dict.fromkeys(node.op for node in self.lower(genotype))
            idle = 0 if len(operators) > before else idle + 1
        return tuple(operators)

    def sample(self, n: int, seed: int) -> list[Genotype]:
        """Return ``n`` different random genotypes; fewer if ``50 * n`` samples have fewer."""
        rng, genotypes = random.Random(seed), dict[str, Genotype]()
        for _ in range(50 * n):
            genotype = self.space.sample(rng)
            genotypes.setdefault(genotype.id, genotype)
            if len(genotypes) == n:
                break
        return list(genotypes.values())


#: number of sampled networks, and their fractions of first options
_N_SAMPLED, _FRACTIONS = 400, (0.0, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class MeasurementEffort:
    """How many operators and networks are measured for a latency table.

    Measurement ends when the fraction ``share`` of the measured networks, each predicted from the
    others, has a relative error of at most ``within``.
    """

    n: int  #: networks per round
    n_plans: int  #: compilation plans that are tried for an operator that ``plans`` lacks
    plans: Mapping[OpSpec, str] = field(default_factory=dict)  #: plans from another device
    within: float = 0.05  #: required relative error: 0.05 is 5 %
    share: float = 0.9  #: required fraction of networks with that error
    long_s: float = 25.0  #: seconds after which no further round starts
    n_passes: int = MAX_PASSES  #: maximum number of timings of an operator
    rounds: int = 4  #: maximum number of rounds; each adds ``n`` networks

    @property
    def counts(self) -> Iterable[int]:
        """Total number of networks after each round, in order."""
        return range(self.n, self.rounds * self.n + 1, self.n)


def candidate_networks(subject: ProfiledSpace) -> list[Genotype]:
    """Return different random networks: up to 400 per member of the space, and its extremes.

    The extremes are the smallest and the largest network. Many others are small, as fronts end with
    very fast networks: they have the first option of many choices. The result is always the same
    for a space.
    """
    rng, space = random.Random(0), subject.space
    genotypes = [space.smallest(), space.largest()]
    for member in space.members:
        for share in _FRACTIONS:
            for _ in range(_N_SAMPLED // len(_FRACTIONS)):
                choices = {
                    name: options[0] if rng.random() < share else rng.choice(options)
                    for name, options in member.choices.items()
                }
                genotypes.append(member.genotype(choices))
    return list({genotype.id: genotype for genotype in genotypes}.values())


def spread_out(values: Mapping[Genotype, float], n: int) -> list[Genotype]:
    """Return ``n`` networks whose ``values`` are far apart, or all if there are fewer.

    The first is that with the smallest value. A larger ``n`` extends the selection of a smaller
    one.
    """
    order = sorted(values, key=lambda genotype: values[genotype])
    selected, distances = list[Genotype](), dict.fromkeys(order, math.inf)
    while distances and len(selected) < n:
        selected.append(max(distances, key=lambda genotype: distances[genotype]))
        del distances[selected[-1]]
        distances = {g: min(d, abs(values[g] - values[selected[-1]])) for g, d in distances.items()}
    return selected
