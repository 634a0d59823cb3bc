"""A search: build, search, verify, write."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from hwnas import files
from hwnas.api import baseline, station
from hwnas.api.ending import end
from hwnas.api.front import Outcome
from hwnas.api.own import Own
from hwnas.api.reporter import Reporter
from hwnas.api.station import Station
from hwnas.config import SearchConfig
from hwnas.device import table_facts
from hwnas.results import Row, RunFolder, begun, check_resumed, opened, plain
from hwnas.searching import engine

_RECORDED = ("hwnas", "torch", "optuna", "onnx", "numpy", "datasets", "moocore")


def search(
    configs: Sequence[SearchConfig],
    arguments: Sequence[str],
    reporter: Reporter,
    own: Own | None = None,
) -> Outcome:
    """Search, verify the front and write everything into the run folder.

    Args:
        configs: One for each target.
        arguments: Of the command line, or what stands for them.
        reporter: Hears of the work.
        own: Objects that stand in for parts of the search.
    """
    config = configs[0]
    shared = config.study.storage is not None
    files.check_place(Path(config.run.supernets), "run.supernets")
    with contextlib.ExitStack() as stack:
        run_folder = opened("search", config.run.dir, config.run.resume, shared=shared)
        folder, earlier = stack.enter_context(run_folder)
        (own or Own()).check_resumed(earlier, str(folder.path))
        with reporter.timed("Load data"):
            stations = stack.enter_context(station.opened(configs, reporter, own))
        reporter.say(stations[0].parts.data.notes)
        for course in stations[0].parts.courses.values():
            course.check()
        baselines = baseline.read(stations)
        manifest = _manifest(stations, arguments, folder, earlier)
        search, config = station.search(stations, manifest["digests"]), stations[0].config
        with engine.study(search, config, folder) as study:
            folder.write_json("manifest.json", manifest)
            reporter.say([f"Run folder: {folder.path}"])
            reporter.follow(study, station.followed(stations))
            if (config.study.workers or 1) > 1:
                stations[0].evaluator.train()  # once, on all cores, before all want it
            outcome = engine.run(search, config, folder, study, reporter)
        reporter.say([f"A process ended early: {why}" for why in outcome.ended], alarming=True)
        if outcome.leader:
            manifest |= {"status": "finished by another"}
            folder.write_json("manifest.json", manifest)
            return Outcome(folder, manifest, leader=outcome.leader)
        ended = end(stations, folder, manifest, outcome.candidates, reporter, baselines)
        return replace(ended, seconds=dict(reporter.seconds))


def _manifest(
    stations: Sequence[Station], arguments: Sequence[str], folder: RunFolder, earlier: Row
) -> Row:
    """Return the manifest of a new or a resumed run.

    Raises:
        RunError: what decides the outcome differs from the run to be resumed.
    """
    parts, digests = stations[0].parts, station.digests(stations)
    supernet = parts.checkpoint()
    decisive = station.versions(stations)
    check_resumed(earlier, folder, digests, parts.config.n_trials, decisive)
    versions = {name: importlib.metadata.version(name) for name in _RECORDED} | decisive
    return {
        **begun("search", arguments, earlier, parts.config),
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
        **_targets(stations),
        **({"own": own} if (own := stations[0].own.named) else {}),
    }


def _targets(stations: Sequence[Station]) -> Row:
    """Return what a manifest says of targets."""
    tables = {s.target: {"latency_table": table_facts(s.device)} for s in stations}
    if len(stations) == 1:
        return tables[stations[0].target]
    own = {s.target: tables[s.target] | {"config": plain(asdict(s.config))} for s in stations}
    return {"objectives": list(station.objectives(stations)), "targets": own}
