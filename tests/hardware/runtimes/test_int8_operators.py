"""Int8 operators and all their schedules, compared with real-valued results."""

import itertools
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hwnas.core import machine
from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.tvm import TvmSettings, dots, int8_layout, linker
from hwnas.hardware.backends.tvm.compiler import Compiler
from hwnas.hardware.backends.tvm.engine import LocalDevice, TvmEngine
from hwnas.hardware.backends.tvm.kernels import Bytes
from hwnas.hardware.backends.tvm.templates import Plan, Tile
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.runtimes.interfaces import Buffer
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Node, OpSpec, Signature
from hwnas.models.int8.quantisation import quantise
from hwnas.models.int8.quantised_network import (
    CLIPS,
    QuantisationScale,
    QuantisedOp,
    QuantisedWeights,
)
from tests.conftest import few_of, with_settings
from tests.hardware.runtimes import torch_reference as reference
from tests.hardware.runtimes.emulator import CROSS, emulate, needs_cross_compiler, needs_emulator
from tests.hardware.runtimes.rpc_lab import HOST, needs_rpc
from tests.hardware.runtimes.test_relax_operators import _op

pytestmark = needs_rpc

INT8 = replace(HOST, dtype="int8")
FLAGS = machine.describe()["flags"]
#: By multiply instruction: an LLVM name of a CPU with it, and its CPU flag.
CPUS = {
    "avx512vnni": ("cascadelake", "avx512_vnni"),
    "avx512bw": ("skylake-avx512", "avx512bw"),
    "avxvnni": ("alderlake", "avx_vnni"),
    "avx2": ("x86-64-v3", "avx2"),
}
ARM = replace(INT8, name="pi5")
PI5 = TvmSettings(mcpu="cortex-a76", mtriple="aarch64-linux-gnu", cc=CROSS)


def _here(feature: str) -> Compiler:
    mcpu, flag = CPUS[feature]
    if platform.machine() != "x86_64" or flag not in FLAGS:
        pytest.skip(f"this CPU has no {flag}")
    LocalDevice(1)
    return Compiler(with_settings(INT8, TvmSettings(mcpu=mcpu)))


@pytest.fixture(scope="module")
def best() -> Target:
    """Return a target with the best multiply instruction of this CPU."""
    feature = next((name for name, (_, flag) in CPUS.items() if flag in FLAGS), None)
    if feature is None:
        pytest.skip("this CPU multiplies no bytes")
    return with_settings(INT8, TvmSettings(mcpu=CPUS[feature][0]))


@pytest.fixture(scope="module")
def compiler(best: Target) -> Compiler:
    LocalDevice(1)
    return Compiler(best)


OPERATORS = tuple(
    replace(op, dtype="int8")
    for op in (
        *(
            _op("conv2d+bn", c, o, (6, 6), kernel=3)
            for c, o in ((1, 5), (3, 12), (20, 36), (36, 2))
        ),
        _op("conv2d+bn+relu", 5, 20, (9, 7), kernel=3, stride=2, batch=3),
        _op("conv2d+bn+relu6", 3, 16, (8, 12), kernel=4, stride=4),
        _op("conv2d+bn+hardswish", 16, 16, (4, 4), kernel=3),
        _op("conv2d+add+relu", 12, 12, (5, 5), kernel=5, batch=3),
        _op("conv2d+add", 16, 16, (2, 3), batch=3),
        _op("conv2d+bn", 20, 36, (7, 5), stride=2),
        *(_op("conv2d+bn+relu6", c, c, (7, 7), kernel=3, depthwise=1) for c in (2, 5, 20, 36)),
        _op("conv2d+bn+silu", 36, 36, (9, 6), kernel=5, stride=2, depthwise=1, batch=3),
        _op("conv2d+bn", 20, 20, (4, 4), kernel=2, stride=2, depthwise=1),
        _op("linear", 5, 12, (1, 1)),
        _op("linear", 64, 3, (1, 1), batch=3),
        _op("linear+gelu", 20, 36, (7, 1), batch=3),
        _op("add+relu", 20, 20, (5, 5), batch=3),
        _op("add+hardswish", 3, 3, (1, 1)),
        _op("mul", 12, 12, (5, 3), batch=3),
        _op("mul+silu", 36, 36, (2, 2)),
        *(_op("mean", c, c, (7, 5), batch=b) for c, b in ((3, 1), (20, 3), (36, 1))),
        _op("max_pool2d", 12, 12, (7, 7), kernel=3, stride=2),
        _op("max_pool2d", 36, 36, (6, 6), kernel=2, stride=2, batch=3),
    )
)


