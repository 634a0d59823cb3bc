"""The optimisation task: a problem with equal hours merged, and the values of machines."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.routes import PlanChoices
from hwnas.fleet.service_file import Objective as Objective

Array = NDArray[np.float64]
Ints = NDArray[np.intp]

TIE = 1e-6  #: weight of prices under other objectives, to break ties
_DEAR = 100.0  # penalty of unserved demand, in costs of serving it
_MIN_RATE = 1e-9
UNSERVED = 1e-6  # unserved fraction that counts as 0
_REPLICA_LIMIT = 4  # a limit of replicas per machine, between 1 and its slots


@dataclass(frozen=True)
class PlanningTask:
    """A problem with equal hours merged, and corrections of goodputs."""

    problem: PlanningProblem
    choices: PlanChoices
    objective: Objective  #: ``cost`` ($), ``carbon`` (kg of CO2) or ``energy`` (kWh)
    #: factors of goodputs by (hour index, placement index); default: 1
    scale: dict[tuple[int, int], float] = field(default_factory=dict)
    #: a number per hour of the plan: hours with different numbers are never merged
    marks: tuple[int, ...] = ()
    #: (hour, device) pairs in which a machine is already down: no spare is required
    without_redundancy: frozenset[tuple[int, str]] = frozenset()

    def __post_init__(self) -> None:
        marks = np.array([self.marks] if self.marks else np.zeros((0, self.problem.load.n_hours)))
        keys = np.concatenate(
            [self.problem.load.provisioned_rates, *_carbon_rows(self.problem), marks]
        ).T
        _, first, group, count = np.unique(
            keys.round(9), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        place = np.argsort(order)
        object.__setattr__(self, "hours", tuple(int(first[i]) for i in order))
        object.__setattr__(self, "weight", count[order].astype(np.float64))
        object.__setattr__(self, "group", place[group.ravel()])

    hours: tuple[int, ...] = field(init=False)  #: one hour of each group of equal hours
    weight: Array = field(init=False)  #: number of hours in each group ``(groups,)``
    group: Ints = field(init=False)  #: group index of each hour of the plan

    @property
    def n_scenarios(self) -> int:
        """Number of scenarios, 2 (normal; all spot machines down) or 1 (normal)."""
        return 1 + bool(self.problem.service.survive.all_of)

    @property
    def has_redundancy(self) -> bool:
        """True if the plan must survive the failure of any one machine."""
        return self.problem.service.survive.any_one is not None

    def replica_limits(self, i: int, d: int) -> list[int]:
        """Return candidates for the maximum replicas of a pool on one machine of device ``d``.

        With as many spare replicas, hour ``i`` survives the failure of any one machine. [0]: no
        redundancy is needed, so there is no limit.
        """
        name, device = self.problem.devices[d]
        if not self.has_redundancy or (self.hours[i], name) in self.without_redundancy:
            return [0]
        return sorted({s for s in (1, _REPLICA_LIMIT) if s < device.slots} | {device.slots})

    def alive(self, s: int) -> NDArray[np.bool_]:
        """Return True for each device that is up in scenario ``s`` ``(devices,)``.

        In scenario 0 all are; in scenario 1 all but spot machines.
        """
        spot = np.array([device.buy == "spot" for _, device in self.problem.devices])
        return ~spot if s else np.ones_like(spot)

    def floors(self, s: int) -> Array:
        """Return each class's minimum mean accuracy in scenario ``s``, in [0, 1] ``(classes,)``."""
        return np.array([c.floor(degraded=s > 0) for _, c in self.problem.classes])

    def sending(self, i: int) -> Array:
        """Return the transfer cost of options in hour ``i``, in $/h per request/s ``(options,)``.

        Rates include ``demand.spike``, the cost does not: it is that of the expected demand.
        """
        load, o = self.problem.load, self.choices.options
        rates, borne = (table[:, self.hours[i]] for table in (load.rates, load.provisioned_rates))
        share = np.divide(rates, borne, out=np.ones_like(borne), where=borne > 0)
        result: Array = o.usd * 3600 * share[o.request_class]
        return result

    def best_goodputs(self) -> Array:
        """Return the highest goodput of each placement in any hour, in requests/s of a replica."""
        factors = np.ones(len(self.choices.placements))
        for (_, q), factor in self.scale.items():
            factors[q] = max(factors[q], factor)
        return np.array([
            max(min(config.goodput * factor, config.most) for config in placement.configs)
            for placement, factor in zip(self.choices.placements, factors, strict=True)
        ])  # fmt: skip

    def goodput(self, hour: int, placement: int, config: int) -> float:
        """Return the corrected goodput of a serving config in an hour: requests/s of a replica.

        It is at most the config's ``most``. All arguments are indices, ``hour`` one of ``hours``.
        """
        result = self.choices.placements[placement].configs[config]
        return min(result.goodput * self.scale.get((hour, placement), 1.0), result.most)


