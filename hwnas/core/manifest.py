"""The manifest of a run: its options, digests, versions and results."""

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas.core.errors import RunError
from hwnas.core.quantity import QuantityRow
from hwnas.core.renamed_options import with_new_names
from hwnas.core.schema import OPEN, Count, NumberBounds, SchemaError, validate
from hwnas.core.typed_files import read_json, to_json_bytes

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
    """The options of a run that later commands read; manifests also contain the other options."""

    target: Annotated[_Target, OPEN]
    budget: dict[str, float | str | None]  #: its name, and limits by metric
    dataset: Annotated[_NamedOption, OPEN]
    sampler: Annotated[_NamedOption, OPEN]
    study: Annotated[_Study, OPEN]
    run: Annotated[_Places, OPEN]  #: folders
    benchmark: Annotated[_Benchmark, OPEN]
    train: dict[str, str | int | float | bool | None]
    trained: Annotated[_SupernetRecord, OPEN]
    finish: Annotated[_Finish, OPEN]
    accuracy: str | None  #: ``supernet``, ``trained`` or ``table``
    cost: str | None  #: name of the cost model
    search_space: str | list[str] | None  #: names or paths
    objectives: _Names  #: names of metrics
    n_trials: Count  #: requested number of trials
    minutes: float | None  #: time limit of the command
    seed: int


class FinetuningRecord(TypedDict):
    """How the members of a front were fine-tuned, and their metric afterwards."""

    epochs: Count  #: of each member
    rate: float | None  #: peak learning rate; ``None``: that of the training
    alpha: float  #: weight of the teacher's outputs in the loss, in [0, 1]
    #: loss of the metric by int8, in points, above which a member is also trained in int8
    max_int8_drop: float
    teacher: str | None  #: id of the network whose outputs the members learned; ``None``: none
    finished: dict[str, QuantityRow]  #: validation metric after fine-tuning, by id
    hurried: NotRequired[list[str]]  #: ids of members without int8 training: time ran out
    collapsed: NotRequired[dict[str, str]]  #: messages of trainings that failed, by id


class TableFacts(TypedDict):
    """The latency table of a search."""

    path: str  #: path of the table
    #: how the machine on which it was measured differs from that of the search; ``None``: same one
    foreign: str | None


class TargetRecord(TypedDict):
    """One target in the manifest of a search for several targets."""

    config: Annotated[ManifestOptions, OPEN]
    latency_table: NotRequired[TableFacts | None]  #: ``None``: costs are not from a table


class SplitSizes(TypedDict):
    """Number of images of each split."""

    train: Count
    validation: Count
    test: Count


class Manifest(TypedDict):
    """The content of ``manifest.json``, the record of a run. Optional fields depend on the verb."""

    format: int  #: version of this layout, see ``FORMAT``
    verb: str  #: such as ``search``
    #: ``running``, ``finished``, ``finished by another`` process, or why the run has no result
    status: NotRequired[str]
    arguments: list[str]  #: of the command line, without secrets
    command: NotRequired[str]  #: that starts the run again
    directory: NotRequired[str]  #: working directory, to which paths of arguments are relative
    started: NotRequired[list[str]]  #: local times of the start and of each resumption
    config: NotRequired[Annotated[ManifestOptions, OPEN]]  #: all options
    seed: NotRequired[int]
    digests: NotRequired[dict[str, str]]  #: of what affects results, by name; compared on resume
    checkpoint: NotRequired[str | dict[str, str]]  #: path of the trained weights, or by space
    versions: NotRequired[dict[str, str]]  #: by package
    n_genotypes: NotRequired[int]  #: number of networks in the search space
    task: NotRequired[Annotated[_Task, OPEN]]  #: see ``Task.to_json``
    images: NotRequired[SplitSizes]
    latency_table: NotRequired[TableFacts | None]  #: ``None``: costs are not from a table
    objectives: NotRequired[_Names]  #: of the joint front of several targets
    targets: NotRequired[dict[str, TargetRecord]]  #: of a search for several targets, by name
    part_of: NotRequired[str]  #: folder of the search for several targets
    own: NotRequired[dict[str, str]]  #: classes of the objects that the user passed, by argument
    files: NotRequired[dict[str, str]]  #: SHA-256 of the files of an ended run, by relative name
    finishing: NotRequired[FinetuningRecord]  #: fine-tuning of the front
    #: reasons why networks failed verification (for example in the compiler), by target and id
    unverified: NotRequired[dict[str, dict[str, str]]]
    #: seconds of fine-tuning, all networks together; at least the limit if it was too short
    finishing_s: NotRequired[Annotated[float, NumberBounds(0)]]
    finishing_epochs: NotRequired[Count]  #: of each member, chosen to fit into a time limit
    baseline: NotRequired[dict[str, Any]]  #: comparison with ``baseline=``
    n_candidates: NotRequired[Count]  #: scored trials
    n_distinct: NotRequired[Count]  #: different networks among them
    n_infeasible: NotRequired[Count]  #: trials whose network misses the budget
    n_front: NotRequired[Count]  #: members of the front
    n_fronts: NotRequired[dict[str, Count]]  #: members of the front of each target
    n_images_read: NotRequired[Count]  #: evaluated validation images, over all networks
    table_sha256: NotRequired[str]  #: of the file of a benchmark table
    #: hypervolume of the front as a fraction of that of the table's best front, in [0, 1]
    hypervolume_share: NotRequired[float | None]
    seconds: NotRequired[dict[str, float]]  #: duration of each phase in s
    time_plan: NotRequired[dict[str, Any]]  #: division of ``minutes`` (``TimePlan``)
    elapsed_s: NotRequired[Annotated[float, NumberBounds(0)]]  #: of all commands of the run
    normalisation: NotRequired[dict[str, list[float]]]  #: ``mean`` and ``std`` by channel
    processes: NotRequired[Count]  #: number of processes that evaluated candidates
    python: NotRequired[str]  #: version of Python
    machine: NotRequired[dict[str, Any]]  #: properties of the machine, such as ``cores``
    sha256: NotRequired[str]  #: of the other fields as JSON, see ``with_checksum``


