"""What a new plan moves, and why: rows and sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hwnas.core.run_folder import Row
from hwnas.fleet import plan_conversion, resolve
from hwnas.fleet.plan import DeploymentPlan, HourPlan
from hwnas.fleet.replanner import ReplanCause, ReplanningOutcome
from hwnas.fleet.resolve import Running, RunningPool
from hwnas.fleet.summary import spelt

_SHOWN = 12  # moves that are said in words: the largest
_OF_DEVICES = ("down", "back")


def rows(old: DeploymentPlan, found: ReplanningOutcome) -> list[Row]:
    """Return a row for each kind of replica, and of machine, that changes in hours that are alike.

    ``why`` says which demand, failure or file made it, and which limits bind.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    first: list[Row] = []
    for of in found.found.plan.hours:
        was = plan_conversion.by_hour(old)[of.hours[0]]
        for row in (*_moved(old, was, found, of), *_machines(was, found, of)):
            hours = alike.setdefault(tuple(row.values()), [])
            first += [row] * (not hours)
            hours += of.hours
    each = zip(first, alike.values(), strict=True)
    return [{"hours": spelt(sorted(hours)), "n_hours": len(hours), **row} for row, hours in each]


def _moved(
    old: DeploymentPlan, was: HourPlan, found: ReplanningOutcome, of: HourPlan
) -> Iterator[Row]:
    new = found.found.plan
    ran, runs = plan_conversion.running(old, was), plan_conversion.running(new, of)
    for key in sorted({*ran, *runs}):
        before, after = ran.get(key, 0), runs.get(key, 0)
        if before != after:
            device, model, batch, wait = key
            users = _users(old, was, key) | _users(new, of, key)
            why = _why(found.causes, of.hours, device, users)
            yield {
                "device": device,
                "model": model, "batch": batch, "wait_ms": wait, "unit": "replicas",
                "before": before, "after": after,
                "loaded": after > 0 and not _has(ran, key), "unloaded": not _has(runs, key),
                "why": "; ".join([why, *_limits(new, of, grows=after > before)]),
            }  # fmt: skip


def _machines(was: HourPlan, found: ReplanningOutcome, of: HourPlan) -> Iterator[Row]:
    for device in sorted({*was.machines, *of.machines}):
        before, after = was.machines.get(device, 0), of.machines.get(device, 0)
        if before != after:
            yield {
                "device": device,
                "model": "", "batch": None, "wait_ms": None, "unit": "machines",
                "before": before, "after": after, "loaded": False, "unloaded": False,
                "why": _why(found.causes, of.hours, device, {*found.found.plan.classes}),
            }  # fmt: skip


def _has(running: Running, key: RunningPool) -> bool:
    """Return whether a model runs on a device, however."""
    return any(other[:2] == key[:2] for other in running)


def _users(plan: DeploymentPlan, of: HourPlan, key: RunningPool) -> set[str]:
    """Return the classes that send requests to replicas of a kind."""
    own = {
        name
        for name in (pool.kind for pool in of.pools)
        for kind in [plan.kinds[name]]
        if (kind.device, kind.model, kind.batch, kind.wait_ms) == key
    }
    return {r.klass for r in (*of.routes, *of.degraded) if {r.first, r.second} & own}


def _why(causes: Sequence[ReplanCause], hours: Iterable[int], device: str, users: set[str]) -> str:
    """Return what made a change: its own causes, else those of the hour that it makes room for."""
    there = [cause for cause in causes if cause.hours & {*hours}]
    own = [cause for cause in there if cause.what in _OF_DEVICES or cause.name in {"", *users}]
    mine = [cause for cause in own if cause.what not in _OF_DEVICES or cause.name == device] or own
    return ("" if mine else "makes room: ") + "; ".join(cause.words for cause in mine or there)


def _limits(plan: DeploymentPlan, of: HourPlan, *, grows: bool) -> Iterator[str]:
    """Yield the limits that say why requests go where they go: what is full, and what is asked."""
    if not grows:
        return
    full = [name for name, n in of.machines.items() if n >= plan.devices[name].quota]
    if full:
        yield f"all machines run of {', '.join(full)}"


