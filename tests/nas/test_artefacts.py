import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.core.errors import CompileError
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.hardware.backends import base
from hwnas.hardware.backends.base import Artefacts, Files, RemeasuredCost, TrainedNetwork
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.meters.meter import MeasuredEnergy
from hwnas.hardware.runtimes.interfaces import DeviceEvaluation, OperatorPlans
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.hardware.target import Target
from hwnas.hardware.timing import InterleavedTimings, Timing
from hwnas.models import families
from hwnas.models.families.layers import fold_batch_norm, weights_of
from hwnas.models.graph import Graph, OpSpec, Signature
from hwnas.models.int8.quantisation import quantise
from hwnas.models.int8.quantised_network import Weights
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.verification import Verifier, verify
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.metrics.budget import Budget
from tests.conftest import target
from tests.export.fakes import FakeDevice
from tests.hardware.profiling.fakes import CPU

INT8 = dataclasses.replace(CPU, runtime="onnxruntime", dtype="int8")
ORT = dataclasses.replace(CPU, runtime="onnxruntime")
SKETCH = target("sketch")


class Exporting:
    """A worker that records exports and evaluates with onnxruntime."""

    def __init__(self, energy: MeasuredEnergy | None = None):
        self.exported: list[tuple[Graph, OperatorPlans, Weights]] = []
        self._energy = energy
        self.n_images: list[int] = []  #: of each call

    def export(self, lowered: Graph, plans: OperatorPlans, weights: Weights) -> dict[str, bytes]:
        self.exported.append((lowered, plans, weights))
        return {".so": b"library", ".safetensors": safetensors.numpy.save({})}

    def evaluate(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> DeviceEvaluation:
        outputs = self.run(files, images)
        return DeviceEvaluation(outputs, Timing(2.0, 1.9, 2.2, 5, True), self._energy)

    def run(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> NDArray[np.float32]:
        self.n_images.append(len(images))
        return OrtSession(files[".onnx"].read_bytes()).run(images)


def _plan(op: OpSpec) -> str:
    return f"for {op.kind}"


def _artefacts(device: Target, worker: Exporting) -> Artefacts:
    return base.backend_of(device).artefacts(FakeDevice(cast(RetryingPool, worker), _plan))


@pytest.fixture(scope="module")
def network(tiny: SearchSpace, task: Signature) -> tuple[nn.Module, Graph, Tensor]:
    """A network with its lowering and images; batch norm folded."""
    torch.manual_seed(0)
    family, genotype = families.get(tiny.family), tiny.largest()
    supernet = family.supernet(tiny, task)
    resolution = family.resolution(tiny, genotype)
    images = torch.randn(32, 1, resolution, resolution)
    supernet.module.train()
    supernet.forward(images, genotype)
    supernet.module.eval()
    folded = fold_batch_norm(supernet.extract(genotype).eval())
    return folded, family.lower(tiny, genotype, task), images


@pytest.fixture(scope="module")
def parts(network: tuple[nn.Module, Graph, Tensor]) -> TrainedNetwork:
    """A network with its lowering, and in int8."""
    return TrainedNetwork(network[1], weights_of(*network[:2]), quantise(*network))


def _write_files(files: Mapping[str, bytes], folder: Path) -> Files:
    for suffix, content in files.items():
        (folder / f"m{suffix}").write_bytes(content)
    return {suffix: folder / f"m{suffix}" for suffix in files}


def test_tvm_receives_fused_network_plans_and_weights(
    network: tuple[nn.Module, Graph, Tensor],
    parts: TrainedNetwork,
) -> None:
    worker = Exporting()
    files = _artefacts(CPU, worker).build(parts)
    assert set(files) == {".onnx", ".so", ".safetensors"}
    ((lowered, plans, weights),) = worker.exported
    assert lowered == fused_graph(network[1], CPU)
    assert plans == {node.op: f"for {node.op.kind}" for node in lowered}
    assert set(weights) == {node.name for node in lowered if node.op.weight_shape}


@pytest.mark.parametrize("device", [CPU, ORT, INT8, SKETCH], ids=lambda d: f"{d.runtime}-{d.dtype}")
def test_onnx_file_has_outputs_of_network(
    network: tuple[nn.Module, Graph, Tensor], parts: TrainedNetwork, device: Target, tmp_path: Path
) -> None:
    artefacts = _artefacts(device, Exporting())
    files = _write_files(artefacts.build(parts), tmp_path)
    assert device is CPU or set(files) == {".onnx"}
    module, lowered, images = network
    outputs, cost = artefacts.evaluate(
        files, lowered, iter([images.numpy()[:3], images.numpy()[3:]])
    )
    with torch.no_grad():
        expected = module(images).numpy()
    scale = np.abs(expected).max()
    assert np.abs(outputs - expected).max() < (0.1 if device.dtype == "int8" else 1e-4) * scale
    assert cost.figures["macs_m"].value > 0


def test_latency_and_energy_are_measured_on_file(
    network: tuple[nn.Module, Graph, Tensor], parts: TrainedNetwork, tmp_path: Path
) -> None:
    metered = MeasuredEnergy(Quantity(7.0, "measured", 6.0, 8.0), 20.0, 0.0, 27.0, 6, "RAPL")
    for energy in (None, metered):
        artefacts = _artefacts(ORT, Exporting(energy))
        files = _write_files(artefacts.build(parts), tmp_path)
        _, cost = artefacts.evaluate(files, network[1], [network[2].numpy()])
        assert cost.figures["latency_ms"] == Quantity(2.0, "measured", 1.9, 2.2)
        assert cost.details["drifted"] == 1.0
        measured = cost.figures["energy_mj"]
        if energy is None:
            assert measured.source == "modelled"
            value = 2.0 * math.sqrt(2.0 * 6.0)  # 2 to 6 W
            below, above = (math.hypot(math.log(3) / 2, math.log(r)) for r in (2 / 1.9, 2.2 / 2))
            expected = value, value * math.exp(-below), value * math.exp(above)
            assert (measured.value, measured.low, measured.high) == pytest.approx(expected)
        else:
            assert measured == metered.figure


@pytest.mark.parametrize(("batch", "n_images"), [(1, [256, 44, 8]), (100, [200, 100, 8])])
def test_split_is_evaluated_in_bounded_batches(
    network: tuple[nn.Module, Graph, Tensor],
    parts: TrainedNetwork,
    tmp_path: Path,
    batch: int,
    n_images: list[int],
) -> None:
    worker = Exporting()
    artefacts = _artefacts(dataclasses.replace(ORT, batch=batch), worker)
    files = _write_files(artefacts.build(parts), tmp_path)
    images = np.resize(network[2].numpy(), (308, *network[2].shape[1:]))
    outputs, _ = artefacts.evaluate(files, network[1], [images[:300], images[300:]])
    assert worker.n_images == n_images
    assert np.allclose(outputs, worker.run(files, images), atol=1e-5)


def test_cost_of_sketch_is_modelled(
    network: tuple[nn.Module, Graph, Tensor], parts: TrainedNetwork, tmp_path: Path
) -> None:
    artefacts = _artefacts(SKETCH, Exporting())
    files = _write_files(artefacts.build(parts), tmp_path)
    _, cost = artefacts.evaluate(files, network[1], [network[2].numpy()])
    assert {figure.source for figure in cost.figures.values()} == {"modelled"}


class WrongOutputs:
    """Files whose outputs are wrong for some images."""

    def __init__(self, labels: Tensor, n_wrong: int):
        self._labels, self._n_wrong = labels, n_wrong

    def build(self, network: TrainedNetwork) -> dict[str, bytes]:
        return {".so": b"s", ".onnx": b"o", ".safetensors": b"w"}

    def delivered(self, network: TrainedNetwork) -> dict[str, bytes]:
        raise AssertionError("nothing is exported")

    def remeasure(
        self, files: Files, lowered: Graph, images: NDArray[np.float32]
    ) -> RemeasuredCost:
        raise AssertionError("nothing is exported")

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        raise AssertionError("no network is int8")

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], Cost]:
        assert sum(map(len, batches)) == 2 * len(self._labels)  # test and validation
        assert {suffix: path.read_bytes() for suffix, path in files.items()} == {
            ".so": b"s",
            ".onnx": b"o",
            ".safetensors": b"w",
        }
        classes = self._labels.numpy().copy()
        classes[: self._n_wrong] = (classes[: self._n_wrong] + 1) % 10
        names = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")
        outputs = np.eye(10, dtype=np.float32)[np.tile(classes, 2)]
        return outputs, Cost({name: Quantity(1.0, "measured") for name in names})


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_accuracy_is_measured_on_artefact(
    tiny: SearchSpace, task: Signature, tmp_path: Path, dtype: str
) -> None:
    labels = torch.arange(40) % 10
    family, genotype = families.get(tiny.family), tiny.smallest()

    def images(genotype: Genotype) -> Tensor:
        side = family.resolution(tiny, genotype)
        return torch.zeros(40, 1, side, side)  # the network has the same output for all images

    def batches(genotype: Genotype) -> Iterable[tuple[Tensor, Tensor]]:
        return zip(torch.split(images(genotype), 25), torch.split(labels, 25), strict=True)

    bench = Verifier(
        finetuned=lambda genotype: DeployableNetwork(
            fold_batch_norm(family.build(tiny, genotype, task).eval()),
            family.lower(tiny, genotype, task),
            None,
        ),
        test=batches,
        validation=batches,
        artefacts=WrongOutputs(labels, 8),
        task=ClassificationTask(tuple("0123456789")),
        dtype=dtype,
    )
    figures = {name: Quantity(1.0, "table") for name in ("accuracy", "latency_ms")}
    folder = RunFolder(tmp_path)
    members = [Candidate(0, genotype, figures)]
    (member,) = verify(
        members, bench, Budget(), ("accuracy", "latency_ms"), folder, NullProgress()
    ).members
    assert member.quality.value == 0.8
    row = member.row(tiny)
    assert ("verified_accuracy_int8" in row) is (dtype == "int8")
    assert row["verified_accuracy_fp32"] == (0.1 if dtype == "int8" else 0.8)
    assert row["so"] == f"models/{genotype.id}.so"
    assert row["weights"] == f"models/{genotype.id}.safetensors"
    assert {"so_sha256", "onnx_sha256", "weights_sha256"} <= set(row)
    # Files are reused, also those of earlier versions, unless the weights differ.
    file = tmp_path / f"models/{genotype.id}.json"
    for weights, is_reused in (("", True), ("distilled", False), ("distilled", True)):
        modified_ns = file.stat().st_mtime_ns
        other_bench = dataclasses.replace(bench, weights={genotype: weights}.__getitem__)
        verify(members, other_bench, Budget(), ("accuracy", "latency_ms"), folder, NullProgress())
        assert (file.stat().st_mtime_ns == modified_ns) is is_reused
    content = json.loads(file.read_text())
    del content["weights"]
    file.write_text(json.dumps(content))
    modified_ns = file.stat().st_mtime_ns
    verify(members, bench, Budget(), ("accuracy", "latency_ms"), folder, NullProgress())
    assert file.stat().st_mtime_ns == modified_ns


