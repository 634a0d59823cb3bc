"""Networks that are trained alone by several processes of one command, one each."""

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from hwnas import host
from hwnas.errors import TrainingError
from hwnas.progress import Progress, Silent
from hwnas.space import Genotype
from hwnas.supernets import Course, Lesson
from hwnas.training.config import TrainingConfig

_POLL_S = 1.0

_courses: Mapping[str, Course]  # of this process: what its lessons have in common, by space


def train_together(
    lessons: Sequence[Lesson],
    again: Callable[[Progress], Mapping[str, Course]],
    n: int,
    advance: Callable[[int], None],
) -> None:
    """Train networks, or go on with them; each is kept where its lesson keeps it.

    Args:
        lessons: From nothing, all of one data set.
        again: Returns their courses by the name of the space, but for training and seed; called by
            each process, so pickled.
        n: Processes.
        advance: Called with the number of steps made since the last call.

    Raises:
        HwnasError: what a training ended with; the others go on first.
        TrainingError: a process was killed.
    """
    checkpoints = [lesson.checkpoint() for lesson in lessons]
    context = multiprocessing.get_context("spawn")  # threads don't survive a fork
    with (
        host.shared_by(n),
        ProcessPoolExecutor(min(n, len(lessons)), context, _begin, (again,)) as pool,
    ):
        futures = [
            pool.submit(_train, lesson.course.train, lesson.course.seed, lesson.genotype)
            for lesson in lessons
        ]
        shown, open_ones = 0, {*futures}
        try:
            while open_ones:
                open_ones = wait(open_ones, _POLL_S, FIRST_EXCEPTION).not_done
                done = sum(checkpoint.n_steps() for checkpoint in checkpoints)
                advance(done - shown)
                shown = done
            for future in futures:
                future.result()
        except BrokenProcessPool:
            raise TrainingError(
                "A process that trained a network was killed; perhaps memory ran out. The same "
                "command goes on; fewer workers need less."
            ) from None
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin(again: Callable[[Progress], Mapping[str, Course]]) -> None:
    global _courses
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    host.tune()
    host.end_with_parent()
    _courses = again(Silent())


def _train(train: TrainingConfig, seed: int, genotype: Genotype) -> None:
    course = replace(_courses[genotype.space], train=train, seed=seed)
    Lesson(course, genotype).trained(Silent())
