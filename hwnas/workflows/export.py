"""Exports models of a finished search with their proofs."""

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.core import files, package
from hwnas.core.errors import ConfigError, ProofError, RunError, unknown_name
from hwnas.core.manifest import Manifest, missing_front_error, read_manifest
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row, RunFolder, default_path
from hwnas.core.typed_files import to_json_bytes
from hwnas.export import c_source, picking
from hwnas.export import folder as folders
from hwnas.export.artefacts import build as build_files
from hwnas.export.artefacts import decoded_side
from hwnas.export.card import card
from hwnas.export.proof_file import read_proof
from hwnas.export.prove import Prover, choose_images, prove
from hwnas.export.prove_exits import ExitNetworkFiles
from hwnas.export.prove_exits import prove as prove_exits
from hwnas.export.reference_images import IMAGES, ReferenceImages, prepared
from hwnas.export.runtimes import kinds
from hwnas.hardware import backends
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.derived_metrics import check_stated
from hwnas.hardware.suggested_commands import shipped_options
from hwnas.hardware.target import from_facts
from hwnas.models.onnx.opsets import check_opset
from hwnas.models.spaces import Genotype
from hwnas.models.spaces.union import stem
from hwnas.nas import explanation
from hwnas.nas.candidates import Candidate, read_candidates
from hwnas.nas.front import Front, left_out_message
from hwnas.nas.run import Run, check_files
from hwnas.tasks import recorded_task
from hwnas.workflows import components
from hwnas.workflows.config import ExportConfig, SearchConfig
from hwnas.workflows.config.compose import with_networks
from hwnas.workflows.networks import data_options
from hwnas.workflows.proof_record import (
    ExportRequest,
    PickedNetwork,
    record,
    reported,
    search_record,
    title,
)
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import Export
from hwnas.workflows.search import context, finish_runs

_ID = re.compile(r"[0-9a-f]{1,12}")


@dataclass(frozen=True)
class ExportResult:
    """The exports of one command."""

    exports: Sequence[Export]  #: one for each selected network and target
    failed: Sequence[str]  #: text for each failed check, with the folder of its export

    def checked(self) -> "ExportResult":
        """Return the result if no check failed.

        Raises:
            ProofError: a check failed; the files are kept.
        """
        if self.failed:
            failed = "; ".join(self.failed)
            raise ProofError(
                f"Checks of the export failed: {failed}. Do not deploy it; the files are kept for "
                "inspection."
            )
        return self


def export(config: ExportConfig, arguments: Sequence[str], reporter: Reporter) -> ExportResult:
    """Export networks of a search, each into a folder.

    The result includes networks that the same command exported before it was interrupted.

    Args:
        config: The options.
        arguments: Arguments of the command line.
        reporter: Receives phases and messages.

    Raises:
        ConfigError: no network or target matches the request, a target does not support
            ``format``, or the key of ``sign`` cannot be read.
        RunError: the search is unfinished or has no front, no network is better than a constant
            answer, weights are missing, or all exports exist.
    """
    exports: list[Export] = []
    failed: list[str] = []
    order = ExportRequest(config, arguments, Path(config.dir or default_path("export")))
    with picked(order, reporter) as picks, reporter.phase("Export", len(picks)) as advance:
        for name, pick in picks.items():
            done = Export(order.root / name) if pick is None else write_export(pick, name, order)
            exports.append(done)
            failed += failures(done, order.root)
            advance(1)
    return ExportResult(exports, failed)


def failures(done: Export, root: Path) -> list[str]:
    """Return a text for each failed check of an export, with its folder relative to ``root``."""
    checks = done.evidence.failed if done.evidence is not None else []
    return [f"{done.path.relative_to(root)}: {check}" for check in checks]


@contextlib.contextmanager
def picked(
    order: ExportRequest, reporter: Reporter, budget: Row | None = None
) -> Iterator[Mapping[str, PickedNetwork | None]]:
    """Yield the networks to export, by name of the folder; ``None`` for finished exports.

    Args:
        order: The request.
        reporter: Is notified of progress.
        budget: Limits that replace the budget of the search; ``None``: its budget.

    Raises:
        ConfigError: as :func:`export`, or the target lacks data for a limit of ``budget``.
        RunError: as :func:`export`.
    """
    config = order.config
    if config.sign is not None:
        folders.private_key(config.sign)  # fail now, not after the work
    source, searches = RunFolder(Path(config.run)), with_networks(config.run)
    manifest = read_manifest(source.path, "run")
    searches = _recorded_configs(config, searches, manifest)
    _check_format(config, searches)
    if budget is not None:
        searches = [_with_budget(search, budget) for search in searches]
    candidates = _candidates(source, searches[0])
    genotypes = _selected_networks(config, source, candidates, reporter)
    names = {
        (search.target.name, g.id): f"{search.target.name}/{g.id}" if len(searches) > 1 else g.id
        for search in searches
        for g in genotypes
    }
    with contextlib.ExitStack() as stack:
        output = RunFolder(order.root)
        output.create("dir")
        stack.callback(output.close)
        folders.sweep(order.root, beside=config.dir is None)
        missing = _missing_exports(order, names, reporter)
        with reporter.timed("Load data"):
            contexts = stack.enter_context(context.open_contexts(searches, reporter))
        reporter.say(contexts[0].parts.data.notes)
        finishers = {
            s.target: finish_runs.finisher(s, manifest, candidates, config, reporter)
            for s in contexts
        }
        finish_runs.check_weights_exist(finishers[contexts[0].target], genotypes, manifest)
        known, targets = {g.id: g for g in genotypes}, {s.target: s for s in contexts}
        yield {
            name: PickedNetwork(targets[target].of(known[i]), known[i], finishers[target], manifest)
            if name in missing
            else None
            for (target, i), name in names.items()
        }


