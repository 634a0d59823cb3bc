"""What is solved: a problem in the hours that differ, with what machines are worth in them."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.routes import PlanChoices
from hwnas.fleet.service_file import Objective as Objective

Array = NDArray[np.float64]
Ints = NDArray[np.intp]

TIE = 1e-6  #: of a machine's price, where money is not what is asked for
_DEAR = 100.0  # times what serving costs: what it counts that something is not served
_LEAST_RATE = 1e-9
UNSERVED = 1e-6  # a part of a demand that is none
_SOME = 4  # replicas of a pool on one machine: between one and all of its slots


@dataclass(frozen=True)
class PlanningTask:
    """What is solved: a problem with the hours that differ, and how goodputs were corrected."""

    problem: PlanningProblem
    choices: PlanChoices
    objective: Objective
    #: of goodputs, by place of the hour and station
    scale: dict[tuple[int, int], float] = field(default_factory=dict)
    #: of hours: those with other marks are never alike
    marks: tuple[int, ...] = ()
    #: hours with devices that failed already: no other machine of theirs need be to spare then
    unspared: frozenset[tuple[int, str]] = frozenset()

    def __post_init__(self) -> None:
        marks = np.array([self.marks] if self.marks else np.zeros((0, self.problem.load.n_hours)))
        keys = np.concatenate([self.problem.load.borne, *_carbon_rows(self.problem), marks]).T
        _, first, group, count = np.unique(
            keys.round(9), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        place = np.argsort(order)
        object.__setattr__(self, "hours", tuple(int(first[i]) for i in order))
        object.__setattr__(self, "weight", count[order].astype(np.float64))
        object.__setattr__(self, "group", place[group.ravel()])

    hours: tuple[int, ...] = field(init=False)  #: one of each group of equal hours
    weight: Array = field(init=False)  #: how many hours are like it
    group: Ints = field(init=False)  #: of each hour, the place of its like in ``hours``

    @property
    def n_scenarios(self) -> int:
        """How many scenarios there are."""
        return 1 + bool(self.problem.service.survive.all_of)

    @property
    def spares(self) -> bool:
        """Whether any one machine may die."""
        return self.problem.service.survive.any_one is not None

    def spreads(self, i: int, d: int) -> list[int]:
        """Return how many replicas of a pool a machine may hold at most: one, some, or all.

        As many are to spare where any one machine may die; elsewhere it is 0: any number.

        Args:
            i: The place of the hour.
            d: The place of the device.
        """
        name, device = self.problem.devices[d]
        if not self.spares or (self.hours[i], name) in self.unspared:
            return [0]
        return sorted({s for s in (1, _SOME) if s < device.slots} | {device.slots})

    def alive(self, s: int) -> NDArray[np.bool_]:
        """Return which devices there are in a scenario ``(devices,)``."""
        spot = np.array([device.buy == "spot" for _, device in self.problem.devices])
        return ~spot if s else np.ones_like(spot)

    def floors(self, s: int) -> Array:
        """Return the accuracies that are asked for ``(classes,)``."""
        return np.array([c.floor(degraded=s > 0) for _, c in self.problem.classes])

    def sending(self, i: int) -> Array:
        """Return what a request a second of each option pays for links in an hour, in $.

        Of what comes: a spike must be borne, and is not paid for in every hour.

        Args:
            i: The place of the hour.
        """
        load, o = self.problem.load, self.choices.options
        rates, borne = (table[:, self.hours[i]] for table in (load.rates, load.borne))
        comes = np.divide(rates, borne, out=np.ones_like(borne), where=borne > 0)
        found: Array = o.usd * 3600 * comes[o.klass]
        return found

    def goodput(self, hour: int, station: int, variant: int) -> float:
        """Return the goodput of a variant of a station as it was corrected for an hour."""
        found = self.choices.stations[station].variants[variant]
        return min(found.goodput * self.scale.get((hour, station), 1.0), found.most)


def corrected_as(of: PlanningTask, task: PlanningTask) -> PlanningTask:
    """Return a task with goodputs corrected as those of another are, for stations that are alike.

    What is on a device that is like another, and of which nothing is known, is corrected as there.
    """
    own, its = of.problem.devices, task.problem.devices
    known = {(own[s.device][0], s.model, s.process, s.limit_ms): q
             for q, s in enumerate(of.choices.stations)}  # fmt: skip
    hours: dict[int, list[tuple[int, float]]] = {}  # of stations: hours, and their corrections
    for (i, q), factor in of.scale.items():
        hours.setdefault(q, []).extend((int(h), factor) for h in np.flatnonzero(of.group == i))
    scale: dict[tuple[int, int], float] = {}
    for q, s in enumerate(task.choices.stations):
        name, device = its[s.device]
        rest = s.model, s.process, s.limit_ms
        at = known.get((name, *rest), known.get((device.like or name, *rest)))
        if at is not None:
            scale |= {(int(task.group[h]), q): factor for h, factor in hours.get(at, [])}
    return replace(task, scale=scale)


def _carbon_rows(problem: PlanningProblem) -> list[Array]:
    return [problem.carbon[region][None] for region in sorted(problem.carbon)]


def machine_values(task: PlanningTask, objective: Objective) -> tuple[Array, Array]:
    """Return what a machine is worth in an hour ``(hours, devices)`` and for good ``(devices,)``.

    An hour of a machine that is rented counts the time that it takes to start. Power is that of a
    busy machine: the upper end.
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
    """Return what it counts that a demand is not served at all: far more than serving it may cost.

    Args:
        task: What is solved.
        wanted: Demands in requests a second ``(n,)``.
    """
    rent, owned = machine_values(task, task.objective)
    money, bought = machine_values(task, "cost")
    hour = rent.max(0) * task.weight.max() + owned + TIE * (money.max(0) + bought) + TIE
    per = [hour[s.device] / max(s.best, _LEAST_RATE) for s in task.choices.stations]
    sent = task.choices.options.usd.max(initial=0.0) * 3600 * task.weight.max()
    found: Array = _DEAR * (2 * hour.max() + wanted * (float(np.median(per)) + sent))
    return found
