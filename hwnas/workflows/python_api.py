"""The Python API: one function per verb, with the options of the command line as keywords.

``train__epochs=3``, ``train={"epochs": 3}`` and ``**{"train.epochs": 3}`` all set ``train.epochs``.
Lists are lists; paths may be ``Path``. Nothing is printed: messages are in ``.messages`` of the
result. In notebooks, bars show the progress; ``progress=False`` hides them. All functions raise
``HwnasError`` if an option or a file is invalid; the message says what to change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hwnas.core import processes
from hwnas.core.errors import ConfigError
from hwnas.workflows import config
from hwnas.workflows.config import RunConfig
from hwnas.workflows.config.arguments import as_arguments, for_targets, last_text
from hwnas.workflows.config.compose import compose, with_resumed
from hwnas.workflows.config.grammar import sets_option
from hwnas.workflows.notebook_progress import ProgressOption, progress_display
from hwnas.workflows.reporter import RecordingReporter

if TYPE_CHECKING:
    from hwnas.hardware.costs.cost_model import CostModel
    from hwnas.training.evaluation.interfaces import Evaluator
    from hwnas.workflows.compare import ComparisonResult
    from hwnas.workflows.result_folders import Export, FolderResult, ProfileResult, TrainResult
    from hwnas.workflows.results import SearchResult
    from hwnas.workflows.search.custom import CustomComponents

    Folder = str | os.PathLike[str]

Result = TypeVar("Result")

_USER_DATA = "data"  # folder next to the supernets
_WORKERS = "study.workers"


def search(
    *,
    evaluator: Evaluator | None = None,
    cost_model: CostModel | None = None,
    progress: ProgressOption = None,
    resume: str | Path | None = None,
    **options: Any,
) -> SearchResult:
    """Search for a Pareto front of networks for one or more targets, and return the result.

    At the end its members are fine-tuned and compiled, and the compiled files are evaluated on the
    test split (verification). Without ``minutes``, one process searches, so that results are
    reproducible; with it, as many as on the command line. ``study__workers`` sets another number.
    Worker processes do not import your script.

    Args:
        evaluator: Predicts the accuracy of networks instead of training them. Members of the front
            are still trained::

                class Prior:
                    def score(self, genotype, incumbent=None):
                        depth = sum(v for n, v in genotype.options if n.endswith("depth"))
                        return hwnas.Score(hwnas.Quantity(1 - 0.5**depth, "modelled"))

        cost_model: Predicts the costs of networks instead of the target's cost model. Verification
            ignores it. It must return ``latency_ms`` and every cost in the objectives and the
            budget; for this one, give ``objectives=["accuracy", "latency_ms"], budget="none"``::

                class Widths:
                    max_cost_queries = None  # no limit to the queries of a sampler

                    def cost(self, genotype):
                        width = sum(v for n, v in genotype.options if n.endswith("width"))
                        latency = hwnas.Quantity(0.001 * width, "modelled")
                        return hwnas.Cost({"latency_ms": latency})

        progress: ``True`` or ``False``; default: bars in notebooks, nothing in scripts. An object
            with the method ``phase`` receives the phases.
        resume: Folder of a run to continue, with the same ``evaluator`` and ``cost_model``.
        options: Options of ``hwnas search``: ``target="npu"``, ``n_trials=50``. With
            ``config_dir="DIR"``, targets may be files ``DIR/target/NAME.yaml``. ``dataset`` may be
            a pair of arrays, images ``(N, H, W[, C])`` or ``(N, C, H, W)`` and targets ``(N,)`` or
            ``(N, n)``, a torch ``Dataset`` or ``DataLoader``, or a Hugging Face ``Dataset``; or
            two of these, ``(train, test)``; or a dict with the keys ``train``, ``validation`` and
            ``test``. It is saved to a file next to the supernets, and missing splits are made as
            for other data. A ``Path`` means ``dataset="images", dataset__path=...``.

    Raises:
        HwnasError: an option, the data or the target is invalid; the message says what to change.
    """
    processes.tune_process()
    resumed = {} if resume is None else {"run.resume": resume}
    arguments = with_resumed(as_arguments(_with_file(options) | resumed))
    from hwnas.workflows.results import SearchResult
    from hwnas.workflows.search.custom import CustomComponents

    reporter = RecordingReporter(progress_display(progress))
    custom = CustomComponents(evaluator, cost_model)
    if sets_option(arguments, "accuracy", "table"):
        return _search_table(arguments, custom, reporter)
    from hwnas.workflows.search.run import search_for_front as run

    configs = [compose("search", target_arguments) for target_arguments in for_targets(arguments)]
    is_limited = configs[0].minutes is not None
    is_custom = evaluator is not None or cost_model is not None  # objects of this process only
    is_open = last_text(arguments, _WORKERS) is None and not is_limited
    if configs[0].study.workers is None and (is_open or is_custom):
        # Not recorded: a resumed search with a limit uses all cores.
        configs = [replace(c, study=replace(c.study, workers=1)) for c in configs]
    if len(configs) > 1:
        config.check_common(configs)
    outcome = run(config.with_common_spaces(configs), arguments, reporter, custom)
    messages = (*reporter.lines, *outcome.notes)
    return SearchResult(outcome.folder.path, messages, configs[0].study.storage)


def _search_table(
    arguments: Sequence[str], custom: CustomComponents, reporter: RecordingReporter
) -> SearchResult:
    if custom.named:
        raise ConfigError(
            f"accuracy=table reads accuracies and costs from the table. Remove "
            f"{', '.join(custom.named)}."
        )
    from hwnas.workflows.results import SearchResult
    from hwnas.workflows.search.tabular import search_table

    composed = compose("tabular", arguments)
    outcome = search_table(composed, arguments, reporter)
    return SearchResult(outcome.folder.path, tuple(reporter.lines), composed.study.storage)


def _with_file(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with data in memory replaced by a file."""
    data = options.get("dataset")
    if data is None or isinstance(data, str):
        return options
    if isinstance(data, os.PathLike):
        return options | {"dataset": "images", "dataset.path": Path(data).absolute()}
    from hwnas.workflows.python_data import is_by_split, save_data

    if isinstance(data, dict) and not is_by_split(data):  # options of a data set
        return options
    run = options.get("run")
    folders = [options.get("run__supernets"), options.get("run.supernets")]
    folders += [run.get("supernets")] if isinstance(run, dict) else []  # composing refuses others
    folder = next((name for name in folders if name is not None), RunConfig().supernets)
    path = save_data(data, Path(folder, _USER_DATA))
    return options | {"dataset": "images", "dataset.path": path.absolute()}


