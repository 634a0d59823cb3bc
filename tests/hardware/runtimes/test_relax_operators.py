"""Operators and all their schedules, compared with torch."""

import itertools
import platform
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hwnas.core import machine
from hwnas.core.errors import CompileError
from hwnas.hardware.backends.tvm import TvmSettings, layout
from hwnas.hardware.backends.tvm.compiler import Compiler
from hwnas.hardware.backends.tvm.engine import LocalDevice
from hwnas.hardware.backends.tvm.templates import Cpu, Plan, Tile
from hwnas.models.graph import ACTIVATIONS, BASES, OpSpec
from tests.conftest import few_of, with_settings
from tests.hardware.runtimes import torch_reference as reference
from tests.hardware.runtimes.rpc_lab import HOST

TOLERANCE = 2e-5
JUNK = 0.5  # in padded channels of inputs


def _op(kind: str, c_in: int, c_out: int, size: tuple[int, int], **facts: int) -> OpSpec:
    """Return an operator on images of a size; ``depthwise=1`` is a depthwise convolution."""
    kernel, stride = facts.get("kernel", 1), facts.get("stride", 1)
    groups = c_in if facts.get("depthwise") else facts.get("heads", 1)
    op = OpSpec(kind, (c_in, *size), (c_out, *size), kernel, stride, groups, "float32")
    h, w = ((n + 2 * op.padding - kernel) // stride + 1 for n in size)
    out = (c_out, 1, 1) if op.base == "mean" else (c_out, h, w)
    return replace(op, out_shape=out, batch=facts.get("batch", 1))


CPUS = {
    "host": True,
    "x86-64-v3": platform.machine() == "x86_64" and "avx2" in machine.describe()["flags"],
    "x86-64-v2": platform.machine() == "x86_64",
}


@pytest.fixture(scope="module")
def compilers() -> dict[str, Compiler]:
    """Return a compiler for each kind of CPU whose code runs here, and for two threads.

    Code for two threads also runs on one.
    """
    LocalDevice(1)
    result = {
        name: Compiler(with_settings(HOST, TvmSettings(mcpu=name)))
        for name, runs in CPUS.items()
        if runs
    }
    return {**result, "threads": Compiler(replace(HOST, threads=2))}


def _compiler(compilers: dict[str, Compiler], name: str) -> Compiler:
    if name not in compilers:
        pytest.skip(f"code for {name} does not run here")
    return compilers[name]


def _in_memory(tensor: torch.Tensor, lanes: int, junk: float) -> NDArray[np.float32]:
    n, c, h, w = tensor.shape
    memory = np.full(layout.buffer_shape((c, h, w), n, lanes), junk, np.float32)
    memory[..., :c] = tensor.movedim(1, -1).numpy()
    return memory


def _error(
    compiler: Compiler, op: OpSpec, plan: Plan, inputs: list[torch.Tensor], junk: float = JUNK
) -> float:
    """Return the error of a compiled operator relative to its largest output."""
    lanes, device = compiler.cpu.lanes, LocalDevice(1)
    _, parameters = reference.example(op)
    arrays = [_in_memory(tensor, lanes, junk) for tensor in inputs]
    if parameters:
        weight, bias = (tensor.numpy() for tensor in parameters)
        arrays += layout.pack(op, weight, bias, lanes)
    arrays.append(np.full(layout.buffer_shape(op.out_shape, op.batch, lanes), np.nan, np.float32))
    assert [array.shape for array in arrays] == [b.shape for b in compiler.buffers(op)]
    tensors = [device.tensor(array) for array in arrays]
    compiled = compiler.compile(op, plan)
    device.call(device.load(compiled.library), compiled.name, tensors)
    result = device.array(tensors[-1])
    assert np.isfinite(result).all()  # padded channels too: the next operator multiplies them
    compiler.forget(op, plan)
    doubles = [[tensor.double() for tensor in tensors] for tensors in (inputs, parameters)]
    expected = reference.operator(op, *doubles).numpy()
    return reference.relative_error(result[..., : op.out_shape[0]].transpose(0, 3, 1, 2), expected)


OPERATORS = (
    *(_op("conv2d+bn", c, o, (6, 6), kernel=3) for c, o in ((1, 5), (3, 12), (20, 36), (36, 2))),
    _op("conv2d+bn+relu", 5, 20, (9, 7), kernel=3, stride=2, batch=3),
    _op("conv2d+bn+relu6", 3, 16, (8, 12), kernel=4, stride=4),
    _op("conv2d+add+relu", 12, 12, (5, 5), kernel=5, batch=3),
    _op("conv2d", 12, 20, (1, 1), kernel=7),
    _op("conv2d+add", 16, 16, (1, 1), batch=3),
    _op("conv2d+bn", 20, 36, (7, 5), stride=2),
    *(_op("conv2d+bn+relu6", c, c, (7, 7), kernel=3, depthwise=1) for c in (2, 5, 12, 20, 36)),
    _op("conv2d+bn+hardswish", 36, 36, (9, 6), kernel=5, stride=2, depthwise=1, batch=3),
    _op("conv2d+add", 20, 20, (1, 1), kernel=7, depthwise=1),
    _op("linear", 5, 12, (1, 1)),
    _op("linear", 64, 3, (1, 1), batch=3),
    _op("linear+gelu", 20, 36, (7, 1), batch=3),
    _op("linear+add", 36, 20, (5, 5)),
    _op("add+relu", 20, 20, (5, 5), batch=3),
    _op("add", 3, 3, (1, 1)),
    _op("mul", 12, 12, (5, 3), batch=3),
    _op("mul", 36, 36, (1, 1)),
    *(_op("mean", c, c, (7, 5), batch=b) for c, b in ((3, 1), (20, 3), (36, 1))),
    _op("mean", 12, 12, (1, 1)),
    _op("max_pool2d", 12, 12, (7, 7), kernel=3, stride=2),
    _op("max_pool2d", 36, 36, (6, 6), kernel=2, stride=2, batch=3),
    _op("max_pool2d", 5, 5, (1, 1), kernel=3),
    *(_op("layernorm", c, c, (5, 5), batch=b) for c, b in ((5, 1), (12, 3), (20, 1), (64, 3))),
    _op("layernorm", 36, 36, (1, 1)),
    _op("attention", 60, 20, (5, 5), heads=2),
    _op("attention", 72, 24, (7, 1), heads=2, batch=3),
    _op("attention", 48, 16, (1, 1), heads=1),
    _op("attention", 15, 5, (11, 3), heads=1),
)


def test_all_operators_are_tested() -> None:
    assert {op.base for op in OPERATORS} == {*BASES}


@pytest.mark.parametrize("op", few_of([*OPERATORS[::2], *OPERATORS[1::2]], 21), ids=str)
def test_operator_matches_torch(compilers: dict[str, Compiler], op: OpSpec) -> None:
    compiler = compilers["host"]
    junk = 0.0 if op.base == "layernorm" else JUNK
    (plan,) = compiler.plans(op, 1)
    assert _error(compiler, op, plan, reference.example(op)[0], junk) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v2"])
def test_operators_match_torch_with_shorter_vectors(
    compilers: dict[str, Compiler], name: str
) -> None:
    compiler = _compiler(compilers, name)
    assert compiler.cpu == Cpu(lanes=8 if name == "x86-64-v3" else 4, registers=16)
    for op in OPERATORS[::2]:
        junk = 0.0 if op.base == "layernorm" else JUNK
        (plan,) = compiler.plans(op, 1)
        assert _error(compiler, op, plan, reference.example(op)[0], junk) < TOLERANCE, op


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["add", "conv2d"])
@pytest.mark.parametrize("largest", few_of([4.0, 300.0], 1))
def test_activation_matches_torch_in_whole_range(
    compilers: dict[str, Compiler], name: str, kind: str, largest: float
) -> None:
    op = _op(f"{kind}+{name}", 16, 16, (16, 16))
    x = torch.linspace(-largest, largest, 16 * 256).reshape(1, 16, 16, 16)
    inputs = [x, torch.zeros_like(x)][: len(reference.shapes(op))]
    (plan,) = compilers["host"].plans(op, 1)
    assert _error(compilers["host"], op, plan, inputs) < TOLERANCE


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 100.0), (1e-3, 10.0)])
def test_layernorm_is_accurate_far_from_zero(
    compilers: dict[str, Compiler], scale: float, shift: float
) -> None:
    op = _op("layernorm", 64, 64, (5, 5))
    x = torch.randn(1, 64, 5, 5, generator=torch.Generator().manual_seed(0)) * scale + shift
    assert _error(compilers["host"], op, Plan(None), [x]) < 1e-3


