"""Tables and messages of a plan and its simulations."""

from collections.abc import Iterable, Mapping, Sequence

from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.fleet.plan import DeploymentPlan, HourPlan, format_hours, to_yaml
from hwnas.fleet.planner import PlanningOutcome
from hwnas.fleet.simulation import LATE, HourStatistics, mean_with_interval

as_bytes = to_yaml


def tables(
    plan: DeploymentPlan,
    statistics: Sequence[HourStatistics],
    killed: Mapping[str, Sequence[HourStatistics]],
    spiked: Sequence[HourStatistics] = (),
) -> dict[str, Sequence[Row]]:
    """Return the rows of a plan's CSV files by the name of the file without ``.csv``.

    Args:
        plan: Plan.
        statistics: Simulations at the expected demand.
        killed: Simulations with failures, by failed device.
        spiked: Simulations at the peak demand.
    """
    return {
        "classes": [*_classes(plan, statistics)],
        "spikes": [*_classes(plan, spiked)],
        "pools": [*_pools(plan, statistics)],
        "hours": [*_hours(plan, statistics)],
        "costs": [*_costs(plan)],
        "failures": [*_failures(plan, killed)],
        "models": [*_models(plan)],
        "limits": _limits(plan),
    }


def _by_hour(statistics: Sequence[HourStatistics]) -> dict[int, list[HourStatistics]]:
    result: dict[int, list[HourStatistics]] = {}
    for run in statistics:
        result.setdefault(run.hour, []).append(run)
    return dict(sorted(result.items()))


def _classes(plan: DeploymentPlan, statistics: Sequence[HourStatistics]) -> Iterable[Row]:
    """Yield a row per class and simulated hour."""
    for hour, runs in _by_hour(statistics).items():
        for name, requirements in plan.classes.items():
            stats = [run.classes[name] for run in runs if name in run.classes]
            if not stats:
                continue
            yield {
                "hour": hour,
                "like": format_hours(plan.at(hour).hours),
                "class": name,
                "spike": "yes" if runs[0].spike else "",
                "demand_per_s": runs[0].load
                * (requirements.borne if runs[0].spike else requirements.demand)[hour],
                **_columns("p50_ms", [c.p50_ms for c in stats]),
                **_columns("p99_ms", [c.p99_ms for c in stats]),
                "p99_limit_ms": requirements.p99_ms,
                **_columns("late", [c.late for c in stats]),
                **_columns("late_after", [c.late_after for c in stats]),
                "lost": sum(c.lost for c in stats),
                "accuracy": _accuracy(plan.at(hour), name),
                "accuracy_min": requirements.accuracy_min,
            }


def _columns(name: str, values: Sequence[float]) -> Row:
    """Return the columns of a simulated value, without its source."""
    result = mean_with_interval(values).columns(name)
    del result[f"{name}_source"]
    return dict(result)


def _accuracy(hour_plan: HourPlan, name: str) -> float:
    """Return the mean of the lower ends of accuracy over the requests of a class."""
    routes = [r for r in hour_plan.routes if r.klass == name]
    rate = sum(r.rate for r in routes)
    return sum(r.rate * r.accuracy for r in routes) / rate if rate else 0.0


def _pools(plan: DeploymentPlan, statistics: Sequence[HourStatistics]) -> Iterable[Row]:
    """Yield a row per pool and distinct hour."""
    runs = _by_hour(statistics)
    for hour_plan in plan.hours:
        hour_runs = [run for hour in hour_plan.hours for run in runs.get(hour, ())]
        for pool in hour_plan.pools:
            kind = plan.kinds[pool.kind]
            used = sum(
                r.rate * (r.share if r.second == pool.kind else 1.0)
                for r in hour_plan.routes if pool.kind in (r.first, r.second)
            )  # fmt: skip
            spare = pool.replicas - pool.spread - used / pool.goodput
            busy = (
                mean_with_interval([run.busy[pool.kind] for run in hour_runs])
                if hour_runs
                else None
            )
            yield {
                "hours": format_hours(hour_plan.hours), "device": kind.device, "model": kind.model,
                "batch": kind.batch, "wait_ms": kind.wait_ms, "limit_ms": kind.limit_ms,
                "replicas": pool.replicas, "spread": pool.spread, "requests_per_s": used,
                "goodput_per_s": pool.goodput, "spare_replicas": spare,
                "busy": None if busy is None else busy.value,
            }  # fmt: skip


