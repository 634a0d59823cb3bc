"""The mixed-integer program: rates, replicas and machines as variables, requirements as rows.

For an hour ``i`` and a scenario ``s`` (normal; all spot machines down):

    demand     the rates of a class's options add up to its demand
    accuracy   their mean is at least the class's floor
    placement  requests sent to a placement are at most goodput times active replicas
    slots      replicas fit into the machines; machines are within quotas and purchases
    links, power, daily budgets

If any one machine may fail, a placement has spare replicas: as many as one machine holds of it
(``max_per_machine``, which also sets a minimum number of machines).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hwnas.fleet.task import TIE, Array, Ints, PlanningTask, machine_values, penalty


@dataclass(frozen=True)
class OptionColumns:
    """Variables of a program: options, each in one scenario and hour, as arrays ``(n,)``."""

    scenario: Ints  #: 0: normal; 1: all spot machines are down
    hour: Ints  #: index into the program's hours
    option: Ints  #: index into the task's options

    def __len__(self) -> int:
        return self.hour.size

    @staticmethod
    def of(rows: NDArray[np.intp]) -> "OptionColumns":
        """Return columns from an array of scenario, hour and option ``(n, 3)``."""
        return OptionColumns(rows[:, 0], rows[:, 1], rows[:, 2])


@dataclass(frozen=True)
class PoolCandidates:
    """Candidate pools: serving configs of placements in hours, as arrays ``(pools,)``."""

    hour: Ints  #: index into the program's hours
    placement: Ints  #: index into the task's placements
    config: Ints  #: index into the placement's configs
    max_per_machine: Ints  #: maximum replicas on a machine, and number of spare ones; 0: unlimited
    goodput: Array  #: requests/s of a replica, corrected for the hour
    least: Ints  #: minimum number of replicas
    device: Ints  #: index of the device

    def __len__(self) -> int:
        return self.hour.size


@dataclass(frozen=True)
class HourBlock:
    """Hours of a task that are solved together."""

    hours: tuple[int, ...]  #: indices into the task's hours
    weight: Array  #: number of equal hours of the plan that each stands for ``(hours,)``
    #: upper bound of machines bought ``(devices,)``; ``None``: the quotas
    owned: Array | None = None
    #: lower bound of machines bought ``(devices,)``; ``None``: 0
    bought: Array | None = None
    #: $ (``cost``) and kg of CO2 (``carbon``) that other hours use of the budgets; ``None``: these
    #: hours get the fraction of budgets that corresponds to their weight
    spent: Mapping[str, float] | None = None


def all_hours(task: PlanningTask) -> HourBlock:
    """Return all hours of a task as one block."""
    return HourBlock(tuple(range(len(task.hours))), task.weight)


def pool_candidates(task: PlanningTask, columns: OptionColumns, part: HourBlock) -> PoolCandidates:
    """Return the candidate pools of a block of hours.

    For each hour, these are all configs of the placements that ``columns`` use in it.
    """
    o = task.choices.options
    pairs = np.concatenate(
        [np.stack([columns.hour, side[columns.option]], 1) for side in (o.first, o.second)]
    )
    pairs = np.unique(pairs[pairs[:, 1] >= 0], axis=0)
    rows = []
    for hour, q in pairs:
        placement = task.choices.placements[q]
        for v, config in enumerate(placement.configs):
            for spread in task.replica_limits(part.hours[hour], placement.device):
                rate = task.goodput(part.hours[hour], int(q), v)
                rows.append((hour, q, v, spread, rate, config.least, placement.device))
    table = np.array(rows, np.float64).reshape(-1, 7).T
    ints: list[Ints] = [row.astype(np.intp) for row in table]
    return PoolCandidates(ints[0], ints[1], ints[2], ints[3], table[4], ints[5], ints[6])


@dataclass
class Program:
    """A mixed-integer program: minimise ``cost v`` with ``low <= matrix v <= high``."""

    matrix: sp.csr_matrix  #: ``(constraints, variables)``
    low: Array  #: lower limits of constraints ``(constraints,)``
    high: Array  #: upper limits of constraints ``(constraints,)``
    cost: Array  #: coefficients of the minimised function ``(variables,)``
    lower: Array  #: lower bounds of variables ``(variables,)``
    upper: Array  #: upper bounds of variables ``(variables,)``
    integer: NDArray[np.bool_]  #: True for integer variables ``(variables,)``
    columns: OptionColumns  #: options of the variables x
    pools: PoolCandidates | None  #: ``None``: the linear program without replicas
    #: first index of each kind of variable: x requests/s of options, z unserved fractions,
    #: m machines, r machines bought, u replicas without spare ones, y whether a pool exists
    begin: dict[str, int]
    rows: dict[str, slice]  #: indices of constraints by name


_Entry = tuple[Ints, Ints, Array | float]  # rows, columns and values
_Entries = Sequence[_Entry]


class _Rows:
    """Rows under construction."""

    def __init__(self) -> None:
        self.parts: list[tuple[Ints, Ints, Array]] = []
        self.low: list[Array] = []
        self.high: list[Array] = []
        self.n = 0
        self.named: dict[str, slice] = {}

    def add(self, name: str, entries: _Entries, low: Array, high: Array) -> None:
        """Add rows; entries are rows, columns and values."""
        for r, c, v in entries:
            self.parts.append((r + self.n, c, np.broadcast_to(v, r.shape).astype(np.float64)))
        self.low.append(low)
        self.high.append(high)
        self.named[name] = slice(self.n, self.n + low.size)
        self.n += low.size

    def at_most(self, name: str, entries: _Entries, high: Array) -> None:
        """Add rows with an upper limit."""
        self.add(name, entries, np.full(high.size, -np.inf), high)


def assemble(
    task: PlanningTask, columns: OptionColumns, part: HourBlock, *, relaxed: bool = False
) -> Program:
    """Return the program of some hours, see the module and ``Program``.

    Args:
        task: Task.
        columns: Options; their hours are indices into those of ``part``.
        part: Hours.
        relaxed: If True, omit replicas: the value of this linear program is a lower bound.
    """
    return _Assembly(task, columns, part, relaxed=relaxed).program()


class _Assembly:
    """Builder of a program."""

    def __init__(
        self, task: PlanningTask, columns: OptionColumns, part: HourBlock, *, relaxed: bool
    ):
        self.task, self.columns, self.part = task, columns, part
        self.hours = np.array(part.hours, np.intp)
        self.pools = None if relaxed else pool_candidates(task, columns, part)
        self.n = (task.n_scenarios, self.hours.size, len(task.problem.classes))
        self.d = len(task.problem.devices)
        n_s, n_i, n_k = self.n
        sizes = {
            "x": len(columns), "z": n_s * n_i * n_k, "m": n_i * self.d, "r": self.d,
            "u": len(self.pools or ()), "y": len(self.pools or ()),
        }  # fmt: skip
        ends = np.cumsum([0, *sizes.values()])
        self.begin = dict(zip([*sizes, "end"], map(int, ends), strict=True))
        self.rows = _Rows()
        self.most = None if self.pools is None else self._max_replicas(self.pools)

    def program(self) -> Program:
        """Return the program."""
        self._add_demand()
        self._add_relaxed() if self.pools is None else self._add_pools(self.pools)
        self._add_machines()
        _add_links(self)
        _add_budgets(self)
        total, rows = self.begin["end"], self.rows
        r, c, v = (np.concatenate([part[i] for part in rows.parts]) for i in range(3))
        lower, upper, integer = self._bounds()
        return Program(
            sp.csr_matrix((v, (r, c)), shape=(rows.n, total)),
            np.concatenate(rows.low), np.concatenate(rows.high), self._cost(),
            lower, upper, integer, self.columns, self.pools, self.begin, rows.named,
        )  # fmt: skip

    def _bounds(self) -> tuple[Array, Array, NDArray[np.bool_]]:
        total, begin = self.begin["end"], self.begin
        lower, upper, integer = np.zeros(total), np.full(total, np.inf), np.zeros(total, np.bool_)
        quota = np.array([device.quota for _, device in self.task.problem.devices], np.float64)
        upper[begin["z"] : begin["m"]] = 1.0
        upper[begin["m"] : begin["r"]] = np.tile(quota, self.n[1])
        owned = self.part.owned
        upper[begin["r"] : begin["u"]] = quota if owned is None else owned
        integer[begin["m"] :] = self.pools is not None
        if self.part.bought is not None:
            lower[begin["r"] : begin["u"]] = np.minimum(self.part.bought, quota)
        if self.most is not None:
            upper[begin["u"] : begin["y"]] = self.most
            upper[begin["y"] :] = 1.0
        return lower, upper, integer

    def _max_replicas(self, pools: PoolCandidates) -> Array:
        """Return the maximum number of active replicas, by space and by work.

        Tighter values give a better bound of the relaxation.
        """
        x, placement, sent = self._placement_uses()
        o, n_i, n_k = self.task.choices.options, self.n[1], self.n[2]
        request_class, hour = o.request_class[self.columns.option[x]], self.columns.hour[x]
        share = np.zeros((n_i, len(self.task.choices.placements), n_k))
        np.maximum.at(share, (hour, placement, request_class), sent)
        demand = self._demand().reshape(self.n)[0]
        work = np.einsum("iqk,ik->iq", share, demand)[pools.hour, pools.placement] / pools.goodput
        room = np.array([d.quota * d.slots for _, d in self.task.problem.devices], np.float64)
        result: Array = np.minimum(room[pools.device], np.maximum(np.ceil(work), pools.least))
        return result

    def _cost(self) -> Array:
        task, begin = self.task, self.begin
        cost = np.zeros(begin["end"])
        weight = self.part.weight
        rent, owned = machine_values(task, task.objective)
        money, bought = machine_values(task, "cost")
        if task.objective != "cost":
            rent, owned = rent + TIE * money, owned + TIE * bought
        cost[begin["m"] : begin["r"]] = (rent[self.hours] * weight[:, None]).ravel()
        cost[begin["r"] : begin["u"]] = owned if self.part.owned is None else TIE * owned
        normal = self.columns.scenario == 0
        if task.objective == "cost":
            cost[: begin["z"]] = np.where(normal, self.sent(), 0.0)
        cost[begin["z"] : begin["m"]] = penalty(task, self._demand())
        return cost

    def _add_demand(self) -> None:
        c, o = self.columns, self.task.choices.options
        n_s, n_i, n_k = self.n
        row = (c.scenario * n_i + c.hour) * n_k + o.request_class[c.option]
        demand = self._demand()
        z = np.arange(demand.size)
        x = np.arange(len(c))
        unserved = (z, self.begin["z"] + z, demand)  # as a fraction of the demand
        self.rows.add("demand", [(row, x, 1.0), unserved], demand, demand)
        floors = np.array([self.task.floors(s) for s in range(n_s)])
        margin = o.accuracy[c.option] - floors[c.scenario, o.request_class[c.option]]
        none = np.zeros(demand.size)
        self.rows.add("accuracy", [(row, x, margin)], none, np.full(demand.size, np.inf))

    def _demand(self) -> Array:
        """Return the demand by scenario, hour and class."""
        real = [self.task.hours[i] for i in self.hours]
        result: Array = np.tile(
            self.task.problem.load.provisioned_rates[:, real].T.ravel(), self.n[0]
        )
        return result

    def _placement_uses(self) -> tuple[Ints, Ints, Array]:
        """Return columns, the placements that they use, and the requests sent there."""
        o, option = self.task.choices.options, self.columns.option
        x = np.arange(len(option))
        two = np.flatnonzero(o.second[option] >= 0)
        placements = np.concatenate([o.first[option], o.second[option[two]]])
        sent = np.concatenate([np.ones(len(option)), o.share[option[two]]])
        return np.concatenate([x, two]), placements, sent

    def _add_pools(self, p: PoolCandidates) -> None:
        """Add the need of placements for replicas, and of replicas for machines."""
        assert self.most is not None
        x, placement, sent = self._placement_uses()
        n_i, many, k = self.n[1], len(self.task.choices.placements), np.arange(len(p))
        hour, scenario = self.columns.hour[x], self.columns.scenario[x]
        pairs, pair = np.unique(p.hour * many + p.placement, return_inverse=True)
        row = scenario * len(pairs) + np.searchsorted(pairs, hour * many + placement)
        entries: list[_Entry] = [(row, x, sent)]
        for s in range(self.n[0]):
            mine = pair + s * len(pairs)
            able = self.task.alive(s)[p.device]
            entries.append((mine, self.begin["u"] + k, -p.goodput * able))
            if s:  # no second failure: spare replicas answer, too
                entries.append((mine, self.begin["y"] + k, -p.goodput * p.max_per_machine * able))
        self.rows.at_most("station", entries, np.zeros(self.n[0] * len(pairs)))
        none, u, y = np.zeros(len(p)), self.begin["u"] + k, self.begin["y"] + k
        self.rows.at_most("least", [(k, u, -1.0), (k, y, p.least.astype(np.float64))], none)
        self.rows.at_most("open", [(k, u, 1.0), (k, y, -self.most)], none)
        self.rows.at_most("one", [(pair, y, 1.0)], np.ones(len(pairs)))
        slots = np.array([d.slots for _, d in self.task.problem.devices], np.float64)[p.device]
        machine = p.hour * self.d + p.device
        every = np.arange(n_i * self.d)
        self.rows.at_most(
            "slots",
            [(machine, u, 1 / slots), (machine, y, p.max_per_machine / slots),
             (every, self.begin["m"] + every, -1.0)],
            np.zeros(every.size),
        )  # fmt: skip
        near = np.flatnonzero((p.max_per_machine > 0) & (p.max_per_machine < slots))
        few, width = np.arange(near.size), p.max_per_machine[near].astype(np.float64)
        self.rows.at_most(
            "spread",
            [(few, u[near], 1 / width), (few, y[near], 1.0),
             (few, self.begin["m"] + machine[near], -1.0)],
            np.zeros(near.size),
        )  # fmt: skip

    def _add_relaxed(self) -> None:
        """Add the need of options for machines, with fractional replicas."""
        x, placement, sent = self._placement_uses()
        slots = [self.task.problem.devices[s.device][1].slots for s in self.task.choices.placements]
        per = 1 / (self.task.best_goodputs() * slots)
        device = np.array([s.device for s in self.task.choices.placements], np.intp)[placement]
        n_s, n_i = self.n[:2]
        row = (self.columns.scenario[x] * n_i + self.columns.hour[x]) * self.d + device
        every = np.arange(n_s * n_i * self.d)
        alive = np.concatenate([np.tile(self.task.alive(s), n_i) for s in range(n_s)])
        machine = self.begin["m"] + every % (n_i * self.d)
        self.rows.at_most(
            "slots",
            [(row, x, sent * per[placement]), (every, machine, -alive.astype(np.float64))],
            np.zeros(every.size),
        )

    def _add_machines(self) -> None:
        owned = np.array([not device.is_hourly for _, device in self.task.problem.devices])
        which = np.flatnonzero(np.tile(owned, self.n[1]))
        row = np.arange(which.size)
        entries = [
            (row, self.begin["m"] + which, 1.0),
            (row, self.begin["r"] + which % self.d, -1.0),
        ]
        self.rows.at_most("owned", entries, np.zeros(which.size))

    def sent(self) -> Array:
        """Return the transfer cost of columns over all equal hours ``(columns,)``."""
        c = self.columns
        by_hour = [
            self.task.sending(i) * w for i, w in zip(self.hours, self.part.weight, strict=True)
        ]
        return np.array(by_hour)[c.hour, c.option]


def _add_links(a: _Assembly) -> None:
    """Add the capacities of links."""
    c, o = a.columns, a.task.choices.options
    for j, (name, link) in enumerate(a.task.problem.fleet.links.items()):
        if link.mbit_s is not None:
            n = a.n[0] * a.n[1]
            row = c.scenario * a.n[1] + c.hour
            entries = [(row, np.arange(len(c)), o.links[c.option, j])]
            a.rows.at_most(f"links.{name}", entries, np.full(n, link.mbit_s))


def _add_budgets(a: _Assembly) -> None:
    """Add the budgets of power, cost and carbon."""
    task, budgets, n_i = a.task, a.task.problem.service.budgets, a.n[1]
    every = np.arange(n_i * a.d)
    for region, watts in budgets.power_w.items():
        busy = [d.power_w * (d.region == region) for _, d in task.problem.devices]
        entries = [(every // a.d, a.begin["m"] + every, np.tile(busy, n_i))]
        a.rows.at_most(f"power_w.{region}", entries, np.full(n_i, watts))
    weight = a.part.weight
    spent_elsewhere = a.part.spent
    share = weight.sum() / task.weight.sum() if spent_elsewhere is None else 1.0
    days = task.problem.load.n_hours / 24 * share
    for name, limit in (
        ("cost", budgets.cost_per_day), ("carbon", budgets.carbon_kg_per_day)
    ):  # fmt: skip
        if limit is None:
            continue
        rent, owned = machine_values(task, "cost" if name == "cost" else "carbon")
        used = (rent[a.hours] * weight[:, None]).ravel()
        zero = np.zeros(a.d, np.intp)
        used_up: list[_Entry] = [
            (np.zeros(every.size, np.intp), a.begin["m"] + every, used),
            (zero, a.begin["r"] + np.arange(a.d), owned * share),
        ]
        if name == "cost":
            x = np.flatnonzero(a.columns.scenario == 0)
            used_up.append((np.zeros_like(x), x, a.sent()[x]))
        remaining = limit * days - (spent_elsewhere or {}).get(name, 0.0)
        a.rows.at_most(f"{name}_budget", used_up, np.array([remaining]))