def _check_format(config: ExportConfig, searches: Sequence[SearchConfig]) -> None:
    """Refuse a format that a target does not have.

    Raises:
        ConfigError: it is unknown, or the target has no TFLite file of one network.
    """
    if config.format not in (None, *c_source.FORMATS):
        raise ConfigError(unknown_name("format", str(config.format), c_source.FORMATS))
    for search in searches if config.format else ():
        target = search.target
        if ".tflite" not in {*backends.file_names(target.runtime, target.dtype)}:
            data = shlex.join(data_options(search.dataset))
            raise ConfigError(
                f"format={config.format} needs a TFLite file, which target '{target.name}' does "
                f"not have. Targets that have one: {', '.join(_tflite_targets())}. To search for "
                f"one of them: {' '.join(['hwnas search +target=npu', *[data] * bool(data)])} "
                f"run.dir=runs/c; then: hwnas export runs/c format={config.format}"
            )


def _tflite_targets() -> list[str]:
    """Return the shipped targets whose exports have a TFLite file."""
    names = package.entries(package.ROOT / "conf" / "target")
    targets = [from_facts(shipped_options("target", name)) for name in names]
    return [t.name for t in targets if ".tflite" in backends.file_names(t.runtime, t.dtype)]


def _c_files(
    content: Mapping[str, bytes],
    format_: str,
    pick: PickedNetwork,
    cost: Cost,
    reference: ReferenceImages,
) -> dict[str, str]:
    """Return the C files of an export by path."""
    from hwnas.hardware.backends.vela.litert import LiteRTSession  # not needed for other formats

    data, name = pick.context.parts.data, c_source.FORMATS[format_]
    sram = cost.figures["sram_kib"] if format_ == "c" else None  # Vela's, for the NPU
    n = max(1, c_source.MAX_TEST_PIXELS // reference.pixels[0].size)
    pixels = reference.pixels[:n]
    session = LiteRTSession(content[c_source.FORMATS["c_cpu"]])
    outputs = session.run(prepared(pixels, [*data.mean], [*data.std]))
    images = {"mean": data.mean, "std": data.std, "decoded_side": decoded_side(data)}
    tested = c_source.CTestImages(pixels, outputs)
    network = c_source.CNetwork(name, content[name], title(pick.context, pick.genotype), sram)
    return c_source.c_files(network, data.task, images, tested)


def _with_budget(search: SearchConfig, budget: Row) -> SearchConfig:
    """Return the configuration of a finished search with another budget.

    Raises:
        ConfigError: the target lacks data for it.
    """
    check_stated(search.target, budget, "budget")
    return replace(search, budget=budget)


def _missing_exports(
    order: ExportRequest, names: Mapping[tuple[str, str], str], reporter: Reporter
) -> list[str]:
    """Return the names of networks that the same, interrupted command has not exported yet.

    Raises:
        RunError: a folder of another command or of other weights exists, or all exports exist.
    """
    missing = []
    for (target, genotype_id), name in names.items():
        known, is_same = search_record(order, target, genotype_id), False
        with contextlib.suppress(RunError):
            proof = read_proof(order.root / name)
            files = (proof["source"]["reported"] or {}).get("files")
            is_same = proof["made"]["command"] == order.command and (
                files == (known and known["files"])
            )
        if not is_same:
            folders.check_free(order.root, name)
            missing.append(name)
    for name in names.values():
        if name not in missing:
            if not missing:
                folders.check_free(order.root, name)
            reporter.say([f"{order.root / name} is there already."])
    return missing


def _recorded_configs(
    config: ExportConfig, searches: Sequence[SearchConfig], manifest: Manifest
) -> list[SearchConfig]:
    """Return the configurations of the selected targets as recorded.

    Raises:
        ConfigError: the search does not have the target.
        RunError: the run is not finished, or is part of another.
    """
    if "part_of" in manifest:
        run, target = Path(config.run).absolute().parent, Path(config.run).absolute().name
        raise RunError(
            f"run={config.run} is the folder of one target of a search. Write run={run} "
            f"target_name={target}"
        )
    if manifest.get("status") == "running":  # its teacher is not known yet
        command = shlex.join(["hwnas", "resume", str(config.run)])
        raise RunError(f"run={config.run} is not finished. Resume it: {command}")
    names = [search.target.name for search in searches]
    if config.target_name is not None and config.target_name not in names:
        raise ConfigError(unknown_name("target", config.target_name, names))
    return [
        finish_runs.as_recorded(search, manifest, Path(config.run))
        for search in searches
        if config.target_name in (None, search.target.name)
    ]


def _candidates(source: RunFolder, search: SearchConfig) -> list[Candidate]:
    """Return the candidates of a search, with the metric after each fidelity."""
    names = [search.trained.column(search.metric, i) for i in range(len(search.trained.fidelities))]
    check_files(Run.load(source.path))
    return read_candidates(source.path, [stem(name) for name in search.spaces], names) or []


def _selected_networks(
    config: ExportConfig, source: RunFolder, candidates: Sequence[Candidate], reporter: Reporter
) -> list[Genotype]:
    """Return the selected networks, and report how many of the front are left out.

    Raises:
        ConfigError: no network matches the request.
        RunError: the search has no front.
    """
    known = {candidate.id: candidate.genotype for candidate in candidates}
    is_target_folder = (
        config.target_name is not None and (source.path / config.target_name).is_dir()
    )
    folder = source.path / str(config.target_name) if is_target_folder else source.path
    run = Run.load(folder)
    front = run.front(candidates) if known else Front()
    if not front.objectives:
        raise missing_front_error(folder)
    constant = recorded_task(run.manifest).description.constant
    if front.is_at_chance_level and not config.force:
        raise RunError(
            f"run={folder}: no network is better than {constant} by its 95 % interval. "
            "Train longer (train.epochs), or export one nevertheless with force=true."
        )
    selections = [text for text in config.wanted if not _is_id(text)]
    if selections and front.left_out and not config.force:
        message = left_out_message(front.left_out, len(front.remaining), constant)
        reason = f"pick={','.join(selections)} was made among the others."
        reporter.say([f"{message} {reason} To include them: force=true"])
    return [known[i] for i in _ids(config, front, candidates)]


def _is_id(text: str) -> bool:
    return text not in picking.NAMES and _ID.fullmatch(text) is not None


def _ids(config: ExportConfig, front: Front, candidates: Sequence[Candidate]) -> list[str]:
    """Return the ids of the selected networks, each once."""
    ids = dict[str, None]()
    for text in config.wanted:
        if _is_id(text):
            ids[explanation.find(candidates, text)] = None
        else:
            ids |= dict.fromkeys(picking.pick(front, text, force=config.force))
    return [*ids]


def write_export(pick: PickedNetwork, name: str, order: ExportRequest) -> Export:
    """Write a network with final weights into its folder and check it; return the export.

    The network is fine-tuned and trained for int8 unless these weights are stored. The folder of an
    export with failed checks ends with ``.failed``.

    Args:
        pick: The network.
        name: Name of the folder within ``order.root``.
        order: The request.
    """
    target_context, genotype, finisher = pick.context, pick.genotype, pick.finisher
    ready = finisher.in_int8(genotype)
    with folders.building(order.root, name) as folder, target_context.running() as device:
        target, artefacts = (
            target_context.config.target,
            components.artefacts(target_context.parts, device),
        )
        content = build_files(
            ready, target, target_context.parts.data, title(target_context, genotype), artefacts
        )
        for file, parts in content.items():
            files.write_file(folder / file, parts)
        images = choose_images(ready, target_context.parts.data)
        files.write_file(folder / IMAGES, images.packed())
        names = [kind for kind in kinds() if kind in content]
        bench = Prover(
            target_context.parts.data,
            artefacts,
            device.worker if device else None,
            target_context.config.allowed.limits,
            finisher.config.max_int8_drop,
            images,
            in_worker=target.engine != target.runtime,
        )
        artefact, network = target.artefact, ready.without_exits
        evidence, leaving = prove(folder, names, artefact, network, bench), None
        if ready.graph.exits:
            subject = ExitNetworkFiles(
                genotype.id, folder, ready, target, order.config.max_exit_drop
            )
            leaving, checks = prove_exits(subject, bench)
            evidence = replace(evidence, checks=[*evidence.checks, *checks])
        if order.config.format:
            texts = _c_files(content, order.config.format, pick, evidence.cost, images)
            for file, text in texts.items():
                files.write_file(folder / file, text.encode())
        opsets = {check_opset(content[n]) for n in names if n.endswith(".onnx")}
        final = name + ".failed" * bool(evidence.failed)
        costs = {} if leaving is None else leaving["found"]["costs"]
        means = {name: Quantity(*figure) for name, figure in costs.items()}
        row = record(pick, network, evidence, order, order.root / final, means)
        row |= {"opset": min(opsets), "n_images": len(images.targets)}
        row |= {} if leaving is None else {"exits": leaving}
        row["files"] = folders.digests(folder)
        row["source"]["reported"] = reported(order, pick, row["files"])
        files.write_file(folder / folders.CARD, card(row).encode())
        row["files"] = folders.digests(folder)
        files.write_file(folder / folders.PROOF, to_json_bytes(row))
        if order.config.sign is not None:
            folders.sign(folder, folders.private_key(order.config.sign))
        place = folders.keep(folder, order.root, final)
    return Export(place, evidence=evidence)
