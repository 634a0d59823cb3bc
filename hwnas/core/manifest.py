"""The manifest of a run: its options, digests, versions and results."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas.core.errors import RunError
from hwnas.core.quantity import QuantityRow
from hwnas.core.renamed_options import with_new_names
from hwnas.core.schema import OPEN, Count, NumberBounds, SchemaError, validate
from hwnas.core.typed_files import read_json

FORMAT = 2
Row = dict[str, Any]

_Names = Annotated[list[str], NumberBounds(maximum=1000)]


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
    min_candidates: Count
    max_candidates: NotRequired[Count | None]
    minutes: float | None


class _Benchmark(TypedDict, total=False):
    path: str
    accuracy: str
    costs: dict[str, str]


class ManifestOptions(TypedDict, total=False):
    """The options that are read back; manifests contain all options."""

    target: Annotated[_Target, OPEN]
    budget: dict[str, float | str | None]
    dataset: Annotated[_NamedOption, OPEN]
    sampler: Annotated[_NamedOption, OPEN]
    study: Annotated[_Study, OPEN]
    run: Annotated[_Places, OPEN]
    benchmark: Annotated[_Benchmark, OPEN]
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
    """How the members of a front were fine-tuned."""

    epochs: Count
    rate: float | None
    alpha: float
    max_int8_drop: float
    teacher: str | None
    finished: dict[str, QuantityRow]
    hurried: NotRequired[list[str]]  #: ids without int8 training, because time ran out


class TableFacts(TypedDict):
    """The latency table of a search, and how its machine differs from this one."""

    path: str
    foreign: str | None


class TargetRecord(TypedDict):
    """The record of one of several targets."""

    config: Annotated[ManifestOptions, OPEN]
    latency_table: NotRequired[TableFacts | None]


class SplitSizes(TypedDict):
    """Number of images of each split."""

    train: Count
    validation: Count
    test: Count


class Manifest(TypedDict):
    """``manifest.json``."""

    format: int
    verb: str
    status: NotRequired[str]
    arguments: list[str]
    command: NotRequired[str]
    directory: NotRequired[str]  #: working directory, to which paths of arguments are relative
    started: NotRequired[list[str]]
    config: NotRequired[Annotated[ManifestOptions, OPEN]]
    seed: NotRequired[int]
    digests: NotRequired[dict[str, str]]
    checkpoint: NotRequired[str | dict[str, str]]
    versions: NotRequired[dict[str, str]]
    n_genotypes: NotRequired[int]
    task: NotRequired[Annotated[_Task, OPEN]]
    images: NotRequired[SplitSizes]
    latency_table: NotRequired[TableFacts | None]
    objectives: NotRequired[_Names]
    targets: NotRequired[dict[str, TargetRecord]]
    part_of: NotRequired[str]  #: folder of the search for several targets
    own: NotRequired[dict[str, str]]
    files: NotRequired[dict[str, str]]  #: SHA-256 of the files of an ended run, by relative name
    finishing: NotRequired[FinetuningRecord]
    #: reasons why networks could not be verified, by target and id
    unverified: NotRequired[dict[str, dict[str, str]]]
    #: seconds of fine-tuning in all; its limit if the remaining time was too short
    finishing_s: NotRequired[Annotated[float, NumberBounds(0)]]
    finishing_epochs: NotRequired[Count]  #: of each member, chosen to fit into a time limit
    baseline: NotRequired[dict[str, Any]]
    n_candidates: NotRequired[Count]
    n_distinct: NotRequired[Count]
    n_infeasible: NotRequired[Count]
    n_front: NotRequired[Count]
    n_fronts: NotRequired[dict[str, Count]]
    n_images_read: NotRequired[Count]
    hypervolume_share: NotRequired[float | None]
    seconds: NotRequired[dict[str, float]]
    time_plan: NotRequired[dict[str, Any]]  #: division of ``minutes`` (``TimePlan``)
    elapsed_s: NotRequired[Annotated[float, NumberBounds(0)]]  #: of all commands of the run
    normalisation: NotRequired[dict[str, list[float]]]
    processes: NotRequired[Count]
    python: NotRequired[str]
    machine: NotRequired[dict[str, Any]]


#: Required options of a search: of all searches, and of those in search spaces.
_OF_SEARCH = ("n_trials", "seed", "budget", "sampler")
_IN_SPACES = ("target", "dataset", "cost", "search_space")


def read_manifest(path: Path, option: str = "run.resume") -> Manifest:
    """Return the manifest of a run folder.

    Args:
        path: The folder.
        option: Option that named the folder, for messages.

    Raises:
        RunError: if the folder is not a run, or its manifest is corrupt or of another format.
    """
    called = f"{option}={path}: manifest.json"
    try:
        file = path / "manifest.json"
        content = read_json(dict[str, Any], file, RunError, called, newest=FORMAT, oldest=FORMAT)
        manifest: Manifest = validate(Manifest, with_new_names(content))
        _check_search(manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{option}={path} is not a run: it has no manifest.json.") from None
    except SchemaError as problem:
        raise RunError(f"{called} cannot be read: {problem}.") from None
    return manifest


def missing_front_error(path: Path) -> RunError:
    """Return the error for a search without a front, with the command that fixes it."""
    manifest = read_manifest(path, "run")
    status = manifest.get("status", "running")
    if status in ("running", "finished"):
        folder = path.parent if "part_of" in manifest else path
        return RunError(
            f"run={path} has no front yet. Finish it with: "
            f"hwnas search {shlex.quote(f'run.resume={folder}')}"
        )
    return RunError(
        f"run={path} ended without a front: {status}. Start a new search with other limits."
    )


def _check_search(manifest: Manifest) -> None:
    """Check that the manifest of a search has all required fields."""
    if manifest["verb"] != "search":
        return
    config = manifest.get("config")
    if config is None:
        raise SchemaError("'config' is missing")
    targets = manifest.get("targets", {})
    if config.get("accuracy") == "table":
        _require(config, [*_OF_SEARCH, "benchmark"], "config")
        _require(config["benchmark"], ["path", "accuracy", "costs"], "config.benchmark")
    else:
        _require(config, [*_OF_SEARCH, *_IN_SPACES], "config")
    for name, record in targets.items():
        _require(record["config"], ["target", "budget"], f"targets.{name}.config")
    if targets and "objectives" not in manifest:
        raise SchemaError("'objectives' is missing")


def _require(content: Mapping[str, object], names: Iterable[str], at: str) -> None:
    for name in names:
        if name not in content:
            raise SchemaError(f"'{at}.{name}' is missing")


def accuracy_source(manifest: Mapping[str, Any]) -> str:
    """Return the option ``accuracy`` of a search: ``supernet``, ``trained`` or ``table``."""
    return str(manifest.get("config", {}).get("accuracy") or "supernet")
