"""Networks that are trained alone by several processes of one command, one each."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar, final

from hwnas import host
from hwnas.errors import TrainingError
from hwnas.processes import Context
from hwnas.progress import Progress, Silent
from hwnas.space import Genotype
from hwnas.supernets import TrainingSetup
from hwnas.training.config import TrainingConfig
from hwnas.training_job import TrainingJob

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
    with Crew(again, min(n, len(tasks))) as crew:
        crew.run(tasks, lambda: sum(c.n_steps() for c in checkpoints), advance)


@final
class Crew(Generic[C]):
    """Processes that work on tasks; they are started by the first ones, and end with the context.

    Args:
        again: Makes what the tasks of a process have in common; pickled.
        n: Processes.
    """

    def __init__(self, again: Callable[[Progress], C], n: int):
        self.n = n
        self._pool = ProcessPoolExecutor(n, Context(), _begin, (again,))

    def __enter__(self) -> "Crew[C]":
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
                    with host.shared_by(self.n):  # a process more may be started
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
    host.tune()
    host.end_with_parent()
    _context = again(Silent())


def _do(task: Callable[[Any], T]) -> T:
    return task(_context)


def _train(
    train: TrainingConfig, seed: int, genotype: Genotype, setups: dict[str, TrainingSetup]
) -> None:
    setup = replace(setups[genotype.space], train=train, seed=seed)
    TrainingJob(setup, genotype).trained(Silent())
