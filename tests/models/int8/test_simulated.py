import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.models import spaces
from hwnas.models.graph import Signature
from hwnas.models.int8.quantisation import calibrate
from hwnas.models.int8.quantised_network import QuantisationScale
from hwnas.models.int8.simulation import SimulatedInt8, fake_quantise
from hwnas.models.int8.tflite import write_tflite
from tests.models.int8.networks import calibrated
from tests.models.int8.qdq import oracle


def simulated(name: str, seed: int, task: Signature) -> tuple[SimulatedInt8, torch.Tensor]:
    """Return a network with random weights and its calibration images."""
    space = spaces.load_space(spaces.find(name))
    genotype = space.sample(random.Random(seed))
    network, lowered, images = calibrated(space, genotype, task, seed)
    return SimulatedInt8(network, lowered, calibrate(network, lowered, images)), images


@pytest.mark.parametrize("seed", range(6))
def test_simulation_is_within_one_lsb_of_runtimes(seed: int, task: Signature) -> None:
    network, images = simulated("tiny", seed, task)
    int8 = network.quantised()
    with torch.no_grad():
        result = network.eval()(images).numpy()
    for run in (oracle(int8), LiteRTSession(write_tflite(int8)).run):
        apart = np.abs(run(images.numpy()) - result) / int8.ops[-1].out.scale
        assert apart.max() < 1.001
        assert apart.mean() < 0.01


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["mbconv_mixed", "resnet_small"])
def test_simulation_of_deep_networks_is_close_to_runtime(
    name: str, seed: int, task: Signature
) -> None:
    """A tie that is rounded differently grows to several LSB through random layers."""
    network, images = simulated(name, seed, task)
    int8 = network.quantised()
    with torch.no_grad():
        result = network.eval()(images).numpy()
    apart = np.abs(oracle(int8)(images.numpy()) - result) / int8.ops[-1].out.scale
    assert apart.max() < 5
    assert apart.mean() < 0.15


@pytest.mark.parametrize(
    "scale",
    [QuantisationScale(0.05, -3), QuantisationScale(0.02, -128), QuantisationScale(0.3, 100)],
    ids=str,
)
def test_rounding_matches_torch(scale: QuantisationScale) -> None:
    images = 10 * torch.randn(4, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    result, expected = (images.clone().requires_grad_(True) for _ in range(2))
    ours = fake_quantise(result, scale)
    theirs = torch.fake_quantize_per_tensor_affine(
        expected, scale.scale, scale.zero_point, -128, 127
    )
    assert torch.equal(ours, theirs)
    gradient = torch.randn_like(images)
    torch.autograd.backward([ours, theirs], [gradient, gradient])
    assert result.grad is not None
    assert expected.grad is not None
    assert torch.equal(result.grad, expected.grad)
    assert 0 < int(result.grad.eq(0).sum()) < images.numel(), "some are beyond the range"


def test_training_of_simulation_improves_int8_network(task: Signature) -> None:
    network, images = simulated("tiny", 1, task)
    labels = torch.arange(len(images)) % task.n_outputs
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)

    def int8_loss() -> float:
        answers = torch.from_numpy(oracle(network.quantised())(images.numpy()))
        return float(F.cross_entropy(answers, labels))

    before, first = int8_loss(), network.quantised()
    for _ in range(20):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(network(images), labels))
        optimiser.step()
    assert int8_loss() < before - 0.05
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients)
    for op, trained in zip(first.ops, network.quantised().ops, strict=True):
        assert op.out == trained.out
