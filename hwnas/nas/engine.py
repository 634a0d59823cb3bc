"""Runs a search by one process or many, on a study of its own or one that others share."""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Protocol, final

from hwnas.core import database
from hwnas.core import processes as host
from hwnas.core.errors import HwnasError, RunError
from hwnas.core.processes import CleanSpawnContext
from hwnas.core.progress import SAVE_INTERVAL_S, NullProgress, PeriodicTimer, Progress
from hwnas.core.run_folder import RunFolder
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import NAME, SamplerConfig, StudyConfig
from hwnas.nas.shared_study import Membership, SharedStudy
from hwnas.nas.storage import is_shared
from hwnas.nas.study import LocalStudy
from hwnas.nas.trials import verbosity_kept
from hwnas.tasks.metrics import quality_in

# Processes of one command that evaluate candidates of one study.

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
class WorkerJob:
    """What a process needs to work on a study; it is pickled."""

    problem: Callable[[], AbstractContextManager[loop.SearchProblem]]
    config: EngineConfig
    membership: Membership


def search_in_processes(job: WorkerJob, study: SharedStudy, progress: Progress) -> list[str]:
    """Have ``study.workers`` processes evaluate candidates; return why some ended early.

    Raises:
        RunError: all of them ended before all trials were finished.
    """
    context = CleanSpawnContext()
    messages: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    n = job.config.study.workers or 1
    processes: list[BaseProcess] = [
        context.Process(target=_work, args=(job, messages), name=f"worker {i}") for i in range(n)
    ]
    with host.split_cores(n):
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


def _work(job: WorkerJob, messages: "multiprocessing.SimpleQueue[str]") -> None:
    """Evaluate candidates until there are enough; the main function of a process."""
    host.tune_process()
    host.end_with_parent()  # what was begun is queued again by others
    try:
        with job.problem() as problem:
            c = job.config
            study = SharedStudy(job.membership, problem.space)
            try:
                n, limit = c.n_trials, limit_s(c)
                loop.run_trials(problem, study, c.sampler, c.seed, n, NullProgress(), limit)
            finally:
                study.close()
    except HwnasError as error:
        messages.put(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


AnyStudy = LocalStudy | SharedStudy


@dataclass(frozen=True)
class SearchTask:
    """What is searched for, and how other processes come to know."""

    problem: loop.SearchProblem
    again: Callable[[], AbstractContextManager[loop.SearchProblem]]  #: for other processes: pickled
    objectives: tuple[str, ...]
    digests: Mapping[str, str]  #: what decides the outcome, by name


@dataclass(frozen=True)
class EngineOutcome:
    """What became of a search."""

    candidates: list[Candidate]
    leader: str = ""  #: the command that finished the last trial, if it was another one
    ended: tuple[str, ...] = ()  #: why processes ended early


@contextmanager
def study(search: SearchTask, config: EngineConfig, folder: RunFolder) -> Iterator[AnyStudy]:
    """Give the study; ``candidates.parquet`` is written after its use, whatever happens.

    Raises:
        RunError: the database does not answer, or holds a study of another search.
    """
    with verbosity_kept():
        opened = _opened(search, config, folder)
        try:
            yield opened
        finally:
            opened.close()
            if opened.candidates:
                space, metric = search.problem.space, quality_in(search.objectives)
                rows = [candidate.row(space, metric) for candidate in opened.candidates]
                folder.write_parquet("candidates.parquet", rows)


def _opened(search: SearchTask, config: EngineConfig, folder: RunFolder) -> AnyStudy:
    """Return the study: of this process alone, or one that others share."""
    space, own = search.problem.space, config.study.storage is None
    if own and (config.study.workers or 1) == 1 and not is_shared(folder.study):
        return LocalStudy(folder.study, space, search.objectives)
    opened = SharedStudy(_membership(search, config, folder), space)
    if own:
        opened.take_over()  # the folder is locked: whoever worked on it is gone
    return opened


def prepare(opened: AnyStudy, config: EngineConfig, work: Callable[[], None]) -> None:
    """Do what all processes wait for before they search; the time counts as theirs.

    One process alone does it in its first trial.
    """
    if (config.study.workers or 1) > 1:
        assert isinstance(opened, SharedStudy)
        counted = _Counted(opened)
        ticking = PeriodicTimer(counted, SAVE_INTERVAL_S)  # a kill loses no more than that
        try:
            work()
        finally:
            ticking.stop()
        counted()


@final
class _Counted:
    """Counts the time that processes wait for this one, since it was called last."""

    def __init__(self, opened: SharedStudy):
        self._opened, self._since = opened, time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        self._opened.wait(now - self._since)
        self._since = now


def run_engine(
    search: SearchTask,
    config: EngineConfig,
    folder: RunFolder,
    opened: AnyStudy,
    progress: Progress,
) -> EngineOutcome:
    """Search until ``n_trials`` are finished.

    Raises:
        RunError: the database does not answer, or all processes ended early.
    """
    ended: list[str] = []
    if (config.study.workers or 1) > 1:
        assert isinstance(opened, SharedStudy)
        job = WorkerJob(search.again, config, opened.membership)
        ended = search_in_processes(job, opened, progress)
    else:
        n, time_limit_s = config.n_trials, limit_s(config)
        loop.run_trials(
            search.problem, opened, config.sampler, config.seed, n, progress, time_limit_s
        )
    leader = ""
    if isinstance(opened, SharedStudy) and config.study.storage is not None:
        commands = opened.workers()
        if opened.worker in commands[:-1]:
            leader = commands[-1]
    return EngineOutcome(list(opened.candidates), leader, tuple(ended))


def _membership(search: SearchTask, config: EngineConfig, folder: RunFolder) -> Membership:
    if config.study.storage is None:  # what decides the outcome is in the folder's manifest
        url = database.sqlite_url(folder.study.absolute())
        return Membership(config.study, url, NAME, search.objectives, {})
    url, name = config.study.storage, config.study.name
    return Membership(config.study, url, name, search.objectives, search.digests)
