"""``python -m hwnas export``: models of a finished search as files that prove themselves."""

import contextlib
import importlib.metadata
import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas import build, files, machine, supernets
from hwnas.api import finished, station
from hwnas.api.arguments import of_target
from hwnas.api.front import energy_words
from hwnas.api.station import Station
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.config import ExportConfig, SearchConfig
from hwnas.cost.host import as_run
from hwnas.errors import ConfigError, ProofError, RunError, unknown
from hwnas.export import folder as folders
from hwnas.export import picking, proof
from hwnas.export.artefacts import Library, own_artefact
from hwnas.export.artefacts import build as build_files
from hwnas.export.card import card
from hwnas.export.proving import Bench, Evidence, kept_images, prove
from hwnas.export.running import KINDS
from hwnas.figure import Figure
from hwnas.files import without_password as public
from hwnas.int8.finished import Finished
from hwnas.op import n_macs, n_params
from hwnas.results import (
    Candidate,
    Row,
    RunFolder,
    default_path,
    read_candidates,
    read_manifest,
    weights_of,
)
from hwnas.runtimes.onnx_check import checked_opset
from hwnas.search import explanation
from hwnas.space import Genotype
from hwnas.target import facts
from hwnas.union import stem

_RECORDED = (
    "hwnas", "torch", "numpy", "onnx", "onnxruntime", "ai-edge-litert", "ethos-u-vela",
    "apache-tvm",
)  # fmt: skip
_ID = re.compile(r"[0-9a-f]{1,12}")


@dataclass(frozen=True)
class Order:
    """What is exported, of which search."""

    config: ExportConfig
    arguments: Sequence[str]
    manifest: Row
    root: Path  #: where the folders go

    @property
    def command(self) -> str:
        """What is run, for people to run it again."""
        return public(f"python -m hwnas export {shlex.join(self.arguments)}")


@dataclass(frozen=True)
class _Pick:
    """One network for one target."""

    of: Station
    genotype: Genotype
    finisher: build.Finisher


def run(config: ExportConfig, searches: Sequence[SearchConfig], arguments: Sequence[str]) -> None:
    """Export models of a search.

    Args:
        config: Which, and of which search.
        searches: The configurations of the search, one for each target.
        arguments: Of the command line.

    Raises:
        ProofError: an export does not hold what it should; its folder is marked as failed.
    """
    console, source = Console(), RunFolder(Path(config.run))
    manifest = read_manifest(source.path, "run")
    searches = _for(config, searches, manifest)
    candidates = _candidates(source, searches[0])
    genotypes = _picked(config, source, candidates)
    order = Order(config, arguments, manifest, Path(config.dir or default_path("export")))
    names = {
        (search.target.name, g.id): f"{search.target.name}/{g.id}" if len(searches) > 1 else g.id
        for search in searches
        for g in genotypes
    }
    failed: list[str] = []
    with contextlib.ExitStack() as stack:
        output = RunFolder(order.root)
        output.create()
        stack.callback(output.close)
        folders.sweep(order.root, beside=config.dir is None)
        names = _left(order, names, console)
        phases = stack.enter_context(Phases(console))
        with phases.timed("Load data"):
            stations = stack.enter_context(station.opened(searches, phases))
        print_lines(console, stations[0].parts.data.notes)
        finishers = {
            s.target: finished.finisher(s, manifest, candidates, config, phases) for s in stations
        }
        finished.check_kept(finishers[stations[0].target], genotypes, manifest)
        known, targets = {g.id: g for g in genotypes}, {s.target: s for s in stations}
        with phases.phase("Export", len(names)) as advance:
            for (target, genotype_id), name in names.items():
                pick = _Pick(targets[target], known[genotype_id], finishers[target])
                failed += _export(pick, name, order, console)
                advance(1)
    print_phases(console, phases)
    if failed:
        raise ProofError(f"Not as it should be: {'; '.join(failed)}. The files are kept.")


def _left(
    order: Order, names: Mapping[tuple[str, str], str], console: Console
) -> dict[tuple[str, str], str]:
    """Return what the same command, which was cut off, has not exported yet.

    Raises:
        RunError: a folder is there that another command made, or all are there.
    """
    left = {}
    for key, name in names.items():
        place = order.root / name
        made = None
        with contextlib.suppress(RunError):
            made = proof.read(place)["made"]["command"]
        if made != order.command:
            folders.check_free(order.root, name)
            left[key] = name
    for name in names.values():
        if name not in left.values():
            if not left:
                folders.check_free(order.root, name)
            print_lines(console, [f"{order.root / name} is there already."])
    return left


