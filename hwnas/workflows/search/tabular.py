"""A search in a benchmark table, to evaluate a sampler: ``search accuracy=table``."""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from hwnas.core import processes
from hwnas.core.run_folder import (
    Row,
    RunFolder,
    check_resumed,
    initial_manifest,
    open_run_folder,
    resume_hint,
)
from hwnas.hardware import backends
from hwnas.nas import benchmark_table, engine, loop
from hwnas.nas.benchmark_table import Benchmark
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.run import Run, check_resumable
from hwnas.nas.search_progress import SearchView
from hwnas.workflows.config import TabularConfig
from hwnas.workflows.reporter import Reporter

_DECISIVE = ("hwnas", "optuna")
_RECORDED = ("hwnas", "optuna", "numpy", "scipy", "moocore")


@dataclass(frozen=True)
class TabularOutcome:
    """The result of a search in a benchmark table."""

    folder: RunFolder
    benchmark: Benchmark
    members: Sequence[Candidate]  #: the front, fastest first
    #: hypervolume of ``members`` as a fraction of that of the table's exact front within the
    #: budget; NaN if the latter is 0
    share: float
    n_trials: int  #: number of finished trials


def search_table(
    config: TabularConfig, arguments: Sequence[str], reporter: Reporter
) -> TabularOutcome:
    """Search in a table, write candidates and front into the run folder, and return the front.

    Raises:
        BudgetError: no candidate is feasible.
        RunError: a resumed run differs in settings that determine the results.
        TableError: the table cannot be read.
    """
    benchmark = benchmark_table.load_benchmark(config.benchmark)
    shared = config.study.storage is not None
    run_folder = open_run_folder("search", config.run.dir, config.run.resume, shared=shared)
    with run_folder as (folder, earlier), resume_hint(folder.path):
        manifest = _manifest(config, arguments, folder, earlier)
        searched = _problem(config, benchmark)
        search = engine.SearchTask(
            searched, partial(_reopened_problem, config), benchmark.names, manifest["digests"]
        )
        if earlier:
            run = Run.load(folder.path, "run.resume", config.study.storage)
            check_resumable(run, config.study)
        with engine.study(search, config, folder) as study:
            folder.write_manifest(manifest)
            reporter.say([f"Run folder: {folder.path}"])
            reporter.follow(study, [SearchView("", benchmark.names, config.allowed.limits)])
            end_by = math.inf
            if config.minutes is not None:
                left_s = 60 * config.minutes - study.spent_s - processes.elapsed_s()
                end_by = time.monotonic() + left_s
            outcome = engine.run_engine(search, config, folder, study, reporter, end_by)
        candidates = outcome.candidates
        members = pareto_front(candidates, benchmark.names)
        if not members:
            if candidates:  # else the time limit ended first: the search can be resumed
                folder.write_manifest(manifest | {"status": "nothing fits the budget"})
            raise loop.no_feasible_candidate(candidates, config.allowed, str(folder.path))
        listed = [candidate.row(benchmark.space, "accuracy") for candidate in candidates]
        folder.write_parquet("candidates.parquet", listed)
        folder.write_csv(
            "front.csv", [member.row(benchmark.space, "accuracy") for member in members]
        )
        share = benchmark.share(
            [c.genotype for c in members], config.benchmark, config.allowed.limits
        )
        finished = {
            "status": "finished",
            "n_candidates": len(candidates),
            "n_front": len(members),
            "hypervolume_share": None if math.isnan(share) else share,
            "seconds": {name: round(seconds, 2) for name, seconds in reporter.seconds.items()},
        }
        folder.write_manifest(manifest | finished)
        reporter.say([f"A process ended early: {why}" for why in outcome.ended], alarming=True)
        return TabularOutcome(folder, benchmark, members, share, len(candidates))


@contextlib.contextmanager
def _reopened_problem(config: TabularConfig) -> Iterator[loop.SearchProblem]:
    yield _problem(config, benchmark_table.load_benchmark(config.benchmark))


def _problem(config: TabularConfig, benchmark: Benchmark) -> loop.SearchProblem:
    return loop.SearchProblem(benchmark.space, config.allowed, benchmark, benchmark)


def _manifest(
    config: TabularConfig, arguments: Sequence[str], folder: RunFolder, earlier: Row
) -> Row:
    """Return the manifest of a new or a resumed run.

    Raises:
        RunError: settings that determine the results differ from the run to be resumed.
    """
    table = config.benchmark
    table_sha256 = sha256(Path(table.path).read_bytes()).hexdigest()
    decisive = {
        "table": [
            table_sha256,
            [table.genotype, table.accuracy, table.costs, table.partial],
        ],
        "budget": config.allowed.digested(),
        "sampler": config.sampler.fingerprint_options(),
        "seed": config.seed,
        "versions": [backends.version(name) for name in _RECORDED],
    }
    digests = {
        name: sha256(json.dumps(value).encode()).hexdigest()[:16]
        for name, value in decisive.items()
    }
    versions = {name: backends.version(name) for name in _DECISIVE}
    check_resumed(earlier, folder, digests, versions)
    return {
        **initial_manifest("search", arguments, earlier, config),
        "digests": digests,
        "table_sha256": table_sha256,
        "versions": {name: backends.version(name) for name in _RECORDED},
    }
