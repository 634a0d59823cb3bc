"""``python -m hwnas search accuracy=table``: search in a benchmark table, to judge a sampler."""

import contextlib
import importlib.metadata
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas import tabular
from hwnas.commands.console import Phases, print_ended, print_files, print_lines
from hwnas.commands.watch import View, Watch
from hwnas.config import TabularConfig
from hwnas.figure import column
from hwnas.results import Candidate, Row, RunFolder, begun, check_resumed, opened
from hwnas.search import engine, loop
from hwnas.search.front import pareto_front
from hwnas.tabular import Benchmark

_RECORDED = ("hwnas", "optuna", "numpy", "scipy", "moocore")
_ROWS = 24


def run(config: TabularConfig, arguments: Sequence[str]) -> None:
    """Search, and write candidates and front into the run folder."""
    console = Console()
    benchmark = tabular.load(config.table)
    shared = config.study.storage is not None
    run_folder = opened("search", config.run.dir, config.run.resume, shared=shared)
    with run_folder as (folder, earlier):
        manifest = _manifest(config, arguments, folder, earlier)
        searched = _problem(config, benchmark)
        search = engine.Search(
            searched, partial(_again, config), benchmark.names, manifest["digests"]
        )
        with engine.study(search, config, folder) as study, Phases(console) as phases:
            folder.write_json("manifest.json", manifest)
            console.print(f"Run folder: [bold]{folder.path}[/]", highlight=False)
            view = View("", benchmark.names, config.budget.limits)
            phases.note("Search", Watch(study, [view]))
            outcome = engine.run(search, config, folder, study, phases)
        candidates = outcome.candidates
        members = pareto_front(candidates, benchmark.names)
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
        print_ended(console, outcome.ended)


@contextlib.contextmanager
def _again(config: TabularConfig) -> Iterator[loop.Problem]:
    yield _problem(config, tabular.load(config.table))


def _problem(config: TabularConfig, benchmark: Benchmark) -> loop.Problem:
    return loop.Problem(benchmark.space, config.budget, benchmark, benchmark)


def _manifest(
    config: TabularConfig, arguments: Sequence[str], folder: RunFolder, earlier: Row
) -> Row:
    """Return the manifest of a new or a resumed run.

    Raises:
        RunError: what decides the outcome differs from the run to be resumed.
    """
    table = config.table
    decisive = {
        "table": [
            sha256(Path(table.path).read_bytes()).hexdigest(),
            [table.genotype, table.accuracy, table.costs, table.partial],
        ],
        "budget": asdict(config.budget),
        "sampler": asdict(config.sampler),
        "seed": config.seed,
        "versions": [importlib.metadata.version(name) for name in _RECORDED],
    }
    digests = {
        name: sha256(json.dumps(value).encode()).hexdigest()[:16]
        for name, value in decisive.items()
    }
    check_resumed(earlier, folder, digests, config.n_trials)
    return {
        **begun("search", arguments, earlier, config),
        "digests": digests,
        "versions": {name: importlib.metadata.version(name) for name in _RECORDED},
    }


def _print(
    console: Console,
    config: TabularConfig,
    benchmark: Benchmark,
    members: Sequence[Candidate],
    folder: RunFolder,
    share: float,
) -> None:
    table = Table("id", *(escape(column(n).title) for n in benchmark.names), box=box.SIMPLE_HEAD)
    for part in table.columns[1:]:
        part.justify = "right"
    for member in members[:_ROWS]:
        values = (member.figures[name].value for name in benchmark.names)
        table.add_row(member.id, *(f"{value:.5g}" for value in values))
    console.print(table)
    lines = [
        f"{len(members) - _ROWS} more members in front.csv." * (len(members) > _ROWS),
        f"Front of {len(members)} after {config.n_trials} trials by sampler={config.sampler.name}; "
        f"hypervolume {share:.4f} of that of the exact front of {len(benchmark.values)} networks.",
    ]
    print_lines(console, lines)
    names = ["front.csv", "candidates.parquet", "manifest.json"]
    print_files(console, config.study.storage, folder, names)