def _for(
    config: ExportConfig, searches: Sequence[SearchConfig], manifest: Row
) -> list[SearchConfig]:
    """Return the configurations of the targets that are exported for, as they were.

    Raises:
        ConfigError: the search has no such target.
        RunError: the run is not finished, or is part of another.
    """
    if "part_of" in manifest:
        whole, target = Path(config.run).absolute().parent, Path(config.run).absolute().name
        raise RunError(f"run={config.run} is one target of a search: say run={whole} only={target}")
    names = [search.target.name for search in searches]
    if config.only is not None and config.only not in names:
        raise ConfigError(unknown("target", config.only, names))
    return [
        finished.as_recorded(search, manifest)
        for search in searches
        if config.only in (None, search.target.name)
    ]


def _candidates(source: RunFolder, search: SearchConfig) -> list[Candidate]:
    """Return the candidates of a search, with their accuracies after each fidelity."""
    names = [search.trained.column(i) for i in range(len(search.trained.fidelities))]
    return read_candidates(source, [stem(name) for name in search.spaces], names) or []


def _picked(
    config: ExportConfig, source: RunFolder, candidates: Sequence[Candidate]
) -> list[Genotype]:
    """Return what is exported.

    Raises:
        ConfigError: nothing is as it was asked for.
        RunError: the search has no front yet.
    """
    known = {candidate.id: candidate.genotype for candidate in candidates}
    own = config.only is not None and (source.path / config.only).is_dir()
    where = RunFolder(source.path / str(config.only)) if own else source
    if (content := where.read_json("front.json")) is None or not known:
        raise RunError(
            f"run={source.path} has no front yet. Finish it with: "
            f"python -m hwnas search run.resume={source.path}"
        )
    wanted = config.wanted
    if wanted not in picking.NAMES and _ID.fullmatch(wanted):
        ids = [explanation.find(candidates, wanted)]
    else:
        ids = picking.pick(picking.read(content), wanted)
    return [known[genotype_id] for genotype_id in ids]


def _export(pick: _Pick, name: str, order: Order, console: Console) -> list[str]:
    """Make one folder; return the checks that failed, each with the folder's name."""
    of, genotype, finisher = pick.of, pick.genotype, pick.finisher
    ready = finisher.in_int8(genotype)
    with folders.building(order.root, name) as folder, _libraries(of) as library:
        content = build_files(ready, of.config.target, of.parts.data, _title(of, genotype), library)
        for file, parts in content.items():
            files.write(folder / file, parts)
        kept = kept_images(ready, of.parts.data)
        files.write(folder / proof.IMAGES, kept.packed())
        names = [kind for kind in KINDS if kind in content]
        bench = Bench(
            of.parts.data,
            build.artefacts(of.parts, of.device),
            library.worker if library else None,
            of.config.budget.limits,
            finisher.config.max_int8_drop,
            kept,
        )
        own = own_artefact(of.config.target)
        evidence = prove(folder, names, own, ready, bench)
        opsets = {checked_opset(content[n]) for n in names if n.endswith(".onnx")}
        final = name + ".failed" * bool(evidence.failed)
        row = _proof(pick, ready, evidence, order, order.root / final)
        row |= {"opset": min(opsets), "n_images": len(kept.labels)}
        row["files"] = folders.digests(folder)
        row["source"]["reported"] = _reported(order, pick, row["files"])
        files.write(folder / folders.CARD, card(row).encode())
        row["files"] = folders.digests(folder)
        files.write(folder / folders.PROOF, (json.dumps(row, indent=2) + "\n").encode())
        place = folders.keep(folder, order.root, final)
    _print(console, place, row, evidence)
    return [f"{final}: {check}" for check in evidence.failed]


@contextlib.contextmanager
def _libraries(of: Station) -> Iterator[Library | None]:
    """Give what compiles for a target by TVM; nothing for others."""
    target, device = of.config.target, of.device
    if device is None or target.runtime != "tvm":
        yield None
        return
    yield Library(device.worker, lambda lowered: as_run(lowered, target), device.plan)


def _title(of: Station, genotype: Genotype) -> str:
    space, data = genotype.space, of.parts.data.name
    return f"Network {genotype.id} of search space {space}, trained on {data}, for {of.target}."