def _hours(plan: DeploymentPlan, statistics: Sequence[HourStatistics]) -> Iterable[Row]:
    """Yield machines, money and energy by hour."""
    for hour, runs in _by_hour(statistics).items():
        machines = plan.at(hour).machines
        yield {
            "hour": hour, "like": format_hours(plan.at(hour).hours),
            **{f"machines_{name}": machines.get(name, 0) for name in plan.devices},
            **_columns("usd", [run.usd for run in runs]),
            **_columns("kwh", [run.kwh for run in runs]),
            **_columns("co2_kg", [run.kg for run in runs]),
            "retried": sum(run.retried for run in runs),
            **({"replicas_failed": sum(runs[0].failed)} if runs[0].failed else {}),
        }  # fmt: skip


def _costs(plan: DeploymentPlan) -> Iterable[Row]:
    """Yield the planned cost of each part over all hours."""
    n = plan.n_hours
    for name, device in plan.devices.items():
        hours = sum(
            hour_plan.machines.get(name, 0) * len(hour_plan.hours) for hour_plan in plan.hours
        )
        rented = hours * (1 + device.start_s / 3600)
        paid = float(device.bought * n) if device.bought else rented
        yield {"part": name, "buy": device.buy, "machine_hours_paid": paid,
               "machine_hours_used": hours, "usd": paid * device.price}  # fmt: skip
    sent = sum(
        r.usd * 3600 * plan.sent(r, h)
        for hour_plan in plan.hours
        for r in hour_plan.routes
        for h in hour_plan.hours
    )
    yield {"part": "sending", "buy": "", "machine_hours_paid": 0, "machine_hours_used": 0,
           "usd": sent}  # fmt: skip


