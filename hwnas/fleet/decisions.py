"""Changes that a new plan makes, and their reasons, as rows and messages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hwnas.core.run_folder import Row
from hwnas.fleet import plan_conversion, resolve
from hwnas.fleet.plan import DeploymentPlan, HourPlan, format_hours
from hwnas.fleet.plan_changes import ReplanCause
from hwnas.fleet.replanner import ReplanningOutcome
from hwnas.fleet.resolve import Running, RunningPool

_OF_DEVICES = ("down", "back")


def rows(old: DeploymentPlan, outcome: ReplanningOutcome) -> list[Row]:
    """Return the rows of ``decisions.csv``: one per changed number of replicas or machines.

    ``old`` is the current plan, ``outcome`` the new one. Equal changes of several hours are one
    row. Column ``why`` has the causes (demand, late requests, machines down or up again, changed
    files) and quotas that are used up.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    first: list[Row] = []
    for hour_plan in outcome.planning.plan.hours:
        previous = old.at(hour_plan.hours[0])
        for row in (
            *_replica_rows(old, previous, outcome, hour_plan),
            *_machine_rows(previous, outcome, hour_plan),
        ):
            hours = groups.setdefault(tuple(row.values()), [])
            first += [row] * (not hours)
            hours += hour_plan.hours
    pairs = zip(first, groups.values(), strict=True)
    return [
        {"hours": format_hours(sorted(hours)), "n_hours": len(hours), **row} for row, hours in pairs
    ]


def _replica_rows(
    old: DeploymentPlan, previous: HourPlan, outcome: ReplanningOutcome, hour_plan: HourPlan
) -> Iterator[Row]:
    new = outcome.planning.plan
    old_pools, new_pools = (
        plan_conversion.running_replicas(old, previous),
        plan_conversion.running_replicas(new, hour_plan),
    )
    for key in sorted({*old_pools, *new_pools}):
        before, after = old_pools.get(key, 0), new_pools.get(key, 0)
        if before != after:
            device, model, batch, wait = key
            users = _classes_using(old, previous, key) | _classes_using(new, hour_plan, key)
            why = _reason(outcome.causes, hour_plan.hours, device, users)
            yield {
                "device": device,
                "model": model, "batch": batch, "wait_ms": wait, "unit": "replicas",
                "before": before, "after": after,
                "loaded": after > 0 and not _is_loaded(old_pools, key),
                "unloaded": not _is_loaded(new_pools, key),
                "why": "; ".join([why, *_binding_limits(new, hour_plan, grows=after > before)]),
            }  # fmt: skip


def _machine_rows(
    previous: HourPlan, outcome: ReplanningOutcome, hour_plan: HourPlan
) -> Iterator[Row]:
    classes = {*outcome.planning.plan.classes}
    for device in sorted({*previous.machines, *hour_plan.machines}):
        before, after = previous.machines.get(device, 0), hour_plan.machines.get(device, 0)
        if before != after:
            yield {
                "device": device,
                "model": "", "batch": None, "wait_ms": None, "unit": "machines",
                "before": before, "after": after, "loaded": False, "unloaded": False,
                "why": _reason(outcome.causes, hour_plan.hours, device, classes),
            }  # fmt: skip


def _is_loaded(running: Running, key: RunningPool) -> bool:
    """Return True if any pool runs the model on the device."""
    return any(other[:2] == key[:2] for other in running)


def _classes_using(plan: DeploymentPlan, hour_plan: HourPlan, key: RunningPool) -> set[str]:
    """Return the classes that send requests to pools of a type."""
    used = {
        name
        for name in (pool.kind for pool in hour_plan.pools)
        for kind in [plan.kinds[name]]
        if (kind.device, kind.model, kind.batch, kind.wait_ms) == key
    }
    return {r.klass for r in (*hour_plan.routes, *hour_plan.degraded) if {r.first, r.second} & used}


def _reason(
    causes: Sequence[ReplanCause], hours: Iterable[int], device: str, users: set[str]
) -> str:
    """Return the causes of a change; if it only makes room, those of other classes in its hours."""
    in_hours = [cause for cause in causes if cause.hours & {*hours}]
    relevant = [
        cause for cause in in_hours if cause.what in _OF_DEVICES or cause.name in {"", *users}
    ]
    specific = [
        cause for cause in relevant if cause.what not in _OF_DEVICES or cause.name == device
    ] or relevant
    return ("" if specific else "makes room: ") + "; ".join(
        cause.text for cause in specific or in_hours
    )


