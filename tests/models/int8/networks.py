"""Quantised networks with random weights whose activations use the range of int8."""

import torch
from torch import Tensor, nn

from hwnas.models import families
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph, Signature
from hwnas.models.int8.quantisation import ActivationScales, calibrate, quantise
from hwnas.models.int8.quantised_network import QuantisationScale, QuantisedNetwork
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.inference import recalibrate


def calibrated(
    space: SearchSpace, genotype: Genotype, task: Signature, seed: int = 0
) -> tuple[nn.Module, Graph, Tensor]:
    """Return a network with random weights, its operators and calibration images."""
    family = families.get(space.family)
    torch.manual_seed(seed)
    network = family.build(space, genotype, task)
    resolution = family.resolution(space, genotype)
    images = torch.randn(64, task.in_channels, resolution, resolution)
    recalibrate(network, images)
    fold_batch_norm(network)
    return network, family.lower(space, genotype, task), images


def quantised(
    space: SearchSpace, genotype: Genotype, task: Signature
) -> tuple[nn.Module, Graph, QuantisedNetwork]:
    """Return a network with random weights, its operators, and the network in int8."""
    network, lowered, images = calibrated(space, genotype, task)
    return network, lowered, quantise(network, lowered, images)


def calibrate_coarsely(
    network: nn.Module, lowered: Graph, images: Tensor, times: int
) -> ActivationScales:
    """Calibrate with steps ``times`` as large, for a large loss in int8."""
    scales = calibrate(network, lowered, images)
    out = {
        name: QuantisationScale(times * scale.scale, scale.zero_point)
        for name, scale in scales.out.items()
    }
    return ActivationScales(out, scales.inner)
