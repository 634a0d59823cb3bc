"""``python -m hwnas search accuracy=table``: search in a benchmark table, to judge a sampler."""

import importlib.metadata
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas import tabular
from hwnas.commands.console import Phases
from hwnas.config import TabularConfig
from hwnas.errors import RunError
from hwnas.figure import COLUMNS
from hwnas.results import Candidate, Row, RunFolder, default_path
from hwnas.search import loop
from hwnas.search.study import Study
from hwnas.tabular import Benchmark

_RECORDED = ("hwnas", "optuna", "numpy", "scipy", "moocore")
_ROWS = 24


def run(config: TabularConfig, arguments: Sequence[str]) -> None:
    """Search, and write candidates and front into the run folder."""
    console = Console()
    benchmark = tabular.load(config.table)
    resumed = config.run.resume
    folder = RunFolder(Path(resumed or config.run.dir or default_path("search")))
    earlier = folder.reopen() if resumed else None
    if not resumed:
        folder.create()
    try:
        manifest = _manifest(config, arguments, earlier)
        folder.write_json("manifest.json", manifest)
        console.print(f"Run folder: [bold]{folder.path}[/]", highlight=False)
        with Phases(console) as phases:
            candidates = _search(config, benchmark, folder, phases)
        members = loop.front(candidates, benchmark.names)
        if not members:
            folder.write_json("manifest.json", manifest | {"status": "nothing fits the budget"})
            raise loop.nothing_fits(candidates, config.budget, str(folder.path))
        folder.write_csv("front.csv", [member.row(benchmark.space) for member in members])
        share = benchmark.share([c.genotype for c in members], config.table)
        finished = {
            "status": "finished",
            "n_candidates": len(candidates),
            "n_front": len(members),
            "hypervolume_share": None if math.isnan(share) else share,
            "seconds": {name: round(seconds, 2) for name, seconds in phases.seconds.items()},
        }
        folder.write_json("manifest.json", manifest | finished)
        _print(console, config, benchmark, members, folder, share)
    finally:
        folder.close()


def _search(
    config: TabularConfig, benchmark: Benchmark, folder: RunFolder, phases: Phases
) -> list[Candidate]:
    problem = loop.Problem(benchmark.space, config.budget, benchmark, benchmark)
    study = Study(folder.study, benchmark.space, benchmark.names)
    try:
        return loop.search(problem, study, config.sampler, config.seed, config.n_trials, phases)
    finally:
        study.close()
        if study.candidates:
            rows = [candidate.row(benchmark.space) for candidate in study.candidates]
            folder.write_parquet("candidates.parquet", rows)


def _manifest(config: TabularConfig, arguments: Sequence[str], earlier: Row | None) -> Row:
    """Return the manifest of a new or a resumed run.

    Raises:
        RunError: what decides the outcome differs from the run to be resumed.
    """
    decisive = {
        "table": sha256(Path(config.table.path).read_bytes()).hexdigest()[:16],
        "columns": [config.table.genotype, config.table.accuracy, config.table.costs],
        "budget": asdict(config.budget),
        "sampler": asdict(config.sampler),
        "seed": config.seed,
        "versions": [importlib.metadata.version(name) for name in _RECORDED],
    }
    for name, value in (earlier or {}).get("decisive", {}).items():
        if decisive.get(name) != value:
            raise RunError(
                f"run.resume={config.run.resume}: {name} differs from that of the run. "
                "Resume with the same settings (only n_trials may grow), or start a new run."
            )
    return {
        "verb": "search",
        "status": "running",
        "arguments": list(arguments),
        "command": " ".join(["python -m hwnas search", shlex.join(arguments)]),
        "started": [*(earlier or {}).get("started", []), time.strftime("%Y-%m-%dT%H:%M:%S%z")],
        "decisive": decisive,
        "versions": {name: importlib.metadata.version(name) for name in _RECORDED},
        "config": asdict(config),
    }


def _print(
    console: Console,
    config: TabularConfig,
    benchmark: Benchmark,
    members: Sequence[Candidate],
    folder: RunFolder,
    share: float,
) -> None:
    table = Table("id", *(COLUMNS[name].title for name in benchmark.names), box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for member in members[:_ROWS]:
        values = (member.figures[name].value for name in benchmark.names)
        table.add_row(member.id, *(f"{value:.5g}" for value in values))
    console.print(table)
    lines = [
        f"{len(members) - _ROWS} more members in front.csv." * (len(members) > _ROWS),
        f"Front of {len(members)} after {config.n_trials} trials by sampler={config.sampler.name}; "
        f"hypervolume {share:.4f} of that of the exact front of {len(benchmark.values)} networks.",
        f"Files in {folder.path}: candidates.parquet front.csv manifest.json study.db",
    ]
    for line in filter(None, lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
