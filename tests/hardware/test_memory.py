import dataclasses
import math
import random

import pytest

from hwnas.core.errors import ConfigError
from hwnas.hardware.memory import (
    activation_bytes,
    element_bytes,
    parameter_bytes,
    peak_activation_bytes,
    weight_bytes,
)
from hwnas.models import families
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature, fuse
from hwnas.models.spaces import SearchSpace

RESIDUAL = (
    Node("expand", OpSpec("conv2d+bn+relu6", (8, 4, 4), (32, 4, 4)), (INPUT,)),
    Node("project", OpSpec("conv2d+bn", (32, 4, 4), (8, 4, 4)), ("expand",)),
    Node("add", OpSpec("add", (8, 4, 4), (8, 4, 4)), (INPUT, "project")),
    Node("pool", OpSpec("mean", (8, 4, 4), (8, 1, 1)), ("add",)),
)


def test_residual_input_stays_alive_until_sum() -> None:
    assert peak_activation_bytes(Graph.of(RESIDUAL)) == (8 + 32 + 8) * 16  # input, expand, project
    assert peak_activation_bytes(Graph.of(RESIDUAL[:1])) == (8 + 32) * 16
    without = (*RESIDUAL[:2], Node("pool", OpSpec("mean", (8, 4, 4), (8, 1, 1)), ("project",)))
    assert peak_activation_bytes(Graph.of(without)) == (8 + 32) * 16


def _peak_by_brute_force(lowered: Graph) -> int:
    """Return the peak by checking at every step which tensors are still needed."""
    size = lowered[0].op.batch * element_bytes(lowered[0].op.dtype)
    shapes = {node.name: node.op.out_shape for node in lowered} | {INPUT: lowered[0].op.in_shape}
    names = [INPUT, *(node.name for node in lowered)]
    peak = 0
    for now in range(1, len(names)):  # while names[now] is computed
        alive = [
            name
            for written, name in enumerate(names[: now + 1])
            if written == now or any(name in node.inputs for node in lowered[now - 1 :])
        ]
        peak = max(peak, size * sum(math.prod(shapes[name]) for name in alive))
    return peak


def test_peak_matches_brute_force(small: SearchSpace, task: Signature) -> None:
    rng = random.Random(0)
    family = families.get(small.family)
    for genotype in [small.largest(), small.smallest(), *(small.sample(rng) for _ in range(20))]:
        lowered = family.lower(small, genotype, task)
        assert peak_activation_bytes(lowered) == _peak_by_brute_force(lowered)
        fused = fuse(lowered, "float32", batch=3)
        assert peak_activation_bytes(fused) == _peak_by_brute_force(fused)


def test_dtype_and_batch_multiply_activations(small: SearchSpace, task: Signature) -> None:
    lowered = families.get(small.family).lower(small, small.largest(), task)
    graph = fuse(lowered, "int8")
    assert peak_activation_bytes(fuse(lowered, "float32", 5)) == 20 * peak_activation_bytes(graph)
    assert weight_bytes(fuse(lowered, "float32", 5)) == weight_bytes(fuse(lowered, "float32"))


def test_bytes_of_operators() -> None:
    conv = OpSpec("conv2d+bn", (8, 4, 4), (16, 4, 4), kernel=3)
    assert parameter_bytes(conv) == 9 * 8 * 16 + 16 * 8
    assert activation_bytes(conv) == (8 + 16) * 16
    real = dataclasses.replace(conv, kind="conv2d+bn+add", dtype="float32", batch=2)
    assert parameter_bytes(real) == 4 * (9 * 8 * 16 + 16)
    assert activation_bytes(real) == 2 * 4 * (8 + 16 + 16) * 16
    scale = OpSpec("mul", (8, 4, 4), (8, 4, 4))
    assert activation_bytes(scale) == (8 + 8) * 16 + 8
    assert parameter_bytes(scale) == 0
    assert parameter_bytes(OpSpec("layernorm", (8, 4, 1), (8, 4, 1), dtype="float16")) == 32


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'int8'"):
        element_bytes("int9")