#: Suffixes of the model files of other programs.
MODEL_SUFFIXES = (".pt", ".pth", ".onnx", ".tflite", ".safetensors")
#: What to do with one instead.
OWN_MODEL = (
    "hwnas searches its own network families; it does not start from a model of your own. For a "
    "network for the same data: hwnas search +target=NAME dataset=images dataset.path=DIR. To "
    "prune your own model: Torch-Pruning; to convert it to int8: LiteRT. To time an ONNX model: "
    "hwnas profile +target=NAME genotype=MODEL.onnx."
)
#: Required options of a search: of all searches, and of those in search spaces.
_OF_SEARCH = ("n_trials", "seed", "budget", "sampler")
_IN_SPACES = ("target", "dataset", "cost", "search_space")


def read_manifest(path: Path, option: str = "run.resume") -> Manifest:
    """Return the manifest of a run folder.

    Args:
        path: The folder.
        option: Option that named the folder, for messages.

    Raises:
        RunError: if there is no such folder, it has no ``manifest.json``, or the manifest is
            corrupt, does not have its checksum, lacks a field, or is of another format.
    """
    if path.is_file():
        raise RunError(f"{option}={path} is a file. {_advice_on_file(path, option)}")
    called = f"{option}={path}: manifest.json"
    try:
        file = path / "manifest.json"
        content = read_json(dict[str, Any], file, RunError, called, newest=FORMAT, oldest=FORMAT)
        _check_checksum(content, called)
        manifest: Manifest = validate(Manifest, with_new_names(content))
        _check_search(manifest)
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_dir():
            raise RunError(f"{option}={path}: no such folder. Give the folder of a run.") from None
        raise RunError(
            f"{option}={path} is not a run: it has no manifest.json. Give the folder of a run."
        ) from None
    except SchemaError as problem:
        raise RunError(f"{called} cannot be read: {problem}.") from None
    return manifest


def with_checksum(content: Mapping[str, Any]) -> Row:
    """Return the content of a manifest with the field ``sha256``, which is its last.

    It is the SHA-256 of the other fields, written as JSON. Manifests of early versions have none.
    """
    fields = {name: value for name, value in content.items() if name != "sha256"}
    return fields | {"sha256": hashlib.sha256(to_json_bytes(fields)).hexdigest()}


def _check_checksum(content: Row, called: str) -> None:
    if "sha256" in content and content != with_checksum(content):
        raise RunError(
            f"{called} was changed after hwnas wrote it: its content does not have the SHA-256 "
            "that it records. Restore it from a copy of the run, or start a new run."
        )


def _advice_on_file(path: Path, option: str) -> str:
    if path.suffix.lower() in MODEL_SUFFIXES:
        return OWN_MODEL
    if path.name == "manifest.json":
        return f"Give its folder: {option}={path.parent}"
    return "Give the folder of a run."


def missing_front_error(path: Path) -> RunError:
    """Return the error for a search without a front; its message says why, and what to do.

    Raises:
        RunError: ``path`` is not a run, or its manifest cannot be read.
    """
    manifest = read_manifest(path, "run")
    status = manifest.get("status", "running")
    if status in ("running", "finished"):
        folder = path.parent if "part_of" in manifest else path
        return RunError(
            f"run={path} has no front yet. Finish it with: hwnas resume {shlex.quote(str(folder))}"
        )
    if status == "finished by another":
        return RunError(
            f"run={path} has no front: another process of the study verified it. Name the folder "
            "of that process."
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


def _require(content: Mapping[str, object], names: Iterable[str], path: str) -> None:
    for name in names:
        if name not in content:
            raise SchemaError(f"'{path}.{name}' is missing")


def accuracy_source(manifest: Mapping[str, Any]) -> str:
    """Return the option ``accuracy`` of a search: ``supernet``, ``trained`` or ``table``.

    Manifests without it are of searches with ``supernet``.
    """
    return str(manifest.get("config", {}).get("accuracy") or "supernet")