def test_layernorm_does_not_read_padded_channels(compilers: dict[str, Compiler]) -> None:
    op = _op("layernorm", 20, 20, (5, 5))
    assert _error(compilers["host"], op, Plan(None), reference.example(op)[0]) < TOLERANCE


PLANNED = (
    _op("conv2d+bn+relu6", 5, 36, (6, 6), kernel=3, batch=2),
    _op("conv2d+bn+add", 12, 20, (9, 8), kernel=5, stride=2),
    _op("conv2d+bn+add+relu", 20, 20, (4, 6), kernel=7, depthwise=1),
    _op("conv2d+bn+relu", 36, 36, (9, 5), kernel=3, stride=2, depthwise=1, batch=3),
    _op("conv2d+bn+add+hardswish", 12, 64, (6, 4), batch=3),
    _op("conv2d", 16, 20, (5, 5), stride=2),
    _op("linear+gelu", 20, 36, (7, 1), batch=2),
    _op("linear", 36, 12, (1, 1), batch=3),
    _op("mean", 20, 20, (5, 5), batch=3),
    _op("max_pool2d", 20, 20, (5, 5), kernel=3, stride=2),
    _op("layernorm", 20, 20, (7, 1), batch=2),
    _op("attention", 60, 20, (7, 1), heads=2, batch=2),
    _op("mul", 20, 20, (5, 5), batch=2),
)


