"""Schema and reader of ``proof.json``; needs no torch."""

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
from hwnas.models.graph import (
    ACTIVATIONS,
    BASES,
    INPUT,
    NATIVE_BITS,
    Graph,
    Node,
    OpSpec,
    split_at_exits,
    without_exits,
)

FORMAT = 2
_MAX_BYTES = 16 << 20
_MAX_VALUES = 1 << 28  # of a tensor

_Side = Annotated[int, NumberBounds(1, 1 << 20)]
_Shape = tuple[_Side, _Side, _Side]


class OpRecord(TypedDict):
    """An operator: the fields of ``models.graph.OpSpec``; shapes are (C, H, W)."""

    kind: str
    in_shape: _Shape
    out_shape: _Shape
    kernel: Annotated[int, NumberBounds(1, 1024)]
    stride: Annotated[int, NumberBounds(1, 1024)]
    groups: _Side
    dtype: str
    batch: _Side
    threads: NotRequired[Annotated[int, NumberBounds(0, 1024)]]  #: default: unknown


class OperatorRecord(TypedDict):
    """An operator of a network, with the names of the operators that it reads."""

    name: str
    op: OpRecord
    inputs: Annotated[list[str], NumberBounds(1, 3)]
    weight_bits: NotRequired[Annotated[int, NumberBounds(2, NATIVE_BITS)]]  #: default: 8
    in_float: NotRequired[bool]  #: whether it computes in float in an int8 network; default: no
    is_sparse: NotRequired[bool]  #: whether its weights are sparse; default: no


class ModelRecord(TypedDict):
    """The network of an export, without early exits."""

    id: str  #: id of the genotype
    name: str  #: title of the model card
    genotype: dict[str, int | float | str]  #: value of each choice of the search space, by name
    search_space: str  #: name of the search space
    family: str  #: name of the network family
    input: _Shape  #: (C, H, W)
    n_outputs: Size  #: number of classes or of predicted values
    macs_m: float  #: millions of multiply-accumulates per image
    params_m: float  #: millions of parameters
    operators: Annotated[list[OperatorRecord], NumberBounds(1, 100_000)]


class AgreementRecord(TypedDict):
    """Difference to the outputs of torch: the fields of ``checks.Agreement``; ``None``: NaN."""

    reference: str
    n_images: Size
    max_error: float | None
    mean_error: float | None
    largest_output: float | None
    same: NotRequired[float]


class ArtefactRecord(TypedDict):
    """Results of an artefact; a further key is the metric on the test split, as ``accuracy``."""

    runtime: str  #: name of the runtime that runs it
    dtype: str  #: type in which it computes
    files: list[str]  #: names of its files
    not_run: NotRequired[str]  #: why it could not run on the machine of the export
    agreement: NotRequired[AgreementRecord]  #: absent if it did not run


class CheckRecord(TypedDict):
    """A check with its outcome: the fields of ``checks.Check``."""

    name: str
    found: float | None  #: the value; ``None``: NaN
    allowed: float  #: the limit
    words: str  #: description of the value
    holds: bool
    is_least: NotRequired[bool]  #: whether the limit is the minimum; default: no


class LimitRecord(TypedDict):
    """A limit of the budget."""

    limit: Positive  #: in the unit of the cost
    #: how far the worse end of the cost's interval is within the limit, as a fraction of the
    #: limit; below 0 if the limit is not met; ``None``: not finite
    margin: float | None


class NormalisationRecord(TypedDict):
    """Mean and standard deviation of each channel, as fractions of 255."""

    mean: Annotated[list[float], NumberBounds(1, 1024)]
    std: Annotated[list[Positive], NumberBounds(1, 1024)]


class DataRecord(TypedDict):
    """The data set; further keys are its options (``dataset.*``)."""

    digest: str  #: digest of images, targets and splits
    #: side in pixels to which images of files were resized on loading
    max_resolution: Annotated[int, NumberBounds(1, 1 << 14)]
    images: dict[str, Count]  #: number of images by split
    normalisation: NormalisationRecord


