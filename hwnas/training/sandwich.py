"""Training step of a supernet: sandwich rule, in-place distillation, progressive widening.

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
from hwnas.models.families.elastic_layers import Rounding, weight_rounding
from hwnas.models.spaces import Genotype, Option, SearchSpace
from hwnas.training import parallel
from hwnas.training.batches import StepContext, TrainingBatch
from hwnas.training.inference import FLOAT32, forward
from hwnas.training.loop import StepOutcome
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ThreadPool

# Progressive widening: training begins with the largest network and admits smaller ones. After
# Cai et al., "Once-for-All", ICLR 2020, https://arxiv.org/abs/1908.09791, section 3.3, with four
# parts of equal length: the largest network alone; smaller kernels; smaller depths; all other
# choices. Within a part, options are admitted from the largest down. Resolutions are always free.

_PARTS = 4


def admitted(space: SearchSpace, progress: float, widening: float) -> SearchSpace:
    """Return the space restricted to the options that are admitted so far.

    Args:
        space: The full space.
        progress: Progress of the training, in [0, 1).
        widening: Fraction of the training after which all options are admitted, in [0, 1].
    """
    if progress >= widening:
        return space
    part = _PARTS * progress / widening
    choices = {
        name: _largest_options(options, part - _part(name))
        for name, options in space.choices.items()
    }
    return replace(space, choices=choices)


def _part(name: str) -> int:
    """Return the part of the widening in which a choice's smaller options are admitted."""
    kind = name.rpartition(".")[2]
    return {"resolution": -1, "kernel": 1, "depth": 2}.get(kind, 3)


def _largest_options(options: tuple[Option, ...], fraction: float) -> tuple[Option, ...]:
    """Return the admitted options after a fraction of their part, in [-3, 5]."""
    if fraction < 0:
        return options[-1:]
    smaller = min(len(options) - 1, math.floor(fraction * (len(options) - 1)) + 1)
    return options[len(options) - 1 - smaller :]


Gradients = Sequence[Tensor | None]  #: one entry per parameter


@final
@dataclass
class Sandwich:
    """Accumulates the gradients of the largest, some random and the smallest subnet.

    Args:
        supernet: The supernet to be trained.
        space: Space that subnets are sampled from.
        resolution: Returns the input height and width of a subnet.
        config: Training options.
        rounding: Returns the rounding of a subnet's weights.
        dtype: Number format of the forward pass.
    """

    supernet: Supernet
    space: SearchSpace
    resolution: Callable[[Genotype], int]
    config: TrainingConfig
    rounding: Callable[[Genotype], Rounding] = lambda genotype: {}
    dtype: str = FLOAT32
    _thread_pool: ThreadPool | None = field(default=None, init=False)

    def __call__(self, batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        """Accumulate gradients; return the losses of the largest, random and smallest subnets."""
        space = admitted(self.space, step_context.progress, self.config.progressive)
        genotypes = sample_sandwich(space, self.config.n_random, step_context.rng("subnets"))
        losses, total = self.accumulate(genotypes, batch)
        middle = losses[1:-1] or losses[-1:]
        named = {
            "loss_largest": losses[0],
            "loss_random": sum(middle) / len(middle),
            "loss_smallest": losses[-1],
        }
        return StepOutcome(named, total, len(genotypes))

    def accumulate(
        self, genotypes: list[Genotype], batch: TrainingBatch
    ) -> tuple[list[float], float]:
        """Accumulate the gradients of all genotypes.

        The first learns from the targets. With in-place distillation the others learn from its
        outputs, else from the targets.

        Returns:
            The loss of each genotype, and the sum of the per-image results of the first.
        """
        if self._thread_pool is None:
            self._thread_pool = self._make_thread_pool(batch)
        roundings = {genotype: self.rounding(genotype) for genotype in genotypes}
        outputs, task = self._outputs(genotypes[0], batch, roundings), batch.data.task
        smoothing = self.config.label_smoothing
        loss = batch.loss(outputs, smoothing)
        loss_targets = batch.loss_targets
        if self.config.distillation:
            loss_targets, smoothing = task.distillation_targets(outputs.detach()), 0.0

        def student(genotype: Genotype) -> tuple[Tensor, Gradients]:
            student_outputs = self._outputs(genotype, batch, roundings)
            return self._gradients(task.loss(student_outputs, loss_targets, smoothing))

        for genotype in genotypes[1:]:
            batch.at(self.resolution(genotype))  # cached before threads start
        tasks = [partial(self._gradients, loss), *(partial(student, g) for g in genotypes[1:])]
        losses = []
        for student_loss, gradients in self._thread_pool.run(tasks):
            losses.append(float(student_loss))
            self._add(gradients)
        return losses, batch.total(outputs)

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return [p for p in self.supernet.module.parameters() if p.requires_grad]

    def _gradients(self, loss: Tensor) -> tuple[Tensor, Gradients]:
        """Return a loss and its gradients without accumulating them."""
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return loss.detach(), gradients

    def _add(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                total = parameter.grad
                parameter.grad = gradient if total is None else total + gradient

    def _make_thread_pool(self, batch: TrainingBatch) -> ThreadPool:
        """Return threads for the subnets; one thread if subnets would interfere."""
        is_sequential = batch.images.device.type != "cpu" or parallel.current().n > 1
        n_tasks = self.config.n_random + 2
        return ThreadPool(1 if is_sequential or not self._are_independent(batch) else n_tasks)

    def _are_independent(self, batch: TrainingBatch) -> bool:
        """Return whether forward passes change no buffers and use no random numbers."""
        module, largest = self.supernet.module, self.space.largest()
        buffers = [buffer.clone() for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            random_state = torch.get_rng_state()
            self._outputs(largest, batch, {largest: {}})
            result = torch.equal(random_state, torch.get_rng_state())
            for buffer, before in zip(module.buffers(), buffers, strict=True):
                result &= torch.equal(buffer, before)
                buffer.copy_(before)
        return result

    def _outputs(
        self, genotype: Genotype, batch: TrainingBatch, roundings: Mapping[Genotype, Rounding]
    ) -> Tensor:
        images = batch.at(self.resolution(genotype))
        with weight_rounding(roundings[genotype]):
            return forward(lambda: self.supernet.forward(images, genotype), images, self.dtype)


def sample_sandwich(space: SearchSpace, n_random: int, rng: random.Random) -> list[Genotype]:
    """Return the largest genotype, ``n_random`` random ones and the smallest, in this order.

    Repeated genotypes are left out.
    """
    middle = [space.sample(rng) for _ in range(n_random)]
    return list(dict.fromkeys([space.largest(), *middle, space.smallest()]))
