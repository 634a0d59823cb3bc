"""Simulation of a plan's hours with arrivals, failures and retries, over several seeds."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity, QuantitySource
from hwnas.fleet import events
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.placements import service_times
from hwnas.fleet.plan import DeploymentPlan, HourPlan

Array = NDArray[np.float64]

LATE = 0.01  #: fraction of requests that may be late
WARY = 0.8 * LATE  #: stricter limit while a plan is made: results of other seeds differ
_WARM = 0.05  # fraction of the time that is ignored: queues start empty
_MIN_REQUESTS, _MAX_REQUESTS = (
    4_000,
    300_000,
)  # requests of the rarest class and of all, per simulated hour
_FITTING = 20_000_000  # maximum requests of a simulation: 2 GB
_SECONDS = (20.0, 3600.0)  # minimum and maximum simulated time
_REQUEST_BYTES = 150  # of memory per simulated request
_LIMITS = 60  # minimum time in longest limits: overload shows only after a while
_AFTER = 60.0  # seconds evaluated after a failure


@dataclass(frozen=True)
class Kill:
    """A simulated failure of one more machine of a device, or of all spot machines."""

    what: str  #: name of the device, or ``spot``
    at: float = 1 / 3  #: time, as a fraction of the simulated time
    back: float | None = None  #: time of the return, as a fraction as well; ``None``: never


@dataclass(frozen=True)
class Throttle:
    """Simulated thermal throttling of all machines of a device."""

    device: str  #: name of the device
    factor: float  #: factor of the speed, below 1 if slower
    at: float = 1 / 3  #: time from which on, as a fraction of the simulated time


@dataclass(frozen=True)
class SimulationSetup:
    """Conditions of a simulation."""

    arrivals: Mapping[str, Arrivals]  #: arrival process by class
    kills: Sequence[Kill] = ()  #: failures of machines
    throttles: Sequence[Throttle] = ()  #: slowdowns of machines
    detect_s: float = 0.5  #: seconds until requests of a failed machine are sent again
    load: float = 1.0  #: factor of the demand
    spike: bool = False  #: if True, at the peak demand of all classes (``demand.spike``)


@dataclass(frozen=True)
class ClassStatistics:
    """Results of a class in a simulated hour."""

    #: number of requests, without the first 5 % of the time and without the time before throttling
    requests: int
    late: float  #: fraction of these requests that are later than the class's limit, or lost
    late_after: float  #: fraction of late requests in the minute after failures; 0 without them
    lost: int  #: number of requests without a response, in the whole simulated time
    p50_ms: float  #: median latency; infinite if too many requests are lost
    p99_ms: float  #: 99th percentile of latencies; infinite if too many requests are lost


@dataclass(frozen=True)
class HourStatistics:
    """Results of a simulated hour."""

    hour: int  #: hour of the plan, from 0
    seed: int  #: seed of the simulation
    seconds: float  #: simulated time
    classes: Mapping[str, ClassStatistics]  #: of classes with requests, by name
    retried: int  #: number of requests sent again after a failure
    usd: float  #: cost of machines and transfers per hour in $
    kwh: float  #: energy per hour in kWh
    kg: float  #: emissions per hour in kg of CO2
    busy: Mapping[str, float] = field(default_factory=dict)  #: mean utilisation of replicas by pool
    spike: bool = False  #: if True, at the peak demand (``demand.spike``)
    failed: Sequence[int] = ()  #: number of failed replicas of each kill
    load: float = 1.0  #: factor of the demand


def simulate_hour(
    plan: DeploymentPlan, hour: int, setup: SimulationSetup, seed: int
) -> HourStatistics:
    """Return the statistics of one hour of a plan; equal seeds give equal results.

    The simulated time covers 4000 requests of the rarest class, but at most an hour, and at high
    demand about 300,000 requests of all classes. It includes 60 s after each failure.
    """
    rates = _rates(plan, hour, setup)
    seconds = _simulated_s(plan, rates, setup)
    return _Hour(plan, plan.at(hour), hour, setup, seconds, seed).statistics(rates)


def simulate(
    plan: DeploymentPlan, setup: SimulationSetup, seeds: Sequence[int], progress: Progress,
    hours: Sequence[int] | None = None,
) -> list[HourStatistics]:  # fmt: skip
    """Return the statistics of each hour and seed, those of an hour together.

    ``hours`` are hours of the plan; by default the first one of each group of equal hours.

    Raises:
        ConfigError: an hour has too many replicas or requests to simulate.
    """
    chosen = [hour_plan.hours[0] for hour_plan in plan.hours] if hours is None else hours
    for hour in chosen:
        _check_size(plan, hour, setup)
    result = []
    with progress.phase("Simulation", len(chosen) * len(seeds)) as advance:
        for hour in chosen:
            for seed in seeds:
                result.append(simulate_hour(plan, hour, setup, seed))
                advance(1)
    return result


def _check_size(plan: DeploymentPlan, hour: int, setup: SimulationSetup) -> None:
    """Refuse an hour that the simulator or the memory cannot hold.

    Raises:
        ConfigError: the hour has too many replicas or requests.
    """
    replicas = sum(pool.replicas for pool in plan.at(hour).pools)
    if replicas > events.MAX_REPLICAS:
        raise ConfigError(
            f"Hour {hour} of the plan has {replicas:,} replicas; a simulation holds at most "
            f"{events.MAX_REPLICAS:,}: reduce the demand in the service file."
        )
    rates = _rates(plan, hour, setup)
    seconds, rate = _simulated_s(plan, rates, setup), sum(rates.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_short = seconds < max(c.p99_ms for c in plan.classes.values()) / 1e3
    if is_short or rate * seconds * _REQUEST_BYTES > memory:
        raise ConfigError(
            f"Hour {hour} has {rate:.4g} requests/s, too many to simulate: the simulator holds "
            f"{min(_FITTING, memory // _REQUEST_BYTES):,} requests; reduce the demand in the "
            "service file, or the option load."
        )


def _rates(plan: DeploymentPlan, hour: int, setup: SimulationSetup) -> dict[str, float]:
    """Return the requests/s of each class in an hour."""
    return {
        name: (c.borne if setup.spike else c.demand)[hour] * setup.load
        for name, c in plan.classes.items()
    }


def _simulated_s(plan: DeploymentPlan, rates: Mapping[str, float], setup: SimulationSetup) -> float:
    """Return the simulated seconds of an hour with rates by class."""
    longest = max(c.p99_ms for c in plan.classes.values()) / 1e3
    periods = [(rate, setup.arrivals[name].period) for name, rate in rates.items() if rate > 0]
    seconds = _duration(periods, longest)
    return max([seconds, *(_AFTER / (1 - kill.at) for kill in setup.kills)])


def is_same_hour(plan: DeploymentPlan, other: DeploymentPlan, hour: int) -> bool:
    """Return True if an hour of two plans has the same machines, pools and routes.

    If the plans have the same demand, its simulations are equal then.
    """
    hour_plan, other_plan = plan.at(hour), other.at(hour)
    facts = hour_plan.machines, hour_plan.pools, hour_plan.routes, hour_plan.degraded
    return (
        facts == (other_plan.machines, other_plan.pools, other_plan.routes, other_plan.degraded)
        and plan.devices == other.devices
        and all(plan.kinds[pool.kind] == other.kinds[pool.kind] for pool in hour_plan.pools)
    )


def mean_with_interval(values: Sequence[float], source: QuantitySource = "modelled") -> Quantity:
    """Return the mean over seeds or repeats with its 95 % interval (Student's t).

    A single value has no interval.
    """
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Quantity(mean, source)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1)) / n**0.5
    return Quantity(mean, source, mean - half, mean + half)


def _duration(rates: Sequence[tuple[float, int]], longest_s: float) -> float:
    """Return the simulated seconds of an hour.

    Args:
        rates: Rates of the classes, and the periods of their traces in requests.
        longest_s: Longest latency limit.
    """
    shortest_s = min(max(_SECONDS[0], _LIMITS * longest_s), _SECONDS[1])
    if not rates:
        return shortest_s
    duration_s = max(shortest_s, *(max(_MIN_REQUESTS, period) / rate for rate, period in rates))
    rate = sum(rate for rate, _ in rates)
    return min(duration_s, _SECONDS[1], max(_MAX_REQUESTS / rate, shortest_s), _FITTING / rate)


class _Hour:
    """One hour of a plan as simulator input."""

    def __init__(
        self,
        plan: DeploymentPlan,
        hour_plan: HourPlan,
        hour: int,
        setup: SimulationSetup,
        seconds: float,
        seed: int,
    ):
        self.plan, self.of, self.hour, self.scene = plan, hour_plan, hour, setup
        self.seconds, self.seed = seconds, seed
        self.names = [*plan.classes]
        self.pool = {pool.kind: i for i, pool in enumerate(hour_plan.pools)}
        self.first_replica = np.cumsum([0, *(pool.replicas for pool in hour_plan.pools)])

    def statistics(self, rates: Mapping[str, float]) -> HourStatistics:
        """Return the statistics of the hour."""
        rng = np.random.default_rng([self.seed, self.hour])
        scene, routes = self.scene, self._routes()
        parts = [
            scene.arrivals[n].within(rates[n], self.seconds, rng) if n in routes.reached else
            np.zeros(0) for n in self.names
        ]  # fmt: skip
        times = np.concatenate(parts)
        request_class = np.repeat(np.arange(len(parts)), [part.size for part in parts])
        order = np.argsort(times, kind="stable")
        times, request_class = times[order], request_class[order]
        route = routes.draw(request_class, rng)
        result = events.simulate(
            times, route, self._pools(), routes.table, self._incidents(), self.seed
        )
        latency = np.where(np.isnan(result.latency_s), np.inf, result.latency_s) * 1e3
        return HourStatistics(
            self.hour, self.seed, self.seconds,
            {n: self._class(n, times[request_class == k], latency[request_class == k])
             for k, n in enumerate(self.names) if n in routes.reached and rates[n] > 0},
            result.retried, *self._resource_use(result, rates), self._utilisation(result),
            scene.spike, [len(replicas) for _, replicas in self._failed_replicas()], scene.load,
        )  # fmt: skip

    def _class(self, name: str, times: Array, latency_ms: Array) -> ClassStatistics:
        begin = max([_WARM, *(throttle.at for throttle in self.scene.throttles)])
        limit, warm = self.plan.classes[name].p99_ms, times >= begin * self.seconds
        late = latency_ms > limit
        after = np.zeros(times.size, np.bool_)
        for kill in self.scene.kills:
            kill_s = kill.at * self.seconds
            after |= (times >= kill_s - limit / 1e3) & (times < kill_s + _AFTER)
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
            # Upper ends of latencies, as for the limits.
            upper = {int(b): row[0] if row[3] is None else row[3]
                     for b, row in kind.latency_ms.items()}  # fmt: skip
            times[i, : kind.batch] = service_times(upper, kind.batch)
        return events.PoolArrays(
            times,
            np.array([kind.batch for kind in kinds], np.int32),
            np.array([kind.wait_ms / 1e3 for kind in kinds]),
            np.array([pool.replicas for pool in self.of.pools], np.int32),
            events.lognormal_noise(self.plan.jitter),
            np.zeros(len(kinds)),
        )

    def _routes(self) -> events.Routing:
        return events.Routing(self.of.routes, self.of.degraded, self.names, self.pool)

    def _incidents(self) -> events.IncidentArrays:
        """Return the incidents of kills and throttles."""
        rows: list[tuple[float, int, int, float]] = []
        for kill, replicas in self._failed_replicas():
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
        """Return the replicas on machines of a device, pool by pool."""
        return [
            r
            for i, pool in enumerate(self.of.pools)
            if self.plan.kinds[pool.kind].device == device
            for r in range(self.first_replica[i], self.first_replica[i + 1])
        ]

    def _failed_replicas(self) -> Iterator[tuple[Kill, list[int]]]:
        """Yield failures with the replicas that they remove.

        Replicas are distributed over machines in turn; the first one has the most and fails first.
        """
        failed: set[int] = set()
        names = [kill.what for kill in self.scene.kills]
        for i, kill in enumerate(self.scene.kills):
            replicas = [
                r
                for r in self._replicas_of_failure(kill.what, names[:i].count(kill.what))
                if r not in failed
            ]
            failed |= set() if kill.back is not None else {*replicas}
            yield kill, replicas

    def _replicas_of_failure(self, failing: str, nth: int) -> list[int]:
        if failing == "spot":
            spot = [n for n, device in self.plan.devices.items() if device.buy == "spot"]
            return [r for name in spot for r in self._of_device(name)]
        n = self.of.machines.get(failing, 0)
        return self._of_device(failing)[nth::n] if nth < n else []

    def _resource_use(
        self, outcomes: events.RequestOutcomes, rates: Mapping[str, float]
    ) -> tuple[float, float, float]:
        """Return $, kWh and kg of CO2 of the hour."""
        usd = kwh = kg = 0.0
        devices, n_hours = self.plan.devices, self.plan.n_hours
        for name, device in devices.items():
            n = self.of.machines.get(name, 0)
            owned = device.bought if device.bought else n
            usd += device.price * owned * (1.0 if device.bought else 1 + device.start_s / 3600)
            busy = outcomes.busy_s[self._of_device(name)].sum() / self.seconds / device.slots
            hours = (device.idle_w * n + (device.busy_w - device.idle_w) * min(busy, n)) / 1e3
            kwh += hours
            kg += hours * self.plan.carbon[device.region][self.hour % n_hours]
        for route in self.of.routes:
            request_class = self.plan.classes[route.klass].demand[self.hour]
            load = rates[route.klass] / request_class if request_class else 0.0
            usd += route.usd * 3600 * self.plan.sent(route, self.hour) * load
        return usd, kwh, kg

    def _utilisation(self, outcomes: events.RequestOutcomes) -> dict[str, float]:
        ends = self.first_replica
        return {
            pool.kind: float(outcomes.busy_s[ends[i] : ends[i + 1]].mean() / self.seconds)
            for i, pool in enumerate(self.of.pools)
        }
