"""What a plan and its simulations come to: tables and sentences."""

from collections.abc import Iterable, Mapping, Sequence

from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.fleet.plan import DeploymentPlan, HourPlan, to_yaml
from hwnas.fleet.planner import PlanningOutcome
from hwnas.fleet.simulation import LATE, HourStatistics, over_few

as_bytes = to_yaml


def tables(
    plan: DeploymentPlan,
    seen: Sequence[HourStatistics],
    killed: Mapping[str, Sequence[HourStatistics]],
    spiked: Sequence[HourStatistics] = (),
) -> dict[str, Sequence[Row]]:
    """Return the tables of a plan by the name of their CSV file.

    Args:
        plan: The plan.
        seen: What simulations saw of its hours.
        killed: Likewise, of failures in them, by what failed.
        spiked: Likewise, of spikes.
    """
    return {
        "classes": [*_classes(plan, seen)],
        "spikes": [*_classes(plan, spiked)],
        "pools": [*_pools(plan, seen)],
        "hours": [*_hours(plan, seen)],
        "costs": [*_costs(plan)],
        "failures": [*_failures(plan, killed)],
        "models": [*_models(plan)],
        "limits": _limits(plan),
    }


def _by_hour(seen: Sequence[HourStatistics]) -> dict[int, list[HourStatistics]]:
    found: dict[int, list[HourStatistics]] = {}
    for each in seen:
        found.setdefault(each.hour, []).append(each)
    return dict(sorted(found.items()))


def _like(plan: DeploymentPlan, hour: int) -> HourPlan:
    return next(each for each in plan.hours if hour in each.hours)


def _classes(plan: DeploymentPlan, seen: Sequence[HourStatistics]) -> Iterable[Row]:
    """Yield a row for each class in each hour that was simulated."""
    for hour, runs in _by_hour(seen).items():
        for name, asked in plan.classes.items():
            own = [run.classes[name] for run in runs if name in run.classes]
            if not own:
                continue
            yield {
                "hour": hour,
                "like": spelt(_like(plan, hour).hours),
                "class": name,
                "spike": "yes" if runs[0].spike else "",
                "demand_per_s": (asked.borne if runs[0].spike else asked.demand)[hour],
                **_columns("p50_ms", [c.p50_ms for c in own]),
                **_columns("p99_ms", [c.p99_ms for c in own]),
                "p99_limit_ms": asked.p99_ms,
                **_columns("late", [c.late for c in own]),
                **_columns("late_after", [c.late_after for c in own]),
                "lost": sum(c.lost for c in own),
                "accuracy": _accuracy(_like(plan, hour), name),
                "accuracy_min": asked.accuracy_min,
            }


def _columns(name: str, values: Sequence[float]) -> Row:
    """Return what simulations say as a figure's columns; all of them are modelled."""
    found = over_few(values).columns(name)
    del found[f"{name}_source"]
    return dict(found)


def _accuracy(of: HourPlan, name: str) -> float:
    """Return the mean of the lower ends of accuracies over the requests of a class."""
    routes = [r for r in of.routes if r.klass == name]
    rate = sum(r.rate for r in routes)
    return sum(r.rate * r.accuracy for r in routes) / rate if rate else 0.0


def spelt(hours: Sequence[int]) -> str:
    """Return ascending hours as ``0-3 5``."""
    parts: list[list[int]] = []
    for hour in hours:
        if parts and hour == parts[-1][-1] + 1:
            parts[-1].append(hour)
        else:
            parts.append([hour])
    return " ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _pools(plan: DeploymentPlan, seen: Sequence[HourStatistics]) -> Iterable[Row]:
    """Yield a row for each pool in each hour that differs."""
    runs = _by_hour(seen)
    for of in plan.hours:
        own = [run for hour in of.hours for run in runs.get(hour, ())]
        for pool in of.pools:
            kind = plan.kinds[pool.kind]
            used = sum(
                r.rate * (r.share if r.second == pool.kind else 1.0)
                for r in of.routes if pool.kind in (r.first, r.second)
            )  # fmt: skip
            spare = pool.replicas - pool.spread - used / pool.goodput
            busy = over_few([run.busy[pool.kind] for run in own]) if own else None
            yield {
                "hours": spelt(of.hours), "device": kind.device, "model": kind.model,
                "batch": kind.batch, "wait_ms": kind.wait_ms, "limit_ms": kind.limit_ms,
                "replicas": pool.replicas, "spread": pool.spread, "requests_per_s": used,
                "goodput_per_s": pool.goodput, "spare_replicas": spare,
                "busy": None if busy is None else busy.value,
            }  # fmt: skip


