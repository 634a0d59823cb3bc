import json
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.onnx_files import random_model, random_weights
from hwnas.hardware.backends.onnxruntime.engine import in_context, operator_times
from hwnas.hardware.backends.onnxruntime.session import LAYOUT, OrtSession, node_times, timer
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.models import families
from hwnas.models.families.layers import ConvNormAct, fold_batch_norm
from hwnas.models.graph import Graph, OpSpec, Signature, fuse
from hwnas.models.onnx.writer import write_fp32, write_int8
from hwnas.models.spaces import SearchSpace
from hwnas.testing import SessionContract
from hwnas.training.inference import recalibrate
from tests.models.int8.networks import quantised
from tests.models.int8.qdq import oracle

pytestmark = pytest.mark.alone


def folded_weights(
    network: nn.Module,
) -> Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return weight and bias by the name of the lowered operator."""
    weights = {}
    for name, module in network.named_modules():
        layer = module.conv if isinstance(module, ConvNormAct) else module
        if isinstance(layer, nn.Conv2d | nn.Linear) and not name.endswith(".conv"):
            assert layer.bias is not None
            weights[name] = (layer.weight.detach().numpy(), layer.bias.detach().numpy())
    return weights


def built(space: SearchSpace, seed: int, task: Signature) -> tuple[nn.Module, Graph]:
    """Return a network with random weights, its batch norm folded, and its operators."""
    family, genotype = families.get("mbconv"), space.sample(random.Random(seed))
    torch.manual_seed(seed)
    network = family.build(space, genotype, task)
    size = family.resolution(space, genotype)
    recalibrate(network, torch.randn(32, task.in_channels, size, size))
    return fold_batch_norm(network), family.lower(space, genotype, task)


def model_of(space: SearchSpace, task: Signature, batch: int = 1) -> tuple[Graph, bytes]:
    lowered = families.get("mbconv").lower(space, space.largest(), task)
    lowered = fuse(lowered, "float32", batch)
    return lowered, write_fp32(lowered, random_weights(lowered, 0))


@pytest.mark.parametrize("fused", [False, True])
class TestFloat(SessionContract):
    @pytest.fixture
    def session(
        self, small: SearchSpace, task: Signature, fused: bool
    ) -> tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
        network, lowered = built(small, 3, task)

        def torch_oracle(images: NDArray[np.float32]) -> NDArray[np.float32]:
            with torch.no_grad():
                outputs: NDArray[np.float32] = network(torch.from_numpy(images)).numpy()
            return outputs

        lowered = fuse(lowered, "float32") if fused else lowered
        session = OrtSession(write_fp32(lowered, folded_weights(network)))
        return session, lowered, torch_oracle

    @pytest.fixture
    def tolerance(self) -> float:
        return 1e-5


class TestInt8(SessionContract):
    @pytest.fixture
    def session(
        self, tiny: SearchSpace, task: Signature
    ) -> tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
        _, lowered, network = quantised(tiny, tiny.sample(random.Random(0)), task)
        return OrtSession(write_int8(network)), lowered, oracle(network)

    @pytest.fixture
    def tolerance(self, tiny: SearchSpace, task: Signature) -> float:
        _, _, network = quantised(tiny, tiny.sample(random.Random(0)), task)
        return 1.001 * network.ops[-1].out.scale


def test_int8_outputs_are_close_to_float_outputs(small: SearchSpace, task: Signature) -> None:
    network, lowered, int8 = quantised(small, small.largest(), task)
    images = torch.randn(32, *lowered[0].op.in_shape)
    with torch.no_grad():
        expected = network(images).numpy()
    outputs = OrtSession(write_int8(int8)).run(images.numpy())
    assert np.abs(outputs - expected).mean() / expected.std() < 0.15
    assert np.corrcoef(outputs.ravel(), expected.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("seed", range(3))
def test_int8_operators_are_fused(
    small: SearchSpace, task: Signature, seed: int, tmp_path: Path
) -> None:
    genotype = small.sample(random.Random(seed)) if seed else small.largest()
    _, lowered, int8 = quantised(small, genotype, task)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4  # it warns that the file is only for this machine
    providers = ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(write_int8(int8), options, providers=providers)
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    convs = sum(node.op.base == "conv2d" for node in lowered)
    assert kinds.count("QLinearConv") == convs
    assert kinds.count("QLinearAdd") == sum(node.op.base == "add" for node in lowered)
    assert {"QLinearGlobalAveragePool", "QGemm"} <= {*kinds}
    assert kinds.count("QuantizeLinear") == kinds.count("DequantizeLinear") == 1


@pytest.mark.parametrize("n_images", [0, 1, 3, 4, 7])
def test_model_of_any_batch_runs_any_number_of_images(
    small: SearchSpace, task: Signature, n_images: int
) -> None:
    lowered, model = model_of(small, task)
    shape = (n_images, *lowered[0].op.in_shape)
    images = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = OrtSession(model).run(images)
    assert expected.shape == (n_images, 10)
    _, batched = model_of(small, task, batch=3)
    assert np.allclose(OrtSession(batched, n_threads=2).run(images), expected, atol=1e-4)


def test_images_of_another_shape_are_refused(small: SearchSpace, task: Signature) -> None:
    _, model = model_of(small, task)
    with pytest.raises(CompileError, match=r"onnxruntime cannot run the model: .*images"):
        OrtSession(model).run(np.zeros((1, 1, 5, 5), np.float32))


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0b"])
def test_invalid_model_is_refused_in_one_line(
    content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    for load in (OrtSession, lambda model: timer(model, 1), lambda model: node_times(model, 1, 10)):
        with pytest.raises(CompileError, match="onnxruntime cannot run the model") as caught:
            load(content)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_foreign_model_is_refused(small: SearchSpace, task: Signature) -> None:
    _, model = model_of(small, task)
    foreign = onnx.load_from_string(model)
    del foreign.metadata_props[:]
    with pytest.raises(CompileError, match="has no 'operators' in its metadata"):
        node_times(foreign.SerializeToString(), 1, 10)
    foreign.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(CompileError, match="expected float32 of a fixed shape"):
        OrtSession(foreign.SerializeToString())


def test_more_runs_take_longer(small: SearchSpace, task: Signature) -> None:
    run = timer(model_of(small, task)[1], 1)
    run(10)
    assert 0 < min(run(5) for _ in range(5)) < min(run(50) for _ in range(5))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_operator_times_sum_up_to_network_time(
    small: SearchSpace, task: Signature, dtype: str
) -> None:
    if dtype == "int8":
        _, lowered, network = quantised(small, small.largest(), task)
        model = write_int8(network)
    else:
        lowered, model = model_of(small, task)
    times = node_times(model, 1, 200)
    assert [*times] == [*(node.name for node in lowered), LAYOUT]
    run = timer(model, 1)
    run(20)
    whole_ms = min(run(20) for _ in range(20)) / 20 * 1e3
    assert 0.5 * whole_ms < sum(times.values()) < 2 * whole_ms
    macs = {node.name: node.op.n_macs for node in lowered}
    assert all(times[name] > 0 for name, n in macs.items() if n > 50_000)
    assert times[LAYOUT] < 0.5 * whole_ms


def test_fused_sum_has_no_time(small: SearchSpace, task: Signature) -> None:
    lowered = families.get("mbconv").lower(small, small.largest(), task)
    times = node_times(write_fp32(lowered, random_weights(lowered, 0)), 1, 20)
    assert all(times[node.name] == 0 for node in lowered if node.op.base == "add")
    assert [*times] == [*(node.name for node in lowered), LAYOUT]


def test_profile_leaves_no_file(
    small: SearchSpace, task: Signature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    node_times(model_of(small, task)[1], 1, 10)
    assert [*tmp_path.rglob("*")] == [tmp_path / "tmp"]


def test_truncated_profile_is_refused(
    small: SearchSpace, task: Signature, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = model_of(small, task)
    complete = json.loads
    monkeypatch.setattr(
        "hwnas.hardware.backends.onnxruntime.session.json.loads", lambda text: complete(text)[:-100]
    )
    with pytest.raises(CompileError, match="lacks some of its 20 runs"):
        node_times(model, 1, 10)


OPERATORS = (
    OpSpec("conv2d+bn+relu6", (1, 24, 24), (16, 12, 12), kernel=3, stride=2),
    OpSpec("conv2d+bn+relu6", (16, 24, 24), (32, 24, 24)),
    OpSpec("conv2d+bn+relu", (16, 24, 24), (16, 12, 12), kernel=5, stride=2, groups=16),
    OpSpec("add", (16, 24, 24), (16, 24, 24)),
    OpSpec("mul", (16, 24, 24), (16, 24, 24)),
    OpSpec("mean", (64, 24, 24), (64, 1, 1)),
    OpSpec("linear", (512, 1, 1), (512, 1, 1)),
)
FLOAT_OPERATORS = (
    OpSpec("conv2d+bn+add+relu", (16, 24, 24), (16, 24, 24), kernel=3),
    OpSpec("conv2d+bn+add", (16, 24, 24), (32, 12, 12), kernel=3, stride=2),
    OpSpec("max_pool2d", (64, 24, 24), (64, 12, 12), kernel=3, stride=2),
    OpSpec("linear+gelu", (64, 49, 1), (128, 49, 1)),
    OpSpec("linear+add", (64, 49, 1), (64, 49, 1)),
    OpSpec("layernorm", (64, 49, 1), (64, 49, 1)),
    OpSpec("attention", (192, 49, 1), (64, 49, 1), groups=2),
)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_operators_can_be_timed_in_context(dtype: str) -> None:
    tested = [*OPERATORS, *FLOAT_OPERATORS] if dtype == "float32" else [*OPERATORS]
    ops = [replace(op, dtype=dtype) for op in tested]
    times = operator_times(ops, 1, 30)
    assert {*times} == {*ops}
    assert {len(profiles) for profiles in times.values()} == {3}
    # One profile of an operator of a microsecond may be lost in noise; tables take the median.
    assert [op for op, profiles in times.items() if statistics.median(profiles) <= 0] == []


def test_larger_operator_takes_longer() -> None:
    small, large = (
        OpSpec("conv2d+bn+relu6", (c, 28, 28), (c, 28, 28), kernel=3, dtype="float32")
        for c in (16, 64)
    )
    times = operator_times([small, large], 1, 50)
    assert statistics.median(times[large]) > 3 * statistics.median(times[small])


def test_operator_time_excludes_context() -> None:
    op = OpSpec("add", (2, 2, 2), (2, 2, 2), dtype="float32")
    model = random_model(in_context(op))
    run = timer(model, 1)
    run(100)
    whole_ms = min(run(100) for _ in range(10)) / 100 * 1e3
    assert statistics.median(operator_times([op], 1, 100)[op]) < 0.5 * whole_ms
