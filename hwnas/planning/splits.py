"""Networks that are cut in two: what ``split`` made of an export, or what somebody measured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypedDict

from hwnas.errors import ConfigError
from hwnas.planning.lacking import listed
from hwnas.planning.models import Catalogue, csv_rows, located, take_row
from hwnas.planning.service import Service, Split
from hwnas.planning.timed import ran_in
from hwnas.records import rows
from hwnas.records.cut import PROFILE, read_cuts
from hwnas.records.schema import Bound, Unfit


def read_splits(service: Service, catalogue: Catalogue, beside: Path) -> tuple[Split, ...]:
    """Return all ways to cut a network, with the latencies of parts taken in.

    Args:
        service: Names them.
        catalogue: Has the models; takes in latencies of their parts.
        beside: The folder that relative paths begin in, if they are not there from here.

    Raises:
        RunError: a folder is none of ``split``, or damaged.
        ConfigError: a model or a part is not known.
    """
    found = list[Split]()
    for said in service.splits:
        if isinstance(said, str):
            found += _read(located(said, beside), catalogue)
        else:
            found.append(said)
    _check(found, catalogue)
    return tuple(found)


def _read(folder: Path, catalogue: Catalogue) -> Iterator[Split]:
    """Yield what ``split`` made, its latencies taken in."""
    cuts = read_cuts(folder)
    for i, raw in enumerate(csv_rows(folder / PROFILE)):
        try:
            _take(catalogue, raw, folder, f"row {i}")
        except Unfit as problem:
            raise ConfigError(f"{folder / PROFILE} cannot be read: {problem}.") from None
    for cut in cuts:
        yield Split(cut["model"], cut["head"], cut["tail"], cut["activation_kib"])


class _Row(TypedDict):
    """By what a row of a profile was timed, beside what all profiles have."""

    engine: Annotated[str, Bound(1, 60)]
    target: Annotated[str, Bound(1, 100)]
    threads: Annotated[int, Bound(1, 1024)]
    place: str  #: of the part in the folder; empty: it is the whole network


def _take(catalogue: Catalogue, raw: dict[str, str], folder: Path, at: str) -> None:
    """Take in a row; of the whole network only what nothing else says."""
    said: _Row = rows.typed(_Row, raw, at)
    name = f"{raw.get('id', '')}-{raw.get('precision', '')}"
    timed = catalogue.latency_ms.get((said["target"], name), {})
    if said["place"] or str(raw.get("batch", 1)) not in map(str, timed):
        ran = ran_in(said["engine"], said["target"], folder / said["place"], said["threads"])
        take_row(catalogue, raw, str(folder), at, ran)


def _check(splits: list[Split], catalogue: Catalogue) -> None:
    timed = {name for _, name in catalogue.latency_ms}
    for split in splits:
        for name, known in (("model", {*catalogue.models}), ("head", timed), ("tail", timed)):
            if getattr(split, name) not in known:
                raise ConfigError(
                    f"splits: {name} '{getattr(split, name)}' is no "
                    f"{'model of the fronts' if name == 'model' else 'row of profiles'}; names are "
                    f"ID-PRECISION, and there are {listed(known)}."
                )