class _NamedRecord(TypedDict):
    name: str


class ProvenanceRecord(TypedDict):
    """Command, versions and machine of the export."""

    date: str  #: time of the export
    command: str  #: command that made it
    versions: dict[str, str]  #: version by package
    machine: dict[str, Any]  #: its facts, as ``system`` and ``cpu``


class ExitStatisticsRecord(TypedDict):
    """Statistics of early exits on a split of the data set."""

    left: list[QuantityRow]  #: fraction of images that leave at each exit, the end excluded
    accuracy: QuantityRow  #: fraction of correct predictions
    costs: dict[str, QuantityRow]  #: mean cost per image: ``expected_latency_ms``, ...


class ThresholdRecord(TypedDict):
    """Confidence thresholds of the exits, with their statistics."""

    #: minimum confidence of each exit; an image leaves at the first exit that reaches it
    thresholds: Annotated[list[float], NumberBounds(1, 100)]
    foreseen: ExitStatisticsRecord  #: on the half of the validation split that chose no thresholds
    found: ExitStatisticsRecord  #: on the test split


class EarlyExitsRecord(ThresholdRecord):
    """The segments of a network with exits, with the chosen thresholds."""

    operators: Annotated[list[OperatorRecord], NumberBounds(1, 100_000)]  #: including exits
    #: names of the operators that return the outputs of each exit, then of the end
    outputs: Annotated[list[str], NumberBounds(2, 101)]
    #: names of the files of each segment
    segments: Annotated[list[list[str]], NumberBounds(2, 101)]
    max_drop: float  #: allowed loss on the validation split, in percentage points of accuracy
    trained: bool  #: whether torch's outputs are of a simulation of int8
    costs: list[dict[str, QuantityRow]]  #: costs of each segment, by name
    worst: dict[str, QuantityRow]  #: costs of an image that runs to the end, by name


class Proof(TypedDict):
    """Content of ``proof.json``."""

    format: int  #: version of this schema
    made: ProvenanceRecord
    model: Annotated[ModelRecord, OPEN]
    task: Annotated[_NamedRecord, OPEN]
    license: str  #: licence of the export, as its identifier
    source: dict[str, Any]  #: the search: run, command, supernet and reported figures
    seed: int  #: seed of the search
    training: dict[str, Any]  #: options ``train.*`` of the search
    finishing: dict[str, Any]  #: steps of fine-tuning and quantisation
    dataset: Annotated[DataRecord, OPEN]
    target: dict[str, Any]  #: options ``target.*``
    energy_source: str  #: text on the origin of the energy
    reference: dict[str, QuantityRow]  #: metric of torch (float32) on the test split, by its name
    artefacts: dict[str, Annotated[ArtefactRecord, OPEN]]  #: by name of their first file
    own_artefact: str  #: the artefact that the target runs
    figures: dict[str, QuantityRow]  #: costs of ``own_artefact`` on the target, by name
    details: dict[str, float | None]  #: further results of the measurement
    budget: dict[str, LimitRecord]  #: limits by name of the cost
    max_int8_drop: float  #: allowed loss by int8, in the points of ``MetricLoss``
    tolerances: dict[str, dict[str, float | str]]  #: allowed errors by dtype, see ``checks``
    checks: list[CheckRecord]
    commands: dict[str, str]  #: how to repeat search, export and verification
    opset: Size  #: version of ONNX operators
    n_images: Annotated[int, NumberBounds(1, 1 << 16)]  #: number of images in ``images.npz``
    files: dict[str, str]  #: sha256 in hexadecimal of each file, by path; without proof, signature
    exits: NotRequired[EarlyExitsRecord]  #: absent for networks without early exits


