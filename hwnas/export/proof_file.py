"""``proof.json``: what an export says of itself, and its reader. Nothing here needs torch."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas import tasks
from hwnas.core import safe_read
from hwnas.core.errors import HwnasError, RunError
from hwnas.core.quantity import Quantities, QuantityRow
from hwnas.core.schema import OPEN, Count, NumberBounds, Positive, SchemaError, Size, validate
from hwnas.core.typed_files import check_format
from hwnas.export.checks import Check
from hwnas.export.folder import PROOF
from hwnas.export.runtimes import kinds
from hwnas.hardware.target import Target, from_facts
from hwnas.models.graph import ACTIVATIONS, BASES, INPUT, NATIVE_BITS, Graph, Node, OpSpec
from hwnas.models.partition import cut, without_exits

FORMAT = 2
_MOST = 16 << 20  # bytes
_MOST_VALUES = 1 << 28  # of an image, or between two operators

_Side = Annotated[int, NumberBounds(1, 1 << 20)]
_Shape = tuple[_Side, _Side, _Side]


class OpRecord(TypedDict):
    """An operator: the fields of ``OpSpec``."""

    kind: str
    in_shape: _Shape
    out_shape: _Shape
    kernel: Annotated[int, NumberBounds(1, 1024)]
    stride: Annotated[int, NumberBounds(1, 1024)]
    groups: _Side
    dtype: str
    batch: _Side
    threads: NotRequired[Annotated[int, NumberBounds(0, 1024)]]  #: where it is said


class OperatorRecord(TypedDict):
    """A node of a network."""

    name: str
    op: OpRecord
    inputs: Annotated[list[str], NumberBounds(1, 3)]
    weight_bits: NotRequired[Annotated[int, NumberBounds(2, NATIVE_BITS)]]  #: where they are fewer
    in_float: NotRequired[bool]  #: where it is so
    is_sparse: NotRequired[bool]  #: where it is so


class ModelRecord(TypedDict):
    """The network."""

    id: str
    name: str
    genotype: dict[str, int | float | str]
    search_space: str
    family: str
    input: _Shape
    n_outputs: Size
    macs_m: float
    params_m: float
    operators: Annotated[list[OperatorRecord], NumberBounds(1, 100_000)]


class AgreementRecord(TypedDict):
    """How near outputs are to torch's: the fields of ``Agreement``."""

    reference: str
    n_images: Size
    max_error: float | None
    mean_error: float | None
    largest_output: float | None
    same: NotRequired[float]


class ArtefactRecord(TypedDict):
    """What was found of an artefact, beside its metric."""

    runtime: str
    dtype: str
    files: list[str]
    not_run: NotRequired[str]
    agreement: NotRequired[AgreementRecord]


class CheckRecord(TypedDict):
    """A check with its outcome: the fields of ``Check``."""

    name: str
    found: float | None  #: none where it was no number
    allowed: float
    words: str
    holds: bool
    is_least: NotRequired[bool]


class LimitRecord(TypedDict):
    """A limit of the budget."""

    limit: Positive
    margin: float | None


class NormalisationRecord(TypedDict):
    """Of each channel of an image."""

    mean: Annotated[list[float], NumberBounds(1, 1024)]
    std: Annotated[list[Positive], NumberBounds(1, 1024)]


class DataRecord(TypedDict):
    """What the network was trained on: options of a data set, and these."""

    digest: str
    max_resolution: Annotated[int, NumberBounds(1, 1 << 14)]
    images: dict[str, Count]
    normalisation: NormalisationRecord


class _NamedRecord(TypedDict):
    name: str


class ProvenanceRecord(TypedDict):
    """By what the export was made."""

    date: str
    command: str
    versions: dict[str, str]
    machine: dict[str, Any]


class ExitStatisticsRecord(TypedDict):
    """What leaving early comes to on some images."""

    left: list[QuantityRow]  #: shares of images that leave at each exit
    accuracy: QuantityRow
    costs: dict[str, QuantityRow]  #: of an image, on the average


class ThresholdRecord(TypedDict):
    """Thresholds that may be chosen, with what they come to."""

    thresholds: Annotated[list[float], NumberBounds(1, 100)]
    foreseen: ExitStatisticsRecord  #: by the half of the validation split that chose no threshold
    found: ExitStatisticsRecord  #: on the test split


