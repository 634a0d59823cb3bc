"""One training step of a supernet: the sandwich rule with in-place distillation.

Source: Yu et al., "BigNAS", ECCV 2020, https://arxiv.org/abs/2003.11142; Yu & Huang, "Universally
Slimmable Networks and Improved Training Techniques", ICCV 2019, https://arxiv.org/abs/1903.05134.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import final

import torch
from torch import Tensor, nn

from hwnas.models.families.base import Supernet
from hwnas.models.families.elastic_layers import Rounding, rounded_by
from hwnas.models.spaces import Genotype, Option, SearchSpace
from hwnas.training import parallel
from hwnas.training.batches import StepContext, TrainingBatch
from hwnas.training.loop import StepOutcome
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ThreadPool
from hwnas.training.precision import FLOAT32, forward

# Progressive widening: a training begins with the largest network and admits smaller ones.
#
# Source: Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791, section 3.3:
# first
# the largest alone, then elastic kernels, then depths, then widths. Here the time of widening has
# four equal parts: the largest alone; smaller kernels; smaller depths; and everything else (widths,
# expansions, heads). Within a part the options of its choices are admitted from the largest down,
# in
# equal times. Resolutions are free from the start, as they are there.

_PARTS = 4


def admitted(space: SearchSpace, progress: float, widening: float) -> SearchSpace:
    """Return the space of the options that are admitted so far.

    Args:
        space: The whole.
        progress: Of the training, in [0, 1).
        widening: Fraction of the training after which all options are admitted; 0: from the start.
    """
    if progress >= widening:
        return space
    part = _PARTS * progress / widening
    choices = {
        name: _largest(options, part - _part(name)) for name, options in space.choices.items()
    }
    return replace(space, choices=choices)


def _part(name: str) -> int:
    """Return the part of the widening in which smaller options of a choice are admitted."""
    kind = name.rpartition(".")[2]
    return {"resolution": -1, "kernel": 1, "depth": 2}.get(kind, 3)


def _largest(options: tuple[Option, ...], fraction: float) -> tuple[Option, ...]:
    """Return the options that are admitted after a fraction of their part, in [-3, 5]."""
    if fraction < 0:
        return options[-1:]
    smaller = min(len(options) - 1, math.floor(fraction * (len(options) - 1)) + 1)
    return options[len(options) - 1 - smaller :]


Gradients = Sequence[Tensor | None]  #: of all parameters, in their order


@final
@dataclass
class Sandwich:
    """Adds up the gradients of the largest subnet, some random ones and the smallest.

    Args:
        supernet: Which is trained.
        space: That subnets are drawn from.
        resolution: Returns the height and width of the images that a subnet reads.
        config: How it is trained.
        rounding: Returns what a subnet's weights are rounded to.
        dtype: Of the forward pass.
    """

    supernet: Supernet
    space: SearchSpace
    resolution: Callable[[Genotype], int]
    config: TrainingConfig
    rounding: Callable[[Genotype], Rounding] = lambda genotype: {}
    dtype: str = FLOAT32
    _thread_pool: ThreadPool | None = field(default=None, init=False)

    def __call__(self, batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        """Return the losses of the largest, of the random ones (their mean) and of the smallest."""
        space = admitted(self.space, step_context.progress, self.config.progressive)
        genotypes = draw(space, self.config.n_random, step_context.rng("subnets"))
        losses, total = self.learn(genotypes, batch)
        middle = losses[1:-1] or losses[-1:]
        named = {
            "loss_largest": losses[0],
            "loss_random": sum(middle) / len(middle),
            "loss_smallest": losses[-1],
        }
        return StepOutcome(named, total, len(genotypes))

    def learn(self, genotypes: list[Genotype], batch: TrainingBatch) -> tuple[list[float], float]:
        """Add up the gradients of all genotypes.

        The first learns from the targets; by in-place distillation it teaches the others, else
        they learn from the targets, too.

        Returns:
            The loss of each, and the sum of what the task finds of each image by the first.
        """
        if self._thread_pool is None:
            self._thread_pool = self._manned(batch)
        roundings = {genotype: self.rounding(genotype) for genotype in genotypes}
        outputs, task = self._outputs(genotypes[0], batch, roundings), batch.data.task
        smoothing = self.config.label_smoothing
        loss = batch.loss(outputs, smoothing)
        loss_targets = batch.loss_targets
        if self.config.distillation:
            loss_targets, smoothing = task.distillation_targets(outputs.detach()), 0.0

        def student(genotype: Genotype) -> tuple[Tensor, Gradients]:
            found = self._outputs(genotype, batch, roundings)
            return self._learned(task.loss(found, loss_targets, smoothing))

        for genotype in genotypes[1:]:
            batch.at(self.resolution(genotype))  # made here, not by several threads
        tasks = [partial(self._learned, loss), *(partial(student, g) for g in genotypes[1:])]
        losses = []
        for found, gradients in self._thread_pool.run(tasks):
            losses.append(float(found))
            self._add(gradients)
        return losses, batch.total(outputs)

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return [p for p in self.supernet.module.parameters() if p.requires_grad]

    def _learned(self, loss: Tensor) -> tuple[Tensor, Gradients]:
        """Return a loss and its gradients, which are nowhere kept yet."""
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return loss.detach(), gradients

    def _add(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                so_far = parameter.grad
                parameter.grad = gradient if so_far is None else so_far + gradient

    def _manned(self, batch: TrainingBatch) -> ThreadPool:
        """Return who computes the subnets: one after another where they would interfere."""
        alone = batch.images.device.type != "cpu" or parallel.current().n > 1
        n_tasks = self.config.n_random + 2
        return ThreadPool(1 if alone or not self._apart(batch) else n_tasks)

    def _apart(self, batch: TrainingBatch) -> bool:
        """Return whether a subnet leaves alone what others read, and draws no random numbers."""
        module, largest = self.supernet.module, self.space.largest()
        kept = [buffer.clone() for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            random_state = torch.get_rng_state()
            self._outputs(largest, batch, {largest: {}})
            apart = torch.equal(random_state, torch.get_rng_state())
            for buffer, before in zip(module.buffers(), kept, strict=True):
                apart &= torch.equal(buffer, before)
                buffer.copy_(before)
        return apart

    def _outputs(
        self, genotype: Genotype, batch: TrainingBatch, roundings: Mapping[Genotype, Rounding]
    ) -> Tensor:
        images = batch.at(self.resolution(genotype))
        with rounded_by(roundings[genotype]):
            return self._forward(genotype, images)

    def _forward(self, genotype: Genotype, images: Tensor) -> Tensor:
        return forward(lambda: self.supernet.forward(images, genotype), images, self.dtype)


def draw(space: SearchSpace, n_random: int, rng: random.Random) -> list[Genotype]:
    """Return the largest genotype, ``n_random`` random ones and the smallest, each once."""
    middle = [space.sample(rng) for _ in range(n_random)]
    return list(dict.fromkeys([space.largest(), *middle, space.smallest()]))
