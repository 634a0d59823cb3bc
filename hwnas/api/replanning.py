"""Plans that go on: from a plan's folder and telemetry to another folder of a plan."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.api.planning import PlannedRun, check_ready, files_of, recorded, written
from hwnas.api.reporter import Reporter
from hwnas.config import ReplanConfig
from hwnas.errors import ConfigError, RunError

if TYPE_CHECKING:
    from hwnas.planning.plan import Plan
    from hwnas.planning.telemetry import Sample

_SOURCES = ("service", "fleet")


@dataclass(frozen=True)
class _Seen:
    """Telemetry as it was read."""

    samples: "Sequence[Sample]"
    by_hour: bool  #: whether times are hours of the plan


def replan(config: ReplanConfig, arguments: Sequence[str], reporter: Reporter) -> PlannedRun:
    """Change a plan by telemetry, and write it into a folder of its own.

    Args:
        config: What is changed.
        arguments: Of the command line, or what stands for them.
        reporter: Hears of the work.

    Raises:
        ConfigError: a file is wrong, or is not of the plan.
        RunError: there is no plan, or telemetry cannot be had.
        BudgetError: a limit leaves demand unserved.
    """
    check_ready("replan", config.run.dir)
    from hwnas.planning import clock, decisions, replanner, sketches, summary
    from hwnas.planning.plan import read_plan
    from hwnas.planning.problem import check_told, read_problem
    from hwnas.planning.replanner import Manner
    from hwnas.planning.telemetry import as_rows, telemetry

    _take_back(Path(config.plan))
    old = read_plan(Path(config.plan))
    sources = _sources(config)
    config = replace(config, service=sources["service"], fleet=sources["fleet"])
    n_hours = sum(len(of.hours) for of in old.hours)
    seen = _seen(config, old)
    if seen.by_hour and config.begin is not None:
        raise ConfigError(
            f"begin={config.begin}: {config.telemetry} has hours of the plan, not dates: leave it "
            "out."
        )
    begin_s = clock.began(old.begin_min, n_hours)
    if config.begin is not None:
        begin_s = clock.moment(config.begin, "begin")
    begun = 0.0 if seen.by_hour else clock.known(begin_s, n_hours)
    service, fleet = (Path(sources[name]) for name in _SOURCES)
    problem = sketches.real(read_problem(service, fleet, begin_s))
    check_told(problem, old.objective, fleet)
    manner = Manner(
        config.tolerance, config.move_cost, config.most_moved, config.extrapolate, config.limit_s
    )
    seeds = range(config.seed, config.seed + config.n_seeds)
    told = telemetry(seen.samples, n_hours, begun)
    found = replanner.replanned(problem, old, told, manner, seeds, reporter)
    new = found.found.plan
    rows, now = decisions.rows(old, found), found.found
    every = summary.tables(new, now.seen, now.killed, now.spiked)
    tables = {"decisions": rows, **every}
    tables |= {"telemetry": as_rows(seen.samples, by_hour=seen.by_hour)}
    said = [*decisions.sentences(old, found, rows, told.down), *summary.sentences(found.found)]
    planned = PlannedRun(Path(), new, tables, said, ())
    content = files_of(planned, [*now.seen, *now.spiked])
    if config.in_place:
        return _in_place(config, arguments, planned, content)
    return written("replan", config, arguments, planned, content)


def _in_place(
    config: ReplanConfig, arguments: Sequence[str], told: PlannedRun, content: dict[str, bytes]
) -> PlannedRun:
    """Write a plan, and have it take the place of the one that it came from."""
    given, own = Path(config.plan), Path(config.plan).resolve()
    beside, former = own.with_name(f".{own.name}.new"), _former(own)
    for left in (beside, former):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    found = written("replan", config, arguments, told, content, beside)
    own.rename(former)
    beside.rename(own)
    shutil.rmtree(former)
    return replace(found, path=own if given.name in ("", "..") else given)


def _former(own: Path) -> Path:
    return own.with_name(f".{own.name}.former")


def _take_back(given: Path) -> None:
    """Give a plan its name that a process took away and was killed before another had it."""
    own = given.resolve()
    if not own.exists() and _former(own).is_dir():
        _former(own).rename(own)


def _sources(config: ReplanConfig) -> dict[str, str]:
    """Return where the service and the fleet of a plan are.

    Raises:
        RunError: the plan does not say.
        ConfigError: they are not where it says.
    """
    given = {name: said for name in _SOURCES if (said := getattr(config, name)) is not None}
    if len(given) < len(_SOURCES):
        path, known = Path(config.plan, "manifest.json"), recorded(Path(config.plan))
        for name in {*_SOURCES} - {*given}:
            if not (place := known.get(name, "")):
                raise RunError(f"{path} does not say where the {name} is: name it, {name}=FILE.")
            if not Path(place).exists():
                raise ConfigError(
                    f"The {name} of the plan, {place}, is not here: start where the plan was made, "
                    f"or name it, {name}=FILE."
                )
            given[name] = place
    return given


def _seen(config: ReplanConfig, plan: "Plan") -> _Seen:
    """Return the telemetry of a file, or of a server."""
    from hwnas.planning import prometheus, telemetry

    if not telemetry.is_url(config.telemetry):
        return _Seen(*telemetry.read_samples(Path(config.telemetry), plan))
    asked = config.query
    queries = {name: said for name in ("rate", "late", "p99_ms", "down")
               if (said := getattr(asked, name))}  # fmt: skip
    now = time.time()
    over = prometheus.Range(now - asked.window_h * 3600, now, asked.step_s)
    found = prometheus.samples(config.telemetry, queries, over, asked.timeout_s, plan)
    return _Seen(found, by_hour=False)
