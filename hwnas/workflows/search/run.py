"""The verb ``search``: prepare, search, verify, write reports."""

import contextlib
import math
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hwnas.core import files
from hwnas.core.database import redact_config
from hwnas.core.errors import RunError
from hwnas.core.progress import PeriodicTimer, TimeLimitReached, stop_trainings
from hwnas.core.run_folder import (
    WEIGHTS,
    Row,
    RunFolder,
    check_resumed,
    damaged_files,
    initial_manifest,
    open_run_folder,
    resume_hint,
)
from hwnas.hardware import backends
from hwnas.nas import engine
from hwnas.tasks.intervals import describe_classes
from hwnas.training.data import ImageData
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.config.compose import keep_inputs
from hwnas.workflows.config.search import MAX_TRIALS, check_link
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import context
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.custom import CustomComponents
from hwnas.workflows.search.ending import RemainingTime, end
from hwnas.workflows.search.finish_runs import check_resumed_weights
from hwnas.workflows.search.front import SearchOutcome
from hwnas.workflows.search.start import start_lines
from hwnas.workflows.search.time_plan import Planner, TimeLimit

if TYPE_CHECKING:
    from hwnas.workflows.search.baseline import Baseline

_EARLIER_KEYS = (
    "finishing_s",
    "finishing_epochs",
    "finishing",
    "elapsed_s",
)  # when a run is resumed
_SAVE_INTERVAL_S = 15.0
_RECORDED = ("hwnas", "torch", "optuna", "onnx", "numpy", "datasets", "moocore")


def search_for_front(
    configs: Sequence[SearchConfig],
    arguments: Sequence[str],
    reporter: Reporter,
    own: CustomComponents | None = None,
) -> SearchOutcome:
    """Search, fine-tune and compile the front, write all into the run folder, return the results.

    Args:
        configs: One for each target.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.
        own: Evaluator and cost model of the user, from Python.

    Raises:
        HwnasError: an option, the data or the target is invalid, or a resumed run differs.
        BudgetError: no candidate is feasible on any target.
        RunError: no feasible candidate was fine-tuned, compiled and evaluated without an error.
        KeyboardInterrupt: the user stopped it; the message has the command that continues.
    """
    config = configs[0]
    check_link(configs)
    shared = config.study.storage is not None
    files.check_folder_path(Path(config.run.supernets), "run.supernets")
    run_folder = open_run_folder("search", config.run.dir, config.run.resume, shared=shared)
    with run_folder as (folder, earlier), resume_hint(folder.path):
        configs = [replace(c, run=replace(c.run, dir=str(folder.path))) for c in configs]
        _check_targets(configs, earlier, folder.path)
        (own or CustomComponents()).check_resumed(earlier, str(folder.path))
        planner = Planner(configs, earlier, own)
        while True:
            try:
                return _search(planner, arguments, folder, earlier, reporter, own)
            except TimeLimitReached as error:
                reporter.say([planner.shorter(error, folder.path)], alarming=True)
                shutil.rmtree(folder.path / WEIGHTS, ignore_errors=True)


def _check_targets(configs: Sequence[SearchConfig], earlier: Row, path: Path) -> None:
    """Check that a run is resumed for its targets, before operators of another one are measured.

    Raises:
        RunError: it is not.
    """
    if not earlier:
        return
    names = [config.target.name for config in configs]
    before = [*earlier.get("targets", {})] or [earlier["config"]["target"]["name"]]
    if names != before:
        raise RunError(
            f"run.resume={path}: the run is for {' and '.join(before)}, not for "
            f"{' and '.join(names)}. Leave out +target, or start a new run."
        )