def _hours(plan: DeploymentPlan, seen: Sequence[HourStatistics]) -> Iterable[Row]:
    """Yield machines, money and energy by hour."""
    for hour, runs in _by_hour(seen).items():
        machines = _like(plan, hour).machines
        yield {
            "hour": hour, "like": spelt(_like(plan, hour).hours),
            **{f"machines_{name}": machines.get(name, 0) for name in plan.devices},
            **_columns("usd", [run.usd for run in runs]),
            **_columns("kwh", [run.kwh for run in runs]),
            **_columns("co2_kg", [run.kg for run in runs]),
            "retried": sum(run.retried for run in runs),
            **({"replicas_failed": sum(runs[0].failed)} if runs[0].failed else {}),
        }  # fmt: skip


def _costs(plan: DeploymentPlan) -> Iterable[Row]:
    """Yield what the plan costs in all its hours, part by part, as it was planned."""
    n = sum(len(of.hours) for of in plan.hours)
    for name, device in plan.devices.items():
        hours = sum(of.machines.get(name, 0) * len(of.hours) for of in plan.hours)
        if device.bought:
            usd, paid = device.bought * device.price * n, device.bought * n
        else:
            usd, paid = hours * device.price * (1 + device.start_s / 3600), hours
        yield {"part": name, "buy": device.buy, "machine_hours_paid": paid,
               "machine_hours_used": hours, "usd": usd}  # fmt: skip
    sent = sum(r.usd * 3600 * plan.sent(r, h)
               for of in plan.hours for r in of.routes for h in of.hours)  # fmt: skip
    yield {"part": "sending", "buy": "", "machine_hours_paid": 0, "machine_hours_used": 0,
           "usd": sent}  # fmt: skip


def _failures(
    plan: DeploymentPlan, killed: Mapping[str, Sequence[HourStatistics]]
) -> Iterable[Row]:
    """Yield what each failure that must be survived did to each class."""
    for what, runs in killed.items():
        for name in plan.classes:
            own = [run.classes[name] for run in runs if name in run.classes]
            if own:
                yield {
                    "failed": what, "class": name, "hours": len(runs),
                    "late_next_minute": max(c.late_after for c in own),
                    "lost": sum(c.lost for c in own), "retried": sum(run.retried for run in runs),
                }  # fmt: skip


def _models(plan: DeploymentPlan) -> Iterable[Row]:
    """Yield the figures of the models that run, with their sources."""
    for kind in {(k.device, k.model): k for k in plan.kinds.values()}.values():
        accuracy = Quantity(*kind.accuracy) if kind.accuracy else None
        for batch, row in kind.latency_ms.items():
            yield {
                "device": kind.device, "model": kind.model, "batch": int(batch),
                **Quantity(*row).columns("latency_ms"),
                **({} if accuracy is None else accuracy.columns("accuracy")),
                "memory_mib": kind.memory_mib, "from": kind.place,
            }  # fmt: skip


def sentences(found: PlanningOutcome) -> list[str]:
    """Return what was planned, in words."""
    plan = found.plan
    n = sum(len(of.hours) for of in plan.hours)
    said = [
        f"The plan takes {plan.value:.4g} {plan.unit} in {n} hours, at the upper ends of figures; "
        f"no plan of the options that were kept takes less than {plan.bound_kept:.4g} "
        f"({plan.gap:.1%} less), and none of all options less than {plan.bound_all:.4g}.",
        *seen_sentences(plan, found.seen),
        *(seen_sentences(plan, found.spiked) if found.spiked else ()),
    ]
    if found.is_late:
        said.append(
            "Corrections ended before every class kept its limit: ask for less, or for a longer "
            "p99_ms of the classes that are late."
        )
    if found.rounds:
        said.append(
            f"Goodputs of pools were corrected {found.rounds} times, where a simulation saw more "
            "late requests than it should, or next to none."
        )
    for row in _failures(plan, found.killed):
        if row["late_next_minute"] > LATE or row["lost"]:
            said.append(
                f"If {row['failed']} fails, {row['late_next_minute']:.1%} of class {row['class']} "
                f"are late in the next minute, {row['lost']} are lost: more than asked for."
            )
    tried = [what for what, seen in found.killed.items() if seen]
    if tried and not any(s.startswith("If ") for s in said):
        said.append(
            f"Whatever of {', '.join(tried)} fails in the hours of the peaks, no class has more "
            f"than {LATE:.0%} late in the next minute, and nothing is lost."
        )
    if idle := [what for what in found.killed if what not in tried]:
        said.append(
            f"No failure of {', '.join(idle)} was simulated: in the hours of the peaks nothing of "
            "it runs that there are spares for."
        )
    return [*said, *breaks_first(plan), *plan.notes]


