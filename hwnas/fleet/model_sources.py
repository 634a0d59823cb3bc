"""Networks that are cut in two: what ``split`` made of an export, or what somebody measured."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from hwnas.core import schema
from hwnas.core.errors import ConfigError
from hwnas.core.schema import NumberBounds, SchemaError
from hwnas.fleet.fleet_file import Fleet
from hwnas.fleet.models import ModelCatalogue, csv_rows, located, ran_in, take_row
from hwnas.fleet.network_splits import PROFILE, read_cuts
from hwnas.fleet.service_file import Service, SplitNetwork

# What fronts and profiles do not say that a fleet needs, and what would measure it.


def check_latencies(found: ModelCatalogue, fleet: Fleet) -> None:
    """Refuse a device on which no model was timed, and a target that nothing was timed on.

    Raises:
        ConfigError: latencies are missing; it says by which command they are measured.
    """
    timed = {target for target, _ in found.latency_ms}
    for device, at in fleet.devices.items():
        is_known = at.target is None or at.target in timed
        if not is_known or not any(found.on(fleet, device, name) for name in found.models):
            target, known = at.target or device, listed(timed)
            raise ConfigError(
                f"device '{device}': no model of the fronts has a latency on target '{target}' "
                f"(there are some on {known}): measure with: python -m hwnas search "
                f"+target={target}   or name its target: devices.{device}.target."
            )


def unmeasured(found: ModelCatalogue, fleet: Fleet) -> Iterator[str]:
    """Yield in words which batch sizes were not timed, and what measures them."""
    targets: dict[str, set[int]] = {}
    for (target, _), by_batch in found.latency_ms.items():
        if any(figure.source in ("measured", "table") for figure in by_batch.values()):
            targets.setdefault(target, set()).update(by_batch)
    used = {device.target or name for name, device in fleet.devices.items()}
    alone = [t for t, batches in targets.items() if t in used and batches == {1}]
    if alone:
        yield (
            f"Only batches of one were timed on {listed(alone)}: python -m hwnas search "
            f"+target={alone[0]} target.batch=8 times others; or name a CSV file in profiles."
        )


def listed(names: Iterable[str], most: int = 6) -> str:
    """Return names, or the first of them."""
    every: Sequence[str] = sorted(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" * (len(every) > most))


def read_splits(
    service: Service, catalogue: ModelCatalogue, beside: Path
) -> tuple[SplitNetwork, ...]:
    """Return all ways to cut a network, with the latencies of parts taken in.

    Args:
        service: Names them.
        catalogue: Has the models; takes in latencies of their parts.
        beside: The folder that relative paths begin in, if they are not there from here.

    Raises:
        RunError: a folder is none of ``split``, or damaged.
        ConfigError: a model or a part is not known.
    """
    found = list[SplitNetwork]()
    for said in service.splits:
        if isinstance(said, str):
            found += _read(located(said, beside), catalogue)
        else:
            found.append(said)
    _check(found, catalogue)
    return tuple(found)


def _read(folder: Path, catalogue: ModelCatalogue) -> Iterator[SplitNetwork]:
    """Yield what ``split`` made, its latencies taken in."""
    cuts = read_cuts(folder)
    for i, raw in enumerate(csv_rows(folder / PROFILE)):
        try:
            _take(catalogue, raw, folder, f"row {i}")
        except SchemaError as problem:
            raise ConfigError(f"{folder / PROFILE} cannot be read: {problem}.") from None
    for cut in cuts:
        yield SplitNetwork(cut["model"], cut["head"], cut["tail"], cut["activation_kib"])


class _SplitProfileRow(TypedDict):
    """By what a row of a profile was timed, beside what all profiles have."""

    engine: Annotated[str, NumberBounds(1, 60)]
    target: Annotated[str, NumberBounds(1, 100)]
    threads: Annotated[int, NumberBounds(1, 1024)]
    place: str  #: of the part in the folder; empty: it is the whole network


def _take(catalogue: ModelCatalogue, raw: dict[str, str], folder: Path, at: str) -> None:
    """Take in a row; of the whole network only what nothing else says."""
    said: _SplitProfileRow = schema.parse_row(_SplitProfileRow, raw, at)
    name = f"{raw.get('id', '')}-{raw.get('precision', '')}"
    timed = catalogue.latency_ms.get((said["target"], name), {})
    if said["place"] or str(raw.get("batch", 1)) not in map(str, timed):
        ran = ran_in(said["engine"], said["target"], folder / said["place"], said["threads"])
        take_row(catalogue, raw, str(folder), at, ran)


def _check(splits: list[SplitNetwork], catalogue: ModelCatalogue) -> None:
    timed = {name for _, name in catalogue.latency_ms}
    for split in splits:
        for name, known in (("model", {*catalogue.models}), ("head", timed), ("tail", timed)):
            if getattr(split, name) not in known:
                raise ConfigError(
                    f"splits: {name} '{getattr(split, name)}' is no "
                    f"{'model of the fronts' if name == 'model' else 'row of profiles'}; names are "
                    f"ID-PRECISION, and there are {listed(known)}."
                )
