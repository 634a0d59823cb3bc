"""Plans and simulations: from input files to a result folder."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.core import files
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.files import atomic_folder
from hwnas.core.manifest import read_manifest
from hwnas.core.run_folder import RunFolder, default_path, initial_manifest
from hwnas.workflows.config import PlanConfig, SimulateConfig
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import FolderResult

if TYPE_CHECKING:
    from hwnas.fleet.plan import DeploymentPlan
    from hwnas.fleet.simulation import HourStatistics, Kill, Throttle

MAIN_TABLE = "classes"  #: shown by notebooks
_NEEDED = ("highspy", "numba")
_MIN_SPEED = 1e-3  # minimum speed of throttled machines
_RECORDED = ("hwnas", *_NEEDED, "numpy", "scipy")


def check_ready(verb: str, folder: str | None) -> None:
    """Reject a verb whose packages are missing, or whose output folder exists.

    Args:
        verb: The verb.
        folder: The output folder given by the user, if any.

    Raises:
        ConfigError: a package is missing; the message has the command that installs it.
        RunError: the folder is not empty or cannot be created.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{verb} needs {' and '.join(missing)}: pip install 'hwnas[plan]'")
    if folder:
        files.check_new_folder(Path(folder), "run.dir")


def plan(config: PlanConfig, arguments: Sequence[str], reporter: Reporter) -> FolderResult:
    """Plan a deployment, write it into a folder, and return its tables and messages.

    Args:
        config: The options.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Raises:
        ConfigError: a package is missing, a file is invalid, or no model meets a class's
            requirements.
        RunError: the output folder is not empty.
        BudgetError: a limit leaves requests unserved; the message names it.
    """
    check_ready("plan", config.run.dir)
    from hwnas.fleet import alternatives, calendar, planner, summary
    from hwnas.fleet.problem import check_required_keys, read_problem
    from hwnas.fleet.task import Objective

    begin_s = None if config.begin is None else calendar.parse_date(config.begin, "begin")
    problem = read_problem(Path(config.service), Path(config.fleet), begin_s)
    objective: Objective = config.objective  # type: ignore[assignment]
    check_required_keys(problem, objective, Path(config.fleet))
    seeds = range(config.seed, config.seed + config.n_seeds)
    outcome = planner.make_plan(
        alternatives.without_sketches(problem), objective, config.limit_s, seeds, reporter
    )
    bought = alternatives.sketch_rows(problem, outcome, config.limit_s, reporter)
    tables = summary.tables(
        outcome.plan, outcome.statistics, outcome.failures, outcome.spike_statistics
    )
    alternative = None
    if config.front:
        alternative = alternatives.plan_front(
            outcome, config.front, config.front_s, config.seed, reporter
        )
    tables |= {"sketches": bought, "plans": alternative.rows if alternative else []}
    sentences = summary.describe_plan(outcome) + alternatives.describe_sketches(
        bought, outcome.plan
    )
    sentences += alternative.sentences if alternative else []
    result = FolderResult(Path(), sentences, tables, MAIN_TABLE)
    content = files_of(outcome.plan, result, [*outcome.statistics, *outcome.spike_statistics])
    return write_plan_folder("plan", config, arguments, result, content)


def files_of(
    plan: "DeploymentPlan", result: FolderResult, statistics: "Sequence[HourStatistics]"
) -> dict[str, bytes]:
    """Return the content of the files of a plan by name, without its tables.

    Args:
        plan: The plan.
        result: Its tables and messages.
        statistics: Results of its simulations, including load spikes; they determine the maximum
            utilisation of servers.
    """
    from hwnas.fleet import page as report
    from hwnas.fleet import summary
    from hwnas.fleet.deployment import files as deployment
    from hwnas.fleet.deployment.pools import max_utilisation

    pictures = report.plan_figures(plan, result.rows)
    page = report.plan_page(plan, result.rows, result.messages, pictures)
    return {
        "summary.txt": lines(result.messages),
        "plan.yaml": summary.as_bytes(plan),
        "report.html": page.encode(),
        **{
            f"{name}.{kind}": content
            for name, formats in pictures.items()
            for kind, content in formats.items()
        },
        **deployment.deployment_files(plan, max_utilisation([run.busy for run in statistics])),
    }


def simulate(config: SimulateConfig, arguments: Sequence[str], reporter: Reporter) -> FolderResult:
    """Simulate a plan, write the results into a folder, and return them.

    Args:
        config: The options.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Raises:
        ConfigError: a package is missing, an option does not match the plan, or a file of arrivals
            is missing or invalid.
        RunError: there is no plan, or the output folder is not empty.
    """
    check_ready("simulate", config.run.dir)
    from hwnas.fleet import simulation, summary
    from hwnas.fleet.demand import Arrivals, read_gaps
    from hwnas.fleet.plan import read_plan

    deployment = read_plan(Path(config.plan))
    traces = {c.trace for c in deployment.classes.values() if c.trace and config.trace is None}
    gaps = {name: read_gaps(_trace_path(name, Path(config.plan))) for name in sorted(traces)}
    named = None if config.trace is None else read_gaps(Path(config.trace))
    scene = simulation.SimulationSetup(
        {n: Arrivals(gaps.get(c.trace) if named is None else named)
         for n, c in deployment.classes.items()},
        _kills(config, deployment), _throttles(config, deployment), config.detect_s, config.load,
        config.spike,
    )  # fmt: skip
    seeds = range(config.seed, config.seed + config.n_seeds)
    hours = _spike_hours(config, deployment) if config.spike else _hours(config, deployment)
    statistics = simulation.simulate(deployment, scene, seeds, reporter, hours)
    tables = summary.tables(deployment, statistics, {})
    sentences = summary.describe_statistics(statistics)
    sentences += summary.describe_failures(statistics, config.kills)
    result = FolderResult(Path(), sentences, tables, MAIN_TABLE)
    content = {"summary.txt": lines(sentences)}
    return write_plan_folder("simulate", config, arguments, result, content)


