"""ONNX files of graphs; torch's functions are the reference."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models import families
from hwnas.models.graph import (
    ACTIVATIONS,
    BASES,
    INPUT,
    Graph,
    Node,
    OpSpec,
    Shape,
    Signature,
    fuse,
)
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.onnx.writer import IMAGES, LOGITS, write_fp32, write_int8
from hwnas.models.spaces import SearchSpace

IMAGE, TOKENS, VECTOR = (8, 6, 5), (8, 30, 1), (8, 1, 1)

ONE_INPUT = {
    "conv 1x1": OpSpec("conv2d+bn", IMAGE, (12, 6, 5)),
    "conv 3x3": OpSpec("conv2d+bn", IMAGE, (12, 6, 5), kernel=3),
    "conv 5x5 stride 2": OpSpec("conv2d+bn", IMAGE, (12, 3, 3), kernel=5, stride=2),
    "conv 1x1 stride 2": OpSpec("conv2d", IMAGE, (12, 3, 3), stride=2),
    "patches": OpSpec("conv2d", (3, 8, 8), (12, 2, 2), kernel=4, stride=4),
    "depthwise": OpSpec("conv2d+bn", IMAGE, IMAGE, kernel=3, groups=8),
    "grouped": OpSpec("conv2d+bn", IMAGE, (12, 6, 5), kernel=3, groups=4),
    "conv of a vector": OpSpec("conv2d", VECTOR, (12, 1, 1)),
    "linear of a vector": OpSpec("linear", VECTOR, (12, 1, 1)),
    "linear of tokens": OpSpec("linear", TOKENS, (12, 30, 1)),
    "linear of an image": OpSpec("linear", IMAGE, (12, 6, 5)),
    "mean of an image": OpSpec("mean", IMAGE, VECTOR),
    "mean of tokens": OpSpec("mean", TOKENS, VECTOR),
    "max pooling": OpSpec("max_pool2d", IMAGE, (8, 3, 3), kernel=3, stride=2),
    "max pooling of windows": OpSpec("max_pool2d", IMAGE, (8, 3, 2), kernel=2, stride=2),
    "layer norm of tokens": OpSpec("layernorm", TOKENS, TOKENS),
    "layer norm of an image": OpSpec("layernorm", IMAGE, IMAGE),
    "attention": OpSpec("attention", (24, 30, 1), TOKENS, groups=2),
    "attention of one head": OpSpec("attention", (24, 30, 1), TOKENS, groups=1),
}


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
}


def attention(x: Tensor, heads: int) -> Tensor:
    parts = x.reshape(len(x), 3, heads, -1, x.shape[2]).transpose(3, 4)  # N, 3, heads, T, d
    mixed = F.scaled_dot_product_attention(parts[:, 0], parts[:, 1], parts[:, 2])
    out: Tensor = mixed.transpose(2, 3).reshape(len(x), -1, x.shape[2], 1)
    return out


def layer_norm(op: OpSpec, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x.movedim(1, -1), (op.in_shape[0],), weight, bias).movedim(-1, 1)


REFERENCES: dict[str, Callable[..., Tensor]] = {
    "conv2d": lambda op, x, w, b: F.conv2d(x, w, b, op.stride, op.padding, 1, op.groups),
    "linear": lambda op, x, w, b: F.linear(x.movedim(1, -1), w, b).movedim(-1, 1),
    "add": lambda op, a, b: a + b,
    "mul": lambda op, a, b: a * b,
    "mean": lambda op, x: x.mean((2, 3), keepdim=True),
    "max_pool2d": lambda op, x: F.max_pool2d(x, op.kernel, op.stride, op.padding),
    "layernorm": layer_norm,
    "attention": lambda op, x: attention(x, op.groups),
}


def compute(op: OpSpec, inputs: list[Tensor], parameters: list[Tensor]) -> Tensor:
    operands = inputs if op.base in ("add", "mul") else inputs[:1]
    out = REFERENCES[op.base](op, *operands, *parameters)
    for part in op.fused:
        if part == "add":
            out = out + inputs[-1].reshape(out.shape)
        elif part != "bn":
            out = FUNCTIONS[part](out)
    assert tuple(out.shape[1:]) == op.out_shape
    return out


def reference(
    lowered: Graph,
    weights: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]],
    images: NDArray[np.float32],
) -> NDArray[np.float32]:
    values = {INPUT: torch.from_numpy(images)}
    for node in lowered:
        inputs = [values[name] for name in node.inputs]
        inputs[0] = inputs[0].reshape(len(images), *node.op.in_shape)
        parameters = [torch.from_numpy(array) for array in weights.get(node.name, ())]
        values[node.name] = compute(node.op, inputs, parameters)
    out = values[lowered[-1].name].numpy()
    logits: NDArray[np.float32] = out[..., 0, 0] if out.shape[2:] == (1, 1) else out
    return logits


def check_outputs(lowered: Graph, n_images: int = 3) -> None:
    weights = random_weights(lowered, 1)
    shape = (n_images, *lowered[0].op.in_shape)
    images = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    model = write_fp32(lowered, weights)
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    outputs, expected = OrtSession(model).run(images), reference(lowered, weights, images)
    assert outputs.shape == expected.shape
    assert np.abs(outputs - expected).max() <= 2e-5 * max(1.0, np.abs(expected).max())


def alone(op: OpSpec, n_inputs: int = 1) -> Graph:
    return Graph.of((Node("operator", op, (INPUT,) * n_inputs),))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("op", ONE_INPUT.values(), ids=ONE_INPUT)
def test_operator_matches_torch(op: OpSpec, batch: int) -> None:
    check_outputs(alone(replace(op, batch=batch)))


def test_all_operators_are_tested() -> None:
    assert {op.base for op in ONE_INPUT.values()} | {"add", "mul"} == {*BASES}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("base", ["conv2d+bn", "linear", "add"])
def test_activation_matches_torch(base: str, activation: str) -> None:
    for shape in (IMAGE, TOKENS, VECTOR):
        check_outputs(alone(OpSpec(f"{base}+{activation}", shape, shape), 1 + (base == "add")))


@pytest.mark.parametrize("shape", [IMAGE, TOKENS, VECTOR])
@pytest.mark.parametrize("base", ["conv2d+bn", "linear"])
def test_sum_precedes_activation(base: str, shape: Shape) -> None:
    check_outputs(alone(OpSpec(f"{base}+add+relu", shape, shape), 2))


def squeeze_and_excite(gates: str) -> Graph:
    return Graph.of(
        (
            Node("conv", OpSpec("conv2d+bn+hardswish", IMAGE, IMAGE, kernel=3), (INPUT,)),
            Node("pool", OpSpec("mean", IMAGE, VECTOR), ("conv",)),
            Node("reduce", OpSpec(f"{gates}+relu", VECTOR, (4, 1, 1)), ("pool",)),
            Node("expand", OpSpec(f"{gates}+hardsigmoid", (4, 1, 1), VECTOR), ("reduce",)),
            Node("gate", OpSpec("mul", IMAGE, IMAGE), ("conv", "expand")),
            Node("head", OpSpec("conv2d+bn", IMAGE, (12, 6, 5)), ("gate",)),
        )
    )


def transformer() -> Graph:
    patches, tokens, c = (12, 4, 4), (12, 16, 1), 12
    return Graph.of(
        (
            Node("patches", OpSpec("conv2d", (3, 8, 8), patches, kernel=2, stride=2), (INPUT,)),
            Node("norm1", OpSpec("layernorm", tokens, tokens), ("patches",)),
            Node("qkv", OpSpec("linear", tokens, (3 * c, 16, 1)), ("norm1",)),
            Node("attention", OpSpec("attention", (3 * c, 16, 1), tokens, groups=3), ("qkv",)),
            Node("out", OpSpec("linear", tokens, tokens), ("attention",)),
            Node("add1", OpSpec("add", tokens, tokens), ("norm1", "out")),
            Node("norm2", OpSpec("layernorm", tokens, tokens), ("add1",)),
            Node("fc1", OpSpec("linear+gelu", tokens, (24, 16, 1)), ("norm2",)),
            Node("fc2", OpSpec("linear", (24, 16, 1), tokens), ("fc1",)),
            Node("add2", OpSpec("add", tokens, tokens), ("add1", "fc2")),
            Node("depthwise", OpSpec("conv2d", patches, patches, kernel=3, groups=c), ("add2",)),
            Node("pool", OpSpec("mean", patches, (c, 1, 1)), ("depthwise",)),
            Node("classifier", OpSpec("linear", (c, 1, 1), (10, 1, 1)), ("pool",)),
        )
    )


NETWORKS = {
    "gates by convolution": squeeze_and_excite("conv2d+bn"),
    "gates by linear layers": squeeze_and_excite("linear"),
    "transformer": transformer(),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lowered", NETWORKS.values(), ids=NETWORKS)
def test_network_matches_torch(lowered: Graph, batch: int) -> None:
    check_outputs(Graph.of(replace(node, op=replace(node.op, batch=batch)) for node in lowered), 4)


@pytest.mark.parametrize("seed", range(3))
def test_fused_and_unfused_networks_are_equal(
    small: SearchSpace, task: Signature, seed: int
) -> None:
    family = families.get("mbconv")
    mbconv = family.lower(small, small.largest(), task)
    for lowered in (mbconv, transformer()):
        fused, weights = fuse(lowered, "float32"), random_weights(lowered, seed)
        assert len(fused) < len(lowered)
        shape = (2, *lowered[0].op.in_shape)
        images = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        outputs = OrtSession(write_fp32(fused, weights)).run(images)
        unfused = OrtSession(write_fp32(lowered, weights)).run(images)
        assert np.allclose(outputs, unfused, rtol=1e-4, atol=1e-4)
        assert np.allclose(outputs, reference(fused, weights, images), rtol=1e-3, atol=1e-3)


def test_nodes_have_names_of_operators() -> None:
    lowered = (*transformer()[:-1], replace(transformer()[-1], name=LOGITS))
    lowered = (
        replace(lowered[0], name=IMAGES),
        replace(lowered[1], inputs=(IMAGES,)),
        *lowered[2:],
    )
    check_outputs(Graph.of(lowered))
    graph = onnx.load_from_string(
        write_fp32(Graph.of(lowered), random_weights(Graph.of(lowered), 0))
    ).graph
    named = {node.name for node in graph.node}
    assert {node.name for node in lowered} <= named
    assert [value.name for value in graph.input] == [IMAGES]
    assert [value.name for value in graph.output] == [LOGITS]


def test_equal_networks_have_equal_bytes() -> None:
    weights = random_weights(transformer(), 0)
    assert write_fp32(transformer(), weights) == write_fp32(transformer(), weights)


def test_random_weights_keep_scale_of_activations(small: SearchSpace, task: Signature) -> None:
    lowered = families.get("mbconv").lower(small, small.largest(), task)
    images = np.random.default_rng(0).standard_normal((4, *lowered[0].op.in_shape))
    outputs = reference(lowered, random_weights(lowered, 0), images.astype(np.float32))
    assert 0.01 < np.abs(outputs).mean() < 100


def test_error_names_operator_without_weights() -> None:
    with pytest.raises(CompileError, match="'operator' has no weights: linear"):
        write_fp32(alone(ONE_INPUT["linear of a vector"]), {})


@pytest.mark.parametrize("kind", ["softmax", "add+tanh"])
def test_unknown_operator_is_refused(kind: str) -> None:
    with pytest.raises(CompileError, match=r"'operator.*' cannot be written as ONNX"):
        write_fp32(alone(OpSpec(kind, IMAGE, IMAGE), 2), {})


@pytest.mark.parametrize("kind", ["conv2d+bn+add", "layernorm", "attention"])
def test_operator_without_int8_form_is_refused(kind: str) -> None:
    with pytest.raises(CompileError, match="'operator' cannot be written in int8"):
        write_int8(random_int8_network(alone(OpSpec(kind, IMAGE, IMAGE), 2)))


@pytest.mark.parametrize("name", ["layer norm of tokens", "attention"])
def test_composite_operator_is_refused_in_int8(name: str) -> None:
    with pytest.raises(CompileError, match=r"'operator' cannot be written in int8.*int8 has no"):
        write_int8(random_int8_network(alone(ONE_INPUT[name])))