def _quantised(op: OpSpec) -> tuple[QuantisedOp, list[QuantisationScale], list[Any], Any]:
    """Return an operator with weights and scales, int8 inputs ``(N, C, H, W)`` and expected values.

    The expected values are in units of the output scale, before rounding.
    """
    examples, _ = reference.example(op)
    rng = np.random.default_rng(0)
    sources = [QuantisationScale(0.02, -7), QuantisationScale(0.03, 11)][: len(examples)]
    inputs = [rng.integers(-128, 128, x.shape) for x in examples]
    real = [
        torch.from_numpy((x - s.zero_point) * s.scale) for x, s in zip(inputs, sources, strict=True)
    ]
    weights, parameters = None, []
    if op.weight_shape:
        weight = rng.integers(-127, 128, op.weight_shape)
        n = 1 if op.base == "linear" else op.out_shape[0]
        steps = rng.uniform(0.5, 1.5, n).astype(np.float32) / np.sqrt(weight[0].size) / 64
        bias = rng.integers(-9000, 9000, op.out_shape[0])
        weights = QuantisedWeights(weight.astype(np.int8), steps, bias.astype(np.int32))
        channel_steps = np.broadcast_to(steps.astype(float), op.out_shape[0])
        parameters = [
            torch.from_numpy(weight * channel_steps.reshape(-1, *[1] * (weight.ndim - 1))),
            torch.from_numpy(bias * channel_steps * sources[0].scale),
        ]
    plain = replace(op, kind="+".join(w for w in op.kind.split("+") if w != "hardsigmoid"))
    expected = reference.operator(plain, real, parameters).numpy()
    low, high = CLIPS.get(op.activation, (-np.inf, np.inf))
    out = QuantisationScale.of_range(
        max(low, float(expected.min())), min(high, float(expected.max()) * 0.9)
    )
    if op.base == "max_pool2d":
        out = sources[0]
    node = Node("operator", op, ("a", "b")[: len(inputs)])
    result = QuantisedOp(node, weights, out, inner=None)
    return result, sources, inputs, expected / out.scale + out.zero_point


def _memory(x: Any, buffer: Buffer) -> NDArray[Any]:
    """Return int8 values ``(N, C, H, W)`` in memory layout, with junk in padded channels."""
    n, c, h, w = x.shape
    memory = np.full((n, h, w, buffer.shape[-1]), 77, buffer.dtype)
    shift = 128 if buffer.dtype == "uint8" else 0
    memory[..., :c] = (np.moveaxis(x, 1, -1) + shift).astype(buffer.dtype)
    return memory.reshape(buffer.shape)


def _arguments(compiler: Compiler, op: OpSpec) -> tuple[list[NDArray[Any]], Any]:
    """Return the arguments of a function, and expected values in units of the output scale."""
    kernels = compiler._kernels
    assert isinstance(kernels, Bytes)
    quantised, sources, inputs, expected = _quantised(op)
    reads, _, writes = kernels.buffers(op)
    arrays = [_memory(x, result) for x, result in zip(inputs, reads, strict=True)]
    arrays += int8_layout.pack(quantised, sources, compiler.cpu.lanes, kernels.dot)
    arrays.append(np.zeros(writes.shape, writes.dtype))
    assert [(a.shape, a.dtype.name) for a in arrays] == [
        (b.shape, b.dtype) for b in compiler.buffers(op)
    ]
    return arrays, expected