def _proof(pick: _Pick, ready: Finished, evidence: Evidence, order: Order, place: Path) -> Row:
    """Return all that a proof says but its files, and what the search said of them."""
    of, genotype, finisher = pick.of, pick.genotype, pick.finisher
    parts, config, lowered = of.parts, of.config, ready.lowered
    space = parts.space.member(genotype)
    data, verify = parts.data, f"python -m hwnas verify {shlex.quote(str(place))}"
    position = list(order.manifest.get("targets", [of.target])).index(of.target)
    costs = shlex.join(of_target(order.manifest["arguments"], position))
    figures = evidence.cost.figures
    return {
        "format": proof.FORMAT,
        "made": {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": order.command,
            "versions": {name: importlib.metadata.version(name) for name in _RECORDED},
            "machine": _machine(),
        },
        "model": {
            "id": genotype.id,
            "name": f"{space.name}-{data.name}-{of.target}-{genotype.id}",
            "genotype": genotype.to_dict(),
            "search_space": space.name,
            "family": space.family,
            "input": list(lowered[0].op.in_shape),
            "n_classes": len(data.classes),
            "macs_m": n_macs(lowered) / 1e6,
            "params_m": n_params(lowered) / 1e6,
            "operators": proof.operators_to_json(lowered),
        },
        "license": order.config.license,
        "source": {
            "run": str(order.config.run),
            "pick": order.config.wanted,
            "command": order.manifest["command"],
            **_weights(pick, order.manifest),
            "search_space_digest": space.digest,
        },
        "seed": config.seed,
        "training": asdict(config.train),
        "finishing": {**ready.record, **finished.facts(finisher, genotype)},
        "dataset": {
            **asdict(config.dataset),
            "digest": data.digest,
            "max_resolution": parts.networks.resolution(space.largest()),
            "images": {n: len(getattr(data, n)) for n in ("train", "validation", "test")},
            "normalisation": {"mean": list(data.mean), "std": list(data.std)},
        },
        "target": facts(config.target),
        "energy_source": energy_words(config.target),
        "reference": {"accuracy": evidence.reference.to_json()},
        "artefacts": evidence.artefacts(),
        "own_artefact": own_artefact(config.target),
        "figures": proof.figures_to_json(figures),
        "details": dict(evidence.cost.details),
        "budget": {
            name: {"limit": limit, "margin": 1 - figures[name].upper / limit}
            for name, limit in config.budget.limits.items()
        },
        "max_int8_drop": finisher.config.max_int8_drop,
        "tolerances": proof.TOLERANCES,
        "checks": [check.to_json() for check in evidence.checks],
        "commands": {
            "Errors, accuracy, files": verify,
            "Costs": f"{verify} {costs}",
            "All, from the search": order.command,
        },
    }


def _machine() -> Row:
    """Return what this machine is, without the long list of its features."""
    described = machine.describe()
    return {name: described[name] for name in ("cpu", "cores", "governor", "system")}


def _weights(pick: _Pick, manifest: Row) -> Row:
    """Return which weights the search scored the network by."""
    parts, genotype = pick.of.parts, pick.genotype
    if weights_of(manifest) == "supernet":
        kept = supernets.checkpoints(manifest["checkpoint"], parts.space)[genotype.space]
        return {"supernet": kept.parent.name}
    n = pick.finisher.left.get(genotype.id, 1)
    return {"supernet": None, "trained_epochs": parts.config.trained.fidelities[:n]}


def _reported(order: Order, pick: _Pick, files: Mapping[str, str]) -> Row | None:
    """Return what the search's report says of a member: figures, and digests of its files."""
    run = Path(order.config.run)
    where = RunFolder(run / pick.of.target if (run / pick.of.target).is_dir() else run)
    known: Row | None = where.read_json(f"models/{pick.genotype.id}.json")
    if known is None:
        return None
    weights = "these weights"
    if "finishing" not in order.manifest:
        weights = "the weights in the supernet"
    elif pick.finisher.other is not None:
        weights = "the weights as the search finished them"
    same = sorted(name for name, digest in files.items() if digest in known["files"].values())
    return {"figures": known["figures"], "files": known["files"], "of": weights, "same_files": same}


def _print(console: Console, place: Path, row: Row, evidence: Evidence) -> None:
    """Print what was found of an export, and where it is."""
    table = Table(
        "", "accuracy", "95 %", "largest error", "same class",
        title=f"{row['model']['name']}", box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False,
    )  # fmt: skip
    table.add_row("torch", *_cells(evidence.reference), "", "")
    for name, found in row["artefacts"].items():
        if name in evidence.not_run:
            continue
        near = evidence.agreements[name]
        error, same = f"{near.max_error:.2g}", f"{near.top1:.1%}"
        table.add_row(name, *_cells(Figure(*found["accuracy"])), error, same)
    console.print(table)
    steps = row["finishing"]["steps"]
    identical = (row["source"]["reported"] or {}).get("same_files")
    lines = [
        "Finished, accuracy on the validation split: "
        + ", ".join(f"{step['step']} {step['accuracy'][0]:.4f}" for step in steps),
        ", ".join(_words(name, values) for name, values in row["figures"].items()),
        f"Byte for byte what the search verified: {', '.join(identical)}." if identical else "",
        *(f"Does not hold: {c.name}: {c.found:.4g} {c.words}; at most {c.allowed:g}."
          for c in evidence.checks if not c.holds),
        *(f"{name} was not run: {why}." for name, why in evidence.not_run.items()),
        f"Files in {place}: {' '.join([*row['files'], folders.PROOF])}",
    ]  # fmt: skip
    print_lines(console, lines)


def _words(name: str, values: Sequence[Any]) -> str:
    figure = Figure(*values)
    return f"{name} {figure.value:.4g} ({figure.source})"


def _cells(figure: Figure) -> tuple[str, str]:
    assert figure.low is not None
    assert figure.high is not None
    return f"{figure.value:.4f}", f"±{(figure.high - figure.low) / 2:.4f}"
