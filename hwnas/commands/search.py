"""``python -m hwnas search``: build, search, verify, write."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping, Sequence

import torch
from rich.console import Console

from hwnas.commands import baseline, finishing, joint, station
from hwnas.commands.baseline import Baseline
from hwnas.commands.console import Phases, print_ended, print_notes, print_phases
from hwnas.commands.front import Shown, finished, print_front, write_front
from hwnas.commands.station import Station
from hwnas.commands.watch import Watch
from hwnas.config import SearchConfig
from hwnas.errors import BudgetError
from hwnas.results import Candidate, Row, RunFolder, begun, check_resumed, opened
from hwnas.search import engine

_RECORDED = ("hwnas", "torch", "optuna", "onnx", "numpy", "datasets", "moocore")
_LEADS = "finished the last trial: it verifies the front and writes the report."


def run(configs: Sequence[SearchConfig], arguments: Sequence[str]) -> None:
    """Search, verify the front and write everything into the run folder.

    Args:
        configs: One for each target.
        arguments: Of the command line.
    """
    console, config = Console(), configs[0]
    shared = config.study.storage is not None
    with contextlib.ExitStack() as stack:
        run_folder = opened("search", config.run.dir, config.run.resume, shared=shared)
        folder, earlier = stack.enter_context(run_folder)
        with Phases(console) as phases:
            with phases.timed("Load data"):
                stations = stack.enter_context(station.opened(configs, phases))
            print_notes(console, stations[0].parts.data.notes)
            for course in stations[0].parts.courses.values():
                course.check()
            baselines = baseline.read(stations)
            manifest = _manifest(stations, arguments, folder, earlier)
            search, config = station.search(stations, manifest["digests"]), stations[0].config
            with engine.study(search, config, folder) as study:
                folder.write_json("manifest.json", manifest)
                console.print(f"Run folder: [bold]{folder.path}[/]", highlight=False)
                phases.note("Search", Watch(study, station.views(stations)))
                if (config.study.workers or 1) > 1:
                    stations[0].evaluator.train()  # once, on all cores, before all want it
                outcome = engine.run(search, config, folder, study, phases)
            print_ended(console, outcome.ended)
            if outcome.leader:
                folder.write_json("manifest.json", manifest | {"status": "finished by another"})
                console.print(f"{outcome.leader} {_LEADS}", highlight=False, soft_wrap=True)
                return
            finish = _finish_one if len(stations) == 1 else joint.finish
            show = finish(stations, folder, manifest, outcome.candidates, phases, baselines)
        show(console)
        for foreign in {s.device.table.foreign for s in stations if s.device is not None} - {""}:
            console.print(f"Searched with a foreign table: {foreign}.", style="red")
        print_phases(console, phases)


def _finish_one(
    stations: Sequence[Station],
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    phases: Phases,
    baselines: Mapping[str, Baseline],
) -> Callable[[Console], None]:
    """Verify the front of one target and write reports; return what prints it."""
    (only,) = stations
    try:
        only.front(candidates, folder)
    except BudgetError:
        folder.write_json("manifest.json", manifest | {"status": "nothing fits the budget"})
        raise
    finish = finishing.finish(stations, {only.target: only.view}, candidates, phases)
    candidates = finish.known[only.target].candidates
    members = only.verified(finish.members(only.target), finish.finisher, folder, phases)
    manifest |= finish.facts()
    folder.write_parquet(
        "candidates.parquet", [c.row(only.parts.space, only.config.metric) for c in candidates]
    )
    with phases.timed("Write reports"):
        manifest |= finished(phases, candidates, members)
        held = baseline.against(baselines.get(only.target), only.config, candidates, members)
        write_front(only.parts, folder, manifest, candidates, members, held)
    title, done = "Verified front, fastest first", manifest["finishing"]
    shown = Shown(title, candidates, members, done, held)
    return lambda console: print_front(console, only.parts, folder, shown)


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
        **joint.described(stations),
    }
