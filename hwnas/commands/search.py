"""``python -m hwnas search``: build, search, verify, write."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from hwnas import build
from hwnas.commands.console import Phases, print_ended
from hwnas.config import SearchConfig
from hwnas.energy import EnergyModel, PowerModel
from hwnas.figure import COLUMNS
from hwnas.progress import Progress, Silent
from hwnas.report.page import RunStory, render
from hwnas.report.plot import front_png
from hwnas.results import Candidate, Row, RunFolder, begun, check_resumed, opened, without_password
from hwnas.search import engine, loop
from hwnas.search.shared_study import StudyConfig
from hwnas.search.verify import Member, verify
from hwnas.target import Target

_RECORDED = (
    "hwnas", "torch", "optuna", "ethos-u-vela", "ai-edge-litert", "apache-tvm", "apache-tvm-ffi",
    "onnxruntime", "onnx", "numpy", "datasets", "moocore",
)  # fmt: skip
_TABLE_ROWS = 24
_LEADS = "finished the last trial: it verifies the front and writes the report."
_SHORT = {"int8": "int8", "float32": "fp32"}


@dataclass(frozen=True)
class _Station:
    """A target with all that it takes to search and to verify for it."""

    parts: build.Parts
    device: build.Device | None
    evaluator: build.TrainedOnDemand

    @property
    def problem(self) -> loop.Problem:
        """What is searched for."""
        cost_model = build.cost_model(self.parts, self.device)
        return loop.Problem(self.parts.space, self.parts.config.budget, cost_model, self.evaluator)

    def search(self, digests: Mapping[str, str]) -> engine.Search:
        """Return what is searched for, with what all who take part must agree on."""
        return engine.Search(self.problem, problem, tuple(self.parts.config.objectives), digests)


@contextlib.contextmanager
def _station(config: SearchConfig, progress: Progress) -> Iterator[_Station]:
    parts = build.parts(config, progress)
    device = build.device(config, parts.networks)
    evaluator = build.TrainedOnDemand(lambda: build.trained_evaluator(parts, progress))
    try:
        yield _Station(parts, device, evaluator)
    finally:
        if device is not None:
            device.close()


def run(config: SearchConfig, arguments: Sequence[str]) -> None:
    """Search, verify the front and write everything into the run folder."""
    console = Console()
    shared = config.study.storage is not None
    with contextlib.ExitStack() as stack:
        run_folder = opened("search", config.run.dir, config.run.resume, shared=shared)
        folder, earlier = stack.enter_context(run_folder)
        with Phases(console) as phases:
            with phases.timed("Load data"):
                station = stack.enter_context(_station(config, phases))
            parts, device = station.parts, station.device
            manifest = _manifest(parts, device, arguments, folder, earlier)
            search = station.search(manifest["digests"])
            with engine.study(search, config, folder) as study:
                folder.write_json("manifest.json", manifest)
                console.print(f"Run folder: [bold]{folder.path}[/]", highlight=False)
                if config.study.workers > 1:
                    station.evaluator.train()  # once, on all cores, before all processes want it
                outcome = engine.run(search, config, folder, study, phases)
            print_ended(console, outcome.ended)
            if outcome.leader:
                folder.write_json("manifest.json", manifest | {"status": "finished by another"})
                console.print(f"{outcome.leader} {_LEADS}", highlight=False, soft_wrap=True)
                return
            candidates = outcome.candidates
            members = _verified(station, candidates, folder, manifest, phases)
            with phases.timed("Write reports"):
                manifest |= _finished(phases, candidates, members)
                _write(parts, folder, manifest, candidates, members)
        _print(console, parts, folder, candidates, members)
        if device is not None and device.table.foreign:
            console.print(f"Searched with a foreign table: {device.table.foreign}.", style="red")
        _print_phases(console, phases)


@contextlib.contextmanager
def problem(config: SearchConfig) -> Iterator[loop.Problem]:
    """Give what is searched for to another process."""
    with _station(config, Silent()) as station:
        yield station.problem


def _verified(
    station: _Station,
    candidates: list[Candidate],
    folder: RunFolder,
    manifest: Row,
    phases: Phases,
) -> list[Member]:
    config = station.parts.config
    front = loop.front(candidates, config.objectives)
    if not front:
        folder.write_json("manifest.json", manifest | {"status": "nothing fits the budget"})
        raise loop.nothing_fits(candidates, config.budget, str(folder.path))
    bench = build.workbench(station.parts, station.evaluator.evaluator, station.device)
    return verify(front, bench, config.budget, config.objectives, folder, phases)


def _manifest(
    parts: build.Parts,
    device: build.Device | None,
    arguments: Sequence[str],
    folder: RunFolder,
    earlier: Row,
) -> Row:
    """Return the manifest of a new or a resumed run.

    Raises:
        RunError: what decides the outcome differs from the run to be resumed.
    """
    digests = parts.digests() | build.table_digest(device)
    check_resumed(earlier, folder, digests, parts.config.n_trials)
    return {
        **begun("search", arguments, earlier, parts.config),
        "seed": parts.config.seed,
        "digests": digests,
        "checkpoint": str(parts.checkpoint().path),
        "versions": {name: importlib.metadata.version(name) for name in _RECORDED},
        "python": platform.python_version(),
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
        },
        "n_genotypes": parts.space.n_genotypes(),
        "classes": list(parts.data.classes),
        "normalisation": {"mean": parts.data.mean, "std": parts.data.std},
        "images": {
            name: len(getattr(parts.data, name)) for name in ("train", "validation", "test")
        },
        "latency_table": build.table_facts(device),
    }


def _finished(phases: Phases, candidates: list[Candidate], members: list[Member]) -> Row:
    return {
        "status": "finished",
        "n_candidates": len(candidates),
        "n_distinct": len({candidate.id for candidate in candidates}),
        "n_infeasible": sum(candidate.state == "infeasible" for candidate in candidates),
        "n_front": len(members),
        "seconds": {name: round(seconds, 2) for name, seconds in phases.seconds.items()},
    }


def _write(
    parts: build.Parts,
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    members: list[Member],
) -> None:
    config = parts.config
    rows = [member.row(parts.space) for member in members]
    folder.write_csv("front.csv", rows)
    folder.write_json(
        "front.json",
        {
            "objectives": {n: "max" if COLUMNS[n].maximise else "min" for n in config.objectives},
            "target": config.target.name,
            "caveat": config.target.caveat,
            "energy_model": asdict(_energy_source(config.target)),
            "budget": config.budget.limits,
            "members": rows,
        },
    )
    title = f"{config.search_space} on {config.target.name}, {parts.data.name}"
    costs = [name for name in config.objectives if name != "accuracy"]
    folder.write_bytes("front.png", front_png(candidates, members, costs[0], config.budget, title))
    facts = [
        ("target", config.target.caveat),
        ("cost model", _cost_words(manifest)),
        ("energy", _energy_words(config.target)),
        ("budget", ", ".join(f"{n} <= {v:g}" for n, v in config.budget.limits.items()) or "none"),
        ("search space", f"{config.search_space}, {manifest['n_genotypes']:.3g} genotypes"),
        (
            "candidates",
            f"{manifest['n_candidates']}, {manifest['n_distinct']} different, "
            f"{manifest['n_infeasible']} infeasible",
        ),
        ("command", manifest["command"]),
        *((f"version of {name}", version) for name, version in manifest["versions"].items()),
    ]
    story = RunStory(f"hwnas: {title}", facts, config.budget, config.objectives)
    folder.write_bytes("report.html", render(story, candidates, members).encode())
    folder.write_json("manifest.json", manifest)


def _print(
    console: Console,
    parts: build.Parts,
    folder: RunFolder,
    candidates: list[Candidate],
    members: list[Member],
) -> None:
    table = Table(
        "id", _SHORT[parts.config.target.dtype], "95 %", "searched",
        "ms", "mJ", "SRAM", "flash", "",
        title="Verified front, fastest first", box=box.SIMPLE_HEAD, padding=0, show_edge=False,
    )  # fmt: skip
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    shown = _spread(members, _TABLE_ROWS)
    for member in shown:
        accuracy, costs = member.accuracy, member.figures
        assert accuracy.low is not None
        assert accuracy.high is not None
        table.add_row(
            member.candidate.id,
            f"{accuracy.value:.4f}",
            f"±{(accuracy.high - accuracy.low) / 2:.3f}",
            f"{member.candidate.figures['accuracy'].value:.4f}",
            f"{costs['latency_ms'].value:.4f}",
            f"{costs['energy_mj'].value:.5f}",
            f"{costs['sram_kib'].value:.1f}",
            f"{costs['flash_kib'].value:.1f}",
            "over budget" if member.over_budget else "" if member.on_front else "left front",
        )
    console.print(table)
    target = parts.config.target
    left = sum(bool(member.label) for member in members)
    infeasible = sum(candidate.state == "infeasible" for candidate in candidates)
    lines = [
        f"{len(members) - len(shown)} more members in front.csv." * (len(shown) < len(members)),
        f"{len(candidates)} candidates, {infeasible} infeasible; front of {len(members)}, "
        f"{left} left the front or the budget after verification.",
        f"{_SHORT[target.dtype]}: the compiled file on the whole test split, measured; 95 % Wilson "
        "interval.",
        "searched: supernet weights, fp32, validation split, measured.",
        f"ms: {_sources(members, 'latency_ms')}. {target.caveat}.",
        f"SRAM (activations) and flash (weights) in KiB: {_sources(members, 'sram_kib')}.",
        f"mJ: {_sources(members, 'energy_mj')}{_energy_shares(members)}. {_energy_words(target)}.",
        f"Files in {folder.path}:",
        "  front.csv front.json front.png report.html candidates.parquet manifest.json models/",
        "The study, in a dashboard:",
        f"  optuna-dashboard {_study_url(parts.config.study, folder)}",
    ]
    for line in filter(None, lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _study_url(config: StudyConfig, folder: RunFolder) -> str:
    return without_password(config.storage or f"sqlite:///{folder.study}")


def _sources(members: list[Member], name: str) -> str:
    """Return where a figure comes from, searched and verified."""
    searched = {member.candidate.figures[name].source for member in members}
    verified = {member.figures[name].source for member in members}
    if searched == verified:
        return " and ".join(sorted(verified))
    return f"{' and '.join(sorted(verified))} (searched: {' and '.join(sorted(searched))})"


def _energy_shares(members: list[Member]) -> str:
    """Return what part of the front's energy each component is, where it has components."""
    parts = {"MACs": "energy_macs_mj", "SRAM": "energy_sram_mj", "off-chip": "energy_off_chip_mj"}
    sums = {label: sum(m.details.get(name, 0) for m in members) for label, name in parts.items()}
    total = sum(sums.values())
    if not total:
        return ""
    return ", " + ", ".join(f"{label} {value / total:.0%}" for label, value in sums.items())


