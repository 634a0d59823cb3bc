import numpy as np
import pytest
import torch

from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.models.graph import Signature
from hwnas.models.int8.quantised_network import QuantisationScale
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import SearchSpace
from tests.models.int8.networks import quantised


@pytest.mark.slow
def test_int8_outputs_are_close_to_float_outputs(small: SearchSpace, task: Signature) -> None:
    network, lowered, int8 = quantised(small, small.largest(), task)
    images = torch.randn(32, *lowered[0].op.in_shape)
    with torch.no_grad():
        expected = network(images).numpy()
    outputs = LiteRTSession(write_tflite(int8)).run(images.numpy())
    noise = np.abs(outputs - expected).mean() / expected.std()
    assert noise < 0.15
    assert np.corrcoef(outputs.ravel(), expected.ravel())[0, 1] > 0.98


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 0.0)])
def test_zero_is_exact_and_range_is_covered(low: float, high: float) -> None:
    scale = QuantisationScale.of_range(low, high)
    assert -128 <= scale.zero_point <= 127
    bottom = (-128 - scale.zero_point) * scale.scale
    top = (127 - scale.zero_point) * scale.scale
    assert bottom <= min(low, 0) + scale.scale
    assert top >= max(high, 0) - scale.scale


def test_channel_of_zero_weights_keeps_bias(tiny: SearchSpace, task: Signature) -> None:
    network, lowered, _ = quantised(tiny, tiny.smallest(), task)
    stem = network.get_submodule("stem.conv")
    assert isinstance(stem, torch.nn.Conv2d)
    assert stem.bias is not None
    with torch.no_grad():
        stem.weight[0] = 0
        stem.bias[0] = 2.5
    from hwnas.models.int8.quantisation import quantise

    int8 = quantise(network, lowered, torch.randn(8, *lowered[0].op.in_shape))
    weights = int8.ops[0].weights
    assert weights is not None
    real = weights.bias[0] * float(weights.scales[0]) * int8.input.scale
    assert real == pytest.approx(2.5, rel=1e-3)
