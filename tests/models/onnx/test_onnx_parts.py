"""Parts of networks as ONNX: exact round trip, and together equal to the network."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models import families, graph, spaces
from hwnas.models.graph import Graph, Signature, fuse
from hwnas.models.int8 import tflite
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.onnx.subgraphs import (
    BOUNDARY,
    read_fp32,
    read_int8,
    rename_boundary,
    with_uint8_input,
    with_uint8_output,
)
from hwnas.models.onnx.writer import write_fp32, write_int8

SPACES = ("mbconv_small", "cpu_small", "resnet_small", "hardswish")


def _lowered(name: str, seed: int) -> Graph:
    """Return the operators of a random network; ``hardswish`` has computed activations."""
    space = spaces.load_space(spaces.find("mbconv_small" if name == "hardswish" else name))
    genotype = space.sample(random.Random(seed))
    lowered = families.get(space.family).lower(space, genotype, Signature(1, 10))
    if name != "hardswish":
        return lowered
    nodes = (
        replace(n, op=replace(n.op, kind=n.op.kind.replace("relu6", "hardswish"))) for n in lowered
    )
    return replace(lowered, nodes=tuple(nodes))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("seed", [0, 1])
def test_round_trip_is_byte_exact(name: str, seed: int) -> None:
    lowered = _lowered(name, seed)
    for network in (random_int8_network(lowered), random_int8_network(_with_float_edges(lowered))):
        model = write_int8(network, any_batch=True)
        result = read_int8(model, Graph(tuple(op.node for op in network.ops), network.output_names))
        assert write_int8(result, any_batch=True) == model
    assert tflite.write_tflite(
        read_int8(write_int8(random_int8_network(lowered)), lowered)
    ) == tflite.write_tflite(random_int8_network(lowered))
    fused = fuse(lowered, "float32")
    real = write_fp32(fused, random_weights(lowered, 0), any_batch=True)
    assert write_fp32(fused, read_fp32(real, lowered), any_batch=True) == real


def _with_float_edges(lowered: Graph) -> Graph:
    last = len(lowered) - 1
    return replace(
        lowered, nodes=tuple(replace(n, in_float=i in (0, last)) for i, n in enumerate(lowered))
    )


@pytest.mark.parametrize("name", SPACES)
def test_head_and_tail_equal_whole_network(name: str) -> None:
    lowered = _lowered(name, 2)
    network = random_int8_network(lowered)
    images = np.random.default_rng(0).standard_normal((5, *lowered[0].op.in_shape))
    images = images.astype(np.float32)
    expected = OrtSession(write_int8(network)).run(images)
    cuts = [cut for cut in graph.iter_splits(lowered) if cut.shape[1:] != (1, 1)]
    assert cuts
    for cut in cuts:
        head, tail = (
            write_int8(network.subnetwork(part), any_batch=True) for part in (cut.head, cut.tail)
        )
        first = OrtSession(rename_boundary(with_uint8_output(head), is_head=True))
        tensor = first.run(images)
        assert tensor.dtype == np.uint8
        assert tensor.shape[1:] == cut.shape
        second = OrtSession(rename_boundary(with_uint8_input(tail), is_head=False))
        np.testing.assert_array_equal(second.run(tensor), expected)
        assert OrtSession(tail).run(OrtSession(head).run(images)).shape == expected.shape
    assert BOUNDARY.encode() in rename_boundary(head, is_head=True)


def test_cuts_do_not_cross_residuals() -> None:
    lowered = _lowered("mbconv_small", 3)
    names = [node.name for node in lowered]
    inside = {
        name
        for node in lowered
        if node.op.base == "add"
        for name in names[
            names.index(min(node.inputs, key=names.index)) + 1 : names.index(node.name)
        ]
    }
    assert inside
    assert not inside & {cut.after for cut in graph.iter_splits(lowered)}


def test_file_of_another_network_is_refused() -> None:
    lowered, other = _lowered("mbconv_small", 0), _lowered("resnet_small", 0)
    with pytest.raises(CompileError, match="of another network: it has no"):
        read_int8(write_int8(random_int8_network(lowered)), other)
    with pytest.raises(CompileError, match="not valid ONNX"):
        read_int8(b"nothing", lowered)