def load(path: str | Path, storage: str | None = None) -> SearchResult:
    """Return an existing search, finished or not.

    Args:
        path: Folder of the search.
        storage: URL of the database of its study, ``study.storage`` of the search, if it had one:
            a folder may not choose databases by itself.

    Raises:
        RunError: the folder does not exist, or is not that of a search.
    """
    from hwnas.workflows.results import SearchResult

    return SearchResult(Path(path), storage=storage)


def _run(
    verb: Callable[[Any, Sequence[str], RecordingReporter], Result],
    name: str,
    progress: ProgressOption,
    options: dict[str, Any],
) -> tuple[Result, tuple[str, ...]]:
    """Run a verb of one target; return its result and its messages."""
    processes.tune_process()
    arguments = with_resumed(as_arguments(options))
    reporter = RecordingReporter(progress_display(progress))
    result = verb(compose(name, arguments), arguments, reporter)
    return result, tuple(reporter.lines)


def train(*, progress: ProgressOption = None, **options: Any) -> TrainResult:
    """Train the supernet of a search space, or with ``genotype=...`` one network; evaluate it.

    Args:
        progress: As for ``search``.
        options: Options of ``hwnas train``; ``dataset`` as for ``search``.

    Raises:
        HwnasError: an option or the data are invalid, or the training fails.
    """
    from hwnas.workflows.train import train as run

    result, messages = _run(run, "train", progress, _with_file(options))
    if result is None:
        raise ConfigError(
            "hwnas.train returns a result only in the first process of torchrun. With torchrun, "
            "use the command line: torchrun -m hwnas train ..."
        )
    return replace(result, messages=messages)


def profile(*, progress: ProgressOption = None, **options: Any) -> ProfileResult:
    """Measure the latency table of a target and its prediction error; return table and messages.

    With ``genotype``, return latencies by operator; with ``kit`` or ``measured``, write a kit or a
    device file.

    Args:
        progress: As for ``search``.
        options: Options of ``hwnas profile``.

    Raises:
        HwnasError: an option is invalid, or the device does not respond.
    """
    from hwnas.workflows.profile import profile as run

    result, messages = _run(run, "profile", progress, _with_file(options))
    return replace(result, messages=(*messages, *result.messages))


def compare(
    runs: Folder | Sequence[Folder], *, progress: ProgressOption = None, **options: Any
) -> ComparisonResult:
    """Compare the fronts of searches, and of other tools in CSV files; return the comparison.

    Args:
        runs: Searches, their folders, CSV files, or patterns such as ``"runs/search/*"``; one or
            several.
        progress: As for ``search``.
        options: Options of ``hwnas compare``.

    Raises:
        HwnasError: a run cannot be read, or the runs cannot be compared.
    """
    from hwnas.workflows.compare import compare as run

    paths = runs if isinstance(runs, str | os.PathLike) else [*runs]
    return _run(run, "compare", progress, {"runs": paths, **options})[0]