class EarlyExitsRecord(ThresholdRecord):
    """Early exits, and what leaving comes to by the thresholds that were chosen."""

    operators: Annotated[
        list[OperatorRecord], NumberBounds(1, 100_000)
    ]  #: those of exits among them
    outputs: Annotated[list[str], NumberBounds(2, 101)]  #: of exits, and of the end
    segments: Annotated[list[list[str]], NumberBounds(2, 101)]  #: files of each
    max_drop: float  #: points that thresholds were chosen to lose at most, on validation
    trained: bool  #: whether torch's answers are those of a simulation of int8
    costs: list[dict[str, QuantityRow]]  #: of each segment
    worst: dict[str, QuantityRow]  #: of an image that runs to the end


class Proof(TypedDict):
    """``proof.json``."""

    format: int
    made: ProvenanceRecord
    model: Annotated[ModelRecord, OPEN]
    task: Annotated[_NamedRecord, OPEN]
    license: str
    source: dict[str, Any]
    seed: int
    training: dict[str, Any]
    finishing: dict[str, Any]
    dataset: Annotated[DataRecord, OPEN]
    target: dict[str, Any]
    energy_source: str
    reference: dict[str, QuantityRow]
    artefacts: dict[str, Annotated[ArtefactRecord, OPEN]]
    own_artefact: str
    figures: dict[str, QuantityRow]
    details: dict[str, float | None]
    budget: dict[str, LimitRecord]
    max_int8_drop: float
    tolerances: dict[str, dict[str, float | str]]
    checks: list[CheckRecord]
    commands: dict[str, str]
    opset: Size
    n_images: Annotated[int, NumberBounds(1, 1 << 16)]
    files: dict[str, str]
    exits: NotRequired[EarlyExitsRecord]


def read_proof(folder: Path) -> Proof:
    """Return the proof of an export.

    Raises:
        RunError: the folder is no export, or its proof contradicts itself.
    """
    path = folder / PROOF
    try:
        content = safe_read.parse_json(safe_read.read_text(path, _MOST))
        check_format(content, FORMAT, oldest=FORMAT)
        found: Proof = validate(Proof, content)
        _check_network(found["model"]["operators"], found["model"]["input"])
        if "exits" in found:
            _check_exits(found, found["exits"])
        _check_outcome(found)
        _check_task(found)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder} is no export: there is no {PROOF}.") from None
    except (safe_read.CorruptFileError, SchemaError, HwnasError) as problem:
        raise RunError(f"{path} cannot be read: {str(problem).rstrip('.')}.") from None
    return found


def _check_network(operators: list[OperatorRecord], read: _Shape) -> None:
    """Refuse operators that do not make a network."""
    known: set[str] = {INPUT}
    for row in operators:
        name, op = row["name"], row["op"]
        base, *fused = op["kind"].split("+")
        if base not in BASES or not {*fused} <= {*ACTIVATIONS, "bn", "add"}:
            raise SchemaError(f"operator '{name}' is of kind '{op['kind']}', which there is not")
        if missing := [other for other in row["inputs"] if other not in known]:
            raise SchemaError(f"operator '{name}' reads '{missing[0]}', which is not before it")
        for shape in (op["in_shape"], op["out_shape"]):
            if shape[0] * shape[1] * shape[2] * op["batch"] > _MOST_VALUES:
                raise SchemaError(
                    f"operator '{name}' has a tensor of more than {_MOST_VALUES} values"
                )
        known.add(name)
    if operators[0]["op"]["in_shape"] != read:
        raise SchemaError(f"'model.input' is {read}, the first operator reads another")


def _check_exits(found: Proof, leaving: EarlyExitsRecord) -> None:
    """Refuse exits of another network, and those whose parts are not of the same number."""
    _check_network(leaving["operators"], found["model"]["input"])
    n, names = len(leaving["outputs"]), [row["name"] for row in leaving["operators"]]
    if unknown := [name for name in leaving["outputs"] if name not in names]:
        raise SchemaError(f"'exits.outputs' names '{unknown[0]}', which is no operator")
    sizes = {
        "segments": (len(leaving["segments"]), n),
        "costs": (len(leaving["costs"]), n),
        "thresholds": (len(leaving["thresholds"]), n - 1),
    }
    for part, (size, wanted) in sizes.items():
        if size != wanted:
            raise SchemaError(f"'exits.{part}' are {size}; allowed: {wanted}")
    if {len(leaving[of]["left"]) for of in ("foreseen", "found")} != {n - 1}:
        raise SchemaError(f"'exits' must say of {n - 1} exits which images leave")
    graph = exits_from_json(leaving)
    if without_exits(graph).nodes != operators_from_json(found["model"]["operators"]).nodes:
        raise SchemaError("'exits.operators' are not those of the network, with exits")
    try:
        cut(graph)
    except ValueError:
        raise SchemaError("'exits.operators' cannot be cut at the exits") from None


