"""Quantised networks with weights that make activations use their range."""

import torch

from hwnas import families
from hwnas.accuracy.supernet import recalibrate
from hwnas.families.blocks import fold_batch_norm
from hwnas.int8.network import QuantisedNetwork
from hwnas.int8.quantise import quantise
from hwnas.op import Lowered, Task
from hwnas.space import Genotype, SearchSpace


def quantised(
    space: SearchSpace, genotype: Genotype, task: Task
) -> tuple[torch.nn.Module, Lowered, QuantisedNetwork]:
    """Return a network with random weights, its operators, and the network in int8."""
    family = families.get(space.family)
    torch.manual_seed(0)
    network = family.build(space, genotype, task)
    resolution = family.resolution(space, genotype)
    images = torch.randn(64, task.in_channels, resolution, resolution)
    recalibrate(network, images)
    fold_batch_norm(network)
    lowered = family.lower(space, genotype, task)
    return network, lowered, quantise(network, lowered, images)
