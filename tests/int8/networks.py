"""Quantised networks with weights that make activations use their range."""

import torch

from hwnas import families
from hwnas.accuracy.supernet import recalibrate
from hwnas.families.blocks import fold_batch_norm
from hwnas.int8.network import QuantisedNetwork
from hwnas.int8.quantise import quantise
from hwnas.op import Lowered, Task
from hwnas.space import Genotype, SearchSpace


def calibrated(
    space: SearchSpace, genotype: Genotype, task: Task, seed: int = 0
) -> tuple[torch.nn.Module, Lowered, torch.Tensor]:
    """Return a network with random weights, its operators, and images to calibrate on."""
    family = families.get(space.family)
    torch.manual_seed(seed)
    network = family.build(space, genotype, task)
    resolution = family.resolution(space, genotype)
    images = torch.randn(64, task.in_channels, resolution, resolution)
    recalibrate(network, images)
    fold_batch_norm(network)
    return network, family.lower(space, genotype, task), images


def quantised(
    space: SearchSpace, genotype: Genotype, task: Task
) -> tuple[torch.nn.Module, Lowered, QuantisedNetwork]:
    """Return a network with random weights, its operators, and the network in int8."""
    network, lowered, images = calibrated(space, genotype, task)
    return network, lowered, quantise(network, lowered, images)
