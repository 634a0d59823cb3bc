"""Operators of own families in int8: linear layers of pixels, and layer norm at float edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models.families.layers import PixelLinear
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from hwnas.models.int8.quantisation import calibrate, quantise
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.simulation import SimulatedInt8
from hwnas.models.onnx.writer import check_int8, write_int8


class Own(nn.Module):
    """Two layers on pixels, and a head with a layer norm, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.first = PixelLinear((3, 8), "relu")
        self.second = PixelLinear((8, 6))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.norm = nn.LayerNorm(6)
        self.classifier = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, 3, 4, 4)`` to ``(N, 4)``."""
        pooled = self.pool(self.second(self.first(x))).flatten(1)
        result: Tensor = self.classifier(self.norm(pooled))
        return result


@pytest.fixture
def own() -> tuple[Own, Graph, Tensor]:
    torch.manual_seed(0)
    network = Own().eval()
    nodes = (
        Node("first", OpSpec("linear+relu", (3, 4, 4), (8, 4, 4), dtype="int8"), (INPUT,)),
        Node("second", OpSpec("linear", (8, 4, 4), (6, 4, 4), dtype="int8"), ("first",)),
        Node("pool", OpSpec("mean", (6, 4, 4), (6, 1, 1), dtype="int8"), ("second",)),
        Node("norm", OpSpec("layernorm", (6, 1, 1), (6, 1, 1), dtype="int8"), ("pool",)),
        Node("classifier", OpSpec("linear", (6, 1, 1), (4, 1, 1), dtype="int8"), ("norm",)),
    )
    behind = {"pool", "norm", "classifier"}  # the last pooling
    graph = Graph.of(replace(node, in_float=node.name in behind) for node in nodes)
    return network, graph, torch.randn(16, 3, 4, 4)


def test_simulation_matches_runtime(own: tuple[Own, Graph, Tensor]) -> None:
    network, graph, images = own
    check_int8(graph)
    simulated = SimulatedInt8(network, graph, calibrate(network, graph, images)).eval()
    with torch.no_grad():
        expected, exact = simulated(images).numpy(), network(images).numpy()
    result = OrtSession(write_int8(quantise(network, graph, images))).run(images.numpy())
    assert np.abs(result - expected).max() < 0.05 * np.abs(exact).max()
    assert np.abs(expected - exact).mean() < 0.05 * np.abs(exact).max()


def test_random_weights_can_be_written(own: tuple[Own, Graph, Tensor]) -> None:
    _, graph, images = own
    result = OrtSession(write_int8(random_int8_network(graph))).run(images.numpy())
    assert result.shape == (16, 4)
    assert np.isfinite(result).all()