def write_plan_folder(
    verb: str,
    config: Any,
    arguments: Sequence[str],
    result: FolderResult,
    content: Mapping[str, bytes],
    place: Path | None = None,
) -> FolderResult:
    """Write a plan or a simulation into a folder; return the result with path and file names.

    Args:
        verb: The verb that created it.
        config: Options of the verb.
        arguments: Arguments of the command line, or their equivalent.
        result: Tables and messages.
        content: Files by name, except tables.
        place: The folder; default: ``run.dir``, else ``runs/VERB/TIME``.
    """
    path = place or Path(config.run.dir or default_path(verb))
    filled = {name: rows for name, rows in result.rows.items() if rows}
    with atomic_folder(path, remove_stale=not (place or config.run.dir)) as building:
        folder = RunFolder(building)
        for name, data in content.items():
            folder.write_bytes(name, data)
        for name, rows in filled.items():
            folder.write_csv(f"{name}.csv", rows)
        versions = {name: importlib.metadata.version(name) for name in _RECORDED}
        manifest = initial_manifest(verb, arguments, {}, config) | {"status": "finished"}
        folder.write_json("manifest.json", manifest | {"versions": versions})
    named = dict.fromkeys(name.partition("/")[0] for name in content)
    names = [*named, *(f"{name}.csv" for name in filled)]
    return replace(result, path=path, rows=filled, files=names)


def lines(sentences: Sequence[str]) -> bytes:
    """Return sentences as the content of a text file in UTF-8, one per line."""
    return ("\n".join(sentences) + "\n").encode()


def recorded(folder: Path) -> Mapping[str, str]:
    """Return the paths of the files from which a plan was made, by option ``service`` or ``fleet``.

    An option that the manifest does not record is left out.

    Raises:
        RunError: the manifest is damaged.
    """
    if not (folder / "manifest.json").exists():
        return {}
    config = read_manifest(folder, "plan").get("config", {})
    return {n: v for n, v in config.items() if n in ("service", "fleet") and isinstance(v, str)}


def _trace_path(name: str, folder: Path) -> Path:
    """Return the path of a trace: relative to the plan's service, the plan or this folder."""
    service = Path(recorded(folder).get("service", folder / "plan.yaml")).parent
    for path in (service / name, folder / name, Path(name)):
        if path.exists():
            return path
    raise ConfigError(
        f"The file {name} with the arrivals (trace) of the plan was not found. Start hwnas in the "
        "folder where the plan was made, or give a file with trace=FILE."
    )


def _kills(config: SimulateConfig, deployment_plan: "DeploymentPlan") -> "list[Kill]":
    from hwnas.fleet.simulation import Kill

    for name in config.kills:
        if name not in (known := [*deployment_plan.devices, "spot"]):
            raise ConfigError(f"kill: {unknown_name('device', name, known)}")
    return [Kill(name) for name in config.kills]


def _throttles(config: SimulateConfig, deployment_plan: "DeploymentPlan") -> "list[Throttle]":
    from hwnas.fleet.simulation import Throttle

    if config.throttle is None:
        return []
    name, _, value = config.throttle.partition(":")
    if name not in deployment_plan.devices:
        raise ConfigError(f"throttle: {unknown_name('device', name, deployment_plan.devices)}")
    try:
        speed = float(value)
    except ValueError:
        speed = 0.0
    if not _MIN_SPEED <= speed <= 1:
        raise ConfigError(
            f"throttle={config.throttle} must be DEVICE:SPEED with a relative speed in "
            f"[{_MIN_SPEED:g}, 1], for example cpu:0.5."
        )
    return [Throttle(name, speed)]


def _spike_hours(config: SimulateConfig, deployment_plan: "DeploymentPlan") -> list[int]:
    """Return the requested hours that have a spike."""
    hours = _hours(config, deployment_plan) or [
        hour_plan.hours[0] for hour_plan in deployment_plan.hours
    ]
    spiked = [hour for hour in hours if deployment_plan.spikes(hour)]
    if not spiked:
        raise ConfigError(
            "spike=true: the plan has no load spike in these hours. Add a spike to the demand of a "
            "request class in the service file and plan again, or simulate twice the demand with "
            "load=2."
        )
    return spiked


def _hours(config: SimulateConfig, deployment_plan: "DeploymentPlan") -> list[int] | None:
    if config.hours is None:
        return None
    hours = config.hours if isinstance(config.hours, list) else [config.hours]
    if not hours or len({*map(str, hours)}) < len(hours):
        raise ConfigError(
            f"hours=[{','.join(map(str, hours))}] must be one or more different hours, for example "
            "hours=[0,12]."
        )
    known = {str(hour): hour for hour_plan in deployment_plan.hours for hour in hour_plan.hours}
    for hour in hours:
        if str(hour) not in known:
            last = max(known.values())
            raise ConfigError(f"hours: {hour} is not an hour of the plan. Allowed: 0 to {last}.")
    return [known[str(hour)] for hour in hours]
