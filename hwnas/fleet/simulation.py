"""A plan simulated: its hours with arrivals, failures and retries, over several seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity, QuantitySource
from hwnas.fleet import events
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.placements import service_times
from hwnas.fleet.plan import DeploymentPlan, HourPlan, RequestRoute

# Routes of an hour as the simulator takes them.

Array = NDArray[np.float64]

_LEAST_SPARE = 1e-6  # of routes that have nothing to spare, as a part of their rate


class Routing:
    """Routes of an hour; those of the degraded state serve what finds its pool gone."""

    def __init__(
        self,
        normal: Sequence[RequestRoute],
        degraded: Sequence[RequestRoute],
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
        self.table = events.RouteArrays(
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


def _spare(normal: Sequence[RequestRoute], degraded: Sequence[RequestRoute]) -> Array:
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


LATE = 0.01  #: share of requests that may be late
WARY = 0.8 * LATE  #: that a plan's simulations may see: other seeds see other requests
_WARM = 0.05  # of the time: what comes first finds empty queues
_LEAST, _MOST = 4_000, 300_000  # requests of the rarest class and of all, in an hour's simulation
_FITTING = 20_000_000  # requests that a simulation may hold, however long limits are: 2 GB
_SECONDS = (20.0, 3600.0)  # that an hour's simulation takes, at least and at most
_LIMITS = 60  # times the longest limit: a pool that falls behind is late only after a while
_AFTER = 60.0  # seconds that are looked at after a failure


@dataclass(frozen=True)
class Kill:
    """Machines that fail: one more of a kind, or all spot machines (``spot``)."""

    what: str
    at: float = 1 / 3  #: when, as a part of the time that is simulated
    back: float | None = None  #: when they are there again


@dataclass(frozen=True)
class Throttle:
    """Machines of a kind that become slower by heat."""

    device: str
    factor: float  #: of their speed
    at: float = 1 / 3


@dataclass(frozen=True)
class SimulationSetup:
    """What is simulated."""

    arrivals: Mapping[str, Arrivals]  #: by class
    kills: Sequence[Kill] = ()
    throttles: Sequence[Throttle] = ()
    detect_s: float = 0.5  #: until what a machine held that failed is sent again
    load: float = 1.0  #: times the demand
    spike: bool = False  #: whether all classes ask for as much as must be borne


@dataclass(frozen=True)
class ClassStatistics:
    """What a simulation of an hour saw of a class."""

    requests: int
    late: float  #: share of requests that were late or lost
    late_after: float  #: likewise, of those within a minute of a failure
    lost: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class HourStatistics:
    """What a simulation of an hour saw."""

    hour: int
    seed: int
    seconds: float
    classes: Mapping[str, ClassStatistics]
    retried: int
    usd: float  #: of the hour
    kwh: float
    kg: float
    busy: Mapping[str, float] = field(default_factory=dict)  #: share of time, by pool
    spike: bool = False  #: whether as much came as must be borne
    failed: Sequence[int] = ()  #: replicas that failed, of each kill


def simulate_hour(
    plan: DeploymentPlan, hour: int, scene: SimulationSetup, seed: int
) -> HourStatistics:
    """Return what a simulation of one hour of a plan sees; the same seed sees the same.

    It lasts until enough of the rarest class, and all of its trace, was seen; an hour at most.
    """
    of = next(each for each in plan.hours if hour in each.hours)
    rates = {
        name: (c.borne if scene.spike else c.demand)[hour] * scene.load
        for name, c in plan.classes.items()
    }
    longest = max(c.p99_ms for c in plan.classes.values()) / 1e3
    seconds = _seconds(
        [(rate, scene.arrivals[name].period) for name, rate in rates.items() if rate > 0], longest
    )
    if scene.kills:
        seconds = max(seconds, _AFTER / (1 - max(kill.at for kill in scene.kills)))
    return _Hour(plan, of, hour, scene, seconds, seed).seen(rates)


def simulate(
    plan: DeploymentPlan, scene: SimulationSetup, seeds: Sequence[int], progress: Progress,
    hours: Sequence[int] | None = None,
) -> list[HourStatistics]:  # fmt: skip
    """Return what simulations of hours see, for each seed; default: of all hours that differ."""
    chosen = [each.hours[0] for each in plan.hours] if hours is None else hours
    found = []
    with progress.phase("Simulation", len(chosen) * len(seeds)) as advance:
        for hour in chosen:
            for seed in seeds:
                found.append(simulate_hour(plan, hour, scene, seed))
                advance(1)
    return found


def is_alike(plan: DeploymentPlan, other: DeploymentPlan, hour: int) -> bool:
    """Return whether simulations of an hour see the same of two plans for the same demand."""
    own, its = (next(each for each in p.hours if hour in each.hours) for p in (plan, other))
    there = own.machines, own.pools, own.routes, own.degraded
    return (
        there == (its.machines, its.pools, its.routes, its.degraded)
        and plan.devices == other.devices
        and all(plan.kinds[pool.kind] == other.kinds[pool.kind] for pool in own.pools)
    )


def over_few(values: Sequence[float], source: QuantitySource = "modelled") -> Quantity:
    """Return the mean over seeds or repeats with its 95 % interval, by Student's t."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Quantity(mean, source)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1)) / n**0.5
    return Quantity(mean, source, mean - half, mean + half)


