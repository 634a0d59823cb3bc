"""What a server did at a load, against what the simulator says of its own batches.

The simulator is given how long batches took when the server was profiled, and the very times at
which requests were due. Where it is off, batches may have taken longer under load than in the
profile: the server itself may say so, else it is told by how much longer they have to be for the
simulated p99 to be the one that was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.deployment.load import Seen
from hwnas.deployment.pools import Deployed
from hwnas.planning import events
from hwnas.planning.goodput import service_times
from hwnas.planning.simulation import over_few
from hwnas.results import Row

Array = NDArray[np.float64]
Batches = Mapping[int, tuple[int, float]]  #: by size: how many were computed, and ms of all

QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
WARM = 0.1  #: of the time: what comes first finds empty queues
_MOST_JITTER = 1.0
_SLOWDOWNS, _HALVINGS = (0.5, 4.0), 12  # that are looked for, and how finely


@dataclass(frozen=True)
class Reading:
    """How long a server took for batches, at one time."""

    batch_ms: dict[int, float]
    overhead_ms: float
    waking_ms: float
    alone_ms: Array  #: that each of many requests took, one after the other
    #: what the server itself says that it computed for a batch; empty: it does not say
    computed_ms: Mapping[int, float] = field(default_factory=dict)

    @property
    def jitter(self) -> float:
        """The standard deviation of the log of what they took, outliers left out."""
        quarters = np.quantile(np.log(self.alone_ms), [0.25, 0.75])
        return min(_MOST_JITTER, float(quarters[1] - quarters[0]) / 1.349)  # of a normal one

    def slower(self, times: float) -> "Reading":
        """Return the same of a server whose batches take so many times as long."""
        batches = {n: ms * times for n, ms in self.batch_ms.items()}
        return replace(self, batch_ms=batches, waking_ms=self.waking_ms * times)

    @property
    def capacity(self) -> float:
        """Requests a second that it answers at most."""
        return max(n / ms for n, ms in self.batch_ms.items()) * 1e3


@dataclass(frozen=True)
class Held:
    """What one server did at one load, against its simulation."""

    seen: Seen
    simulated_ms: Array
    #: how many times as long as in the profile batches must take for both p99 to be the same; not a
    #: number: too few requests were answered
    slowdown: float
    batch_slowdown: float  #: the same by the server's own count; not a number: it does not say
    explained_ms: Array  #: simulated with that; empty: it does not say

    @property
    def is_warm(self) -> NDArray[np.bool_]:
        """Whether each request came when queues were as they are in the long run."""
        found: NDArray[np.bool_] = self.seen.due_s >= WARM * self.seen.due_s[-1]
        return found


def held(pool: Deployed, reading: Reading, seen: Seen, computed: Batches, seed: int) -> Held:
    """Return what a server did against its simulation, and how much slower it was than profiled.

    Args:
        pool: Of one replica.
        reading: Its profile.
        seen: What requests saw.
        computed: What the server says that it computed meanwhile; empty: it does not say.
        seed: Of the simulation.
    """
    simulated = _simulated(pool, reading, seen.due_s, seed)
    found = Held(seen, simulated, math.nan, math.nan, np.empty(0))
    if computed and reading.computed_ms:
        times = _times_as_long(reading, computed, pool.kind.batch)
        explained = _simulated(pool, reading.slower(times), seen.due_s, seed)
        found = replace(found, batch_slowdown=times, explained_ms=explained)
    warm, (low, high) = found.is_warm, _SLOWDOWNS
    measured = _quantile(seen.latency_ms[warm], QUANTILES["p99_ms"])
    if math.isinf(measured):  # more than one of a hundred was not answered
        return found
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        slower = _simulated(pool, reading.slower(middle), seen.due_s, seed)[warm]
        is_enough = _quantile(slower, QUANTILES["p99_ms"]) >= measured
        low, high = (low, middle) if is_enough else (middle, high)
    return replace(found, slowdown=(low * high) ** 0.5)


def row(pool: Deployed, server: str, load: float, rate: float, repeats: Sequence[Held]) -> Row:
    """Return percentiles in ms over repeats, simulated and measured, and how they differ."""
    seen = [each.seen for each in repeats]
    lateness = np.concatenate([(each.sent_s - each.due_s) * 1e3 for each in seen])
    row: Row = {
        "pool": pool.name, "server": server, "batch": pool.kind.batch,
        "wait_ms": pool.kind.wait_ms, "load": load, "rate_per_s": rate,
        "requests": sum(each.due_s.size for each in seen), "repeats": len(seen),
        "failed": sum(each.failed for each in seen),
        "sent_late_p99_ms": float(np.nanquantile(lateness, 0.99)),
    }  # fmt: skip
    for name, q in QUANTILES.items():
        measured = over_few(
            [_quantile(each.seen.latency_ms[each.is_warm], q) for each in repeats], "measured"
        )
        simulated = over_few([_quantile(each.simulated_ms[each.is_warm], q) for each in repeats])
        row |= simulated.columns(f"simulated_{name}") | measured.columns(f"measured_{name}")
        row[f"error_{name.removesuffix('_ms')}"] = simulated.value / measured.value - 1
    row |= over_few([each.slowdown for each in repeats]).columns("slowdown")
    if not all(each.explained_ms.size for each in repeats):
        return row
    p99 = [_quantile(each.explained_ms[each.is_warm], QUANTILES["p99_ms"]) for each in repeats]
    explained = over_few(p99)
    row |= over_few([each.batch_slowdown for each in repeats], "measured").columns("batch_slowdown")
    row |= explained.columns("explained_p99_ms")
    return row | {"error_explained_p99": explained.value / row["measured_p99_ms"] - 1}


def _simulated(pool: Deployed, reading: Reading, due_s: Array, seed: int) -> Array:
    """Return latencies in ms of requests that are due then."""
    service = service_times(reading.batch_ms, pool.kind.batch)
    noise, waking_s = reading.alone_ms / reading.alone_ms.mean(), reading.waking_ms / 1e3
    pools, routes = events.single(service, pool.kind.wait_ms / 1e3, 1, noise, waking_s)
    route = np.zeros(due_s.size, np.int32)
    found: Array = events.simulate(due_s, route, pools, routes, seed=seed).latency_s * 1e3
    return found + reading.overhead_ms


def _times_as_long(reading: Reading, computed: Batches, largest: int) -> float:
    """Return what batches took over what those of their sizes did in the profile."""
    profiled_ms = service_times(dict(reading.computed_ms), largest) * 1e3
    usual = sum(n * profiled_ms[size - 1] for size, (n, _) in computed.items())
    return float(sum(ms for _, ms in computed.values()) / usual)


def _quantile(latencies_ms: Array, q: float) -> float:
    return float(np.quantile(latencies_ms, q, method="higher"))
