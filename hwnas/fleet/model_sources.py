"""Split networks of a service, and checks of fronts and profiles."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from hwnas.core import schema
from hwnas.core.errors import ConfigError
from hwnas.core.manifest import read_manifest
from hwnas.core.schema import NumberBounds, SchemaError
from hwnas.export.folder import PROOF
from hwnas.export.proof_file import read_proof
from hwnas.fleet.fleet_file import Fleet
from hwnas.fleet.models import ModelCatalogue, add_row, csv_rows, resolve_path, runtime_by_name
from hwnas.fleet.network_splits import PROFILE, read_cuts
from hwnas.fleet.service_file import Service, SplitNetwork


def check_classes(service: Service, folder: Path) -> None:
    """Check that all searches and exports of a service have the same classes.

    CSV files do not name theirs. ``folder`` is that of ``service.yaml``.

    Raises:
        ConfigError: two have other classes: a request would be answered by either network.
        RunError: a manifest or a proof cannot be read.
    """
    first: tuple[Path, list[str]] | None = None
    for name in service.fronts:
        for path, classes in _classes(resolve_path(name, folder)):
            first = first or (path, classes)
            if classes != first[1]:
                raise ConfigError(
                    f"fronts: the classes of {path} ({join_names(classes)}) are not those of "
                    f"{first[0]} ({join_names(first[1])}). Plan one service for each data set."
                )


def _classes(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders of a search or of exports, each with the names of its classes."""
    proofs = [path] if (path / PROOF).is_file() else []
    if not proofs and (path / "manifest.json").is_file():
        task: Mapping[str, Any] = read_manifest(path, "fronts").get("task", {})
        yield from [(path, task["classes"])] * ("classes" in task)
        return
    for folder in proofs or [proof.parent for proof in sorted(path.glob(f"*/{PROOF}"))]:
        task = {**read_proof(folder)["task"]}
        yield from [(folder, task["classes"])] * ("classes" in task)


def check_latencies(catalogue: ModelCatalogue, fleet: Fleet) -> None:
    """Check that each device has a latency of at least one model, its own or that of its ``like``.

    Raises:
        ConfigError: a device has none, or its ``target`` has none.
    """
    timed = {target for target, _ in catalogue.latency_ms}
    for device, device_type in fleet.devices.items():
        is_known = device_type.target is None or device_type.target in timed
        if not is_known or not any(catalogue.on(fleet, device, name) for name in catalogue.models):
            target, known = device_type.target or device, join_names(timed)
            raise ConfigError(
                f"Fleet file: device '{device}': no model of fronts has a latency on target "
                f"'{target}' (targets with latencies: {known or 'none'}): set "
                f"devices.{device}.target to a target with latencies, or add a search on this one "
                f"(hwnas search +target={device_type.target or 'NAME'}) to fronts, or a CSV file "
                "with latencies to profiles."
            )


def untimed_batches(catalogue: ModelCatalogue, fleet: Fleet) -> Iterator[str]:
    """Yield one message if targets of the fleet have timings of batches of one image only.

    Modelled latencies and estimates of compilers are ignored.
    """
    targets: dict[str, set[int]] = {}
    for (target, _), by_batch in catalogue.latency_ms.items():
        if any(figure.source in ("measured", "table") for figure in by_batch.values()):
            targets.setdefault(target, set()).update(by_batch)
    used = {device.target or name for name, device in fleet.devices.items()}
    alone = [t for t, batches in targets.items() if t in used and batches == {1}]
    if alone:
        yield (
            f"Only batches of 1 image were timed on {join_names(alone)}: time larger ones with "
            f"hwnas search +target={alone[0]} target.batch=8, or add a CSV file to profiles."
        )


def unused_latencies(catalogue: ModelCatalogue, splits: Iterable[SplitNetwork]) -> Iterator[str]:
    """Yield one message if latencies are of networks that are neither in fronts nor in splits."""
    parts = {part for split in splits for part in (split.head, split.tail)}
    unused = {name for _, name in catalogue.latency_ms} - {*catalogue.models} - parts
    if unused:
        yield (
            f"Latencies of {join_names(unused)} are not used: no model of fronts has this id and "
            "precision. Correct them in profiles, also an empty precision, which means float32."
        )


def join_names(names: Iterable[str], most: int = 6) -> str:
    """Return the first ``most`` sorted names as text, as ``a, b and 3 more``."""
    every: Sequence[str] = sorted(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" * (len(every) > most))


def read_splits(
    service: Service, catalogue: ModelCatalogue, base_folder: Path
) -> tuple[SplitNetwork, ...]:
    """Return the split networks of a service; latencies of their parts go to the catalogue.

    Args:
        service: The service.
        catalogue: Models and latencies; gains those of the parts.
        base_folder: Folder of ``service.yaml``, for relative paths.

    Raises:
        RunError: a folder was not written by ``hwnas split``, or is damaged.
        ConfigError: a model is not in the catalogue, a part has no latency, or a timing is invalid.
    """
    result = list[SplitNetwork]()
    for split in service.splits:
        if isinstance(split, str):
            result += _read_split(resolve_path(split, base_folder), catalogue)
        else:
            result.append(split)
    _check(result, catalogue)
    return tuple(result)


def _read_split(folder: Path, catalogue: ModelCatalogue) -> Iterator[SplitNetwork]:
    """Yield the split networks of a folder, and add their latencies to the catalogue."""
    cuts = read_cuts(folder)
    for i, raw in enumerate(csv_rows(folder / PROFILE)):
        try:
            _add_row(catalogue, raw, folder, f"row {i}")
        except SchemaError as problem:
            raise ConfigError(
                f"{folder / PROFILE} cannot be read: {problem}. Write it again with hwnas split."
            ) from None
    for cut in cuts:
        yield SplitNetwork(cut["model"], cut["head"], cut["tail"], cut["activation_kib"])


class _SplitProfileRow(TypedDict):
    """Additional columns of a profile that ``split`` wrote."""

    engine: Annotated[str, NumberBounds(1, 60)]
    target: Annotated[str, NumberBounds(1, 100)]
    threads: Annotated[int, NumberBounds(1, 1024)]
    place: str  #: folder of the part; empty: the whole network


def _add_row(catalogue: ModelCatalogue, raw: dict[str, str], folder: Path, place: str) -> None:
    """Add a row; rows of the whole network only if nothing else has that timing."""
    text: _SplitProfileRow = schema.parse_row(_SplitProfileRow, raw, place)
    name = f"{raw.get('id', '')}-{raw.get('precision', '')}"
    timed = catalogue.latency_ms.get((text["target"], name), {})
    if text["place"] or str(raw.get("batch", 1)) not in map(str, timed):
        runtime = runtime_by_name(
            text["engine"], text["target"], folder / text["place"], text["threads"]
        )
        add_row(catalogue, raw, str(folder), place, runtime)


def _check(splits: list[SplitNetwork], catalogue: ModelCatalogue) -> None:
    timed = {name for _, name in catalogue.latency_ms}
    for split in splits:
        for name, known in (("model", {*catalogue.models}), ("head", timed), ("tail", timed)):
            if getattr(split, name) not in known:
                raise ConfigError(
                    f"Service file: splits: {name} '{getattr(split, name)}' is not "
                    f"{'a model of fronts' if name == 'model' else 'a row of profiles'}: give one "
                    f"of (as ID-PRECISION) {join_names(known) or 'none exist'}."
                )