def sentences(
    old: DeploymentPlan,
    found: ReplanningOutcome,
    table: Sequence[Row],
    down: Mapping[str, int | None],
) -> list[str]:
    """Return in words what changed, what moved, what stayed, and what it comes to.

    Args:
        old: What ran until now.
        found: What runs from now on.
        table: Its rows.
        down: Machines by device, as last seen; ``None``: all.
    """
    new = found.found.plan
    if not found.causes:
        same = ", byte for byte" if new == old else " but for when hour 0 begins"
        unchanged = f"Nothing changed beyond the tolerance: the plan is what it was{same}."
        return [unchanged, *_without(found, down)]
    said = [
        f"Planned again in the hours {spelt(sorted(c.hours))}: {c.words}." for c in _joined(found)
    ]
    said += _without(found, down)
    said += [_stayed(old, new), _worth(old, found)]
    bare = found.found.solution.task.unspared
    for name in sorted({name for _, name in bare}):
        hours = spelt(sorted(hour for hour, other in bare if other == name))
        said.append(
            f"While machines of {name} are down there is no room to spare another in the hours "
            f"{hours}: if one more fails, answers come late until it is planned again."
        )
    told = sorted((row for row in table if row["unit"] == "replicas"), key=_size)
    more = [f"{len(told) - _SHOWN} more moves are in decisions.csv."] * (len(told) > _SHOWN)
    return [*said, *map(_sentence, told[:_SHOWN]), *more]


def _without(found: ReplanningOutcome, down: Mapping[str, int | None]) -> Iterator[str]:
    """Yield in words which machines are down that no hour of the plan needed."""
    said = {cause.name for cause in found.causes if cause.what == "down"}
    for name, n in down.items():
        if n != 0 and name not in said:
            some = "All" if n is None else f"{n}"
            yield f"{some} of {name} down (measured): no hour ran more machines than are left."


def _joined(found: ReplanningOutcome) -> Iterator[ReplanCause]:
    """Yield causes; those of late answers of a class are said once."""
    seen: set[str] = set()
    for cause in found.causes:
        if cause.what != "late":
            yield cause
        elif cause.name not in seen:
            seen.add(cause.name)
            own = [c for c in found.causes if (c.what, c.name) == ("late", cause.name)]
            hours = frozenset(hour for c in own for hour in c.hours)
            more = f", and in {len(own) - 1} more hours" * (len(own) > 1)
            yield ReplanCause("late", cause.name, hours, cause.words + more)


def moved(old: DeploymentPlan, new: DeploymentPlan) -> tuple[int, int, int]:
    """Return replica-hours of a plan, and how many a new one starts, and stops."""
    before, after = plan_conversion.by_hour(old), plan_conversion.by_hour(new)
    pairs = [
        (plan_conversion.running(old, before[h]), plan_conversion.running(new, after[h]))
        for h in before
    ]
    counts = [resolve.counted(ran, runs) for ran, runs in pairs]
    total = sum(n for ran, _ in pairs for n in ran.values())
    return total, sum(c[0] for c in counts), sum(c[1] for c in counts)


def _stayed(old: DeploymentPlan, new: DeploymentPlan) -> str:
    total, started, stopped = moved(old, new)
    before, after = plan_conversion.by_hour(old), plan_conversion.by_hour(new)
    same = [hour for hour in before if before[hour].pools == after[hour].pools]
    return (
        f"Of {total} replica-hours that ran {total - stopped} stay "
        f"({stopped / max(total, 1):.1%} are stopped), {started} are started; "
        f"{len(same)} of {len(before)} hours run what they ran."
    )


def _worth(old: DeploymentPlan, found: ReplanningOutcome) -> str:
    new = found.found.plan
    return (
        f"It takes {new.value:.4g} {new.unit} in {len(plan_conversion.by_hour(new))} hours, after "
        f"{old.value:.4g}; a plan for the same that may move everything takes at least "
        f"{new.bound_all:.4g}. A replica started or stopped for an hour counted "
        f"{found.move_cost:.3g} {new.unit}."
    )


def _size(row: Row) -> int:
    return -abs(int(row["after"]) - int(row["before"])) * int(row["n_hours"])


def _sentence(row: Row) -> str:
    n = row["after"] - row["before"]
    loads = " (the model is loaded)" if row["loaded"] else " (the model is unloaded)"
    hours = f"Hour{'s' * (row['n_hours'] > 1)} {row['hours']}"
    return (
        f"{hours}: {abs(n)} replica{'s' * (abs(n) > 1)} of {row['model']} on "
        f"{row['device']} {'started' if n > 0 else 'stopped'}, {row['before']} to {row['after']}"
        f"{loads if row['loaded'] or row['unloaded'] else ''}: {row['why']}."
    )