def seen_sentences(plan: DeploymentPlan, seen: Sequence[HourStatistics]) -> list[str]:
    """Return which class comes nearest to its limit, and what was late or lost."""
    worst = max(
        ((c.late, name, run.hour) for run in seen for name, c in run.classes.items()), default=None
    )
    if worst is None:
        return ["No request came in the hours that were simulated."]
    late, name, hour = worst
    lost = sum(c.lost for run in seen for c in run.classes.values())
    n = len({run.seed for run in seen})
    what = "each hour with its spike" if seen[0].spike else "each hour"
    said = f"In {n} simulation{'s' * (n > 1)} of {what} no class has more than {late:.2%} late"
    said += f" (class {name}, hour {hour}; allowed {LATE:.0%})"
    return [f"{said}; {lost} requests are lost."]


def failed_sentences(seen: Sequence[HourStatistics], whats: Sequence[str]) -> list[str]:
    """Return what was late after failures, how many replicas failed, and where none did.

    Args:
        seen: What simulations of hours saw.
        whats: What was to fail.
    """
    hit = [run for run in seen if any(run.failed)]
    late = [(c.late_after, name, run.hour) for run in hit for name, c in run.classes.items()]
    said = []
    if late:
        most, name, hour = max(late)
        counts = [sum(run.failed) for run in hit]
        replicas = " to ".join(map(str, sorted({min(counts), max(counts)})))
        said.append(
            f"{' and '.join(whats)} failed ({replicas} replicas): in the minute after it no class "
            f"has more than {most:.2%} late (class {name}, hour {hour}; allowed {LATE:.0%})."
        )
    return [*said, *_without_failures(seen, whats)]


def _without_failures(seen: Sequence[HourStatistics], whats: Sequence[str]) -> Iterable[str]:
    for i, what in enumerate(whats):
        hours = sorted({run.hour for run in seen if not run.failed[i]})
        if hours:
            when = f"hour{'s' * (len(hours) > 1)} {spelt(hours)}"
            other = " other" * (what in whats[:i])
            yield f"kill={what} took nothing in {when}: no replica runs on{other} {what} there."


def _limits(plan: DeploymentPlan) -> list[Row]:
    """Return how far each model on a device is from its goodput, in the hour that is nearest."""
    nearest: dict[tuple[str, str], Row] = {}
    for row in _pools(plan, ()):
        if row["requests_per_s"] > 0:
            can = row["goodput_per_s"] * (row["replicas"] - row["spread"])
            found = {
                "device": row["device"], "model": row["model"], "hours": row["hours"],
                "requests_per_s": row["requests_per_s"], "goodput_per_s": can,
                "demand_may_grow": round(max(can / row["requests_per_s"] - 1, 0.0), 6),
            }  # fmt: skip
            key = row["device"], row["model"]
            known = nearest.get(key, found)
            nearest[key] = min(known, found, key=lambda each: float(each["demand_may_grow"]))
    return sorted(nearest.values(), key=lambda each: float(each["demand_may_grow"]))


def breaks_first(plan: DeploymentPlan) -> list[str]:
    """Return which pool has the least left, in words."""
    return [
        f"What breaks first if demand grows: {row['model']} on {row['device']} in "
        f"{'hour' if str(row['hours']).isdigit() else 'the hours'} {row['hours']}, "
        f"when {row['demand_may_grow']:.1%} more comes."
        for row in _limits(plan)[:1]
    ]