def _check_outcome(found: Proof) -> None:
    """Refuse artefacts that the files are not of, and checks that do not say what was found."""
    held = {name for name in kinds() if name in found["files"]}
    if {*found["artefacts"]} != held:
        raise SchemaError(f"files are {', '.join(sorted(held))}, artefacts are others")
    for check in found["checks"]:
        value = float("nan") if check["found"] is None else check["found"]
        said = Check(check["name"], value, check["allowed"], "", check.get("is_least", False))
        if said.holds != check["holds"]:
            raise SchemaError(f"check '{check['name']}' does not come to what it says")
    ran = [name for name, row in found["artefacts"].items() if "not_run" not in row]
    needed = {f"{name}.error" for name in ran}
    if "exits" in found:
        needed |= {
            "exits.whole",
            *(f"exits.{i}.error" for i in range(len(found["exits"]["costs"]) - 1)),
        }
    needed |= {f"budget.{name}" for name in found["budget"] if name in found["figures"]}
    if missing := needed - {check["name"] for check in found["checks"]}:
        raise SchemaError(f"check '{min(missing)}' is missing")


def _check_task(found: Proof) -> None:
    """Refuse a task, a metric or a target that there is not, or of other outputs and channels."""
    task, model = tasks.from_json({**found["task"]}), found["model"]
    n = model["operators"][-1]["op"]["out_shape"][0]
    if not task.n_outputs == model["n_outputs"] == n:
        raise SchemaError(f"the network has {n} outputs, its task {task.n_outputs}")
    for name, row in found["artefacts"].items():
        if "not_run" not in row:
            said = {**row}.get(task.metric)
            validate(QuantityRow, said, f"artefacts.{name}.{task.metric}")
    normalisation = found["dataset"]["normalisation"]
    if {len(normalisation["mean"]), len(normalisation["std"])} != {model["input"][0]}:
        raise SchemaError(f"'dataset.normalisation' is not of {model['input'][0]} channels")
    target_of(found)


def name_of(recorded: Proof) -> str:
    """Return a network's id; what was pruned, or has fewer bits, is told from what it was."""
    name, steps = str(recorded["model"]["id"]), recorded["finishing"]["steps"]
    if not {"narrowed", "rounded"} & {step["step"] for step in steps}:
        return name
    operators = json.dumps(recorded["model"]["operators"], sort_keys=True)
    return f"{name}+{hashlib.sha256(operators.encode()).hexdigest()[:6]}"


def target_of(recorded: Proof) -> Target:
    """Return the target that an export was made for."""
    return from_facts(recorded["target"])


def operators_to_json(lowered: Graph) -> list[Any]:
    """Return operators as JSON."""
    unsaid = {"weight_bits": NATIVE_BITS, "in_float": False, "is_sparse": False}
    return [
        {k: v for k, v in asdict(node).items() if k not in unsaid or unsaid[k] != v}
        for node in lowered
    ]


def operators_from_json(rows: list[OperatorRecord]) -> Graph:
    """Return the operators that ``operators_to_json`` described."""
    return Graph.of(
        Node(
            row["name"],
            OpSpec(**row["op"]),
            tuple(row["inputs"]),
            row.get("weight_bits", NATIVE_BITS),
            row.get("in_float", False),
            row.get("is_sparse", False),
        )
        for row in rows
    )


def exits_from_json(leaving: EarlyExitsRecord) -> Graph:
    """Return the operators of a network with exits."""
    return replace(operators_from_json(leaving["operators"]), outputs=tuple(leaving["outputs"]))


def figures_to_json(figures: Quantities) -> dict[str, Any]:
    """Return figures as value, source and interval, by name."""
    return {name: figure.to_json() for name, figure in figures.items()}
