"""One training step of a supernet: the sandwich rule with in-place distillation.

Source: Yu et al., "BigNAS", ECCV 2020, https://arxiv.org/abs/2003.11142; Yu & Huang, "Universally
Slimmable Networks and Improved Training Techniques", ICCV 2019, https://arxiv.org/abs/1903.05134.
"""

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.families.base import Supernet
from hwnas.space import Genotype, SearchSpace


def draw(space: SearchSpace, n_random: int, rng: random.Random) -> list[Genotype]:
    """Return the largest genotype, ``n_random`` random ones and the smallest."""
    middle = [space.sample(rng) for _ in range(n_random)]
    return [space.largest(), *middle, space.smallest()]


def step(
    supernet: Supernet,
    genotypes: list[Genotype],
    images: Callable[[Genotype], Tensor],
    labels: Tensor,
    label_smoothing: float,
) -> float:
    """Add up the gradients of all genotypes; return the loss of the first, on the labels.

    The first learns from the labels and teaches the others by its soft predictions.

    Args:
        supernet: In training mode.
        genotypes: The largest first.
        images: Gives the batch ``(N, C, R, R)`` at a genotype's resolution.
        labels: ``(N,)``.
        label_smoothing: Of the first genotype's labels.
    """
    logits = supernet.forward(images(genotypes[0]), genotypes[0])
    loss = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    loss.backward()  # type: ignore[no-untyped-call]
    teacher = logits.detach().softmax(dim=1)
    for genotype in genotypes[1:]:
        student = supernet.forward(images(genotype), genotype)
        F.cross_entropy(student, teacher).backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def clip_gradients(supernet: Supernet, max_norm: float) -> None:
    """Bound the norm of the gradient, which is the sum over several subnets."""
    torch.nn.utils.clip_grad_norm_(supernet.module.parameters(), max_norm)