def _check(op: OpSpec, written: NDArray[Any], expected: Any) -> None:
    """Check that results are the nearest integers, except close to halves."""
    c, h, w = op.out_shape
    shift = 128 if written.dtype == np.uint8 else 0
    result = written.reshape(op.batch, h, w, -1)[..., :c].astype(int) - shift
    right = np.clip(np.moveaxis(expected, 1, -1), -128, 127)
    assert np.ptp(right) > 50, "the example has little variation"
    assert np.abs(result - right).max() < 0.5 + 1e-3


def _run(compiler: Compiler, op: OpSpec, plan: Plan) -> None:
    device = LocalDevice(1)
    arrays, expected = _arguments(compiler, op)
    tensors = [device.tensor(array) for array in arrays]
    compiled = compiler.compile(op, plan)
    device.call(device.load(compiled.library), compiled.name, tensors)
    compiler.forget(op, plan)
    _check(op, device.array(tensors[-1]), expected)


@pytest.mark.parametrize("op", few_of([*OPERATORS[::2], *OPERATORS[1::2]], 14), ids=str)
def test_operator_matches_real_values(compiler: Compiler, op: OpSpec) -> None:
    (plan,) = compiler.plans(op, 1)
    _run(compiler, op, plan)


@pytest.mark.slow
@pytest.mark.parametrize("feature", CPUS)
@pytest.mark.parametrize("op", [op for op in OPERATORS if op.weight_shape][::4], ids=str)
def test_all_instructions_multiply_exactly(feature: str, op: OpSpec) -> None:
    compiler = _here(feature)
    (plan,) = compiler.plans(op, 1)
    _run(compiler, op, plan)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["weights", "image"])
