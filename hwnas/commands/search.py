"""``python -m hwnas search``: build, search, verify, write."""

import contextlib
import importlib.metadata
import os
import platform
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from hwnas import build
from hwnas.commands.console import Phases
from hwnas.config import SearchConfig
from hwnas.energy import EnergyModel, PowerModel
from hwnas.figure import COLUMNS
from hwnas.report.page import RunStory, render
from hwnas.report.plot import front_png
from hwnas.results import Candidate, Row, RunFolder, check_resumed, opened
from hwnas.search import loop
from hwnas.search.study import Study
from hwnas.search.verify import Member, verify
from hwnas.target import Target

_RECORDED = (
    "hwnas", "torch", "optuna", "ethos-u-vela", "ai-edge-litert", "apache-tvm", "apache-tvm-ffi",
    "onnxruntime", "onnx", "numpy", "datasets", "moocore",
)  # fmt: skip
_TABLE_ROWS = 24
_SHORT = {"int8": "int8", "float32": "fp32"}


def run(config: SearchConfig, arguments: Sequence[str]) -> None:
    """Search, verify the front and write everything into the run folder."""
    console = Console()
    with contextlib.ExitStack() as stack:
        run_folder = opened("search", config.run.dir, config.run.resume)
        folder, earlier = stack.enter_context(run_folder)
        with Phases(console) as phases:
            with phases.timed("Load data"):
                parts = build.parts(config, phases)
            device = build.device(config, parts.networks)
            stack.callback(device.close if device else lambda: None)
            manifest = _manifest(parts, device, arguments, folder, earlier)
            folder.write_json("manifest.json", manifest)
            console.print(f"Run folder: [bold]{folder.path}[/]", highlight=False)
            candidates, members = _search(parts, device, folder, manifest, phases)
            with phases.timed("Write reports"):
                manifest |= _finished(phases, candidates, members)
                _write(parts, folder, manifest, candidates, members)
        _print(console, parts, folder, candidates, members)
        if device is not None and device.table.foreign:
            console.print(f"Searched with a foreign table: {device.table.foreign}.", style="red")
        _print_phases(console, phases)


def _search(
    parts: build.Parts,
    device: build.Device | None,
    folder: RunFolder,
    manifest: Row,
    phases: Phases,
) -> tuple[list[Candidate], list[Member]]:
    config = parts.config
    evaluator = build.TrainedOnDemand(lambda: build.trained_evaluator(parts, phases))
    cost_model = build.cost_model(parts, device)
    problem = loop.Problem(parts.space, config.budget, cost_model, evaluator)
    study = Study(folder.study, parts.space, config.objectives)
    try:
        candidates = loop.search(
            problem,
            study,
            config.sampler,
            config.seed,
            config.n_trials,
            phases,
        )
    finally:
        study.close()
        if study.candidates:
            rows = [candidate.row(parts.space) for candidate in study.candidates]
            folder.write_parquet("candidates.parquet", rows)
    front = loop.front(candidates, config.objectives)
    if not front:
        folder.write_json("manifest.json", manifest | {"status": "nothing fits the budget"})
        raise loop.nothing_fits(candidates, config.budget, str(folder.path))
    bench = build.workbench(parts, evaluator.evaluator, device)
    return candidates, verify(front, bench, config.budget, config.objectives, folder, phases)


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
        "verb": "search",
        "status": "running",
        "arguments": list(arguments),
        "command": " ".join(["python -m hwnas search", shlex.join(arguments)]),
        "started": [*earlier.get("started", []), time.strftime("%Y-%m-%dT%H:%M:%S%z")],
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
        "config": asdict(parts.config),
    }


def _finished(phases: Phases, candidates: list[Candidate], members: list[Member]) -> Row:
    return {
        "status": "finished",
        "n_candidates": len(candidates),
        "n_distinct": len({candidate.id for candidate in candidates}),
        "n_infeasible": sum(candidate.state == "infeasible" for candidate in candidates),
        "n_front": len(members),
        "n_images_read": _n_read(candidates),
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
        _reading_words(candidates, len(parts.data.validation)),
        f"{_SHORT[target.dtype]}: the compiled file on the whole test split, measured; 95 % Wilson "
        "interval.",
        "searched: supernet weights, fp32, validation split, measured.",
        f"ms: {_sources(members, 'latency_ms')}. {target.caveat}.",
        f"SRAM (activations) and flash (weights) in KiB: {_sources(members, 'sram_kib')}.",
        f"mJ: {_sources(members, 'energy_mj')}{_energy_shares(members)}. {_energy_words(target)}.",
        f"Files in {folder.path}:",
        "  front.csv front.json front.png report.html candidates.parquet manifest.json models/",
        "  study.db, which a dashboard shows:",
        f"    optuna-dashboard sqlite:///{folder.study}",
    ]
    for line in filter(None, lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _n_read(candidates: Sequence[Candidate]) -> int:
    """Return how many times a validation image was read."""
    return sum(int(c.details.get("n_images", 0)) for c in {c.id: c for c in candidates}.values())


def _reading_words(candidates: Sequence[Candidate], n_validation: int) -> str:
    """Return how much of the validation split candidates were read on."""
    scored = {c.id: c for c in candidates if c.state != "infeasible"}
    stopped = sum(c.state == "stopped" for c in scored.values())
    n_read, n_all = _n_read(candidates), len(scored) * n_validation
    return (
        f"{n_read:,} of {n_all:,} validation images read ({n_read / n_all:.0%}): {stopped} of "
        f"{len(scored)} networks were found to be dominated before the end."
    )


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
