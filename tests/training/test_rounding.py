"""Shared weights in training with rounding."""

import random
from dataclasses import replace

import pytest
import torch

from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.families.elastic_layers import Rounding, weight_rounding
from hwnas.models.graph import Signature
from hwnas.models.int8 import weight_grids
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.batches import TrainingBatch
from hwnas.training.data import ImageData
from hwnas.training.options import TrainingConfig
from hwnas.training.sandwich import Sandwich

_SIGNATURE = Signature(1, 10)


def _packed(name: str) -> SearchSpace:
    space = spaces.load_space(spaces.find(name))
    choices = {**space.choices, "weight_bits": (3, 8)}
    return replace(space, choices=choices, fixed={**space.fixed, "weight_sparsity": "2:4"})


@pytest.mark.parametrize("name", ["dense_small", "mbconv_small", "resnet_small", "vit_small"])
def test_rounded_subnet_equals_rounded_network(name: str) -> None:
    searched = _packed(name)
    family = families.family_of(searched)
    supernet = family.supernet(searched, _SIGNATURE)
    supernet.module.train()
    for seed in range(4):
        drawn = searched.assignment(searched.sample(random.Random(seed)))
        genotype = searched.genotype({**drawn, "weight_bits": 3})
        lowered = annotations.lower(family, searched, genotype, _SIGNATURE)
        side = family.resolution(searched, genotype)
        images = torch.randn(4, 1, side, side).to(memory_format=torch.channels_last)
        network = supernet.extract(genotype)
        plain = network(images)
        weight_grids.quantise_weights_(network, weight_grids.weight_grids_of(network, lowered))
        with weight_rounding(weight_grids.subnet_rounding(supernet, genotype, lowered)):
            outputs = supernet.forward(images, genotype)
        torch.testing.assert_close(outputs, network(images), rtol=1e-3, atol=1e-4)
        assert not torch.allclose(outputs, plain, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(supernet.forward(images, genotype), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_subnets_of_step_have_separate_grids(digits: ImageData, n_threads: int) -> None:
    torch.set_num_threads(n_threads)
    searched = _packed("tiny")
    family = families.family_of(searched)
    torch.manual_seed(0)
    supernet = family.supernet(searched, digits.signature)
    supernet.module.train()

    def rounding(genotype: Genotype) -> Rounding:
        lowered = annotations.lower(family, searched, genotype, digits.signature)
        return weight_grids.subnet_rounding(supernet, genotype, lowered)

    def resolution(genotype: Genotype) -> int:
        return family.resolution(searched, genotype)

    part = digits.train.take(torch.arange(16))
    batch = TrainingBatch(part.images, part.targets, part.targets, digits)
    sandwich = Sandwich(supernet, searched, resolution, TrainingConfig(), rounding)
    # The largest has eight bits, and the smallest three.
    genotypes = [searched.largest(), searched.smallest()]
    losses, _ = sandwich.accumulate(genotypes, batch)
    gradients = [p.grad.clone() for p in supernet.module.parameters() if p.grad is not None]
    supernet.module.zero_grad()
    outputs = []
    for genotype in genotypes:
        with weight_rounding(rounding(genotype)):
            outputs.append(supernet.forward(batch.at(resolution(genotype)), genotype))
    task = digits.task
    first = batch.loss(outputs[0], TrainingConfig().label_smoothing)
    second = task.loss(outputs[1], task.distillation_targets(outputs[0].detach()))
    torch.autograd.backward((first, second))
    assert losses == pytest.approx([float(first.detach()), float(second.detach())])
    for gradient, parameter in zip(gradients, supernet.module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
