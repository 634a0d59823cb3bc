"""When requests come: at random (Poisson's), or in the bursts of a trace."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Arrivals:
    """A process of arrivals, of any rate.

    A trace is replayed so much faster or slower that its mean rate is the one asked for: bursts
    keep their size in requests. Each seed begins elsewhere in it, and it begins anew at its end.
    """

    gaps: Array | None = None  #: of the trace, of mean 1; ``None``: Poisson's

    @property
    def period(self) -> int:
        """After how many requests a trace begins anew; 0: there is none."""
        return 0 if self.gaps is None else self.gaps.size

    def at(self, rate: float, count: int, rng: np.random.Generator) -> Array:
        """Return when ``count`` requests come, in seconds, at so many a second."""
        if self.gaps is None:
            steps = rng.exponential(1.0, count)
        else:
            begin = int(rng.integers(self.gaps.size))
            steps = self.gaps[(begin + np.arange(count)) % self.gaps.size]
        times: Array = np.cumsum(steps) / rate
        return times

    def within(self, rate: float, seconds: float, rng: np.random.Generator) -> Array:
        """Return when requests come within so many seconds."""
        if rate <= 0:
            return np.zeros(0)
        parts, end = [], 0.0
        while end < seconds:
            more = self.at(rate, int(rate * (seconds - end) * 1.05) + 50, rng) + end
            parts.append(more)
            end = float(more[-1])
        times = np.concatenate(parts)
        found: Array = times[times < seconds]
        return found
