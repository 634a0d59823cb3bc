"""Deterministic training loop with checkpoints, for supernets and for single networks."""

import math
import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

import torch
from torch import nn

from hwnas.core.errors import CollapseError, ConfigError, TrainingError
from hwnas.core.progress import Progress, TimeLimitReached, must_stop
from hwnas.models.families.base import TrainingRecipe
from hwnas.training import batches, parallel
from hwnas.training.batches import StepContext, TrainingBatch, TrainingData
from hwnas.training.checkpoints import (
    WINDOW,
    Checkpoint,
    CollapseDetector,
    ParameterAverages,
    TrainingState,
    averaged,
)
from hwnas.training.data import prefetched
from hwnas.training.optimisers import optimiser, schedule
from hwnas.training.options import TrainingConfig

#: Texts of torch and oneDNN for a failed allocation; not all of them raise ``OutOfMemoryError``.
_OUT_OF_MEMORY = (
    "not enough memory",
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "could not create a memory",
    "could not create a primitive",
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(text in message for text in _OUT_OF_MEMORY)


def largest_fitting(batch_size: int, attempt: Callable[[int], object]) -> int | None:
    """Return the largest of ``batch_size`` / 2, / 4, ... that fits into memory; ``None``: none."""
    while batch_size >= 4:
        batch_size //= 2
        if _fits(batch_size, attempt):
            return batch_size
    return None


def _fits(batch_size: int, attempt: Callable[[int], object]) -> bool:
    try:
        attempt(batch_size)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


_MAX_GRADIENT_NORM = 5.0
_RESERVE_BYTES = 256 << 20
_MAX_LOG_ROWS = 1000  # longer trainings log means over several steps
_MIN_TIMED_STEPS, _MIN_TIMED_S = 3, 1.0
_RNG_PURPOSE = "torch"  # seeds layers with their own randomness, such as dropout

LogRow = Mapping[str, float]


@dataclass(frozen=True)
class StepOutcome:
    """Result of one training step."""

    losses: Mapping[str, float]  #: mean loss per image by name, such as ``loss_largest``
    total: float  #: sum of the results per image of the first network
    n_networks: int  #: number of networks trained in the step


class GradientStep(Protocol):
    """Computes gradients; the only difference between training a supernet and one network."""

    def __call__(self, batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        """Compute the losses of a batch and accumulate the gradients."""
        ...


@dataclass(frozen=True)
class TrainingJobSpec:
    """A module with its gradient step and recipe."""

    module: nn.Module
    step: GradientStep
    recipe: TrainingRecipe  #: defaults for options that are not set
    phase: str = "Train supernet"  #: name in progress displays
    #: returns metrics of the current weights by name, once per epoch for the log
    measure: Callable[[], LogRow] | None = None
    first_epoch: int = 0  #: index of the first epoch, after earlier trainings of the network
    lower_lr: str = ""  #: option for a lower learning rate, for messages; empty: ``train.lr``


class TrainingLog(Protocol):
    """Receives rows with ``step``, ``lr``, losses and metrics."""

    def __call__(self, row: LogRow) -> None:
        """Add a row."""
        ...

    def flush(self) -> None:
        """Write all rows to disk, before a checkpoint is saved."""
        ...


@dataclass(frozen=True)
class CheckpointPolicy:
    """Where and how often the training state is saved."""

    checkpoint: Checkpoint
    every_s: float = 15.0  #: seconds between two saves
    clock: Callable[[], float] = time.monotonic  #: returns a time in seconds
    log: TrainingLog | None = None

    def save(self, state: TrainingState, n_steps: int) -> None:
        """Flush the log, whose rows no resumed training writes again, then save the state."""
        if self.log is not None:
            self.log.flush()
        self.checkpoint.save(state, n_steps)


@dataclass(frozen=True)
class TrainingSummary:
    """Work done by one call of ``train``; no steps if the training was complete before."""

    n_steps: int  #: optimiser steps
    seconds: float  #: duration of the call, about 0 without steps
    n_images: int  #: images processed, counted once per network trained on them


def n_steps(config: TrainingConfig, n_images: int) -> int:
    """Return the number of optimiser steps of a complete training on ``n_images`` images."""
    return config.epochs * batches.steps_per_epoch(config.images_per_step, n_images)


def check_training(config: TrainingConfig, n_images: int) -> None:
    """Check the batch size and the device.

    Raises:
        ConfigError: a batch is larger than the training split or cannot be divided evenly among
            the processes, or the device is not available.
    """
    if config.images_per_step > n_images:
        raise ConfigError(
            f"train.batch_size={config.images_per_step} is larger than the training split of "
            f"{n_images} images. Allowed: 2 to {n_images}."
        )
    parallel.current().rows(config.images_per_step)
    device(config)


def device(config: TrainingConfig) -> torch.device:
    """Return the device of ``train.device``; by default a GPU if there is one.

    Raises:
        ConfigError: torch cannot use the device.
    """
    name = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        result = torch.device(name)
        torch.empty(1, device=result)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition("Expected one of")[0] or "no such device"
        message = f"train.device={name} cannot be used here: {reason}. Write train.device=cpu"
        raise ConfigError(message) from None
    return result


def train(
    trainee: TrainingJobSpec,
    material: TrainingData,
    config: TrainingConfig,
    seed: int,
    saving: CheckpointPolicy,
    progress: Progress,
) -> TrainingSummary:
    """Train to the end, resuming from the checkpoint if there is one; return the work done.

    Batches, augmentation and subnets of step ``s`` are sampled from ``(seed, s)``, so a resumed
    training ends with the same weights as an uninterrupted one. ``s`` counts from ``first_epoch``.
    With several processes (``parallel.joined``), each computes a part of every batch, and the first
    one writes. Afterwards the module on the CPU holds the final weights (averages with ``ema``).

    Raises:
        ConfigError: as of ``check_training``.
        RunError: the checkpoint is damaged or of another training.
        TrainingError: the training collapsed, or a batch does not fit into memory.
        TimeLimitReached: ``stop_trainings`` stopped it.
    """
    n_images = len(material.data.train)
    check_training(config, n_images)
    training = _Training(trainee, material, config, seed, saving)
    total, done = training.total, saving.checkpoint.load(training.state)
    start = saved_at = saving.clock()
    with torch.random.fork_rng(), progress.phase(trainee.phase, total, done) as advance:
        steps = range(done, total)
        for step, batch in zip(steps, training.batches(steps), strict=True):
            training.step(step, batch)
            now, n_remaining = saving.clock(), total - step - 1
            stops = n_remaining > 0 and must_stop(now - start, step + 1 - done, n_remaining)
            late = stops or now - saved_at > saving.every_s
            if training.processes.leads and (step + 1 == total or late):
                saved_at = saving.clock()
                saving.save(training.state, step + 1)
            advance(1)
            if stops:
                raise TimeLimitReached(step + 1, total)
    if training.processes.leads:
        saving.checkpoint.finish()
    if training.state.averages is not None:
        training.state.averages.use()
    trainee.module.cpu()
    return TrainingSummary(total - done, saving.clock() - start, training.n_images)


def step_s(
    trainee: TrainingJobSpec, material: TrainingData, config: TrainingConfig, seed: int
) -> float:
    """Return the current seconds per step, not counting the first step, which is slower.

    This trains the module for fewer steps than collapse detection needs, and saves nothing.
    """
    unsaved = CheckpointPolicy(Checkpoint(Path("unsaved")))
    training = _Training(trainee, material, config, seed, unsaved)
    steps, ends = range(min(training.total, WINDOW - 1)), [time.perf_counter()]
    with torch.random.fork_rng():
        for step, batch in zip(steps, training.batches(steps), strict=True):
            training.step(step, batch)  # reads the losses, which synchronises with the device
            ends.append(time.perf_counter())
            if step >= _MIN_TIMED_STEPS and ends[-1] - ends[1] >= _MIN_TIMED_S:
                break
    begin = min(1, len(ends) - 2)
    return (ends[-1] - ends[begin]) / (len(ends) - 1 - begin)


@final
class _Training:
    """State shared by the steps of one call of ``train``."""

    def __init__(
        self,
        trainee: TrainingJobSpec,
        material: TrainingData,
        config: TrainingConfig,
        seed: int,
        saving: CheckpointPolicy,
    ):
        self._trainee, self._material, self._config = trainee, material, config
        self._seed, self._saving = seed, saving
        self.processes = parallel.current()
        self._device = device(config)
        self._recipe = config.recipe(trainee.recipe)
        n_images = len(material.data.train)
        self.total = n_steps(config, n_images)
        self._per_epoch = batches.steps_per_epoch(config.images_per_step, n_images)
        module = trainee.module.to(self._device).train()
        self._parameters = [*module.parameters()]
        self.state = TrainingState(
            module,
            optimiser(module, self._recipe, config.momentum, self.total),
            ParameterAverages(module, config.ema) if config.ema else None,
            CollapseDetector(material.data.task, self.total),
        )
        # Reserves address space, freed after an allocation failure to try smaller batches.
        self._reserve = mmap.mmap(-1, _RESERVE_BYTES)
        self.n_images = 0
        self._log = _LogMeans(max(1, self.total // _MAX_LOG_ROWS), self._per_epoch)

    def batches(self, steps: range) -> Iterator[TrainingBatch]:
        """Yield the batches of steps, prefetched if images are streamed."""
        make = lambda step: self._batch(self._config, self._step_context(step))  # noqa: E731
        return prefetched(self._material.data.train, make, steps)

    def step(self, step: int, batch: TrainingBatch) -> None:
        """Run one optimiser step."""
        lr = self._recipe.lr * schedule(step / self.total, self._config.warmup)
        for group in self.state.optimiser.param_groups:
            group["lr"] = lr
        step_context = self._step_context(step)
        step_context.seed_layers(_RNG_PURPOSE, self._device, self.processes.rank)
        losses, total = self._gradients(batch, step_context)
        norm = self._clip_gradient()
        for name, value in {**losses, "gradient norm": norm}.items():
            if not math.isfinite(value):
                quantity = name.replace("_", " of the ", 1) + " subnet" * ("_" in name)
                raise self._collapse(step, f"the {quantity} is {value}")
        self.state.optimiser.step()
        if self.state.averages is not None:
            self.state.averages.update(step)
        mean = self.state.watch.count(step + 1, total, self._config.images_per_step)
        if mean is not None:
            network = "the largest network" if "loss_largest" in losses else "the network"
            reason = self._material.data.task.chance_level_message(mean)
            raise self._collapse(step, f"{network} {reason}", self.state.watch.last_good)
        self._report(step, {"lr": lr, **losses, "gradient_norm": norm})

    def _step_context(self, step: int) -> StepContext:
        first = self._trainee.first_epoch * self._per_epoch
        return StepContext(self._seed, first + step, step / self.total)

    def _gradients(self, batch: TrainingBatch, step_context: StepContext) -> tuple[LogRow, float]:
        """Compute the gradients of one step; return the losses and the per-image total."""
        self.state.optimiser.zero_grad()
        try:
            outcome = self._trainee.step(batch.to(self._device), step_context)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            outcome, reason = None, str(error)  # the error holds tensors: release it first
        if outcome is None:
            raise self._out_of_memory(step_context, reason)
        self.n_images += outcome.n_networks * self._config.images_per_step
        self.processes.average([p.grad for p in self._parameters if p.grad is not None])
        values = torch.tensor([*outcome.losses.values(), outcome.total], dtype=torch.float64)
        if self.processes.n > 1:
            values = values.to(self._device)
            self.processes.average([values])
        *losses, mean = values.tolist()
        return dict(zip(outcome.losses, losses, strict=True)), mean * self.processes.n

    def _batch(self, config: TrainingConfig, step_context: StepContext) -> TrainingBatch:
        return batches.draw(self._material, config, step_context, self.processes)

    def _clip_gradient(self) -> float:
        """Clip the gradient, which may be a sum over subnets; return its norm before."""
        return float(nn.utils.clip_grad_norm_(self._parameters, _MAX_GRADIENT_NORM))

    def _collapse(self, step: int, reason: str, last_good: float = math.inf) -> CollapseError:
        option = self._trainee.lower_lr or f"train.lr={self._recipe.lr / 4:g}"
        return CollapseError(
            f"Training collapsed at step {step}: {reason}. Try a lower learning rate: {option}. "
            f"{self._saving.checkpoint.describe(last_good)}"
        )

    def _out_of_memory(self, step_context: StepContext, reason: str) -> TrainingError:
        size, n = self._config.images_per_step, self.processes.n
        message = f"train.batch_size={size} does not fit into memory"
        if n > 1:  # the other processes wait for this one
            remedy = f"train.batch_size={half}" if (half := size // 2 // n * n) else "fewer of them"
            return TrainingError(f"{message} of one of {n} processes. Try {remedy}.")
        self.state.optimiser.zero_grad()
        self._reserve.close()

        def attempt(smaller: int) -> None:
            config = replace(self._config, batch_size=smaller)
            batch = self._batch(config, replace(step_context, step=0))
            self._trainee.step(batch.to(self._device), step_context)
            self.state.optimiser.zero_grad()

        fits = largest_fitting(size, attempt)
        if fits is None:
            return TrainingError(
                f"{message} ({reason[:200]}). Too little memory is left to test smaller sizes. "
                f"Start again with train.batch_size={max(2, size // 2)}."
            )
        return TrainingError(f"{message}. A smaller size fits: train.batch_size={fits}.")

    def _report(self, step: int, row: LogRow) -> None:
        log, measure = self._saving.log, self._trainee.measure
        if log is None or not self.processes.leads:
            return
        means = self._log.add(step + 1, row)
        if (step + 1) % self._per_epoch == 0 and measure is not None:
            with averaged(self.state.averages):
                means = {**means, **measure()}
        if means:
            log({"step": step + 1, **means})


@final
class _LogMeans:
    """Averages log rows over several steps, to keep logs of long trainings short."""

    def __init__(self, every: int, per_epoch: int):
        self._every, self._per_epoch = every, per_epoch
        self._rows: list[LogRow] = []

    def add(self, done: int, row: LogRow) -> LogRow:
        """Add the row of a step; return the means if a row is due, else an empty row."""
        self._rows.append(row)
        if done % self._every and done % self._per_epoch:
            return {}
        means = {name: sum(row[name] for row in self._rows) / len(self._rows) for name in row}
        self._rows.clear()
        return {**means, "lr": row["lr"]}
