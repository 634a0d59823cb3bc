"""``hwnas.search`` and its like: keywords in, results out; what the command line does, silently.

Keywords are the options of the command line: ``train__epochs=3``, ``train={"epochs": 3}`` and
``**{"train.epochs": 3}`` say ``train.epochs=3``. Lists are lists, and paths may be ``Path``.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwnas.core import processes
from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.training.evaluation.base import Evaluator
from hwnas.workflows import config
from hwnas.workflows.config import RunConfig
from hwnas.workflows.config.arguments import as_arguments, for_targets, last_text
from hwnas.workflows.config.compose import compose, with_resumed
from hwnas.workflows.config.grammar import says
from hwnas.workflows.reporter import RecordingReporter
from hwnas.workflows.result_folders import (
    ComparisonResult,
    PlanResult,
    ProfileResult,
    ServeCheckResult,
    SplitResult,
    TrainResult,
)
from hwnas.workflows.results import SearchResult
from hwnas.workflows.search.custom import CustomComponents

_OWN_DATA = "data"  # folder, beside supernets
_WORKERS = "study.workers"


def search(
    *,
    evaluator: Evaluator | None = None,
    cost_model: CostModel | None = None,
    progress: Progress | None = None,
    resume: str | Path | None = None,
    **options: Any,
) -> SearchResult:
    """Find, verify and report a Pareto front of networks for a target.

    One process searches unless ``study__workers``, or the run that is resumed, says otherwise.
    Processes that it starts do not import the script that calls this.

    Args:
        evaluator: Says how accurate networks are, instead of reading images. Those on the front are
            trained and verified as ever::

                class Prior:
                    def score(self, genotype, incumbent=None):
                        depth = sum(v for n, v in genotype.options if n.endswith("depth"))
                        return hwnas.Score(hwnas.Quantity(1 - 0.5**depth, "modelled"))

        cost_model: Says what networks cost, instead of the target's. Verification keeps to what
            the target's own files show. The budget is held against it, so that it says what
            objectives and budget are about, and ``latency_ms``; for this one ask
            ``objectives=["accuracy", "latency_ms"], budget="none"``::

                class Widths:
                    max_cost_queries = None  # how many a sampler may ask for: any number

                    def cost(self, genotype):
                        width = sum(v for n, v in genotype.options if n.endswith("width"))
                        latency = hwnas.Quantity(0.001 * width, "modelled")
                        return hwnas.Cost({"latency_ms": latency})

        progress: Is told of phases.
        resume: A run to go on with; it needs the same objects again.
        options: Of ``python -m hwnas search``: ``target="npu"``, ``n_trials=50``. ``dataset`` may
            be a pair of arrays, images ``(N, H, W[, C])`` in uint8 and targets ``(N,)`` or
            ``(N, n)``, or a data set of torch's: it is kept as a file beside supernets, and split
            as others are. A ``Path`` is ``dataset="images", dataset__path=...``.

    Raises:
        HwnasError: what the user can mend, in one line.
    """
    processes.tune_process()
    resumed = {} if resume is None else {"run.resume": resume}
    given = with_resumed(as_arguments(_with_file(options) | resumed))
    if last_text(given, _WORKERS) is None:
        given.append(f"{_WORKERS}=1")
    quiet, own = RecordingReporter(progress), CustomComponents(evaluator, cost_model)
    if says(given, "accuracy", "table"):
        return _search_table(given, own, quiet)
    from hwnas.workflows.search.run import search_for_front as run

    configs = [compose("search", each) for each in for_targets(given)]
    if len(configs) > 1:
        config.check_common(configs)
    outcome = run(config.agreed(configs), given, quiet, own)
    return SearchResult(outcome.folder.path, (*quiet.lines, *outcome.notes))


def _search_table(
    given: Sequence[str], own: CustomComponents, quiet: RecordingReporter
) -> SearchResult:
    if own.named:
        raise ConfigError(
            f"accuracy=table: the table says it all; leave out {', '.join(own.named)}."
        )
    from hwnas.workflows.search.tabular import search_table

    outcome = search_table(compose("tabular", given), given, quiet)
    return SearchResult(outcome.folder.path, tuple(quiet.lines))


def _with_file(options: dict[str, Any]) -> dict[str, Any]:
    """Return options whose data of the user's own are a file."""
    data = options.get("dataset")
    if data is None or isinstance(data, str | dict):
        return options
    if isinstance(data, os.PathLike):
        return options | {"dataset": "images", "dataset.path": Path(data).absolute()}
    from hwnas.workflows.python_data import kept

    run = options.get("run") or {}
    named = [options.get("run__supernets"), options.get("run.supernets"), run.get("supernets")]
    folder = next((name for name in named if name is not None), RunConfig().supernets)
    path = kept(data, Path(folder, _OWN_DATA))
    return options | {"dataset": "images", "dataset.path": path.absolute()}


def load(path: str | Path) -> SearchResult:
    """Return the search in a folder, finished or not.

    Raises:
        RunError: there is none.
    """
    return SearchResult(Path(path))


