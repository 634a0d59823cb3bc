"""The manifest of a run: what was asked for, and what it came to."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas.core.errors import RunError
from hwnas.core.quantity import QuantityRow
from hwnas.core.schema import OPEN, Count, NumberBounds, SchemaError
from hwnas.core.typed_files import read_json

FORMAT = 2  #: of manifests that are written; those of the first edition say none
Row = dict[str, Any]

_Names = Annotated[list[str], NumberBounds(most=1000)]


class _NamedOption(TypedDict):
    name: str


class _Task(_NamedOption):
    classes: NotRequired[list[str]]


class _Target(_NamedOption):
    caveat: NotRequired[str]


class _Study(TypedDict):
    storage: str | None
    name: str


class _Places(TypedDict):
    supernets: NotRequired[str]


class _SupernetRecord(TypedDict):
    fidelities: list[Count]


class _Finish(TypedDict):
    probability: float
    n_least: Count
    n_most: NotRequired[Count | None]
    minutes: float | None


class _Benchmark(TypedDict, total=False):
    path: str
    accuracy: str
    costs: dict[str, str]


class ManifestOptions(TypedDict, total=False):
    """Options that are read again; there are more, which come and go."""

    target: Annotated[_Target, OPEN]
    budget: dict[str, float | str | None]
    dataset: Annotated[_NamedOption, OPEN]
    sampler: Annotated[_NamedOption, OPEN]
    study: Annotated[_Study, OPEN]
    run: Annotated[_Places, OPEN]
    table: Annotated[_Benchmark, OPEN]
    train: dict[str, str | int | float | bool | None]
    trained: Annotated[_SupernetRecord, OPEN]
    finish: Annotated[_Finish, OPEN]
    accuracy: str | None
    cost: str | None
    search_space: str | list[str] | None
    objectives: _Names
    n_trials: Count
    seed: int


class FinetuningRecord(TypedDict):
    """How the members of a front were made ready."""

    epochs: Count
    rate: float | None
    alpha: float
    max_int8_drop: float
    teacher: str | None
    finished: dict[str, QuantityRow]
    hurried: NotRequired[list[str]]  #: ids that there was no time to train for int8


class TableFacts(TypedDict):
    """Which latency table was read, and what is foreign about it."""

    path: str
    foreign: str | None


class TargetRecord(TypedDict):
    """What a manifest says of one of several targets."""

    config: Annotated[ManifestOptions, OPEN]
    latency_table: NotRequired[TableFacts | None]


class SplitSizes(TypedDict):
    """How many images each split has."""

    train: Count
    validation: Count
    test: Count


class Manifest(TypedDict):
    """``manifest.json``."""

    format: NotRequired[int]
    verb: NotRequired[str]  #: before there were several, runs were searches
    status: NotRequired[str]
    arguments: list[str]
    command: NotRequired[str]
    started: NotRequired[list[str]]
    config: NotRequired[Annotated[ManifestOptions, OPEN]]
    seed: NotRequired[int]
    digests: NotRequired[dict[str, str]]
    checkpoint: NotRequired[str | dict[str, str]]
    versions: NotRequired[dict[str, str]]
    n_genotypes: NotRequired[int]
    task: NotRequired[Annotated[_Task, OPEN]]
    classes: NotRequired[list[str]]  #: of the first edition, which had no other task
    images: NotRequired[SplitSizes]
    latency_table: NotRequired[TableFacts | None]
    objectives: NotRequired[_Names]
    targets: NotRequired[dict[str, TargetRecord]]
    part_of: NotRequired[str]  #: a search for several targets
    own: NotRequired[dict[str, str]]
    finishing: NotRequired[FinetuningRecord]
    unverified: NotRequired[
        dict[str, dict[str, str]]
    ]  #: why networks could not be verified, by target and id
    finishing_s: NotRequired[
        Annotated[float, NumberBounds(0)]
    ]  #: that it took by now, however often resumed; all it may, where too little was left of it
    baseline: NotRequired[dict[str, Any]]
    n_candidates: NotRequired[Count]
    n_distinct: NotRequired[Count]
    n_infeasible: NotRequired[Count]
    n_front: NotRequired[Count]
    n_fronts: NotRequired[dict[str, Count]]
    n_images_read: NotRequired[Count]
    hypervolume_share: NotRequired[float | None]
    seconds: NotRequired[dict[str, float]]
    normalisation: NotRequired[dict[str, list[float]]]
    processes: NotRequired[Count]
    python: NotRequired[str]
    machine: NotRequired[dict[str, Any]]


#: What a search must say, by what finds accuracies.
_SEARCHED = ("n_trials", "seed", "budget", "sampler")
_IN_SPACES = ("target", "dataset", "cost", "search_space")


def read_manifest(path: Path, option: str = "run.resume") -> Manifest:
    """Return the manifest of a run folder.

    Args:
        path: The folder.
        option: By which the user named it.

    Raises:
        RunError: the folder is not a run's, its manifest is damaged, or of a newer version.
    """
    called = f"{option}={path}: manifest.json"
    try:
        found = read_json(Manifest, path / "manifest.json", RunError, called, newest=FORMAT)
        _check_search(found)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{option}={path}: no manifest.json there, so it is not a run.") from None
    except SchemaError as problem:
        raise RunError(f"{called} cannot be read: {problem}.") from None
    return found


def without_front(path: Path) -> RunError:
    """Return what is wrong with the run of a search that has no front, and what cures it."""
    found = read_manifest(path, "run")
    status = found.get("status", "running")
    if status in ("running", "finished"):
        whole = path.parent if "part_of" in found else path
        return RunError(
            f"run={path} has no front yet. Finish it with: "
            f"python -m hwnas search {shlex.quote(f'run.resume={whole}')}"
        )
    return RunError(f"run={path} ended without a front: {status}. Search anew, with other limits.")


def _check_search(found: Manifest) -> None:
    """Refuse the manifest of a search that lacks what every search says."""
    if found.setdefault("verb", "search") != "search":
        return
    found.setdefault("status", "running")
    config = found.get("config")
    if config is None:
        raise SchemaError("'config' is missing")
    several = found.get("targets", {})
    if config.get("accuracy") == "table":
        _require(config, [*_SEARCHED, "table"], "config")
        _require(config["table"], ["path", "accuracy", "costs"], "config.table")
    else:
        _require(config, [*_SEARCHED, *_IN_SPACES], "config")
    for name, own in several.items():
        _require(own["config"], ["target", "budget"], f"targets.{name}.config")
    if several and "objectives" not in found:
        raise SchemaError("'objectives' is missing")


def _require(content: Mapping[str, object], names: Iterable[str], at: str) -> None:
    for name in names:
        if name not in content:
            raise SchemaError(f"'{at}.{name}' is missing")


def weights_of(manifest: Mapping[str, Any]) -> str:
    """Return what scored candidates in a search (``accuracy=...``), by its manifest."""
    said = manifest.get("config", {}).get("accuracy")
    return str(said or "supernet")  # earlier versions had nothing else, and did not record it