@pytest.mark.parametrize("op", [OPERATORS[2], OPERATORS[7], OPERATORS[8]], ids=str)
def test_all_schedules_are_equal(compiler: Compiler, op: OpSpec, order: str) -> None:
    borders = ["row", "whole"] if op.padding else ["none"]
    for (rows, columns), vectors, border in itertools.product([(1, 1), (1, 3)], [1, 3], borders):
        n_vectors = -(-op.out_shape[0] // compiler.cpu.lanes)
        fits = op.out_shape[2] % columns == 0 and n_vectors % vectors == 0
        if fits:
            _run(compiler, op, Plan(Tile(rows, columns, vectors, order, border)))


def test_plans_keep_zeros_in_memory(compiler: Compiler) -> None:
    """A dot product reads padded bytes, too."""
    dense, depthwise = OPERATORS[2], OPERATORS[10]
    borders = {plan.tile.border for plan in compiler.plans(dense, 100) if plan.tile}
    assert borders == {"row", "whole"}
    assert "inline" in {plan.tile.border for plan in compiler.plans(depthwise, 100) if plan.tile}


@pytest.mark.parametrize("feature", CPUS)
def test_products_of_largest_bytes_do_not_saturate(feature: str) -> None:
    compiler = _here(feature)
    op = replace(_op("conv2d", 64, 16, (1, 1)), dtype="int8")
    kernels = compiler._kernels
    assert isinstance(kernels, Bytes)
    assert kernels.dot == next(dot for dot in dots.DOTS if dot.feature == feature)
    weights = QuantisedWeights(
        np.full((16, 64, 1, 1), 127, np.int8), np.full(16, 1, np.float32), np.zeros(16, np.int32)
    )
    out = QuantisationScale(float(255 * 127 * 64 / 255), -128)
    quantised = QuantisedOp(Node("operator", op, ("a",)), weights, out)
    reads, _, writes = kernels.buffers(op)
    arrays = [
        np.full(reads[0].shape, 255, reads[0].dtype),
        *int8_layout.pack(
            quantised, [QuantisationScale(1.0, -128)], compiler.cpu.lanes, kernels.dot
        ),
        np.zeros(writes.shape, writes.dtype),
    ]
    device, (plan,) = LocalDevice(1), compiler.plans(op, 1)
    tensors = [device.tensor(array) for array in arrays]
    compiled = compiler.compile(op, plan)
    device.call(device.load(compiled.library), compiled.name, tensors)
    assert (device.array(tensors[-1]) == 255).all()


def test_operators_run_on_two_threads(best: Target) -> None:
    for op in (OPERATORS[2], OPERATORS[10], OPERATORS[19]):
        threaded = Compiler(replace(best, threads=2))
        plans = threaded.plans(op, 2)
        assert [plan.parallel for plan in plans] == [True, False]
        for plan in plans:
            _run(threaded, op, plan)


@pytest.mark.slow
def test_network_with_sums_matches_onnx_file(best: Target, tmp_path: Path) -> None:
    """Fused operators skip a rounding: outputs differ by a few steps."""
    torch.manual_seed(0)
    space, signature = spaces.load_space(spaces.find("resnet_small")), Signature(1, 10)
    family, genotype = families.get(space.family), space.smallest()
    side = family.resolution(space, genotype)
    module = family.build(space, genotype, signature)
    images = torch.randn(20, 1, side, side)
    module.train()(images)
    network = fold_batch_norm(module.eval())
    lowered = family.lower(space, genotype, signature)
    int8 = quantise(network, lowered, images)
    fused = fused_graph(lowered, best)
    assert any("add" in node.op.fused for node in fused)
    engine = TvmEngine(best, LocalDevice(1))
    plans = {node.op: engine.plans(node.op, 1)[0] for node in fused}
    paths = {}
    for suffix, content in engine.export(fused, plans, int8).items():
        paths[suffix] = tmp_path / f"model{suffix}"
        paths[suffix].write_bytes(content)
    result = engine.open(paths).session.run(images.numpy())
    expected = onnx_files.int8_session(int8).run(images.numpy())
    step = int8.ops[-1].out.scale
    assert np.ptp(expected) > 50 * step
    assert np.abs(result - expected).max() <= 8 * step
    assert np.abs(result - expected).mean() <= 1.5 * step


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "cortex-a72"])
def test_cpu_without_int8_dot_product_is_refused(mcpu: str) -> None:
    facts = TvmSettings(mcpu=mcpu, mtriple="aarch64-linux-gnu" if "cortex" in mcpu else "")
    with pytest.raises(ConfigError, match=f"'{mcpu}' has no int8 dot product: none of avx512vnni"):
        Compiler(with_settings(INT8, facts))


def test_unsupported_operators_are_refused(compiler: Compiler) -> None:
    shape = (8, 4, 4)
    for op in (
        OpSpec("layernorm", shape, shape),
        OpSpec("conv2d", shape, shape, groups=2),
        OpSpec("linear", shape, shape, dtype="float32"),
    ):
        with pytest.raises(CompileError, match="No TVM operator"):
            compiler.compile(op, Plan(None))


@pytest.mark.slow
@needs_cross_compiler
@needs_emulator
@pytest.mark.parametrize("op", [OPERATORS[2], OPERATORS[4], OPERATORS[11]], ids=str)
def test_arm_operators_match_under_qemu(op: OpSpec, tmp_path: Path) -> None:
    compiler = Compiler(with_settings(ARM, PI5))
    arrays, expected = _arguments(compiler, op)
    compiled = compiler.compile(op, compiler.plans(op, 1)[0])
    path = tmp_path / "operator.so"
    path.write_bytes(linker.shared_library(linker.object_files(compiled.library), CROSS))
    result = emulate(path, compiled.name, arrays, tmp_path, cpu="max")
    _check(op, result[-1], expected)
