"""What a program has columns for: options in hours and scenarios, and candidates for pools."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.planning.task import Array, Ints, Task


@dataclass(frozen=True)
class Columns:
    """Options in scenarios and hours ``(n,)``."""

    scenario: Ints
    hour: Ints  #: the place in the hours of the program
    option: Ints

    def __len__(self) -> int:
        return self.hour.size

    @staticmethod
    def of(rows: NDArray[np.intp]) -> "Columns":
        """Return them from rows ``(n, 3)``."""
        return Columns(rows[:, 0], rows[:, 1], rows[:, 2])


@dataclass(frozen=True)
class Pools:
    """Candidates for pools: variants of stations in hours, as arrays ``(pools,)``."""

    hour: Ints  #: the place in the hours of the program
    station: Ints
    variant: Ints
    spread: Ints  #: replicas of it on one machine, at most; 0: any number
    goodput: Array
    least: Ints
    device: Ints

    def __len__(self) -> int:
        return self.hour.size


@dataclass(frozen=True)
class Part:
    """Some hours of a task, on their own."""

    hours: tuple[int, ...]  #: places in the hours of the task
    weight: Array  #: how many hours each stands for
    owned: Array | None = None  #: machines that are bought, and no more can be, ``(devices,)``
    bought: Array | None = None  #: likewise, but more can be
    #: what other hours take of the day's budgets; ``None``: these have their share
    spent: Mapping[str, float] | None = None


def whole(task: Task) -> Part:
    """Return all hours of a task."""
    return Part(tuple(range(len(task.hours))), task.weight)


def pools_of(task: Task, columns: Columns, part: Part) -> Pools:
    """Return all variants of the stations that columns use, in their hours."""
    o = task.choices.options
    pairs = np.concatenate(
        [np.stack([columns.hour, side[columns.option]], 1) for side in (o.first, o.second)]
    )
    pairs = np.unique(pairs[pairs[:, 1] >= 0], axis=0)
    rows = []
    for hour, q in pairs:
        station = task.choices.stations[q]
        for v, variant in enumerate(station.variants):
            for spread in task.spreads(part.hours[hour], station.device):
                rate = task.goodput(part.hours[hour], int(q), v)
                rows.append((hour, q, v, spread, rate, variant.least, station.device))
    table = np.array(rows, np.float64).reshape(-1, 7).T
    ints: list[Ints] = [row.astype(np.intp) for row in table]
    return Pools(ints[0], ints[1], ints[2], ints[3], table[4], ints[5], ints[6])