def _failures(
    plan: DeploymentPlan, killed: Mapping[str, Sequence[HourStatistics]]
) -> Iterable[Row]:
    """Yield the effect of each failure on each class."""
    for device, runs in killed.items():
        for name in plan.classes:
            stats = [run.classes[name] for run in runs if name in run.classes]
            if stats:
                yield {
                    "failed": device, "class": name, "hours": len(runs),
                    "late_next_minute": max(c.late_after for c in stats),
                    "lost": sum(c.lost for c in stats), "retried": sum(run.retried for run in runs),
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


def describe_plan(outcome: PlanningOutcome) -> list[str]:
    """Return messages on a plan: its value and bounds, late requests, failures and bottleneck.

    The plan's ``notes`` are the last ones.
    """
    plan = outcome.plan
    n = plan.n_hours
    messages = [
        f"The plan takes {plan.value:.4g} {plan.unit} in {n} hours, at the upper ends of figures; "
        f"lower bounds: {plan.bound_kept:.4g} over the options left after pruning "
        f"({plan.gap:.1%} less), {plan.bound_all:.4g} over all options.",
        *describe_statistics(outcome.statistics),
        *(describe_statistics(outcome.spike_statistics) if outcome.spike_statistics else ()),
    ]
    if outcome.is_late:
        messages.append(
            "After all corrections some class still exceeds its limit: reduce the demand, or "
            "increase p99_ms of the late classes."
        )
    if outcome.rounds:
        messages.append(
            f"Goodputs (requests/s of replicas) were corrected {outcome.rounds} times, after "
            "simulations with too many or hardly any late requests."
        )
    for row in _failures(plan, outcome.failures):
        if row["late_next_minute"] > LATE or row["lost"]:
            messages.append(
                f"If {row['failed']} fails, {row['late_next_minute']:.1%} of class {row['class']} "
                f"are late in the next minute, {row['lost']} are lost: more than allowed."
            )
    failures = [device for device, simulated in outcome.failures.items() if simulated]
    if failures and not any(s.startswith("If ") for s in messages):
        messages.append(
            f"If any of {', '.join(failures)} fails at the peak demand, no class has more than "
            f"{LATE:.0%} late in the next minute, and nothing is lost."
        )
    if idle := [device for device in outcome.failures if device not in failures]:
        messages.append(
            f"No failure of {', '.join(idle)} was simulated: at the peak demand no pool with spare "
            "replicas runs on it."
        )
    return [*messages, *describe_bottleneck(plan), *plan.notes]


def describe_statistics(statistics: Sequence[HourStatistics]) -> list[str]:
    """Return one message: the largest fraction of late requests of a class, and the lost requests.

    ``statistics`` are simulations of hours of the plan at the same demand.
    """
    worst = max(
        ((c.late, name, run.hour) for run in statistics for name, c in run.classes.items()),
        default=None,
    )
    if worst is None:
        return ["The simulated hours have no requests."]
    late, name, hour = worst
    lost = sum(c.lost for run in statistics for c in run.classes.values())
    n = len({run.seed for run in statistics})
    scope = "each hour with its spike" if statistics[0].spike else "each hour"
    text = f"In {n} simulation{'s' * (n > 1)} of {scope} no class has more than {late:.2%} late"
    text += f" (class {name}, hour {hour}; allowed {LATE:.0%})"
    return [f"{text}; {lost} requests are lost."]


def describe_failures(statistics: Sequence[HourStatistics], whats: Sequence[str]) -> list[str]:
    """Return messages: late requests in the minute after failures, and failures without effect.

    ``whats`` are the failed devices, in the order of ``SimulationSetup.kills``.
    """
    hit = [run for run in statistics if any(run.failed)]
    late = [(c.late_after, name, run.hour) for run in hit for name, c in run.classes.items()]
    messages = []
    if late:
        highest, name, hour = max(late)
        counts = [sum(run.failed) for run in hit]
        replicas = " to ".join(map(str, sorted({min(counts), max(counts)})))
        messages.append(
            f"{' and '.join(whats)} failed ({replicas} replicas): in the minute after it no class "
            f"has more than {highest:.2%} late (class {name}, hour {hour}; allowed {LATE:.0%})."
        )
    return [*messages, *_without_failures(statistics, whats)]


def _without_failures(
    statistics: Sequence[HourStatistics], devices: Sequence[str]
) -> Iterable[str]:
    for i, device in enumerate(devices):
        hours = sorted({run.hour for run in statistics if not run.failed[i]})
        if hours:
            when = f"hour{'s' * (len(hours) > 1)} {format_hours(hours)}"
            other = " other" * (device in devices[:i])
            yield f"kill={device} had no effect in {when}: no replica runs on{other} {device}."


def _limits(plan: DeploymentPlan) -> list[Row]:
    """Return the margin of each model on a device in its tightest hour."""
    nearest: dict[tuple[str, str], Row] = {}
    for row in _pools(plan, ()):
        if row["requests_per_s"] > 0:
            can = row["goodput_per_s"] * (row["replicas"] - row["spread"])
            result = {
                "device": row["device"], "model": row["model"], "hours": row["hours"],
                "requests_per_s": row["requests_per_s"], "goodput_per_s": can,
                "demand_may_grow": round(max(can / row["requests_per_s"] - 1, 0.0), 6),
            }  # fmt: skip
            key = row["device"], row["model"]
            known = nearest.get(key, result)
            nearest[key] = min(known, result, key=lambda margin: float(margin["demand_may_grow"]))
    return sorted(nearest.values(), key=lambda margin: float(margin["demand_may_grow"]))


def describe_bottleneck(plan: DeploymentPlan) -> list[str]:
    """Return one message on the pool that fills first if demand grows; none without requests."""
    return [
        f"First bottleneck if demand grows: {row['model']} on {row['device']} in "
        f"{'hour' if str(row['hours']).isdigit() else 'the hours'} {row['hours']}, "
        f"at {row['demand_may_grow']:.1%} more demand."
        for row in _limits(plan)[:1]
    ]