def _inaccurate_plans(compiler: Compiler, op: OpSpec) -> list[str]:
    """Return the plans whose outputs differ from torch."""
    junk = 0.0 if op.base == "layernorm" else JUNK
    inputs, _ = reference.example(op)
    plans = compiler.plans(op, 50)
    assert plans
    assert len({*plans}) == len(plans)
    return [str(plan) for plan in plans if not _error(compiler, op, plan, inputs, junk) < TOLERANCE]


@pytest.mark.slow
@pytest.mark.parametrize("op", few_of([op for op in PLANNED if op.weight_shape], 1), ids=str)
def test_all_plans_match_torch(compilers: dict[str, Compiler], op: OpSpec) -> None:
    assert _inaccurate_plans(compilers["host"], op) == []


@pytest.mark.slow
@pytest.mark.parametrize("op", [PLANNED[1], PLANNED[6]], ids=str)
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v2"])
def test_all_plans_for_shorter_vectors_match_torch(
    compilers: dict[str, Compiler], name: str, op: OpSpec
) -> None:
    assert _inaccurate_plans(_compiler(compilers, name), op) == []


@pytest.mark.parametrize("op", PLANNED[3:], ids=str)
def test_plans_for_threads_match_torch(compilers: dict[str, Compiler], op: OpSpec) -> None:
    compiler = compilers["threads"]
    plans = compiler.plans(op, 2)
    assert plans[0].parallel
    assert not plans[1].parallel
    junk = 0.0 if op.base == "layernorm" else JUNK
    inputs, _ = reference.example(op)
    for plan in plans:
        assert _error(compiler, op, plan, inputs, junk) < TOLERANCE, str(plan)


@pytest.mark.parametrize("name", ["host", "threads"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_number_of_plans_is_limited_best_first(
    compilers: dict[str, Compiler], name: str, limit: int
) -> None:
    for op in PLANNED:
        plans, every = (compilers[name].plans(op, n) for n in (limit, 1000))
        assert plans == every[: len(plans)]
        assert 0 < len(plans) <= limit


def test_tiles_fit_registers(compilers: dict[str, Compiler]) -> None:
    for compiler, op in itertools.product(compilers.values(), PLANNED):
        for plan in compiler.plans(op, 1000):
            if plan.tile is not None:
                assert plan.tile.n_accumulators <= compiler.cpu.registers - 4


def test_plan_round_trips_through_text(compilers: dict[str, Compiler]) -> None:
    plans = [plan for op in PLANNED for plan in compilers["threads"].plans(op, 1000)]
    assert [Plan.parse(str(plan)) for plan in plans] == plans
    assert {plan.parallel for plan in plans} == {True, False}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "parallel",
        "plain plain",
        "1x1 weights none",
        "1x1x1 weights",
        "axbxc image row",
        "0x1x1 weights row",
        "1x1x1 sideways row",
        "1x1x1 image somewhere",
    ],
)
def test_invalid_plan_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|literal|is no plan"):
        Plan.parse(text)


@pytest.mark.parametrize(
    ("op", "plan"),
    [
        (PLANNED[0], Plan(Tile(0, 1, 1, "weights", "row"))),
        (OPERATORS[-1], Plan.parse("1x1x1 weights none")),
    ],
)
def test_plan_of_another_operator_is_refused_in_one_line(
    compilers: dict[str, Compiler], op: OpSpec, plan: Plan
) -> None:
    with pytest.raises(CompileError, match=f"TVM cannot compile .* with plan '{plan}': ") as error:
        compilers["host"].compile(op, plan)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (replace(PLANNED[0], dtype="float16"), "TVM compiles float32 here, not .*onnxruntime"),
        (replace(PLANNED[0], dtype="int8"), "TVM compiles float32 here, not .*onnxruntime"),
        (replace(_op("conv2d", 8, 16, (5, 5), kernel=3), groups=2), "No TVM operator for conv2d"),
        (replace(_op("conv2d", 8, 16, (5, 5), kernel=3), groups=8), "No TVM operator for conv2d"),
        (_op("conv3d", 8, 8, (5, 5)), "No TVM operator for conv3d"),
    ],
)
def test_unsupported_operator_is_refused(
    compilers: dict[str, Compiler], op: OpSpec, reason: str
) -> None:
    with pytest.raises(CompileError, match=reason):
        compilers["host"].compile(op, Plan(None))


@pytest.mark.parametrize("kind", ["mean+relu", "max_pool2d+relu", "layernorm+gelu", "conv2d+swish"])
def test_unsupported_fusion_is_refused(compilers: dict[str, Compiler], kind: str) -> None:
    op = OpSpec(kind, (8, 4, 4), (8, 4, 4), dtype="float32")
    (plan,) = compilers["host"].plans(op, 1)
    with pytest.raises(CompileError, match="cannot be fused"):
        compilers["host"].compile(op, plan)