def _search(
    planner: Planner,
    arguments: Sequence[str],
    folder: RunFolder,
    earlier: Row,
    reporter: Reporter,
    custom_components: CustomComponents | None,
) -> SearchOutcome:
    """Search with the current time plan, verify the front and write everything into the folder.

    Raises:
        TimeLimitReached: the training of a supernet would end too late.
    """
    shared = planner.configs[0].study.storage is not None
    with contextlib.ExitStack() as stack:
        with reporter.timed("Load data"):
            opened = context.open_contexts(
                planner.configs, reporter, custom_components, planner.data, planner
            )
            contexts = stack.enter_context(opened)
        if planner.is_first:
            _check(contexts, reporter)
        baselines = _baselines(contexts)
        manifest = _manifest(contexts, arguments, folder, earlier) | planner.facts()
        search, config = context.search_task(contexts, manifest["digests"]), contexts[0].config
        if earlier:
            from hwnas.nas.run import Run, check_resumable

            check_resumable(Run.load(folder.path, "run.resume", config.study.storage), config.study)
        elif not shared:
            context.check_budget(search.problem)
        with engine.study(search, config, folder) as study, contextlib.ExitStack() as begun:
            limit = planner.limit(study.spent_s, study.waited_s)
            end_by = math.inf if limit is None else limit.search_end()
            check_resumed_weights(contexts[0], earlier, study.candidates, folder.path, reporter)
            if engine.is_searched(study, config, end_by):
                manifest = _manifest_of_finished(manifest, earlier)
            remade = _remove_damaged(folder, earlier, Path(config.run.supernets))
            reporter.say(remade, alarming=True)
            for setup in contexts[0].parts.setups.values():
                setup.checkpoint().check()  # a refused resume must not change the manifest
            begun.enter_context(_begun(folder, manifest, arguments, limit))
            contexts[0].parts.keep_first()
            if planner.is_first:
                reporter.say(start_lines(contexts, arguments, folder.path))
                reporter.say(
                    _resume_messages(folder.path, earlier, len(study.candidates), config.n_trials)
                )
            reporter.say(planner.messages)
            reporter.follow(study, context.followed(contexts))
            reporter.expect(RemainingTime(contexts, study, limit))
            n_workers = config.study.workers or 1
            trains_now = n_workers > 1 or limit is not None
            if trains_now and contexts[0].own.evaluator is None:  # else when a network is needed
                with stop_trainings(math.inf if limit is None else limit.supernet_end()):
                    engine.prepare(study, contexts[0].evaluator.train)  # once, on all cores
            end_by = math.inf if limit is None else limit.search_end()
            outcome = engine.run_engine(search, config, folder, study, reporter, end_by)
        reporter.say([f"A process ended early: {why}" for why in outcome.ended], alarming=True)
        if outcome.leader:
            manifest |= {"status": "finished by another"}
            folder.write_manifest(manifest)
            leader = (
                f"{outcome.leader} finished the last trial: it verifies the front and writes the "
                "report."
            )
            return SearchOutcome(folder, manifest, leader=leader)
        reporter.say(planner.outcome(outcome.candidates, config.n_trials), alarming=True)
        more_trials = None
        if limit is not None and contexts[0].own.evaluator is None and not shared and n_workers > 1:
            more_trials = partial(engine.more_trials, search, config, folder)
        ended = end(
            contexts, folder, manifest, outcome.candidates, reporter, baselines, limit, more_trials
        )
        return replace(ended, seconds=dict(reporter.seconds))


def _check(contexts: Sequence[TargetContext], reporter: Reporter) -> None:
    """Report how data and devices were read, and check training options."""
    reporter.say(_data_messages(contexts[0].parts.data))
    reporter.say(contexts[0].parts.notes_on_first())
    for target in contexts:
        if target.device is not None:
            reporter.say(target.device.notes([m.name for m in target.parts.space.members]))
    for setup in contexts[0].parts.setups.values():
        setup.check()


def _baselines(contexts: Sequence[TargetContext]) -> "dict[str, Baseline]":
    if not any(target.config.baseline for target in contexts):
        return {}
    from hwnas.workflows.search.baseline import read_baselines

    return read_baselines(contexts)


def _resume_messages(path: Path, earlier: Row, n_done: int, n_trials: int) -> list[str]:
    """Return a sentence on the results of the earlier commands of a run."""
    if not earlier:
        return []
    total = f" of {n_trials:,}" * (n_trials < MAX_TRIALS)
    finished = earlier.get("finishing", {}).get("finished", ())
    members = f", {len(finished)} members finished" * bool(finished)
    return [f"Resumed {path}: {n_done:,}{total} trials done{members}."]


