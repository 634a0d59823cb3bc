"""Training of single networks in parallel processes."""

import copy
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, final

from torch import nn

from hwnas.core import processes
from hwnas.core.errors import TrainingError
from hwnas.core.processes import WorkerContext
from hwnas.core.progress import NullProgress, Progress
from hwnas.models.families.base import Supernet, TrainingRecipe
from hwnas.models.spaces import Genotype
from hwnas.training import loop
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.loop import TrainingLog, TrainingSummary
from hwnas.training.options import TrainingConfig, fine_tuning
from hwnas.training.single_network import StudentNetwork
from hwnas.training.supernet import TrainingSetup


@dataclass(frozen=True)
class TrainingJob:
    """Training of one network: from scratch, or fine-tuning of a subnet."""

    setup: TrainingSetup  #: data, options and seed
    genotype: Genotype
    supernet: Supernet | None = None  #: source of the initial weights; ``None``: from scratch

    @property
    def options(self) -> TrainingConfig:
        """Training options; optimiser, learning rate and weight decay are those of ``recipe``."""
        train = self.setup.train
        return train if self.supernet is None else train.with_epochs(train.fine_tuning_epochs)

    @property
    def recipe(self) -> TrainingRecipe:
        """Optimiser, learning rate and weight decay; the rate is lower for fine-tuning."""
        recipe = self.setup.train.recipe(self.setup.family.recipe)
        return recipe if self.supernet is None else fine_tuning(recipe)

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the network."""
        start = "scratch"
        if self.supernet is not None:
            start = f"supernet, {self.options.epochs} epochs of fine-tuning"
        return self.setup.network_checkpoint(self.genotype, start)

    def trained(
        self, progress: Progress, log: TrainingLog | None = None
    ) -> tuple[nn.Module, TrainingSummary]:
        """Return the trained network and the work done; train unless the checkpoint is complete.

        Raises:
            ConfigError: the options do not suit the data, or there are several processes.
            RunError: the checkpoint is damaged or of another training.
            TrainingError: the training collapsed, or a batch does not fit into memory.
        """
        setup = self.setup
        loop.check_training(self.options, len(setup.data.train))
        metric = setup.data.task.metric
        build = setup.build if self.supernet is None else self.supernet.extract
        network = build(self.genotype)
        lr = setup.train.recipe(setup.family.recipe).lr / 4  # without the factor of fine-tuning
        lower_lr = f"train.lr={lr:g}, with which the supernet is trained again"
        student = StudentNetwork(
            network,
            setup.resolution(self.genotype),
            self.recipe,
            lower_lr="" if self.supernet is None else lower_lr,
            measure=lambda: {metric: setup.quick_validation(copy.deepcopy(network), self.genotype)},
            grids=setup.grids(network, self.genotype),
            dtype=setup.dtype(self.genotype),
        )
        return network, setup.train_single(student, self.options, self.checkpoint(), progress, log)


C = TypeVar("C")
T = TypeVar("T")

_POLL_S = 1.0

_context: Any  # of a worker process: the argument of all its tasks


def train_together(
    jobs: Sequence[TrainingJob],
    make_setups: Callable[[Progress], dict[str, TrainingSetup]],
    n: int,
    advance: Callable[[int], None],
) -> None:
    """Train networks in parallel, or resume their trainings; each has its own checkpoint.

    Args:
        jobs: Trainings from scratch on the same data.
        make_setups: Picklable function that returns the setup of each space, by name of the space.
            It is called in each process. Training options and seed are those of the jobs.
        n: Number of processes.
        advance: Called with the number of steps since the last call.

    Raises:
        HwnasError: a training failed; trainings that had started are completed first.
        TrainingError: a process was killed.
    """
    checkpoints = [job.checkpoint() for job in jobs]
    tasks = [partial(_train, job.setup.train, job.setup.seed, job.genotype) for job in jobs]
    with TaskProcesses(make_setups, min(n, len(tasks))) as workers:
        next_task = partial(next, iter(tasks), None)
        workers.run(
            next_task, lambda _: None, lambda: sum(c.n_steps() for c in checkpoints), advance
        )


@final
class TaskProcesses(Generic[C]):
    """Pool of worker processes that share one context object per process.

    Args:
        make_context: Picklable; makes the argument of all tasks of a process.
        n: Number of processes.
    """

    def __init__(self, make_context: Callable[[Progress], C], n: int):
        self.n = n
        self._pool = ProcessPoolExecutor(n, WorkerContext(), _start_worker, (n, make_context))

    def __enter__(self) -> "TaskProcesses[C]":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def _submit(self, task: Callable[[C], T]) -> "Future[T]":
        return self._pool.submit(_run_task, task)

    def run(
        self,
        next_task: Callable[[], Callable[[C], T] | None],
        collect: Callable[[T], None],
        done: Callable[[], int],
        advance: Callable[[int], None],
    ) -> None:
        """Run tasks until there are none.

        Args:
            next_task: Returns a picklable function of the process's context, or ``None`` if there
                is no task now. It is called whenever a process is free, and again when a task ends.
            collect: Called with the result of each task.
            done: Returns the total progress of all tasks, for example in steps.
            advance: Called with the progress since the last call, in the same unit.

        Raises:
            HwnasError: a task failed; tasks that had started are completed first.
            TrainingError: a process was killed.
        """
        running, shown, error, asks = set[Future[T]](), 0, None, True
        try:
            while True:
                while asks and error is None and len(running) < self.n:
                    if asks := (task := next_task()) is not None:
                        running.add(self._submit(task))
                if not running:
                    break
                ended, running = wait(running, _POLL_S, FIRST_COMPLETED)
                asks = asks or bool(ended)
                failed = [future for future in ended if future.exception()]
                error = failed[0].exception() if failed else error
                for future in ended.difference(failed):
                    collect(future.result())
                now = done()
                advance(now - shown)
                shown = now
            if error is not None:
                raise error
        except BrokenProcessPool:
            raise TrainingError(
                "A training process was killed, possibly because memory ran out. Repeat the "
                "command to resume; with fewer workers it needs less memory (study.workers=N in a "
                "search, workers=N in audit)."
            ) from None
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _start_worker(n: int, make_context: Callable[[Progress], Any]) -> None:
    global _context
    processes.tune_worker(n)
    processes.end_with_parent()
    _context = make_context(NullProgress())


def _run_task(task: Callable[[Any], T]) -> T:
    return task(_context)


def _train(
    train: TrainingConfig, seed: int, genotype: Genotype, setups: dict[str, TrainingSetup]
) -> None:
    setup = replace(setups[genotype.space], train=train, seed=seed)
    TrainingJob(setup, genotype).trained(NullProgress())
