"""Kernels are trimmed to the part that overlaps the image, with equal outputs."""

from dataclasses import replace

import numpy as np
import pytest

from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature
from hwnas.models.int8 import tflite
from hwnas.models.int8.quantised_network import QuantisedNetwork, random_int8_network
from hwnas.models.int8.tflite import trim_kernel

#: Kernel, stride, height and width, and the kernel and stride after trimming.
WINDOWS = {
    (3, 1, 1, 1): (1, 1),
    (3, 2, 1, 1): (1, 1),
    (7, 1, 1, 1): (1, 1),
    (3, 2, 2, 2): (2, 2),
    (5, 2, 2, 2): (2, 2),
    (5, 1, 2, 2): (3, 1),
    (7, 1, 3, 3): (5, 1),
    (7, 1, 2, 3): (5, 1),
    (5, 1, 1, 2): (3, 1),
    (3, 1, 2, 2): (3, 1),
    (5, 2, 3, 3): (5, 2),
    (3, 2, 1, 2): (3, 2),
    (3, 2, 3, 3): (3, 2),
    (2, 2, 2, 2): (2, 2),
    (1, 1, 1, 1): (1, 1),
}


def _network(window: tuple[int, int, int, int], groups: int) -> QuantisedNetwork:
    kernel, stride, height, width = window
    out = (8, -(-height // stride), -(-width // stride))
    op = OpSpec("conv2d+bn+relu", (8, height, width), out, kernel, stride, groups)
    return random_int8_network(Graph.of([Node("conv", op, (INPUT,))]))


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("window", WINDOWS)
def test_trimmed_kernels_have_equal_outputs(
    window: tuple[int, int, int, int], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _network(window, groups)
    small = trim_kernel(network.ops[0])
    assert (small.node.op.kernel, small.node.op.stride) == WINDOWS[window]
    assert small.weights is not None
    assert small.weights.weight.shape == small.node.op.weight_shape
    images = np.random.default_rng(0).normal(size=(64, *network.input_shape)).astype(np.float32)
    answers = LiteRTSession(tflite.write_tflite(network)).run(images)
    monkeypatch.setattr(tflite, "trim_kernel", lambda quantised: quantised)
    np.testing.assert_array_equal(answers, LiteRTSession(tflite.write_tflite(network)).run(images))
    assert len(np.unique(answers)) > 8, "outputs vary"


@pytest.mark.parametrize("window", [window for window in WINDOWS if window[2] == window[3]])
def test_every_trimmed_weight_affects_outputs(window: tuple[int, int, int, int]) -> None:
    network = _network(window, 8)
    (op,) = network.ops
    small = trim_kernel(op)
    assert small.weights is not None
    images = np.ones((1, *network.input_shape), np.float32)
    before = LiteRTSession(tflite.write_tflite(network)).run(images)
    kernel = small.node.op.kernel
    for row in range(kernel):
        for column in range(kernel):
            weight = small.weights.weight.copy()
            weight[:, :, row, column] = 127 * np.where(weight[:, :, row, column] > 0, -1, 1)
            other = replace(small, weights=replace(small.weights, weight=weight))
            after = LiteRTSession(tflite.write_tflite(replace(network, ops=(other,)))).run(images)
            assert (after != before).any(), (row, column)


def _network_ending_in_one_pixel() -> Graph:
    space = spaces.load_space(spaces.find("dense_packed"))
    strided = {"resolution": 16, "stem.stride": 2, "stages.0.stride": 2, "stages.2.stride": 2}
    kinds = {name: "plain" for name in space.choices if name.endswith("kind")}
    smallest = {name: options[0] for name, options in space.choices.items()}
    genotype = space.genotype(smallest | strided | kinds | {"stages.2.depth": 2})
    return families.family_of(space).lower(space, genotype, Signature(1, 10))


def test_mean_of_one_pixel_is_omitted(npu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = _network_ending_in_one_pixel()
    network = random_int8_network(lowered)
    images = np.random.default_rng(0).normal(size=(64, *network.input_shape)).astype(np.float32)
    results = []
    for is_computed in (False, True):
        if is_computed:
            monkeypatch.setattr(tflite, "is_identity_mean", lambda _: False)
        file = tflite.write_tflite(network)
        layers = compile_tflite(file, lowered, npu).cost.layers
        assert any(layer.operator == "Mean" for layer in layers) == is_computed
        results.append((LiteRTSession(file).run(images), sum(layer.cycles for layer in layers)))
    (answers, cycles), (computed, more) = results
    np.testing.assert_array_equal(answers, computed)
    assert len(np.unique(answers)) > 8
    assert cycles < more


def test_trimming_saves_time_and_flash(npu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = _network_ending_in_one_pixel()
    costs = []
    for trim in (trim_kernel, lambda quantised: quantised):
        monkeypatch.setattr(tflite, "trim_kernel", trim)
        cost = compile_tflite(tflite.write_tflite(random_int8_network(lowered)), lowered, npu).cost
        costs.append([cost.figures[name].value for name in ("latency_ms", "flash_kib")])
    (ms, kib), (ms_before, kib_before) = costs
    assert ms < 0.9 * ms_before
    assert kib < 0.7 * kib_before
