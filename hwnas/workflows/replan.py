"""Checks plans on servers of this machine, and changes plans by telemetry."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.core import machine
from hwnas.core.errors import ConfigError, RunError, unknown_name
from hwnas.core.files import atomic_folder
from hwnas.core.manifest import read_manifest
from hwnas.core.run_folder import Row, RunFolder, default_path, initial_manifest
from hwnas.workflows.config import ReplanConfig, ServeCheckConfig
from hwnas.workflows.plan import MAIN_TABLE, check_ready, files_of, recorded, write_plan_folder
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import FolderResult

if TYPE_CHECKING:
    from hwnas.fleet.deployment.pools import DeployedPool
    from hwnas.fleet.deployment.validation import ServiceTimeProfile
if TYPE_CHECKING:
    from hwnas.fleet.plan import DeploymentPlan
    from hwnas.fleet.telemetry import TelemetrySample

_FORMAT = 1  #: format version of serve_check.json
_MAX_LATENESS = 0.1  # maximum delay of sent requests, as a fraction of the measured latency
_MIN_SLOWDOWN = 0.01  # minimum slowdown that is reported


def serve_check(
    config: ServeCheckConfig, arguments: Sequence[str], reporter: Reporter
) -> FolderResult:
    """Serve models of a plan on this machine and compare measured with simulated latencies.

    A pool is one model on the replicas of a device. The result has the tables ``loads`` (one row
    per pool and load) and ``profile`` (one row per pool and batch size).

    Args:
        config: The options.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Raises:
        ConfigError: a package is missing, or a pool is unknown or has no file.
        RunError: there is no such plan, the server is unknown or not installed, or the output
            folder is not empty.
        DeviceError: the server fails, or the speed of the machine changes meanwhile.
    """
    check_ready("serve-check", config.run.dir)
    from hwnas.fleet.deployment import servers, validation

    pools = _pools(config)
    python = config.python or sys.executable
    packages = servers.probe(python)
    name = servers.choose_server(config.server, python, packages)
    checker = validation.ServeChecker(
        validation.ServeCheckOptions(
            config.loads, config.seconds, config.repeats, config.drift, config.retries, config.seed
        ),
        reporter,
    )
    rows: list[Row] = []
    profiles: list[Row] = []
    ready = []
    for pool in pools:
        with servers.run_server(
            name, python, packages, validation.pools_to_serve([pool])
        ) as server:
            profile, loads = checker.checked(pool, server)
            profiles += _profile_rows(pool, profile)
            rows += loads
            ready.append(server.ready_s)
    version = servers.SERVERS[name].version(packages)
    sentences = [
        f"{name} {version} of {python} was ready after {max(ready):.1f} s; latencies count from "
        "when requests were due.",
        _worst_error(rows),
        *_slowdown_warning(rows),
        *_lateness_warning(rows),
    ]
    facts = {
        "server": name, "version": version, "python": python, "ready_s": ready,
        "machine": machine.describe(), "sentinel_ms": checker.readings_ms, "drift": config.drift,
        "profile": profiles, "loads": rows,
    }  # fmt: skip
    tables = {"loads": rows, "profile": profiles}
    return _write(config, arguments, tables, facts, sentences)


def _pools(config: ServeCheckConfig) -> "list[DeployedPool]":
    """Return the pools to check: the named ones, or one of each distinct kind."""
    from hwnas.fleet.deployment.pools import deployed_pools
    from hwnas.fleet.plan import read_plan

    every, _ = deployed_pools(read_plan(Path(config.plan)), {})
    able = {p.name: p for p in every if p.model is not None and not p.source.is_on_gpu}
    if not able:
        raise ConfigError(
            f"plan={config.plan}: none of its models has an ONNX file for the CPU of this machine. "
            "Plan with exports or searches for a CPU."
        )
    for name in config.pools:
        if name not in able:
            raise ConfigError(
                f"pool: {unknown_name('pool', name, able)} Only pools on CPUs whose model has an "
                "ONNX file can be checked."
            )
    alike = {(p.kind.model, p.kind.batch, p.kind.wait_ms): p for p in reversed(able.values())}
    return [able[n] for n in config.pools] or [p for p in able.values() if p in alike.values()]


def _profile_rows(pool: "DeployedPool", profile: "ServiceTimeProfile") -> list[Row]:
    rows = [
        {"pool": pool.name, "batch": n, **figure.columns("batch_ms")}
        for n, figure in profile.batch_ms.items()
    ]
    single = profile.overhead_ms.columns("overhead_ms") | profile.waking_ms.columns("waking_ms")
    rows[0] |= single | {"jitter": profile.jitter}
    return rows


def _worst_error(rows: Sequence[Row]) -> str:
    """Return the largest simulation error and the number of failed requests as text."""
    worst = max(rows, key=lambda row: abs(row["error_p99"]))
    failed = sum(row["failed"] for row in rows)
    lost = f"{failed} requests were not answered" if failed else "every request was answered"
    return (
        f"Simulated p99 is off by {worst['error_p99']:+.1%} at most (pool {worst['pool']}, load "
        f"{worst['load']:.0%}); {lost}."
    )


def _slowdown_warning(rows: Sequence[Row]) -> list[str]:
    """Return a warning if a server is slower under load than in its profile.

    The slowdown is the server's own measurement, else it is derived from p99. It must exceed the
    deviation between repeats: near capacity, a few per cent have a large effect on p99.
    """
    name = "batch_slowdown" if "batch_slowdown" in rows[0] else "slowdown"
    surely = [row for row in rows if (row.get(f"{name}_low") or 0.0) > 1.0 + _MIN_SLOWDOWN]
    if not surely:
        return []
    worst = max(surely, key=lambda row: row[name])
    low, more, high = (worst[f"{name}{end}"] - 1 for end in ("_low", "", "_high"))
    case = f"{worst['pool']} at {worst['load']:.0%}"
    longer = f"{more:.0%} longer (95 % {low:.0%} to {high:.0%})"
    finding = f"p99 of {case} is that of batches that take {longer}"
    if name == "batch_slowdown":
        finding = (
            f"by its own measurement batches of {case} take {longer}; with these, the error of "
            f"the simulated p99 is {worst['error_explained_p99']:+.1%}"
        )
    return [
        f"Under load the server is slower than in its profile: {finding}. For a device of the "
        f"plan that is as this machine, multiply derate in the fleet file by {1 / (1 + more):.2f}."
    ]


def _lateness_warning(rows: Sequence[Row]) -> list[str]:
    """Return a warning if requests were sent so late that it affects the measured latency.

    The generator shares cores with the server, so its delay dominates for very fast networks.
    """
    late = [r for r in rows if r["sent_late_p99_ms"] > _MAX_LATENESS * r["measured_p99_ms"]]
    if not late:
        return []
    worst = max(late, key=lambda row: row["sent_late_p99_ms"] / row["measured_p99_ms"])
    return [
        f"At {len(late)} of {len(rows)} loads the generator, not the server, is part of what was "
        f"measured: requests left {worst['sent_late_p99_ms']:.2f} ms late (p99) of "
        f"{worst['measured_p99_ms']:.2f} ms (pool {worst['pool']}, load {worst['load']:.0%}). "
        "Check a larger network, lower loads, or leave it more cores."
    ]


def _write(
    config: ServeCheckConfig,
    arguments: Sequence[str],
    tables: dict[str, list[Row]],
    facts: Row,
    sentences: Sequence[str],
) -> FolderResult:
    path = Path(config.run.dir or default_path("serve-check"))
    with atomic_folder(path, remove_stale=config.run.dir is None) as building:
        folder = RunFolder(building)
        for name, rows in tables.items():
            folder.write_csv(f"{name}.csv", rows)
        folder.write_json("serve_check.json", {"format": _FORMAT} | facts)
        folder.write_bytes("summary.txt", ("\n".join(sentences) + "\n").encode())
        manifest = initial_manifest("serve-check", arguments, {}, config) | {"status": "finished"}
        folder.write_json("manifest.json", manifest)
    names = [*(f"{name}.csv" for name in tables), "serve_check.json", "summary.txt"]
    return FolderResult(path, sentences, tables, "loads", names)


# Changes of plans: from a plan's folder and telemetry to a new plan's folder.

_SOURCES = ("service", "fleet")


@dataclass(frozen=True)
class _ReadTelemetry:
    """Telemetry samples with their time format."""

    samples: "Sequence[TelemetrySample]"
    by_hour: bool  #: whether times are hours of the plan


def replan(config: ReplanConfig, arguments: Sequence[str], reporter: Reporter) -> FolderResult:
    """Change a plan by telemetry, write it into a folder, and return its tables and messages.

    With ``in_place`` it replaces the old plan.

    Args:
        config: The options.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Raises:
        ConfigError: a package is missing, or a file is invalid or does not match the plan.
        RunError: there is no plan, telemetry is not available, or the output folder is not empty.
        BudgetError: a limit leaves requests unserved; the message names it.
    """
    check_ready("replan", config.run.dir)
    from hwnas.fleet import alternatives, calendar, decisions, replanner, summary
    from hwnas.fleet.plan import read_plan
    from hwnas.fleet.problem import check_required_keys, read_problem
    from hwnas.fleet.replanner import ReplanPolicy
    from hwnas.fleet.telemetry import aggregate_samples, as_rows

    _restore_plan(Path(config.plan))
    old = read_plan(Path(config.plan))
    sources = _sources(config)
    config = replace(config, service=sources["service"], fleet=sources["fleet"])
    n_hours = old.n_hours
    seen, n_old = _read_telemetry(config, old), 0
    if seen.by_hour and config.begin is not None:
        raise ConfigError(
            f"begin={config.begin} has no effect: {config.telemetry} has hours of the plan, not "
            "dates. Remove begin."
        )
    begin_s = calendar.begin_seconds(old.begin_min, n_hours)
    if config.begin is not None:
        begin_s = calendar.parse_date(config.begin, "begin")
    origin_s = 0.0 if seen.by_hour else calendar.begin_or_midnight(begin_s, n_hours)
    service, fleet = (Path(sources[name]) for name in _SOURCES)
    problem = alternatives.without_sketches(read_problem(service, fleet, begin_s))
    check_required_keys(problem, old.objective, fleet)
    manner = ReplanPolicy(
        config.tolerance,
        config.move_cost,
        config.max_moved_fraction,
        config.extrapolate,
        config.limit_s,
    )
    seeds = range(config.seed, config.seed + config.n_seeds)
    if not seen.by_hour:
        samples, n_old = _without_old_lateness(seen.samples, Path(config.plan))
        seen = replace(seen, samples=samples)
    demand = aggregate_samples(seen.samples, n_hours, origin_s)
    outcome = replanner.replan(problem, old, demand, manner, seeds, reporter)
    new = outcome.planning.plan
    rows, now = decisions.rows(old, outcome), outcome.planning
    every = summary.tables(new, now.statistics, now.failures, now.spike_statistics)
    tables = {"decisions": rows, **every}
    tables |= {"telemetry": as_rows(seen.samples, by_hour=seen.by_hour)}
    sentences = [
        *decisions.describe_decisions(old, outcome, demand.down),
        *[f"Late requests of {n_old} samples were not used: they are older than the plan."][:n_old],
        *summary.describe_plan(outcome.planning),
    ]
    planned = FolderResult(Path(), sentences, tables, MAIN_TABLE)
    content = files_of(new, planned, [*now.statistics, *now.spike_statistics])
    if config.in_place and not outcome.causes:  # files of the user in the folder stay
        return replace(planned, path=Path(config.plan))
    if config.in_place:
        return _replace_plan(config, arguments, planned, content)
    return write_plan_folder("replan", config, arguments, planned, content)


def _without_old_lateness(
    samples: "Sequence[TelemetrySample]", plan: Path
) -> "tuple[Sequence[TelemetrySample], int]":
    """Return samples without the lateness from before a changed plan was made, and their number.

    That lateness is of the plan before it, and has been used to change it.
    """
    if not (plan / "manifest.json").exists():
        return samples, 0
    manifest = read_manifest(plan, "plan")
    if manifest["verb"] != "replan" or not (started := manifest.get("started")):
        return samples, 0
    made_s = datetime.fromisoformat(started[-1]).timestamp()
    old = [s.at < made_s and not (s.late is None and s.p99_ms is None) for s in samples]
    kept = [
        replace(s, late=None, p99_ms=None) if is_old else s
        for s, is_old in zip(samples, old, strict=True)
    ]
    return kept, sum(old)


def _replace_plan(
    config: ReplanConfig, arguments: Sequence[str], result: FolderResult, content: dict[str, bytes]
) -> FolderResult:
    """Write a plan and replace the plan that it is based on."""
    path, resolved = Path(config.plan), Path(config.plan).resolve()
    beside, former = resolved.with_name(f".{resolved.name}.new"), _former_path(resolved)
    for folder in (beside, former):  # left by a killed process
        shutil.rmtree(folder, ignore_errors=True)
    outcome = write_plan_folder("replan", config, arguments, result, content, beside)
    resolved.rename(former)
    beside.rename(resolved)
    shutil.rmtree(former)
    return replace(outcome, path=resolved if path.name in ("", "..") else path)


def _former_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.former")


def _restore_plan(path: Path) -> None:
    """Restore the name of a plan if a process was killed while it replaced the plan."""
    resolved = path.resolve()
    if not resolved.exists() and _former_path(resolved).is_dir():
        _former_path(resolved).rename(resolved)


def _sources(config: ReplanConfig) -> dict[str, str]:
    """Return the paths of a plan's service and fleet.

    Raises:
        RunError: the plan does not record them.
        ConfigError: the files do not exist.
    """
    paths = {name: file for name in _SOURCES if (file := getattr(config, name)) is not None}
    if len(paths) < len(_SOURCES):
        path, known = Path(config.plan, "manifest.json"), recorded(Path(config.plan))
        for name in {*_SOURCES} - {*paths}:
            if not (place := known.get(name, "")):
                raise RunError(f"{path} does not record its {name} file. Give it: {name}=FILE.")
            if not Path(place).exists():
                raise ConfigError(
                    f"The {name} file of the plan, {place}, was not found. Start hwnas in the "
                    f"folder where the plan was made, or give it: {name}=FILE."
                )
            paths[name] = place
    return paths


def _read_telemetry(config: ReplanConfig, plan: "DeploymentPlan") -> _ReadTelemetry:
    """Return the telemetry of a file or a server."""
    from hwnas.fleet import telemetry

    if not telemetry.is_url(config.telemetry):
        return _ReadTelemetry(*telemetry.read_samples(Path(config.telemetry), plan))
    options = config.query
    queries = {name: query for name in ("rate", "late", "p99_ms", "down")
               if (query := getattr(options, name))}  # fmt: skip
    now = time.time()
    over = telemetry.TimeRange(now - options.window_h * 3600, now, options.step_s)
    samples = telemetry.query_samples(config.telemetry, queries, over, options.timeout_s, plan)
    return _ReadTelemetry(samples, by_hour=False)