def _cost_words(manifest: Row) -> str:
    """Return what said the costs of candidates, and what is foreign about it."""
    table = manifest["latency_table"]
    words = str(manifest["config"]["cost"])
    if table is not None and words == "table":
        words += f", {table['path']}"
        words += f"; foreign: {table['foreign']}" if table["foreign"] else ""
    return words


def _energy_source(target: Target) -> EnergyModel | PowerModel:
    source = target.energy or target.power
    assert source is not None
    return source


def _energy_words(target: Target) -> str:
    """Return what energies are modelled from."""
    if target.energy is not None:
        return f"{target.energy.technology}; {target.energy.source}"
    assert target.power is not None
    low, high = target.power.active_w_low, target.power.active_w_high
    return f"latency times {low:g} to {high:g} W for each busy core: {target.power.source}"


def _spread(members: list[Member], n: int) -> list[Member]:
    """Return at most ``n`` members, evenly over the front, both ends included."""
    if len(members) <= n:
        return members
    return [members[round(i * (len(members) - 1) / (n - 1))] for i in range(n)]


def _print_phases(console: Console, phases: Phases) -> None:
    costs = ", ".join(f"{name.lower()} {s:.1f} s" for name, s in phases.seconds.items())
    total = sum(phases.seconds.values())
    console.print(f"Took {total:.1f} s: {costs}.", highlight=False, soft_wrap=True)
