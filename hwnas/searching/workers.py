"""Processes of one command that evaluate candidates of one study."""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Protocol

from hwnas import host
from hwnas.errors import HwnasError, RunError
from hwnas.processes import Context
from hwnas.progress import Progress, Silent
from hwnas.searching import loop
from hwnas.searching.options import SamplerConfig, StudyConfig
from hwnas.searching.shared_study import Membership, SharedStudy

_POLL_S = 0.5
_LAST_WORDS_S = 5.0  # for a process that was interrupted, to queue its trial again


class EngineConfig(Protocol):
    """What a configuration says of how to search."""

    study: StudyConfig
    sampler: SamplerConfig
    seed: int
    n_trials: int
    minutes: float | None


def limit_s(config: EngineConfig) -> float:
    """Return the seconds after which no other trial is begun, however many processes there are."""
    return math.inf if config.minutes is None else 60 * config.minutes


@dataclass(frozen=True)
class Job:
    """What a process needs to work on a study; it is pickled."""

    problem: Callable[[], AbstractContextManager[loop.Problem]]
    config: EngineConfig
    membership: Membership


def search(job: Job, study: SharedStudy, progress: Progress) -> list[str]:
    """Have ``study.workers`` processes evaluate candidates; return why some ended early.

    Raises:
        RunError: all of them ended before all trials were finished.
    """
    context = Context()
    messages: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    n = job.config.study.workers or 1
    processes: list[BaseProcess] = [
        context.Process(target=_work, args=(job, messages), name=f"worker {i}") for i in range(n)
    ]
    with host.shared_by(n):
        for process in processes:
            process.start()
    shown = len(study.candidates)
    try:
        left_s = limit_s(job.config) - max(study.spent_s, study.waited_s)
        with progress.phase("Search", job.config.n_trials, shown, left_s) as advance:
            while any(process.is_alive() for process in processes):
                time.sleep(_POLL_S)
                study.refresh()
                advance(len(study.candidates) - shown)
                shown = len(study.candidates)
    finally:
        for process in processes:
            process.join(_LAST_WORDS_S)
            process.terminate()
            process.join()
    ended = [f"{p.name} ended with exit code {p.exitcode}" for p in processes if p.exitcode]
    while not messages.empty():
        ended.append(messages.get())
    study.refresh()
    if len(study.candidates) < job.config.n_trials and study.spent_s < limit_s(job.config):
        raise RunError(f"All workers ended: {'; '.join(ended)}")
    return ended


def _work(job: Job, messages: "multiprocessing.SimpleQueue[str]") -> None:
    """Evaluate candidates until there are enough; the main function of a process."""
    host.tune()
    host.end_with_parent()  # what was begun is queued again by others
    try:
        with job.problem() as problem:
            c = job.config
            study = SharedStudy(job.membership, problem.space)
            try:
                n, limit = c.n_trials, limit_s(c)
                loop.search(problem, study, c.sampler, c.seed, n, Silent(), limit)
            finally:
                study.close()
    except HwnasError as error:
        messages.put(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