def train(*, progress: Progress | None = None, **options: Any) -> TrainResult:
    """Train the supernet of a search space, or with ``genotype=...`` one network of it alone.

    Args:
        progress: Is told of phases.
        options: Of ``python -m hwnas train``; ``dataset`` as of ``search``.
    """
    processes.tune_process()
    from hwnas.workflows.train import train as run

    given, quiet = with_resumed(as_arguments(_with_file(options))), RecordingReporter(progress)
    found = run(compose("train", given), given, quiet)
    if found is None:
        raise ConfigError("Only the first process of torchrun has a result: use the command line.")
    return TrainResult(found.path, found.summary, tuple(quiet.lines))


def profile(*, progress: Progress | None = None, **options: Any) -> ProfileResult:
    """Measure a target's latency table, and say how wrong it is.

    Args:
        progress: Is told of phases.
        options: Of ``python -m hwnas profile``, but for those that make no table of this machine:
            ``genotype``, ``kit`` and ``measured``.
    """
    processes.tune_process()
    from hwnas.workflows.profile import profile as run

    if others := [name for name in ("genotype", "kit", "measured") if name in options]:
        raise ConfigError(f"{others[0]}=... makes no table; use the command line.")
    quiet, given = RecordingReporter(progress), as_arguments(_with_file(options))
    found = run(compose("profile", given), given, quiet)
    assert found.table is not None
    return ProfileResult.of(found.table, [*quiet.lines, *found.extras])


def compare(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> ComparisonResult:
    """Compare the fronts of searches, and of other tools in CSV files.

    Args:
        runs: Searches, their folders, CSV files, or patterns as ``"runs/search/*"``; one or
            several.
        progress: Is told of phases.
        options: Of ``python -m hwnas compare``.
    """
    processes.tune_process()
    from hwnas.workflows.compare import compare as run

    named = runs if isinstance(runs, str | os.PathLike) else [*runs]
    given = as_arguments({"runs": named, **options})
    found = run(compose("compare", given), given, RecordingReporter(progress))
    return ComparisonResult(found.path, tuple(found.sentences))


def split(export: str | Path, *, progress: Progress | None = None, **options: Any) -> SplitResult:
    """Cut the network of an export in two, and time both parts on targets.

    Args:
        export: The folder of an export.
        progress: Is told of phases.
        options: Of ``python -m hwnas split``: ``target="npu"``, ``batches=[1, 8]``.
    """
    processes.tune_process()
    from hwnas.workflows.split import split as run

    given = as_arguments({"export": export, **options})
    configs = [compose("split", each) for each in for_targets(given, searched=False)]
    found = run(configs, given, RecordingReporter(progress))
    return SplitResult(found.path, tuple(found.sentences))


def plan(
    service: str | Path, fleet: str | Path, *, progress: Progress | None = None, **options: Any
) -> PlanResult:
    """Choose models, devices and replicas for a service.

    Args:
        service: The file of what is asked for.
        fleet: The file of what there is.
        progress: Is told of phases.
        options: Of ``python -m hwnas plan``: ``objective="carbon"``.
    """
    processes.tune_process()
    from hwnas.workflows.plan import plan as run

    given = as_arguments({"service": service, "fleet": fleet, **options})
    found = run(compose("plan", given), given, RecordingReporter(progress))
    return PlanResult(found.path, tuple(found.sentences))


def simulate(
    plan: str | Path | PlanResult, *, progress: Progress | None = None, **options: Any
) -> PlanResult:
    """Simulate a plan.

    Args:
        plan: A plan, or its folder.
        progress: Is told of phases.
        options: Of ``python -m hwnas simulate``: ``kill="spot"``.
    """
    processes.tune_process()
    from hwnas.workflows.plan import simulate as run

    folder = plan.path if isinstance(plan, PlanResult) else plan
    given = as_arguments({"plan": folder, **options})
    found = run(compose("simulate", given), given, RecordingReporter(progress))
    return PlanResult(found.path, tuple(found.sentences))


def replan(
    plan: str | Path | PlanResult,
    telemetry: str | Path,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> PlanResult:
    """Change a plan by what was seen since.

    Args:
        plan: A plan, or its folder.
        telemetry: A CSV file, or the URL of a Prometheus server.
        progress: Is told of phases.
        options: Of ``python -m hwnas replan``: ``move_cost=0.5``.
    """
    processes.tune_process()
    from hwnas.workflows.replan import replan as run

    folder = plan.path if isinstance(plan, PlanResult) else plan
    given = as_arguments({"plan": folder, "telemetry": telemetry, **options})
    found = run(compose("replan", given), given, RecordingReporter(progress))
    return PlanResult(found.path, tuple(found.sentences))


def serve_check(
    plan: str | Path | PlanResult, *, progress: Progress | None = None, **options: Any
) -> ServeCheckResult:
    """Hold simulated latencies of a plan's pools against those of a server of this machine.

    Args:
        plan: A plan, or its folder.
        progress: Is told of phases.
        options: Of ``python -m hwnas serve-check``: ``server="ray"``.
    """
    processes.tune_process()
    from hwnas.workflows.replan import serve_check as run

    folder = plan.path if isinstance(plan, PlanResult) else plan
    given = as_arguments({"plan": folder, **options})
    found = run(compose("serve-check", given), given, RecordingReporter(progress))
    return ServeCheckResult(found.path, tuple(found.sentences))