def copy_corrections(source: PlanningTask, task: PlanningTask) -> PlanningTask:
    """Return ``task`` with the corrections of goodputs of ``source`` for equal placements.

    A device without corrections takes those of the device in its ``like``.
    """
    source_devices, devices = source.problem.devices, task.problem.devices
    source_placements = {(source_devices[s.device][0], s.model, s.process, s.limit_ms): q
             for q, s in enumerate(source.choices.placements)}  # fmt: skip
    hours: dict[int, list[tuple[int, float]]] = {}  # (hour, correction) by placement
    for (i, q), factor in source.scale.items():
        hours.setdefault(q, []).extend((int(h), factor) for h in np.flatnonzero(source.group == i))
    scale: dict[tuple[int, int], float] = {}
    for q, s in enumerate(task.choices.placements):
        name, device = devices[s.device]
        rest = s.model, s.process, s.limit_ms
        placement = source_placements.get(
            (name, *rest), source_placements.get((device.like or name, *rest))
        )
        if placement is not None:
            scale |= {(int(task.group[h]), q): factor for h, factor in hours.get(placement, [])}
    return replace(task, scale=scale)


def _carbon_rows(problem: PlanningProblem) -> list[Array]:
    return [problem.carbon[region][None] for region in sorted(problem.carbon)]


def machine_values(task: PlanningTask, objective: Objective) -> tuple[Array, Array]:
    """Return the cost ($), emissions (kg of CO2) or energy (kWh) of a machine, by objective.

    The first array is per hour of use ``(hours, devices)``, the second for buying the machine for
    all hours ``(devices,)``. Rented hours include the start-up time. Power is that of a busy
    machine.
    """
    problem = task.problem
    total = float(problem.load.n_hours)
    price = np.array([d.price or 0.0 for _, d in problem.devices])
    starts = np.array([1 + d.start_s / 3600 for _, d in problem.devices])
    hourly = np.array([d.is_hourly for _, d in problem.devices])
    rent = np.tile(np.where(hourly, price * starts, 0.0), (len(task.hours), 1))
    owned = np.where(hourly, 0.0, price * total)
    if objective == "cost":
        return rent, owned
    kw = np.array([d.power_w / 1e3 for _, d in problem.devices])
    carbon = np.array([problem.carbon[d.region][list(task.hours)] for _, d in problem.devices]).T
    used = np.tile(kw, (len(task.hours), 1)) * (carbon if objective == "carbon" else 1.0)
    return used, np.zeros_like(owned)


def penalty(task: PlanningTask, wanted: Array) -> Array:
    """Return the penalties of leaving demands unserved ``(n,)``, in the objective's unit.

    That of a whole demand exceeds any cost of serving it. ``wanted`` has the demands in requests/s
    ``(n,)``.
    """
    rent, owned = machine_values(task, task.objective)
    money, bought = machine_values(task, "cost")
    hour = rent.max(0) * task.weight.max() + owned + TIE * (money.max(0) + bought) + TIE
    per = [hour[s.device] / max(s.best, _MIN_RATE) for s in task.choices.placements]
    sent = task.choices.options.usd.max(initial=0.0) * 3600 * task.weight.max()
    result: Array = _DEAR * (2 * hour.max() + wanted * (float(np.median(per)) + sent))
    return result
