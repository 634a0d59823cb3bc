"""Hours of a solution solved again, near what ran before; the others stay as they are."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hwnas.planning import moves
from hwnas.planning.columns import Columns, Part
from hwnas.planning.highs import Solved, solve
from hwnas.planning.hours import Hour
from hwnas.planning.moves import Before
from hwnas.planning.pricing import able, first
from hwnas.planning.program import Program, assemble
from hwnas.planning.solving import (
    MOST_COLUMNS,
    MOST_POOLS,
    UNSERVED,
    Solution,
    joined,
    read,
    values,
)
from hwnas.planning.task import Array, Ints, Objective, Task, machine_values
from hwnas.progress import Progress

_GAP, _LEAST_S = 1e-3, 1.0
_NEAR = 1e-5  # of a limit: what rounding takes


def columns_of(task: Task, i: int, used: Sequence[Hour]) -> Columns:
    """Return the options that an hour chooses from.

    All, where they are few; else those over stations that are in use, and others that are cheap at
    list prices.

    Args:
        task: What is solved.
        i: The place of the hour.
        used: Hours whose stations are in use.
    """
    o, n_s = task.choices.options, task.n_scenarios
    wanted = np.arange(len(o))
    if len(o) * n_s * len(task.hours) > MOST_COLUMNS:
        cheap = np.unique(np.concatenate([rows[:, 2] for rows in first(task)]))
        there = np.zeros(len(task.choices.stations), np.bool_)
        there[[row.station for hour in used for row in hour.pools]] = True
        near = np.flatnonzero(there[o.first] & ((o.second < 0) | there[o.second]))
        wanted = np.union1d(cheap, near)
    rows = []
    for s in range(n_s):
        own: Ints = wanted[np.isfinite(able(task, s)[wanted])]
        rows.append(np.stack([np.full_like(own, s), np.zeros_like(own), own], 1))
    return Columns.of(np.concatenate(rows))


def resolved(
    found: Solution,
    task: Task,
    hours: Sequence[int],
    before: Before,
    limit_s: float,
    progress: Progress,
) -> Solution:
    """Return a solution with some hours solved again; what is bought stays so.

    They are solved together where that is small enough; else one by one, and what time is left all
    together from there. Where demand would be
    left unserved because too few replicas may be stopped, more are.

    Args:
        found: The solution; its ``kept`` options are what hours choose from.
        task: What is solved: goodputs or demands may be others than those of the solution.
        hours: Places of those that are solved again.
        before: What ran until now.
        limit_s: Seconds that it may take.
        progress: Is told of phases.
    """
    new = replace(found, task=task, hours=[*found.hours])
    parts, began = _parts(new, hours, before), time.perf_counter()
    settled = {*range(len(new.hours))} - {*hours}
    with progress.phase("Hours again", len(hours)) as advance:
        for some in parts:
            seconds = max(_LEAST_S, limit_s / len(parts) / 2)
            for near in (before, replace(before, most=1.0)):
                _resolve(new, some, settled, near, seconds)
                if all((new.hours[i].unserved < UNSERVED).all() for i in some):
                    break
            settled |= {*some}
            advance(len(some))
    if len(parts) > 1:
        left = max(_LEAST_S, limit_s - (time.perf_counter() - began))
        with progress.phase("Polish", 1) as advance:
            _resolve(new, hours, settled - {*hours}, before, left)
            advance(1)
    new.owned = _bought(new, {*range(len(new.hours))}, before)
    return new


def _parts(found: Solution, hours: Sequence[int], before: Before) -> list[list[int]]:
    """Return places of hours that are solved together."""
    together = [*hours]
    if sum(len(found.kept[i]) for i in together) <= MOST_COLUMNS:
        program = _program(found, together, set(), before)[0]
        if len(program.pools or ()) <= MOST_POOLS:
            return [together]
    return [[i] for i in together]


def _bought(found: Solution, hours: set[int], before: Before) -> Array:
    """Return the machines that are bought, or must be for hours ``(devices,)``."""
    hourly = np.array([device.is_hourly for _, device in found.task.problem.devices])
    used = [np.where(hourly, 0.0, found.hours[i].machines) for i in hours]
    most: Array = np.max([before.owned, *used], 0)
    return most


def _program(
    found: Solution, some: Sequence[int], settled: set[int], before: Before
) -> tuple[Program, Part]:
    """Return the program of some hours: with what settled ones have bought, and others leave."""
    spent = _spent(found, {*range(len(found.hours))} - {*some})
    bought = _bought(found, settled, before)
    part = Part(tuple(some), found.task.weight[[*some]], bought=bought, spent=spent)
    return assemble(found.task, joined(found.kept, some), part), part


def _resolve(
    found: Solution, some: Sequence[int], settled: set[int], before: Before, limit_s: float
) -> None:
    plain, part = _program(found, some, settled, before)
    program = moves.added(plain, found.task, before, part)
    owned = _bought(found, settled | {*some}, before)
    start = moves.filled(program, values(program, [found.hours[i] for i in some], owned))
    solved: Solved = solve(program, limit_s=limit_s, gap=_GAP, start=start)
    if solved.values is None and start is not None:
        return  # there was no time for more than what it began with
    for i, hour in zip(some, read(found.task, program, solved, part)[0], strict=True):
        found.hours[i] = hour


def _spent(found: Solution, others: set[int]) -> dict[str, float]:
    """Return what hours take of the budgets of days, but for what is bought."""
    task, taken = found.task, dict[str, float]()
    budgets: tuple[Objective, ...] = ("cost", "carbon")
    for name in budgets:
        rent, _ = machine_values(task, name)
        taken[name] = sum(float(rent[i] @ found.hours[i].machines) * task.weight[i] for i in others)
    usd = task.choices.options.usd
    taken["cost"] += sum(
        float(usd[o]) * x * 3600 * task.weight[i]
        for i in others
        for s, o, x in found.hours[i].flows
        if s == 0
    )
    return taken


def holds(task: Task, hour: Hour, i: int, owned: Array) -> bool:
    """Return whether an hour keeps all that is asked of it, but for the budgets of days."""
    used = {q for s, o, _ in hour.flows for q in _stations(task, o)}
    plain = replace(hour, pools=[row for row in hour.pools if row.station in used])
    rows = np.array([(s, 0, o) for s, o, _ in hour.flows], np.intp).reshape(-1, 3)
    free = {"cost": -np.inf, "carbon": -np.inf}
    part = Part((i,), task.weight[[i]], bought=owned, spent=free)
    program = assemble(task, Columns.of(rows), part)
    found = values(program, [plain], owned)
    if found is None:
        return False
    has = program.matrix @ found
    slack = _NEAR * (1 + np.abs(has))
    kept = (has >= program.low - slack).all() and (has <= program.high + slack).all()
    within = found <= program.upper + _NEAR * (1 + np.abs(found))
    return bool(kept and within[: program.begin["u"]].all())


def _stations(task: Task, option: int) -> list[int]:
    o = task.choices.options
    return [int(q) for q in (o.first[option], o.second[option]) if q >= 0]
