"""Routes of an hour as the simulator takes them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.planning import events
from hwnas.planning.plan import Route

Array = NDArray[np.float64]

_LEAST_SPARE = 1e-6  # of routes that have nothing to spare, as a part of their rate


class Routing:
    """Routes of an hour; those of the degraded state serve what finds its pool gone."""

    def __init__(
        self,
        normal: Sequence[Route],
        degraded: Sequence[Route],
        names: Sequence[str],
        pool: Mapping[str, int],
    ):
        every = [*normal, *degraded]
        of = {name: k for k, name in enumerate(names)}
        rate = np.array([r.rate for r in normal] + [0.0] * len(degraded))
        klass = np.array([of[r.klass] for r in every], np.int32)
        total = np.zeros(len(names))
        np.add.at(total, klass, rate)
        chance = np.divide(rate, total[klass], out=np.zeros(rate.size), where=total[klass] > 0)
        self.reached = {name for k, name in enumerate(names) if total[k] > 0}
        self.table = events.Routes(
            klass,
            chance,
            _spare(normal, degraded),
            np.array([pool[r.first] for r in every], np.int32),
            np.array([-1 if r.second is None else pool[r.second] for r in every], np.int32),
            np.array([r.share for r in every]),
            np.array([r.reach_ms for r in every]) / 1e3,
            np.array([r.pass_ms for r in every]) / 1e3,
        )

    def draw(self, klass: NDArray[np.intp], rng: np.random.Generator) -> events.Ints:
        """Return a route for each request of those classes."""
        route = np.zeros(klass.size, np.int32)
        for k in np.unique(klass):
            own = np.flatnonzero((self.table.klass == k) & (self.table.chance > 0))
            mine = klass == k
            ends = np.cumsum(self.table.chance[own])
            drawn = np.searchsorted(ends / ends[-1], rng.random(int(mine.sum())), side="right")
            route[mine] = own[np.minimum(drawn, own.size - 1)]
        return route


def _spare(normal: Sequence[Route], degraded: Sequence[Route]) -> Array:
    """Return by which weights routes take in what finds its pool gone, ``(routes,)``.

    What the degraded state gives them beyond what they have already. Where all that live have
    nothing to spare, by their rates.
    """
    had: dict[tuple[str, str, str | None, float], float] = {}
    for r in normal:
        key = (r.klass, r.first, r.second, r.threshold)
        had[key] = had.get(key, 0.0) + r.rate
    more = [
        max(0.0, r.rate - had.get((r.klass, r.first, r.second, r.threshold), 0.0)) for r in degraded
    ]
    least = [_LEAST_SPARE * r.rate for r in (*normal, *degraded)]
    return np.maximum([0.0] * len(normal) + more, np.maximum(least, 1e-300))
