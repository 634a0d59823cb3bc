"""The training loop; every step follows from the seed and its own number alone."""

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
from hwnas.core.progress import Progress
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
from hwnas.training.data import ahead
from hwnas.training.optimisers import optimiser, schedule
from hwnas.training.options import TrainingConfig

# What happens where memory is too small for a batch.

_WORDS = (
    "not enough memory",
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "could not create a memory",  # of oneDNN, as is the next
    "could not create a primitive",
)


def is_shortage(error: Exception) -> bool:
    """Return whether an error means that memory is too small; torch has many words for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def largest_fitting(batch_size: int, attempt: Callable[[int], object]) -> int | None:
    """Return the largest half, quarter, eighth... of a batch that fits; ``None`` if none does."""
    while batch_size >= 4:
        batch_size //= 2
        if _fits(batch_size, attempt):
            return batch_size
    return None


def _fits(batch_size: int, attempt: Callable[[int], object]) -> bool:
    try:
        attempt(batch_size)
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        return False
    return True


_MAX_GRADIENT_NORM = 5.0
_RESERVE_BYTES = 256 << 20
_ROWS = 1000  # of a log: a longer training logs means over several steps
_TIMED, _TIMED_S = 3, 1.0  # steps that say how long others take, and seconds of them, at least
_MOMENT = "torch"  # what layers with randomness of their own draw from

LogRow = Mapping[str, float]


@dataclass(frozen=True)
class StepOutcome:
    """What one step found."""

    losses: Mapping[str, float]  #: by name
    total: float  #: of what the task found of each image, by the first network
    n_networks: int  #: that were trained


class GradientStep(Protocol):
    """Adds gradients to what is trained: all that differs between a supernet and one network."""

    def __call__(self, batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        """Compute losses of the batch and add up their gradients."""
        ...


@dataclass(frozen=True)
class TrainingJobSpec:
    """What is trained, and how."""

    module: nn.Module
    step: GradientStep
    recipe: TrainingRecipe  #: where options leave it open
    phase: str = "Train supernet"  #: what progress calls it
    #: for the log: gives figures by name, with the weights that the module holds just then
    measure: Callable[[], LogRow] | None = None
    first_epoch: int = 0  #: its number, which its batches are drawn by: those before were seen


class TrainingLog(Protocol):
    """Gets rows with ``step``, ``lr``, losses..."""

    def __call__(self, row: LogRow) -> None:
        """Take in a row."""
        ...

    def keep(self) -> None:
        """Write what it has: a checkpoint is about to count on it."""
        ...


@dataclass(frozen=True)
class CheckpointPolicy:
    """Where and how often training state is kept, and who reads along."""

    checkpoint: Checkpoint
    every_s: float = 15.0  #: with a step and the time of writing, a kill loses at most 20 s
    clock: Callable[[], float] = time.monotonic
    log: TrainingLog | None = None

    def save(self, state: TrainingState, n_steps: int) -> None:
        """Keep the state, and before it the rows of its steps, which no later call writes again."""
        if self.log is not None:
            self.log.keep()
        self.checkpoint.save(state, n_steps)


@dataclass(frozen=True)
class TrainingSummary:
    """What a call of ``train`` did; nothing where the training was finished before."""

    n_steps: int
    seconds: float
    n_images: int  #: as often as a network learned from them


def n_steps(config: TrainingConfig, n_images: int) -> int:
    """Return the number of steps of a whole training."""
    return config.epochs * batches.steps_per_epoch(config.batch_size, n_images)


def check_training(config: TrainingConfig, n_images: int) -> None:
    """Refuse what cannot be trained so, before anything is made for it.

    Raises:
        ConfigError: a batch is larger than the training split or cannot be shared evenly, or there
            is no such device.
    """
    if config.batch_size > n_images:
        raise ConfigError(
            f"train.batch_size={config.batch_size} is larger than the training split of "
            f"{n_images} images. Allowed: 2 to {n_images}."
        )
    parallel.current().rows(config.batch_size)
    device(config)


def device(config: TrainingConfig) -> torch.device:
    """Return what is trained on.

    Raises:
        ConfigError: torch has no such device here.
    """
    name = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"train.device={name} cannot be used here: {reason}") from None
    return found


def train(
    trainee: TrainingJobSpec,
    material: TrainingData,
    config: TrainingConfig,
    seed: int,
    saving: CheckpointPolicy,
    progress: Progress,
) -> TrainingSummary:
    """Train to the end, continuing from the checkpoint if there is one.

    Batches, augmentation and subnets of step ``s`` are drawn from ``(seed, s)``, so that a training
    that was cut off ends with the weights of one that was not; ``s`` counts from the first epoch of
    the trainee, so that what goes on from another training sees what that would have seen next.
    With several processes (``parallel.joined``) each computes its share of every batch and only the
    first writes. The module holds the weights to be used then, which are averages where
    ``config.ema`` says so, in the CPU's memory.

    Raises:
        ConfigError: a batch does not fit the data.
        TrainingError: the training collapsed, or a batch does not fit into memory.
    """
    n_images = len(material.data.train)
    check_training(config, n_images)
    training = _Training(trainee, material, config, seed, saving)
    total, done = training.total, saving.checkpoint.load(training.state)
    start = saving.clock()
    with torch.random.fork_rng(), progress.phase(trainee.phase, total, done) as advance:
        saved_at = start
        steps = range(done, total)
        for step, batch in zip(steps, training.batches(steps), strict=True):
            training.step(step, batch)
            late = saving.clock() - saved_at > saving.every_s
            if training.processes.leads and (step + 1 == total or late):
                saved_at = saving.clock()  # what comes after it is lost if it is not finished
                saving.save(training.state, step + 1)
            advance(1)
    if training.processes.leads:
        saving.checkpoint.finish()
    if training.state.averages is not None:
        training.state.averages.use()
    trainee.module.cpu()
    return TrainingSummary(total - done, saving.clock() - start, training.n_images)


def step_s(
    trainee: TrainingJobSpec, material: TrainingData, config: TrainingConfig, seed: int
) -> float:
    """Return the seconds that a step of a training takes just now, but for the first, slower one.

    The module learns from some steps; nothing is kept. They are too few to be judged a collapse.
    """
    training = _Training(
        trainee, material, config, seed, CheckpointPolicy(Checkpoint(Path("unkept")))
    )
    steps, ends = range(min(training.total, WINDOW - 1)), [time.perf_counter()]
    with torch.random.fork_rng():
        for step, batch in zip(steps, training.batches(steps), strict=True):
            training.step(step, batch)  # reads the losses, and so waits for the device
            ends.append(time.perf_counter())
            if step >= _TIMED and ends[-1] - ends[1] >= _TIMED_S:
                break
    begin = min(1, len(ends) - 2)
    return (ends[-1] - ends[begin]) / (len(ends) - 1 - begin)


@final
class _Training:
    """One call of ``train``: what its steps share."""

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
        self._per_epoch = batches.steps_per_epoch(config.batch_size, n_images)
        module = trainee.module.to(self._device).train()
        self._parameters = [*module.parameters()]
        self.state = TrainingState(
            module,
            optimiser(module, self._recipe, config.momentum, self.total),
            ParameterAverages(module, config.ema) if config.ema else None,
            CollapseDetector(material.data.task, self.total),
        )
        # Addresses, not memory: what a smaller batch needs to be tried after a shortage of them.
        self._reserve = mmap.mmap(-1, _RESERVE_BYTES)
        self.n_images = 0
        self._log = _Log(max(1, self.total // _ROWS), self._per_epoch)

    def batches(self, steps: range) -> Iterator[TrainingBatch]:
        """Yield the batches of steps, read ahead of time where images stream."""
        train = self._material.data.train
        return ahead(train, lambda step: self._batch(self._config, self._step_context(step)), steps)

    def step(self, step: int, batch: TrainingBatch) -> None:
        """Take one step."""
        lr = self._recipe.lr * schedule(step / self.total, self._config.warmup)
        for group in self.state.optimiser.param_groups:
            group["lr"] = lr
        step_context = self._step_context(step)
        step_context.seed_layers(_MOMENT, self._device, self.processes.rank)
        losses, total = self._gradients(batch, step_context)
        norm = self._clipped()
        for name, value in {**losses, "gradient_norm": norm}.items():
            if not math.isfinite(value):
                raise self._collapse(step, f"the {name.replace('_', ' of the ', 1)} is {value}")
        self.state.optimiser.step()
        if self.state.averages is not None:
            self.state.averages.update(step)
        mean = self.state.watch.count(step + 1, total, self._config.batch_size)
        if mean is not None:
            guessed = self._material.data.task.guessed(mean)
            good = self.state.watch.good
            raise self._collapse(step, f"the largest network {guessed}", good)
        self._report(step, {"lr": lr, **losses, "gradient_norm": norm})

    def _step_context(self, step: int) -> StepContext:
        first = self._trainee.first_epoch * self._per_epoch
        return StepContext(self._seed, first + step, step / self.total)

    def _gradients(self, batch: TrainingBatch, step_context: StepContext) -> tuple[LogRow, float]:
        """Compute the gradients of one step; return the losses and what was found of the images."""
        self.state.optimiser.zero_grad()
        try:
            outcome = self._trainee.step(batch.to(self._device), step_context)
        except (MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            outcome, reason = None, str(error)  # the error holds tensors: let go of it first
        if outcome is None:
            raise self._shortage(step_context, reason)
        self.n_images += outcome.n_networks * self._config.batch_size
        self.processes.average([p.grad for p in self._parameters if p.grad is not None])
        found = torch.tensor([*outcome.losses.values(), outcome.total], dtype=torch.float64)
        if self.processes.n > 1:
            found = found.to(self._device)
            self.processes.average([found])
        *losses, mean = found.tolist()
        return dict(zip(outcome.losses, losses, strict=True)), mean * self.processes.n

    def _batch(self, config: TrainingConfig, step_context: StepContext) -> TrainingBatch:
        return batches.draw(self._material, config, step_context, self.processes)

    def _clipped(self) -> float:
        """Bound the norm of the gradient, which may be a sum over subnets; return what it was."""
        return float(nn.utils.clip_grad_norm_(self._parameters, _MAX_GRADIENT_NORM))

    def _collapse(self, step: int, how: str, last_good: float = math.inf) -> CollapseError:
        return CollapseError(
            f"Training collapsed at step {step}: {how}. Try a smaller learning rate: "
            f"train.lr={self._recipe.lr / 4:g}. {self._saving.checkpoint.kept(last_good)}"
        )

    def _shortage(self, step_context: StepContext, reason: str) -> TrainingError:
        size, n = self._config.batch_size, self.processes.n
        words = f"train.batch_size={size} does not fit into memory"
        if n > 1:  # the others wait for this one
            return TrainingError(f"{words} of one of {n} processes. Try {size // 2 // n * n}.")
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
                f"{words} ({reason[:200]}), and what is left is too little to try smaller ones: "
                f"start again with train.batch_size={max(2, size // 2)}"
            )
        return TrainingError(f"{words}; this does: train.batch_size={fits}")

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
class _Log:
    """Means over several steps, so that logs of long trainings stay short."""

    def __init__(self, every: int, per_epoch: int):
        self._every, self._per_epoch = every, per_epoch
        self._rows: list[LogRow] = []

    def add(self, done: int, row: LogRow) -> LogRow:
        """Take in a step; return means where a row is due, the last learning rate, else nothing."""
        self._rows.append(row)
        if done % self._every and done % self._per_epoch:
            return {}
        n = len(self._rows)
        means = {name: sum(each[name] for each in self._rows) / n for name in row}
        self._rows.clear()
        return {**means, "lr": row["lr"]}
