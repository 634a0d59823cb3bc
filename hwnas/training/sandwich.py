"""One training step of a supernet: the sandwich rule with in-place distillation.

Source: Yu et al., "BigNAS", ECCV 2020, https://arxiv.org/abs/2003.11142; Yu & Huang, "Universally
Slimmable Networks and Improved Training Techniques", ICCV 2019, https://arxiv.org/abs/1903.05134.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.families.base import Supernet
from hwnas.space import Genotype, SearchSpace
from hwnas.training import progressive
from hwnas.training.batches import Batch, Moment
from hwnas.training.config import TrainingConfig
from hwnas.training.loop import Outcome
from hwnas.training.precision import forward


@final
@dataclass(frozen=True)
class Sandwich:
    """Adds up the gradients of the largest subnet, some random ones and the smallest."""

    supernet: Supernet
    space: SearchSpace
    resolution: Callable[[Genotype], int]
    config: TrainingConfig

    def __call__(self, batch: Batch, moment: Moment) -> Outcome:
        """Return the losses of the largest, of the random ones (their mean) and of the smallest."""
        space = progressive.admitted(self.space, moment.progress, self.config.progressive)
        genotypes = draw(space, self.config.n_random, moment.rng("subnets"))
        losses, n_right = self.learn(genotypes, batch)
        middle = losses[1:-1] or losses[-1:]
        named = {
            "loss_largest": losses[0],
            "loss_random": sum(middle) / len(middle),
            "loss_smallest": losses[-1],
        }
        return Outcome(named, n_right, len(genotypes))

    def learn(self, genotypes: list[Genotype], batch: Batch) -> tuple[list[float], int]:
        """Add up the gradients of all genotypes.

        The first learns from the labels; by in-place distillation it teaches the others, else they
        learn from the labels, too.

        Returns:
            The loss of each, and how many images the first got right.
        """
        logits = self._logits(genotypes[0], batch)
        smoothing = self.config.label_smoothing
        losses = [_backward(logits, batch.targets, smoothing)]
        targets = batch.targets
        if self.config.distillation:
            targets, smoothing = logits.detach().softmax(dim=1), 0.0
        for genotype in genotypes[1:]:
            losses.append(_backward(self._logits(genotype, batch), targets, smoothing))
        return [float(loss) for loss in losses], batch.n_right(logits)

    def _logits(self, genotype: Genotype, batch: Batch) -> Tensor:
        images = batch.at(self.resolution(genotype))
        return forward(lambda: self.supernet.forward(images, genotype), images, self.config.dtype)


def draw(space: SearchSpace, n_random: int, rng: random.Random) -> list[Genotype]:
    """Return the largest genotype, ``n_random`` random ones and the smallest, each once."""
    middle = [space.sample(rng) for _ in range(n_random)]
    return list(dict.fromkeys([space.largest(), *middle, space.smallest()]))


def _backward(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    loss = F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    torch.autograd.backward(loss)
    return loss.detach()