def test_refusal_of_device_is_raised(
    network: tuple[nn.Module, Graph, Tensor],
    parts: TrainedNetwork,
) -> None:
    class Refusing(Exporting):
        def export(
            self, lowered: Graph, plans: OperatorPlans, weights: Weights
        ) -> dict[str, bytes]:
            raise CompileError("cannot be linked")

    with pytest.raises(CompileError, match="cannot be linked"):
        _artefacts(CPU, Refusing()).build(parts)


@pytest.mark.parametrize(
    ("ratio", "is_slower"),
    [(Quantity(0.7, "measured", 0.6, 0.8), False), (Quantity(0.9, "measured", 0.8, 1.01), True)],
)
def test_int8_no_faster_than_float32_is_off_front(
    network: tuple[nn.Module, Graph, Tensor],
    tiny: SearchSpace,
    tmp_path: Path,
    ratio: Quantity,
    *,
    is_slower: bool,
) -> None:
    class Interleaved(Exporting):
        def interleaved(self, files: Files, other: Files) -> InterleavedTimings:
            outputs = [OrtSession(f[".onnx"].read_bytes()).run(images[:4]) for f in (files, other)]
            assert np.abs(outputs[1] - expected[:4]).max() < 1e-4  # the same in float32
            assert 1e-4 < np.abs(outputs[0] - expected[:4]).max() < 0.5
            return InterleavedTimings(Timing(2.0, 1.9, 2.1, 9), Timing(3.0, 2.9, 3.1, 9), ratio)

    module, lowered, inputs = network
    images = inputs.numpy()
    with torch.no_grad():
        expected = module(inputs).numpy()
    in_int8 = dataclasses.replace(lowered, dtype="int8")
    worker = cast(RetryingPool, Interleaved())
    labels = torch.zeros(len(inputs), dtype=torch.long)
    bench = Verifier(
        finetuned=lambda genotype: DeployableNetwork(
            module, in_int8, quantise(module, in_int8, inputs)
        ),
        test=lambda genotype: [(inputs, labels)],
        validation=lambda genotype: [(inputs, labels)],
        artefacts=base.backend_of(ORT).artefacts(FakeDevice(worker, _plan)),
        task=ClassificationTask(tuple("0123456789")),
        dtype="float32",
    )
    figures = {name: Quantity(1.0, "table") for name in ("accuracy", "latency_ms")}
    members = [Candidate(0, tiny.largest(), figures)]
    for _ in range(2):  # the second time from its file
        folder = RunFolder(tmp_path)
        (member,) = verify(
            members, bench, Budget(), ("accuracy", "latency_ms"), folder, NullProgress()
        ).members
        assert member.dtype("float32") == "int8"
        assert member.int8_is_slower is is_slower
        assert member.on_front is member.near_front is not is_slower
        assert member.label == ("no faster than in float32" if is_slower else "")
        row = member.row(tiny)
        assert row["verified_int8_over_float32"] == ratio.value
        assert row["verified_float32_latency_ms"] == 3.0
        assert row["verified_on_front"] is not is_slower
    with np.load(tmp_path / f"models/{members[0].id}.answers.npz") as file:
        assert file["models"].tolist() == [f"{members[0].id}-int8"]