@contextlib.contextmanager
def _begun(
    folder: RunFolder, manifest: Row, arguments: Sequence[str], limit: TimeLimit | None
) -> Iterator[None]:
    """Write the first files of a run, or of an accepted resume; then store the elapsed time."""
    keep_inputs(folder.path, arguments)
    folder.write_json("manifest.json", manifest)
    if limit is None:
        yield
        return

    def save() -> None:
        elapsed_s = round(limit.elapsed_s, 2)
        folder.write_json("manifest.json", {**manifest, "elapsed_s": elapsed_s})

    timer = PeriodicTimer(save, _SAVE_INTERVAL_S)
    try:
        yield
    finally:
        timer.stop()


def _manifest_of_finished(manifest: Row, earlier: Row) -> Row:
    """Return the manifest of a run that remains finished until its results are replaced."""
    if earlier.get("status") != "finished":
        return manifest
    results = {name: earlier[name] for name in earlier if name not in ("unverified", "baseline")}
    return {**results, **manifest, "status": earlier["status"]}


def _remove_damaged(folder: RunFolder, earlier: Row, supernets: Path) -> list[str]:
    """Remove damaged files of a run, so that they are made again; return messages.

    Args:
        folder: Folder of the run.
        earlier: The manifest with the digests of the files.
        supernets: The folder of networks of all runs.
    """
    remade: dict[str, list[str]] = {}
    for name, problem in damaged_files(folder.path, earlier.get("files", {})).items():
        path, remedy = folder.path / name, "It is written again."
        if path.parent.name == "models":
            remedy = "Its network is verified again."
            genotype_id = path.name.partition(".")[0].partition("_")[0]
            path.with_name(f"{genotype_id}.json").unlink(missing_ok=True)
        elif path.parent.parent.name == WEIGHTS:
            remedy = "Its network is trained again if it is needed."
            shared = supernets / path.parent.name / path.name
            if path.is_file() and shared.is_file() and shared.samefile(path):
                shared.unlink()
            path.unlink(missing_ok=True)
        remade.setdefault(f"{problem}. {remedy}", []).append(name)
    return [
        f"{names[0]}{f' (and {n} more)' if (n := len(names) - 1) else ''} {problem}"
        for problem, names in remade.items()
    ]


def _data_messages(data: ImageData) -> list[str]:
    """Return the classes with their numbers of images, and notes about how data were read."""
    return [*([describe_classes(data.class_counts)] if data.class_counts else []), *data.notes]


def _manifest(
    contexts: Sequence[TargetContext], arguments: Sequence[str], folder: RunFolder, earlier: Row
) -> Row:
    """Return the manifest of a new or a resumed run.

    Raises:
        RunError: settings that determine the results differ from the run to be resumed.
    """
    parts, digests = contexts[0].parts, context.digests(contexts)
    supernet = parts.checkpoint()
    decisive = context.versions(contexts)
    check_resumed(earlier, folder, digests, decisive)
    versions = {name: backends.version(name) for name in _RECORDED} | decisive
    return {
        **initial_manifest("search", arguments, earlier, parts.config),
        **{name: earlier[name] for name in _EARLIER_KEYS if name in earlier},
        "seed": parts.config.seed,
        "digests": digests,
        **({} if supernet is None else {"checkpoint": supernet}),
        "versions": versions,
        "python": platform.python_version(),
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
        },
        "n_genotypes": parts.space.n_genotypes(),
        "task": parts.data.task.to_json(),
        "normalisation": {"mean": parts.data.mean, "std": parts.data.std},
        "images": {
            name: len(getattr(parts.data, name)) for name in ("train", "validation", "test")
        },
        **_targets(contexts),
        **({"own": names} if (names := contexts[0].own.named) else {}),
    }


def _targets(contexts: Sequence[TargetContext]) -> Row:
    """Return the entries of the manifest for each target."""
    tables = {s.target: {"latency_table": s.device and s.device.facts} for s in contexts}
    if len(contexts) == 1:
        return tables[contexts[0].target]
    by_target = {
        s.target: tables[s.target] | {"config": redact_config(asdict(s.config))} for s in contexts
    }
    return {"objectives": list(context.objectives(contexts)), "targets": by_target}
