import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph, Signature
from hwnas.models.int8.quantisation import calibrate, quantise_with_scales
from hwnas.models.int8.simulation import SimulatedInt8
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.int8.weight_grids import (
    WeightGrid,
    integers,
    quantise_weights_,
    steps,
    weight_grids_of,
)
from hwnas.training.inference import recalibrate


def _network(
    task: Signature, seed: int = 0, sparsity: str = "dense"
) -> tuple[torch.nn.Module, Graph, torch.Tensor]:
    """Return a 4-bit network with random weights, its operators and images."""
    space = spaces.load_space(spaces.find("dense_packed"))
    space = replace(space, fixed={**space.fixed, "weight_sparsity": sparsity})
    family = families.family_of(space)
    genotype = space.sample(random.Random(seed))
    genotype = space.genotype({**space.assignment(genotype), "weight_bits": 4})
    torch.manual_seed(seed)
    network, lowered = (
        family.build(space, genotype, task),
        annotations.lower(family, space, genotype, task),
    )
    images = torch.randn(64, 1, lowered[0].op.in_shape[1], lowered[0].op.in_shape[2])
    recalibrate(network, images)
    return network, lowered, images


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("by_channel", [True, False])
def test_rounding_to_grid_is_idempotent(bits: int, by_channel: bool) -> None:
    weight = torch.randn(16, 8, 3, 3, generator=torch.Generator().manual_seed(bits))
    grid = WeightGrid(bits, by_channel)
    rounded = grid.rounded(weight)
    channels = rounded if by_channel else rounded.reshape(1, -1)
    assert max(len(channel.unique()) for channel in channels) <= 2**bits - 1
    torch.testing.assert_close(grid.rounded(rounded), rounded)
    coarser = WeightGrid(bits - 1, by_channel).rounded(weight)
    assert (rounded - weight).abs().mean() < (coarser - weight).abs().mean()


@pytest.mark.parametrize("bits", [3, 6])
@pytest.mark.parametrize("by_channel", [True, False])
def test_vectorised_steps_match_search_per_channel(bits: int, by_channel: bool) -> None:
    weight = torch.randn(24, 8, 3, 3, generator=torch.Generator().manual_seed(bits))
    weight[3] = 0.0
    weight = weight.to(memory_format=torch.channels_last)
    step = steps(weight, bits, by_channel)
    spread = step.clamp(min=1e-12).view(-1, 1, 1, 1)
    on_grid = integers(weight, spread.flatten(), bits) * spread
    rounded = WeightGrid(bits, by_channel).rounded(weight)
    assert torch.equal(rounded, weight + (on_grid - weight))
    assert rounded.stride() == weight.stride()
    rows = weight.flatten(1) if by_channel else weight.reshape(1, -1)
    for row, channel_step in zip(rows, step.tolist(), strict=True):
        peak, largest = float(row.abs().max()), 2 ** (bits - 1) - 1
        tried = [shrink * peak / largest for shrink in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)]
        errors = [
            float(
                ((row / candidate).round().clamp(-largest, largest) * candidate - row)
                .square()
                .sum()
            )
            if candidate
            else 0
            for candidate in tried
        ]
        assert channel_step == pytest.approx(tried[int(np.argmin(errors))], rel=1e-6)


def test_grid_step_minimises_error() -> None:
    weight = torch.cat([torch.linspace(-1, 1, 199), torch.tensor([8.0])])[None]
    assert steps(weight, 8, by_channel=True) * 127 == pytest.approx(8.0)
    assert float(steps(weight, 4, by_channel=True)[0]) * 7 < 8.0


@pytest.mark.parametrize("bits", [4, 8])
def test_two_of_four_channels_are_nonzero(bits: int) -> None:
    weight = torch.randn(8, 10, 3, 3, generator=torch.Generator().manual_seed(bits))
    rounded = WeightGrid(bits, by_channel=True, is_sparse=True).rounded(weight)
    fours = rounded[:, :8].reshape(8, 2, 4, 3, 3)
    assert int((fours != 0).sum(2).max()) == 2
    assert (rounded[:, 8:] != 0).float().mean() > 0.8, "incomplete groups stay dense"
    largest = fours.abs().amax(2)
    torch.testing.assert_close(  # the largest of each four is kept
        largest, weight[:, :8].reshape(8, 2, 4, 3, 3).abs().amax(2), atol=0.5, rtol=0.2
    )
    torch.testing.assert_close(WeightGrid(bits, True, is_sparse=True).rounded(rounded), rounded)


def test_sparse_weights_may_become_nonzero_again() -> None:
    weight = torch.tensor([[1.0, 0.9, 0.8, 0.1]], requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1)
    grid = WeightGrid(8, by_channel=True, is_sparse=True)
    assert (grid.rounded(weight) != 0).tolist() == [[True, True, False, False]]
    for _ in range(20):
        optimiser.zero_grad()
        torch.autograd.backward((grid.rounded(weight)[0, 2] - 2.0).square())
        optimiser.step()
    assert (grid.rounded(weight) != 0).tolist() == [[True, False, True, False]]


def test_gradients_pass_rounding() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    torch.autograd.backward(WeightGrid(4, by_channel=True).rounded(weight).square().sum())
    assert weight.grad is not None
    torch.testing.assert_close(
        weight.grad, 2 * WeightGrid(4, by_channel=True).rounded(weight).detach()
    )


@pytest.mark.parametrize("sparsity", ["dense", "2:4"])
@pytest.mark.parametrize("seed", range(4))
def test_int8_weights_are_on_grid_for_any_batch_norm(
    seed: int, sparsity: str, task: Signature
) -> None:
    network, lowered, images = _network(task, seed, sparsity)
    quantise_weights_(network, weight_grids_of(network, lowered))
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 2.0)
    folded = fold_batch_norm(network)
    scales = calibrate(folded, lowered, images)
    int8 = quantise_with_scales(folded, lowered, scales)
    for op in int8.ops:
        if op.weights is not None and op.node.weight_bits < 8:
            assert np.abs(op.weights.weight).max() == 7
        if op.node.is_sparse:
            assert op.weights is not None
            assert (op.weights.weight == 0).mean() >= 0.5
    # The float network is already on the grid: rounding changes nothing.
    real = copy.deepcopy(folded)
    quantise_weights_(real, weight_grids_of(real, lowered))
    for name, weight in real.named_parameters():
        torch.testing.assert_close(weight, folded.get_parameter(name), rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        simulated = SimulatedInt8(folded, lowered, scales).eval()(images).numpy()
    outputs = LiteRTSession(write_tflite(int8)).run(images.numpy())
    difference = (
        np.abs(outputs - simulated) / int8.ops[-1].out.scale
    )  # rounding of ties accumulates over layers
    assert difference.mean() < 0.2
    assert difference.max() < 3