def read_proof(folder: Path) -> Proof:
    """Return the checked content of ``proof.json`` in an export.

    Raises:
        RunError: the folder has no ``proof.json``, or this is invalid or contradicts itself.
    """
    path = folder / PROOF
    try:
        content = safe_read.parse_json(safe_read.read_text(path, _MAX_BYTES))
        check_format(content, FORMAT, oldest=FORMAT)
        proof: Proof = validate(Proof, content)
        _check_network(proof["model"]["operators"], proof["model"]["input"])
        if "exits" in proof:
            _check_exits(proof, proof["exits"])
        _check_outcome(proof)
        _check_task(proof)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder} is not an export: it has no {PROOF}. Give a folder that hwnas export wrote."
        ) from None
    except (safe_read.CorruptFileError, SchemaError, HwnasError) as problem:
        raise RunError(
            f"{path} cannot be read: {str(problem).rstrip('.')}. Restore the file, or export the "
            "network again."
        ) from None
    return proof


def _check_network(operators: list[OperatorRecord], input_shape: _Shape) -> None:
    """Check that operators form a network."""
    known: set[str] = {INPUT}
    for row in operators:
        name, op = row["name"], row["op"]
        base, *fused = op["kind"].split("+")
        if base not in BASES or not {*fused} <= {*ACTIVATIONS, "bn", "add"}:
            raise SchemaError(f"operator '{name}' is of unknown kind '{op['kind']}'")
        if missing := [source for source in row["inputs"] if source not in known]:
            raise SchemaError(f"operator '{name}' reads '{missing[0]}', which is not before it")
        for shape in (op["in_shape"], op["out_shape"]):
            if shape[0] * shape[1] * shape[2] * op["batch"] > _MAX_VALUES:
                raise SchemaError(
                    f"operator '{name}' has a tensor of more than {_MAX_VALUES} values, the maximum"
                )
        known.add(name)
    if operators[0]["op"]["in_shape"] != input_shape:
        raise SchemaError(
            f"'model.input' is {input_shape}, but 'in_shape' of the first operator is "
            f"{operators[0]['op']['in_shape']}"
        )


def _check_exits(proof: Proof, record: EarlyExitsRecord) -> None:
    """Check that exits are of the network, and that their parts have the same length."""
    _check_network(record["operators"], proof["model"]["input"])
    n, names = len(record["outputs"]), [row["name"] for row in record["operators"]]
    if unknown := [name for name in record["outputs"] if name not in names]:
        raise SchemaError(f"'exits.outputs' names '{unknown[0]}', which is not an operator")
    sizes = {
        "segments": (len(record["segments"]), n),
        "costs": (len(record["costs"]), n),
        "thresholds": (len(record["thresholds"]), n - 1),
    }
    for part, (size, expected) in sizes.items():
        if size != expected:
            raise SchemaError(f"'exits.{part}' has length {size}; allowed: {expected}")
    if {len(record[name]["left"]) for name in ("foreseen", "found")} != {n - 1}:
        raise SchemaError(f"'left' in parts of 'exits' must have {n - 1} entries")
    graph = exits_from_json(record)
    if without_exits(graph).nodes != operators_from_json(proof["model"]["operators"]).nodes:
        raise SchemaError("'exits.operators' without exits differ from 'model.operators'")
    try:
        split_at_exits(graph)
    except ValueError:
        raise SchemaError("'exits.operators' cannot be split at the exits") from None