def _seconds(asked: Sequence[tuple[float, int]], longest_s: float) -> float:
    """Return for how long an hour is simulated.

    Args:
        asked: Rates of the classes, with the requests after which what comes is the same again.
        longest_s: The longest limit.
    """
    least = min(max(_SECONDS[0], _LIMITS * longest_s), _SECONDS[1])
    if not asked:
        return least
    wanted = max(least, *(max(_LEAST, period) / rate for rate, period in asked))
    rate = sum(rate for rate, _ in asked)
    return min(wanted, _SECONDS[1], max(_MOST / rate, least), _FITTING / rate)


class _Hour:
    """One hour of a plan, as the simulator takes it."""

    def __init__(
        self,
        plan: DeploymentPlan,
        of: HourPlan,
        hour: int,
        scene: SimulationSetup,
        seconds: float,
        seed: int,
    ):
        self.plan, self.of, self.hour, self.scene = plan, of, hour, scene
        self.seconds, self.seed = seconds, seed
        self.names = [*plan.classes]
        self.pool = {pool.kind: i for i, pool in enumerate(of.pools)}
        self.first_replica = np.cumsum([0, *(pool.replicas for pool in of.pools)])

    def seen(self, rates: Mapping[str, float]) -> HourStatistics:
        """Return what is seen of it."""
        rng = np.random.default_rng([self.seed, self.hour])
        scene, routes = self.scene, self._routes()
        parts = [
            scene.arrivals[n].within(rates[n], self.seconds, rng) if n in routes.reached else
            np.zeros(0) for n in self.names
        ]  # fmt: skip
        times = np.concatenate(parts)
        klass = np.repeat(np.arange(len(parts)), [part.size for part in parts])
        order = np.argsort(times, kind="stable")
        times, klass = times[order], klass[order]
        route = routes.draw(klass, rng)
        found = events.simulate(
            times, route, self._pools(), routes.table, self._incidents(), self.seed
        )
        latency = np.where(np.isnan(found.latency_s), np.inf, found.latency_s) * 1e3
        return HourStatistics(
            self.hour, self.seed, self.seconds,
            {n: self._class(n, times[klass == k], latency[klass == k])
             for k, n in enumerate(self.names) if n in routes.reached and rates[n] > 0},
            found.retried, *self._spent(found, rates), self._busy(found), scene.spike,
            [len(replicas) for _, replicas in self._killed()],
        )  # fmt: skip

    def _class(self, name: str, times: Array, latency_ms: Array) -> ClassStatistics:
        limit, warm = self.plan.classes[name].p99_ms, times >= _WARM * self.seconds
        late = latency_ms > limit
        after = np.zeros(times.size, np.bool_)
        for kill in self.scene.kills:
            at = kill.at * self.seconds
            after |= (times >= at - limit / 1e3) & (times < at + _AFTER)
        if not warm.any():
            return ClassStatistics(0, 0.0, 0.0, 0, 0.0, 0.0)
        p50, p99 = np.quantile(latency_ms[warm], [0.5, 0.99], method="higher")
        return ClassStatistics(
            int(warm.sum()), float(late[warm].mean()),
            float(late[after].mean()) if after.any() else 0.0,
            int(np.isinf(latency_ms).sum()), float(p50), float(p99),
        )  # fmt: skip

    def _pools(self) -> events.PoolArrays:
        kinds = [self.plan.kinds[pool.kind] for pool in self.of.pools]
        largest = max((kind.batch for kind in kinds), default=1)
        times = np.zeros((len(kinds), largest))
        for i, kind in enumerate(kinds):
            # Pools are simulated at the upper ends of latencies, as limits are held.
            upper = {int(b): row[0] if row[3] is None else row[3]
                     for b, row in kind.latency_ms.items()}  # fmt: skip
            times[i, : kind.batch] = service_times(upper, kind.batch)
        return events.PoolArrays(
            times,
            np.array([kind.batch for kind in kinds], np.int32),
            np.array([kind.wait_ms / 1e3 for kind in kinds]),
            np.array([pool.replicas for pool in self.of.pools], np.int32),
            events.lognormal(self.plan.jitter),
            np.zeros(len(kinds)),
        )

    def _routes(self) -> Routing:
        return Routing(self.of.routes, self.of.degraded, self.names, self.pool)

    def _incidents(self) -> events.IncidentArrays:
        """Return what kills and throttles do to replicas."""
        rows: list[tuple[float, int, int, float]] = []
        for kill, replicas in self._killed():
            for r in replicas:
                rows.append((kill.at * self.seconds, r, events.FAIL, 1.0))
                if kill.back is not None:
                    rows.append((kill.back * self.seconds, r, events.RETURN, 1.0))
        for throttle in self.scene.throttles:
            for r in self._of_device(throttle.device):
                rows.append((throttle.at * self.seconds, r, events.SLOW, 1 / throttle.factor))
        rows.sort()
        columns = np.array(rows, np.float64).reshape(-1, 4).T
        return events.IncidentArrays(
            columns[0].copy(), columns[1].astype(np.int32), columns[2].astype(np.int32),
            columns[3].copy(), self.scene.detect_s,
        )  # fmt: skip

    def _of_device(self, device: str) -> list[int]:
        """Return the replicas on machines of a kind, pool by pool."""
        return [
            r
            for i, pool in enumerate(self.of.pools)
            if self.plan.kinds[pool.kind].device == device
            for r in range(self.first_replica[i], self.first_replica[i + 1])
        ]

    def _killed(self) -> Iterator[tuple[Kill, list[int]]]:
        """Yield failures with the replicas that they take away; what is gone fails no more.

        Replicas are dealt to machines in turn, so that a pool has as few on one as can be; of
        machines of a kind the first fails first, which has the most, then the next.
        """
        gone: set[int] = set()
        whats = [kill.what for kill in self.scene.kills]
        for i, kill in enumerate(self.scene.kills):
            own = [r for r in self._hit(kill.what, whats[:i].count(kill.what)) if r not in gone]
            gone |= set() if kill.back is not None else {*own}
            yield kill, own

    def _hit(self, what: str, nth: int) -> list[int]:
        if what == "spot":
            spot = [n for n, device in self.plan.devices.items() if device.buy == "spot"]
            return [r for name in spot for r in self._of_device(name)]
        n = self.of.machines.get(what, 0)
        return self._of_device(what)[nth::n] if nth < n else []

    def _spent(
        self, found: events.RequestOutcomes, rates: Mapping[str, float]
    ) -> tuple[float, float, float]:
        """Return $, kWh and kg of CO2 of the hour."""
        usd = kwh = kg = 0.0
        devices, n_hours = self.plan.devices, len(next(iter(self.plan.classes.values())).demand)
        for name, device in devices.items():
            n = self.of.machines.get(name, 0)
            owned = device.bought if device.bought else n
            usd += device.price * owned * (1.0 if device.bought else 1 + device.start_s / 3600)
            busy = found.busy_s[self._of_device(name)].sum() / self.seconds / device.slots
            hours = (device.idle_w * n + (device.busy_w - device.idle_w) * min(busy, n)) / 1e3
            kwh += hours
            kg += hours * self.plan.carbon[device.region][self.hour % n_hours]
        for route in self.of.routes:
            asked = self.plan.classes[route.klass].demand[self.hour]
            load = rates[route.klass] / asked if asked else 0.0
            usd += route.usd * 3600 * self.plan.sent(route, self.hour) * load
        return usd, kwh, kg

    def _busy(self, found: events.RequestOutcomes) -> dict[str, float]:
        ends = self.first_replica
        return {
            pool.kind: float(found.busy_s[ends[i] : ends[i + 1]].mean() / self.seconds)
            for i, pool in enumerate(self.of.pools)
        }
