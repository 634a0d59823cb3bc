"""Latency of a network by operator."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.analysis.figures import layers_png
from hwnas.core import safe_read
from hwnas.core.errors import CompileError, ConfigError, SpaceError, unknown_name
from hwnas.core.run_folder import RunFolder, default_path
from hwnas.core.typed_files import parse_json_as, read_json
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.costs.cost_model import Cost, LayerCost
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.roofline_cost import OperatorTime, network_cost, operator_bound
from hwnas.hardware.latency_tables.provenance import writable_table
from hwnas.hardware.target import Roofline
from hwnas.models.families import annotations
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.onnx import importer
from hwnas.models.spaces import Genotype, Option, SearchSpace
from hwnas.nas.verified_files import FORMAT, VerifiedModelFile
from hwnas.workflows.config import ProfileConfig
from hwnas.workflows.device import SHIPPED, MeasuredTarget
from hwnas.workflows.networks import Networks

_RUNS = Path("runs", "search")
_MAX_MODEL_BYTES = 2 << 30  # maximum size of an ONNX file in bytes


@dataclass(frozen=True)
class LayerLatency:
    """The latency of one operator."""

    name: str  #: name of the node in the graph
    operator: str  #: type and shapes as text
    latency_ms: float
    #: what limits its speed: ``compute``, ``memory`` or ``launch``; empty if the target has no
    #: roofline of its number format
    bound: str


@dataclass(frozen=True)
class LatencyBreakdown:
    """The latency of a network by operator."""

    path: Path  #: folder with ``layers.csv`` and ``layers.png``
    title: str  #: network, target and ``source``
    layers: Sequence[LayerLatency]  #: in order of the graph
    source: str  #: source of the latencies, as text

    @property
    def messages(self) -> list[str]:
        """The total latency with its source, and the files, as text."""
        total = sum(layer.latency_ms for layer in self.layers)
        files = f"Files in {self.path}: layers.csv layers.png"
        return [f"Sum {total:.5f} ms, {self.source}. {files}"]


def layer_latencies(networks: Networks, config: ProfileConfig) -> LatencyBreakdown:
    """Return the latency of each operator of ``config.genotype``; also write a table and a plot.

    Raises:
        ConfigError: there is no such network, its batch size is not supported, or latencies by
            operator are unknown, as the target is measured by whole networks.
        SpaceError: the network is not in the search space.
        CompileError: the target does not support an operator.
    """
    assert config.genotype is not None
    name, lowered = _find(networks, config.genotype, config.seed)
    _check_batch(lowered, config)
    layers, source = _layers(lowered, config)
    folder = RunFolder(default_path("profile"))
    folder.create()
    try:
        rows = [vars(layer) for layer in layers]
        folder.write_csv("layers.csv", rows)
        title = f"{name} on {config.target.name} ({source})"
        shown = [(layer.name, layer.latency_ms, layer.bound) for layer in layers]
        folder.write_bytes("layers.png", layers_png(shown, title))
    finally:
        folder.close()
    return LatencyBreakdown(folder.path, title, layers, source)


def find_genotype(
    space: SearchSpace, text: str, seed: int = 0, ignored: Collection[str] = ()
) -> Genotype:
    """Return the genotype given by a text.

    Args:
        space: The search space.
        text: ``smallest``, ``largest``, ``random``, options as JSON, a file ``models/ID.json`` of a
            run, or the id of a front member of a run in ``runs/search``; of several runs the last.
        seed: Seed of ``random``.
        ignored: Choices that a file may have and the space lacks.

    Raises:
        ConfigError: there is no such file or id, the JSON is invalid, or the network of the file is
            of another search space.
        SpaceError: the genotype is not in the space.
    """
    if text == "random":
        return space.sample(random.Random(f"network {seed}"))
    if text in ("smallest", "largest"):
        return space.smallest() if text == "smallest" else space.largest()
    if text.startswith("{"):
        options = parse_json_as(
            dict[str, int | float | str], text, ConfigError, f"genotype={text[:200]}"
        )
        _check_names(space, options)
        return space.genotype(options)
    path = Path(text)
    if not path.is_file():
        matches = sorted(
            [*_RUNS.glob(f"*/models/{text}.json"), *_RUNS.glob(f"*/*/models/{text}.json")]
        )
        if not matches:
            raise ConfigError(
                f"genotype={text}: no such file, and no run in {_RUNS} has a front member with "
                "this id. Allowed: smallest, largest, random, options as JSON, RUN/models/ID.json, "
                "the id of a member, or, for profile, MODEL.onnx."
            )
        path = matches[-1]
    if path.suffix.lower() != ".json":
        raise ConfigError(
            f"genotype={text}: this is no JSON file (suffix .json). Allowed: RUN/models/ID.json, "
            "or, for profile, MODEL.onnx. Convert other networks to ONNX, by torch.onnx.export or "
            "python -m tf2onnx.convert --tflite X.tflite --inputs-as-nchw INPUT --output X.onnx "
            "(INPUT: the name of its input; float32 only)."
        )
    try:
        called = f"genotype={text}: {path}"
        content = read_json(VerifiedModelFile, path, ConfigError, called, newest=FORMAT)
    except FileNotFoundError:
        raise ConfigError(f"genotype={text}: {path} was not found. Correct the path.") from None
    return _known_genotype(space, content["genotype"], path, frozenset(ignored))


def _known_genotype(
    space: SearchSpace, options: Mapping[str, Option], path: Path, ignored: Collection[str]
) -> Genotype:
    """Return the genotype of a file of a run.

    Raises:
        ConfigError: it is of another search space.
        SpaceError: the same, where the space lacks an option.
    """
    genotype, surplus = space.genotype(options), options.keys() - {*space.names} - {*ignored}
    is_whole = genotype.to_dict() == options
    if surplus or (path.parent.name == "models" and is_whole and genotype.id != path.stem):
        targets = [
            annotations.OF_TARGETS[n] for n in sorted(surplus) if n in annotations.OF_TARGETS
        ]
        advice = f"target.{targets[0]}" if targets else "search_space"
        raise ConfigError(
            f"genotype={path} is a network of another search space than '{space.name}'"
            + f" (it has {', '.join(sorted(surplus))})" * bool(surplus)
            + f". Give the {advice} of its run."
        )
    return genotype


def _check_names(space: SearchSpace, options: Mapping[str, Option]) -> None:
    """Refuse names that the space does not have, and other values of those that it fixes."""
    for name, option in options.items():
        if name not in space.names:
            raise SpaceError(f"genotype: {unknown_name('name', name, [*space.choices])}")
        if name in space.fixed and option != space.fixed[name]:
            raise SpaceError(
                f"genotype: search space '{space.name}' fixes {name}={space.fixed[name]}, not "
                f"{option}. Leave it out, or choose another search_space."
            )


def _find(networks: Networks, text: str, seed: int) -> tuple[str, Graph]:
    """Return the name and the operators of a network, given by a genotype or a model."""
    if Path(text).suffix.lower() != ".onnx":
        (space,) = networks.space.members
        genotype = find_genotype(space, text, seed)
        return genotype.id, networks.lower(genotype)
    try:
        lowered, _ = importer.import_onnx(safe_read.read_bytes(Path(text), _MAX_MODEL_BYTES))
        n = lowered[0].op.batch  # 1: one image, or a variable number
        return Path(text).name, replace(lowered, batch=n if n > 1 else 0)
    except FileNotFoundError:
        raise ConfigError(f"genotype={text}: file not found. Correct the path.") from None
    except safe_read.CorruptFileError as problem:
        raise ConfigError(f"genotype={text} cannot be read: {problem}.") from None
    except CompileError as error:
        raise ConfigError(f"genotype={text}: {error}") from None


def _check_batch(lowered: Graph, config: ProfileConfig) -> None:
    """Reject a model with a batch size that the target does not support.

    Raises:
        ConfigError: the message names the command that fixes it.
    """
    target = config.target
    if lowered.batch > 1 and not backends.get(target.runtime).batched:
        raise ConfigError(
            f"genotype={config.genotype} has the batch size {lowered.batch}, but target "
            f"'{target.name}' (target.runtime={target.runtime}) supports only 1. Export the model "
            "with the batch size 1."
        )


def _layers(lowered: Graph, config: ProfileConfig) -> tuple[list[LayerLatency], str]:
    target = config.target
    backend = base.backend_of(target)
    backend.check(lowered)
    if (cost := backend.estimate(lowered)) is not None:
        if cost.reason:  # operators that are not in the sum
            raise CompileError(
                f"genotype={config.genotype} does not run on target '{target.name}' alone: "
                f"{cost.reason.rstrip('.')}. Their latency is not known. Replace these operators, "
                "or choose another target."
            )
        source: str = cost.figures["latency_ms"].source
        if not cost.layers:
            cost, source = (
                _data_sheet_cost(lowered, config),
                "by the data sheet, though measured whole",
            )
        return [_estimated_latency(layer) for layer in cost.layers], source
    lowered = fused_graph(lowered, target)
    table = writable_table(target, config.rpc, Path(config.table.dir), SHIPPED)
    device = MeasuredTarget(config, table)
    try:
        times = [device.time(node.op).median_ms for node in lowered]
    finally:
        device.close()
    return _measured_latencies(lowered, times, config), "measured, each operator alone"


def _data_sheet_cost(lowered: Graph, config: ProfileConfig) -> Cost:
    """Return the latencies of operators by data sheet, without measurements of whole networks.

    Raises:
        ConfigError: the target has no data sheet.
    """
    target = config.target
    if target.roofline is None:
        raise ConfigError(
            f"genotype={config.genotype}: latencies by operator are unknown. Target "
            f"'{target.name}' was measured by whole networks and has no target.roofline. Add one "
            "to its file."
        )
    return network_cost(fused_graph(lowered, target), target, target.roofline)


def _estimated_latency(layer: LayerCost) -> LayerLatency:
    assert layer.latency_ms is not None
    return LayerLatency(layer.name, layer.operator, layer.latency_ms, layer.bound)


def _measured_latencies(
    lowered: Graph, times: list[float], config: ProfileConfig
) -> list[LayerLatency]:
    layers = []
    for node, latency in zip(lowered, times, strict=True):
        bound = _bound(node.op, config.target.roofline)
        layers.append(LayerLatency(node.name, str(node.op), latency, bound.limit if bound else ""))
    return layers


def _bound(op: OpSpec, roofline: Roofline | None) -> OperatorTime | None:
    if roofline is None or op.dtype not in roofline.peak_gmacs:
        return None
    return operator_bound(op, roofline, not roofline.weights_stay)
