import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.hardware.target import Target
from hwnas.models import families
from hwnas.models.graph import INPUT, Signature, n_macs
from hwnas.models.int8.quantised_network import QuantisedNetwork, random_int8_network
from hwnas.models.int8.tflite import trim_kernel, write_tflite
from hwnas.models.spaces import SearchSpace
from tests.models.int8.networks import quantised
from tests.models.int8.qdq import oracle


@pytest.mark.parametrize("seed", range(8))
def test_litert_is_within_one_lsb_of_onnxruntime(tiny: SearchSpace, seed: int) -> None:
    task = Signature(in_channels=1 + 2 * (seed % 2), n_outputs=10)
    _, lowered, network = quantised(tiny, tiny.sample(random.Random(seed)), task)
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(50, *lowered[0].op.in_shape)).astype(np.float32)
    lsb = network.ops[-1].out.scale
    difference = LiteRTSession(write_tflite(network)).run(images) - oracle(network)(images)
    assert np.abs(difference).max() / lsb <= 1.001


@pytest.mark.parametrize("seed", range(3))
def test_single_operators_are_within_one_lsb_of_onnxruntime(
    small: SearchSpace, task: Signature, seed: int
) -> None:
    """Single operators: one LSB of rounding would grow through many random layers."""
    genotype = small.sample(random.Random(seed)) if seed else small.largest()
    _, _, network = quantised(small, genotype, task)
    rng = np.random.default_rng(seed)
    for alone in _operators(network):
        scale = alone.input
        pixels = rng.integers(-128, 128, (4, *alone.input_shape))
        images = ((pixels - scale.zero_point) * scale.scale).astype(np.float32)
        outputs = LiteRTSession(write_tflite(alone)).run(images)
        difference = np.abs(outputs - oracle(alone)(images)) / alone.ops[0].out.scale
        assert difference.max() <= 1.001, alone.ops[0].node.op
        assert (difference > 0.5).mean() < 1e-3, alone.ops[0].node.op


def _operators(network: QuantisedNetwork) -> Iterator[QuantisedNetwork]:
    """Yield each operator on images as a separate network; additions double their input."""
    scales = {INPUT: network.input, **{op.node.name: op.out for op in network.ops}}
    for op in network.ops:
        if op.node.op.base != "linear":  # its input has no height and width
            inputs = tuple(INPUT for _ in op.node.inputs)
            alone = dataclasses.replace(op, node=dataclasses.replace(op.node, inputs=inputs))
            yield QuantisedNetwork(op.node.op.in_shape, scales[op.node.inputs[0]], (alone,))


def test_random_genotypes_run_on_npu_with_equal_macs(
    small: SearchSpace, task: Signature, npu: Target
) -> None:
    family, rng = families.get("mbconv"), random.Random(7)
    genotypes = [small.smallest(), small.largest(), *(small.sample(rng) for _ in range(50))]
    n_trimmed = 0
    for genotype in genotypes:
        lowered = family.lower(small, genotype, task)
        cost = compile_tflite(write_tflite(random_int8_network(lowered)), lowered, npu).cost
        assert cost.reason == ""
        assert {layer.placement for layer in cost.layers} == {"NPU"}
        # Vela also counts the additions of pooling.
        pooling = [layer.macs for layer in cost.layers if layer.operator == "Mean"]
        computed = sum(trim_kernel(op).node.op.n_macs for op in random_int8_network(lowered).ops)
        assert sum(layer.macs for layer in cost.layers) - sum(pooling) == computed
        n_trimmed += computed < n_macs(lowered)
    assert 0 < n_trimmed < len(genotypes)


def test_macs_of_layers_match_vela(small: SearchSpace, task: Signature, npu: Target) -> None:
    lowered = families.get("mbconv").lower(small, small.largest(), task)
    cost = compile_tflite(write_tflite(random_int8_network(lowered)), lowered, npu).cost
    counted = {layer.name: layer.macs for layer in cost.layers}
    weighted = {node.name: node.op.n_macs for node in lowered if node.op.weight_shape}
    assert {name: counted[name] for name in weighted} == weighted


def test_equal_networks_have_equal_bytes(small: SearchSpace, task: Signature) -> None:
    lowered = families.get("mbconv").lower(small, small.smallest(), task)
    assert write_tflite(random_int8_network(lowered)) == write_tflite(random_int8_network(lowered))