def _binding_limits(plan: DeploymentPlan, hour_plan: HourPlan, *, grows: bool) -> Iterator[str]:
    """Yield the quotas that are used up."""
    if not grows:
        return
    full = [name for name, n in hour_plan.machines.items() if n >= plan.devices[name].quota]
    if full:
        yield f"all machines of {', '.join(full)} are used"


def describe_decisions(
    old: DeploymentPlan, outcome: ReplanningOutcome, down: Mapping[str, int | None]
) -> list[str]:
    """Return messages on the hours planned again, the replicas that change, and the new cost.

    Args:
        old: The current plan.
        outcome: The new plan.
        down: Number of machines down by device; ``None``: all.
    """
    new = outcome.planning.plan
    if not outcome.causes:
        same = ", byte for byte" if new == old else " except for the time of hour 0"
        unchanged = f"Nothing changed beyond the tolerance: the plan is the same{same}."
        return [unchanged, *_describe_unused_failures(outcome, down)]
    messages = [
        f"Planned again in the hours {format_hours(sorted(c.hours))}: {c.text}."
        for c in _merge_late_causes(outcome)
    ]
    messages += _describe_unused_failures(outcome, down)
    messages += [_describe_unchanged(old, new), _describe_value(old, outcome)]
    bare = outcome.planning.solution.task.without_redundancy
    for name in sorted({name for _, name in bare}):
        hours = format_hours(sorted(hour for hour, other in bare if other == name))
        messages.append(
            f"While machines of {name} are down there is no redundancy in the hours {hours}: if "
            "one more machine fails, requests are late until you replan."
        )
    return messages


def _describe_unused_failures(
    outcome: ReplanningOutcome, down: Mapping[str, int | None]
) -> Iterator[str]:
    """Yield messages on failed machines that no hour needed."""
    text = {cause.name for cause in outcome.causes if cause.what == "down"}
    for name, n in down.items():
        if n != 0 and name not in text:
            count = "All" if n is None else f"{n}"
            yield f"{count} of {name} down (measured): no hour needs more machines than remain."


def _merge_late_causes(outcome: ReplanningOutcome) -> Iterator[ReplanCause]:
    """Yield causes, with late classes merged over hours."""
    merged: set[str] = set()
    for cause in outcome.causes:
        if cause.what != "late":
            yield cause
        elif cause.name not in merged:
            merged.add(cause.name)
            late_causes = [c for c in outcome.causes if (c.what, c.name) == ("late", cause.name)]
            hours = frozenset(hour for c in late_causes for hour in c.hours)
            more = f", and in {len(late_causes) - 1} more hours" * (len(late_causes) > 1)
            yield ReplanCause("late", cause.name, hours, cause.text + more)


def count_moved(old: DeploymentPlan, new: DeploymentPlan) -> tuple[int, int, int]:
    """Return three numbers of replica-hours: all of the old plan, started and stopped ones.

    Started and stopped are replicas of the new plan in comparison with the old one in each hour.
    """
    before, after = old.by_hour(), new.by_hour()
    pairs = [
        (
            plan_conversion.running_replicas(old, before[h]),
            plan_conversion.running_replicas(new, after[h]),
        )
        for h in before
    ]
    counts = [resolve.count_moves(old_pools, new_pools) for old_pools, new_pools in pairs]
    total = sum(n for old_pools, _ in pairs for n in old_pools.values())
    return total, sum(c[0] for c in counts), sum(c[1] for c in counts)


def _describe_unchanged(old: DeploymentPlan, new: DeploymentPlan) -> str:
    total, started, stopped = count_moved(old, new)
    before, after = old.by_hour(), new.by_hour()
    same = [hour for hour in before if before[hour].pools == after[hour].pools]
    return (
        f"Of {total} replica-hours of the previous plan {total - stopped} stay "
        f"({stopped / max(total, 1):.1%} are stopped), {started} are started; "
        f"the pools of {len(same)} of {len(before)} hours are unchanged."
    )


def _describe_value(old: DeploymentPlan, outcome: ReplanningOutcome) -> str:
    new = outcome.planning.plan
    return (
        f"The new plan takes {new.value:.4g} {new.unit} in {new.n_hours} hours, the previous one "
        f"{old.value:.4g}; a plan without limits on changes takes at least "
        f"{new.bound_all:.4g}. The penalty for each replica started or stopped in an hour was "
        f"{outcome.move_cost:.3g} {new.unit}."
    )