def export(run: Folder, *, progress: ProgressOption = None, **options: Any) -> list[Export]:
    """Write networks of a search as files for the device, check them, and return the exports.

    If the same command was interrupted, its finished exports are returned, too.

    Args:
        run: A search, or its folder.
        progress: As for ``search``.
        options: Options of ``hwnas export``: ``pick="knee"``, ``dir="models"``.

    Raises:
        ProofError: a check fails; the folder is kept.
    """
    from hwnas.workflows.export import export as write

    result, messages = _run(write, "export", progress, {"run": run, **options})
    return [replace(item, messages=messages) for item in result.checked().exports]


def compress(
    run: Folder, *, pick: str = "knee", progress: ProgressOption = None, **options: Any
) -> Export:
    """Compress a network of a search to another budget, export it, and return the export.

    Args:
        run: A search, or its folder.
        pick: The network: an id, or as for ``export``.
        progress: As for ``search``.
        options: Options of ``hwnas compress``: ``budget={"flash_kib": 20}``.

    Raises:
        BudgetError: no compression meets the budget.
        ProofError: a check fails; the folder is kept.
    """
    from hwnas.workflows.compress import compress as fit

    result, messages = _run(fit, "compress", progress, {"run": run, "id": pick, **options})
    (done,) = result.checked().exports
    return replace(done, messages=messages)


def verify(export: Folder, *, progress: ProgressOption = None, **options: Any) -> list[str]:
    """Repeat the checks of an export with the installed runtimes; return the results as sentences.

    Args:
        export: The folder of an export.
        progress: As for ``search``.
        options: Options of ``hwnas verify``: ``data=DIR``, ``target="npu"``.

    Raises:
        ProofError: a check fails, or a file of the export has changed.
    """
    from hwnas.workflows.verify import verify as run

    def verb(config: Any, _: Sequence[str], reporter: RecordingReporter) -> None:
        run(config, reporter)

    return [*_run(verb, "verify", progress, {"export": export, **options})[1]]


def split(export: Folder, *, progress: ProgressOption = None, **options: Any) -> FolderResult:
    """Split the network of an export into two parts, and time these on one or more targets.

    The result has a table ``cuts``, one row per split point, and ``profile``, one row per part,
    target and batch size.

    Args:
        export: The folder of an export.
        progress: As for ``search``.
        options: Options of ``hwnas split``: ``target="npu"``, ``batches=[1, 8]``.

    Raises:
        HwnasError: the network cannot be split, or a target cannot run it.
    """
    processes.tune_process()
    from hwnas.workflows.split import split as run

    arguments = as_arguments({"export": export, **options})
    configs = [
        compose("split", target_arguments)
        for target_arguments in for_targets(arguments, searched=False)
    ]
    return run(configs, arguments, RecordingReporter(progress_display(progress)))


def plan(
    service: str | Path, fleet: str | Path, *, progress: ProgressOption = None, **options: Any
) -> FolderResult:
    """Choose models, devices and replicas for a service; return the plan's folder and tables.

    Args:
        service: The service file.
        fleet: The fleet file.
        progress: As for ``search``.
        options: Options of ``hwnas plan``: ``objective="carbon"``.

    Raises:
        HwnasError: a file is invalid, or a limit leaves requests unserved.
    """
    from hwnas.workflows.plan import plan as run

    return _run(run, "plan", progress, {"service": service, "fleet": fleet, **options})[0]


def simulate(plan: Folder, *, progress: ProgressOption = None, **options: Any) -> FolderResult:
    """Simulate the requests of a plan; return latencies, losses and costs as tables.

    Args:
        plan: A plan, or its folder.
        progress: As for ``search``.
        options: Options of ``hwnas simulate``: ``kill="spot"``.

    Raises:
        HwnasError: there is no plan, or an option does not match it.
    """
    from hwnas.workflows.plan import simulate as run

    return _run(run, "simulate", progress, {"plan": plan, **options})[0]


def replan(
    plan: Folder, telemetry: str | Path, *, progress: ProgressOption = None, **options: Any
) -> FolderResult:
    """Change a plan according to telemetry; return the new plan's folder and tables.

    Args:
        plan: A plan, or its folder.
        telemetry: A CSV file, or the URL of a Prometheus server.
        progress: As for ``search``.
        options: Options of ``hwnas replan``: ``move_cost=0.5``.

    Raises:
        HwnasError: there is no plan or telemetry, or a limit leaves requests unserved.
    """
    from hwnas.workflows.replan import replan as run

    return _run(run, "replan", progress, {"plan": plan, "telemetry": telemetry, **options})[0]


def serve_check(plan: Folder, *, progress: ProgressOption = None, **options: Any) -> FolderResult:
    """Serve models of a plan on this machine; compare measured with simulated latencies in tables.

    Args:
        plan: A plan, or its folder.
        progress: As for ``search``.
        options: Options of ``hwnas serve-check``: ``server="triton"``.

    Raises:
        HwnasError: there is no plan, or the server is not installed or fails.
    """
    from hwnas.workflows.replan import serve_check as run

    return _run(run, "serve-check", progress, {"plan": plan, **options})[0]
