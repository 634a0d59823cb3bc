"""Splits networks of exports in two: files of the parts, and their latency by target and batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwnas.core import files, machine
from hwnas.core.errors import ConfigError
from hwnas.core.run_folder import Row, RunFolder, default_path, initial_manifest
from hwnas.export import folder as folders
from hwnas.export import proof_file as proofs
from hwnas.export.checks import Floats
from hwnas.export.options import SplitConfig
from hwnas.export.proof_file import Proof
from hwnas.export.reference_images import prepared, read_reference_images
from hwnas.fleet import network_splits, split_timing
from hwnas.fleet.network_splits import (
    FILE,
    FORMAT,
    PROFILE,
    ExportedNetwork,
    ExportSplit,
    SplitOutputs,
    SplitPoint,
)
from hwnas.fleet.split_timing import PartTiming
from hwnas.hardware import backends
from hwnas.hardware.memory import replica_mib
from hwnas.hardware.target import Target
from hwnas.hardware.target import facts as target_facts
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import FolderResult

_N_IMAGES = 64  # images to compare the parts with the whole network


def split(
    configs: Sequence[SplitConfig], arguments: Sequence[str], reporter: Reporter
) -> FolderResult:
    """Split the network of an export in two, at each possible place; check, time and write parts.

    The tables of the result are ``cuts`` (one row per place) and ``profile`` (latencies).

    Args:
        configs: The options for each target.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Is notified of progress.

    Raises:
        ConfigError: the network cannot be split, or a target cannot run it.
        ProofError: the export has changed, or both parts together compute other outputs than the
            whole network.
        RunError: the folder is not an export, or the output folder is not empty.
    """
    config = configs[0]
    if config.dir:
        files.check_new_folder(Path(config.dir), "dir")
    folder = Path(config.export)
    recorded = proofs.read_proof(folder)
    folders.check_unchanged(folder, recorded["files"])
    exported = network_splits.read_exported_network(folder, recorded)
    targets = [_target(options, recorded, exported) for options in configs]
    splits = network_splits.find_splits(exported, config.cuts)
    images = _images(folder, recorded)
    outputs = list[SplitOutputs]()
    with reporter.phase("Check parts", len(splits)) as advance:
        for export_split in splits:
            outputs.append(network_splits.run_split(export_split, exported, images))
            advance(1)
    every = [*split_timing.timed_parts(exported, splits, outputs, images)]
    timed = [t for options, target in zip(configs, targets, strict=True)
             for t in _time_parts(every, options, target, reporter)]  # fmt: skip
    profile = [_profile_row(timing, exported) for timing in timed]
    cuts = [
        _cut(export_split, output, exported)
        for export_split, output in zip(splits, outputs, strict=True)
    ]
    tables = _SplitTables(cuts, [_row(cut, profile) for cut in cuts], profile)
    content = {f"{p.place}/{p.file}": p.model for p in every if p.place} | _target_files(timed)
    path = _write_folder(configs, arguments, targets, tables, content)
    names = [s.name for s in splits] + ["cuts.csv", PROFILE, FILE, "manifest.json"]
    sentences = [*_sentences(cuts, exported, path), *_drifts(profile)]
    return FolderResult(path, sentences, {"cuts": tables.rows, "profile": profile}, "cuts", names)


def _target(config: SplitConfig, recorded: Proof, exported: ExportedNetwork) -> Target:
    """Return a target that can run the parts.

    Raises:
        ConfigError: its dtype differs from the export's, a package is missing, or it does not run
            these batch sizes.
    """
    target = config.target or proofs.target_of(recorded)
    if target.dtype != exported.precision:
        raise ConfigError(
            f"Target '{target.name}' computes in {target.dtype}, but the export in "
            f"{exported.precision}. Set target.dtype={exported.precision}, or with several targets "
            f"{target.name}.target.dtype={exported.precision}."
        )
    if why := backends.lacking(backends.get(target.runtime).needs):
        raise ConfigError(f"Costs on target '{target.name}' are unknown: {why}.")
    split_timing.check_runs_parts(target)
    if 1 not in config.batches and not backends.get(target.runtime).batched:
        raise ConfigError(
            f"batches={config.batches}: target '{target.name}' runs one image per inference. Add "
            f"1, as batches={[1, *config.batches]}."
        )
    return target


def _images(folder: Path, recorded: Proof) -> Floats:
    normalisation = recorded["dataset"]["normalisation"]
    return prepared(
        read_reference_images(folder, recorded).pixels[:_N_IMAGES],
        normalisation["mean"],
        normalisation["std"],
    )


def _time_parts(
    every: Sequence[split_timing.TimedPart], config: SplitConfig, target: Target, reporter: Reporter
) -> Iterator[PartTiming]:
    n = len(split_timing.batch_sizes(config, target)) * len(every)
    with reporter.phase(f"Time on {target.name}", n) as advance:
        yield from split_timing.time_parts(every, config, target, advance)


def _target_files(timed: Sequence[PartTiming]) -> dict[str, bytes]:
    """Return the files of each target by path, for the smallest batch size."""
    result = dict[str, bytes]()
    for timing in timed:
        for name, content in timing.files.items() if timing.part.place else ():
            result.setdefault(f"{timing.part.place}/{timing.target.name}/{name}", content)
    return result


def _profile_row(timed: PartTiming, exported: ExportedNetwork) -> Row:
    """Return a row in the format of plan profiles, with the timing method."""
    figures, target = timed.cost.figures, timed.target
    row: Row = {"id": timed.part.id, "precision": exported.precision, "target": target.name}
    row |= {"engine": target.engine, "threads": target.threads, "batch": target.batch}
    row |= figures["latency_ms"].columns("latency_ms")
    row["source"] = row.pop("latency_ms_source")
    row |= {"memory_mib": replica_mib(figures), "place": timed.part.place}
    return row | {"drifted": bool(timed.cost.details.get("drifted", 0.0))}


def _cut(split: ExportSplit, outputs: SplitOutputs, exported: ExportedNetwork) -> SplitPoint:
    head, tail = (
        f"{split.part_id(side, exported)}-{exported.precision}" for side in network_splits.SIDES
    )
    return {
        "name": split.name, "model": exported.name, "head": head, "tail": tail,
        "activation_kib": outputs.sent_kib, "after": split.cut.after, "shape": [*split.cut.shape],
        "dtype": outputs.sent.dtype.name, "head_macs": split.share,
    }  # fmt: skip


def _row(cut: SplitPoint, profile: Sequence[Row]) -> Row:
    """Return a split point, with the latency of its parts at the smallest timed batch size."""
    row: Row = {name: cut[name] for name in ("name", "after", "activation_kib", "head_macs")}
    for part_row in profile:
        part, _, side = str(part_row["place"]).partition("/")
        if part == cut["name"]:
            row.setdefault(f"{side}_ms.{part_row['target']}", part_row["latency_ms"])
    return row


@dataclass(frozen=True)
class _SplitTables:
    cuts: Sequence[SplitPoint]
    rows: Sequence[Row]
    profile: Sequence[Row]


def _write_folder(
    configs: Sequence[SplitConfig],
    arguments: Sequence[str],
    targets: Sequence[Target],
    tables: _SplitTables,
    content: Mapping[str, bytes],
) -> Path:
    config = configs[0]
    path = Path(config.dir or default_path("split"))
    decisive = [name for t in targets for name in backends.fingerprint_packages(t.runtime, t.dtype)]
    facts: Row = {"status": "finished", "targets": [target_facts(target) for target in targets]}
    facts["versions"] = {
        name: backends.version(name) for name in dict.fromkeys(["hwnas", *decisive])
    }
    with files.atomic_folder(path, remove_stale=not config.dir) as building:
        folder = RunFolder(building)
        for name, data in content.items():
            (building / name).parent.mkdir(parents=True, exist_ok=True)
            folder.write_bytes(name, data)
        folder.write_csv("cuts.csv", tables.rows)
        folder.write_csv(PROFILE, tables.profile)
        split = {"format": FORMAT, "export": config.export, "cuts": tables.cuts}
        folder.write_json(FILE, split)
        begins = initial_manifest("split", arguments, {}, config)
        folder.write_json("manifest.json", begins | facts | {"machine": machine.describe()})
    return path


def _sentences(cuts: Sequence[SplitPoint], exported: ExportedNetwork, path: Path) -> Iterator[str]:
    """Yield the accuracy, data size and use of the parts as text."""
    c, h, w = exported.network.graph[0].op.in_shape
    image, least = c * h * w / 1024, min(cut["activation_kib"] for cut in cuts)
    exact = "bit by bit" if exported.precision == "int8" else "except for rounding"
    yield f"Each head and its tail have the outputs of the whole network, {exact}."
    fewer = "no cut sends less" if least >= image else f"the smallest of a cut is {least:.3g} KiB"
    yield (
        "KiB: size of the tensor that is sent; work: fraction of the MACs before the cut. An image "
        f"has {image:.3g} KiB; {fewer}."
    )
    yield f"Plan with it: splits: [{path}] in the service file."


def _drifts(profile: Sequence[Row]) -> Iterator[str]:
    """Yield a warning about measurements during which the machine's speed drifted."""
    if n := sum(row["drifted"] for row in profile):
        yield (
            f"{n} of {len(profile)} latencies were measured while the machine's speed drifted "
            "(drifted in profile.csv): end other programs, and split again."
        )
