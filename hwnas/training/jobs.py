"""Networks that are trained alone by several processes of one command, one each."""

import copy
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from torch import nn

from hwnas.core import processes
from hwnas.core.errors import RunError, TrainingError
from hwnas.core.processes import CleanSpawnContext
from hwnas.core.progress import NullProgress, Progress
from hwnas.models.families.base import Supernet, TrainingRecipe
from hwnas.models.spaces import Genotype, Space
from hwnas.training import loop
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.loop import TrainingLog, TrainingSummary
from hwnas.training.options import TrainingConfig, fine_tuning
from hwnas.training.single_network import StudentNetwork
from hwnas.training.supernet import TrainingSetup

# Where a finished run says that its supernets are kept.


def checkpoints(recorded: str | Mapping[str, str], space: Space) -> dict[str, Path]:
    """Return where a manifest says that the supernet of each space is kept.

    Args:
        recorded: ``checkpoint`` of the manifest; of several spaces by name.
        space: What was searched.
    """
    if isinstance(recorded, str):
        return {only.name: Path(recorded) for only in space.members}
    return {name: Path(path) for name, path in recorded.items()}


def folder_of(recorded: str | Mapping[str, str]) -> Path:
    """Return the folder of all supernets of a manifest's ``checkpoint``."""
    first = recorded if isinstance(recorded, str) else next(iter(recorded.values()))
    return Path(first).parent.parent


def check_kept(setup: TrainingSetup, kept: Path) -> None:
    """Refuse to go on where the supernet of a finished run would have to be trained again.

    Raises:
        RunError: it is not where the run left it, or this version would train another one.
    """
    if setup.train.epochs and (setup.checkpoint().path != kept or not kept.is_file()):
        raise RunError(
            f"The supernet of the run is not at {kept} as this version would train it; start from "
            "the folder in which the search was started, with the same versions and data."
        )


# The training of one network alone, by all that decides its weights.


@dataclass(frozen=True)
class TrainingJob:
    """The training of one network alone: from scratch, or on from a supernet's weights."""

    setup: TrainingSetup  #: data, options and seed
    genotype: Genotype
    supernet: Supernet | None = None  #: whose weights it goes on from

    @property
    def options(self) -> TrainingConfig:
        """How it is trained; what the family's recipe leaves open is in ``recipe``."""
        train = self.setup.train
        return train if self.supernet is None else train.of_recipe(train.fine_tuning_epochs)

    @property
    def recipe(self) -> TrainingRecipe:
        """The family's recipe, changed where options say so; gentler on learned weights."""
        recipe = self.setup.train.recipe(self.setup.family.recipe)
        return recipe if self.supernet is None else fine_tuning(recipe)

    def checkpoint(self) -> Checkpoint:
        """Return where the network is kept."""
        start = "scratch"
        if self.supernet is not None:
            start = f"supernet, {self.options.epochs} epochs of fine-tuning"
        return self.setup.network_checkpoint(self.genotype, start)

    def trained(
        self, progress: Progress, log: TrainingLog | None = None
    ) -> tuple[nn.Module, TrainingSummary]:
        """Return the trained network, ready for use; trains what is not trained yet."""
        setup = self.setup
        loop.check_training(self.options, len(setup.data.train))
        start, metric = self.supernet, setup.data.task.metric
        network = (setup.build if start is None else start.extract)(self.genotype)
        student = StudentNetwork(
            network,
            setup.resolution(self.genotype),
            self.recipe,
            measure=lambda: {metric: setup.quick_validation(copy.deepcopy(network), self.genotype)},
            grids=setup.grids(network, self.genotype),
            dtype=setup.dtype(self.genotype),
            has_exits=bool(setup.graph(self.genotype).exits),
        )
        return network, setup.train_single(student, self.options, self.checkpoint(), progress, log)


C = TypeVar("C")
T = TypeVar("T")

_POLL_S = 1.0

_context: Any  # of this process: what all its tasks have in common


def train_together(
    jobs: Sequence[TrainingJob],
    again: Callable[[Progress], dict[str, TrainingSetup]],
    n: int,
    advance: Callable[[int], None],
) -> None:
    """Train networks, or go on with them; each is kept where its training job keeps it.

    Args:
        jobs: From nothing, all on the same data.
        again: Returns the setup of each space by name, but for training and seed; called by each
            process, so pickled.
        n: Processes.
        advance: Called with the number of steps made since the last call.

    Raises:
        HwnasError: what a training ended with; the others go on first.
        TrainingError: a process was killed.
    """
    checkpoints = [job.checkpoint() for job in jobs]
    tasks = [partial(_train, job.setup.train, job.setup.seed, job.genotype) for job in jobs]
    with TaskProcesses(again, min(n, len(tasks))) as crew:
        crew.run(tasks, lambda: sum(c.n_steps() for c in checkpoints), advance)


@final
class TaskProcesses(Generic[C]):
    """Processes that work on tasks; they are started by the first ones, and end with the context.

    Args:
        again: Makes what the tasks of a process have in common; pickled.
        n: Processes.
    """

    def __init__(self, again: Callable[[Progress], C], n: int):
        self.n = n
        self._pool = ProcessPoolExecutor(n, CleanSpawnContext(), _begin, (again,))

    def __enter__(self) -> "TaskProcesses[C]":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(
        self,
        tasks: Sequence[Callable[[C], T]],
        done: Callable[[], int],
        advance: Callable[[int], None],
        late: Callable[[int], bool] = lambda i: False,
    ) -> list[T]:
        """Return the results of tasks, worked on in their order.

        Args:
            tasks: Each is called with what ``again`` returns, in another process: pickled.
            done: How far all tasks are.
            advance: Called with how much further they are since the last call.
            late: Whether the task of this number, and all behind it, are not to be begun; there are
                no results of these.

        Raises:
            HwnasError: what a task ended with; others that were begun go on first.
            TrainingError: a process was killed.
        """
        left, futures, shown = deque(tasks), list[Future[T]](), 0
        try:
            while True:
                n_open = sum(not future.done() for future in futures)
                failed = any(future.done() and future.exception() for future in futures)
                while left and n_open < self.n and not failed and not late(len(futures)):
                    with processes.split_cores(self.n):  # a process more may be started
                        futures.append(self._pool.submit(_do, left.popleft()))
                    n_open += 1
                if not n_open:
                    break
                wait([f for f in futures if not f.done()], _POLL_S, FIRST_COMPLETED)
                now = done()
                advance(now - shown)
                shown = now
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise TrainingError(
                "A process that trained a network was killed; perhaps memory ran out. The same "
                "command goes on; fewer workers need less."
            ) from None
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin(again: Callable[[Progress], Any]) -> None:
    global _context
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    processes.tune_process()
    processes.end_with_parent()
    _context = again(NullProgress())


def _do(task: Callable[[Any], T]) -> T:
    return task(_context)


def _train(
    train: TrainingConfig, seed: int, genotype: Genotype, setups: dict[str, TrainingSetup]
) -> None:
    setup = replace(setups[genotype.space], train=train, seed=seed)
    TrainingJob(setup, genotype).trained(NullProgress())