def _check_outcome(proof: Proof) -> None:
    """Check that artefacts have files, and that the outcomes of checks are correct and complete."""
    names = {name for name in kinds() if name in proof["files"]}
    if {*proof["artefacts"]} != names:
        raise SchemaError(
            f"'artefacts' has {', '.join(sorted(proof['artefacts'])) or 'none'}, but the artefacts "
            f"in 'files' are {', '.join(sorted(names)) or 'none'}"
        )
    for check in proof["checks"]:
        value = float("nan") if check["found"] is None else check["found"]
        recorded = Check(check["name"], value, check["allowed"], "", check.get("is_least", False))
        if recorded.holds != check["holds"]:
            raise SchemaError(
                f"check '{check['name']}' has holds={check['holds']}, but {value:g} and the limit "
                f"{check['allowed']:g} give {recorded.holds}"
            )
    ran = [name for name, row in proof["artefacts"].items() if "not_run" not in row]
    needed = {f"{name}.error" for name in ran}
    if "exits" in proof:
        needed |= {
            "exits.whole",
            *(f"exits.{i}.error" for i in range(len(proof["exits"]["costs"]) - 1)),
        }
    needed |= {f"budget.{name}" for name in proof["budget"] if name in proof["figures"]}
    if missing := needed - {check["name"] for check in proof["checks"]}:
        raise SchemaError(f"'checks' has no check '{min(missing)}'")


def _check_task(proof: Proof) -> None:
    """Check that task, metric and target exist and fit the network."""
    task, model = tasks.from_json({**proof["task"]}), proof["model"]
    n = model["operators"][-1]["op"]["out_shape"][0]
    if not task.n_outputs == model["n_outputs"] == n:
        raise SchemaError(
            f"the last operator has {n} outputs, 'model.n_outputs' is {model['n_outputs']}, and "
            f"'task' has {task.n_outputs}: they must be equal"
        )
    if task.metric not in proof["reference"]:
        raise SchemaError(f"'reference' has no value of the metric, '{task.metric}'")
    for name, row in proof["artefacts"].items():
        if "not_run" not in row:
            value = {**row}.get(task.metric)
            validate(QuantityRow, value, f"artefacts.{name}.{task.metric}")
    normalisation = proof["dataset"]["normalisation"]
    if {len(normalisation["mean"]), len(normalisation["std"])} != {model["input"][0]}:
        raise SchemaError(
            f"'dataset.normalisation' must have mean and std of {model['input'][0]} channels"
        )
    target_of(proof)


def name_of(recorded: Proof) -> str:
    """Return the id of an exported network.

    If it was pruned or has weights of fewer bits, ``+`` and six digits of a digest of its operators
    follow, to distinguish it from the original network.
    """
    name, steps = str(recorded["model"]["id"]), recorded["finishing"]["steps"]
    if not {"narrowed", "rounded"} & {step["step"] for step in steps}:
        return name
    operators = json.dumps(recorded["model"]["operators"], sort_keys=True)
    return f"{name}+{hashlib.sha256(operators.encode()).hexdigest()[:6]}"


def target_of(recorded: Proof) -> Target:
    """Return the target of ``proof.json``, without the path of its C compiler.

    Raises:
        SchemaError: a field is unknown or missing.
        ConfigError: a value is not allowed.
    """
    facts = recorded["target"]
    tvm = facts.get("tvm")
    return from_facts(facts | {"tvm": tvm | {"cc": ""}} if tvm else facts)


def operators_to_json(lowered: Graph) -> list[Any]:
    """Return the operators of a graph as in ``proof.json``, see ``OperatorRecord``.

    Fields with their default are left out.
    """
    defaults = {"weight_bits": NATIVE_BITS, "in_float": False, "is_sparse": False}
    return [
        {k: v for k, v in asdict(node).items() if k not in defaults or defaults[k] != v}
        for node in lowered
    ]


def operators_from_json(rows: list[OperatorRecord]) -> Graph:
    """Return the graph of operators in ``proof.json``, as ``operators_to_json`` writes them."""
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


def exits_from_json(record: EarlyExitsRecord) -> Graph:
    """Return the graph of a network with early exits from ``exits`` of ``proof.json``."""
    return replace(operators_from_json(record["operators"]), outputs=tuple(record["outputs"]))


def figures_to_json(figures: Quantities) -> dict[str, Any]:
    """Return quantities as lists ``[value, source, low, high]``, by name."""
    return {name: figure.to_json() for name, figure in figures.items()}
