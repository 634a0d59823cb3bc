"""Execution of a search by one or several processes, on a private or a shared study."""

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

from hwnas.core import database
from hwnas.core import processes as host
from hwnas.core.errors import HwnasError, RunError
from hwnas.core.processes import WorkerContext
from hwnas.core.progress import SAVE_INTERVAL_S, NullProgress, PeriodicTimer, Progress
from hwnas.core.run_folder import RunFolder
from hwnas.nas import loop
from hwnas.nas.candidates import NAME as CANDIDATES
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import NAME, SamplerConfig, StudyConfig
from hwnas.nas.storage import is_shared
from hwnas.nas.study import LocalStudy
from hwnas.nas.trials import verbosity_kept
from hwnas.tasks.metrics import quality_in

if TYPE_CHECKING:
    from hwnas.nas.shared_study import Membership, SharedStudy

_POLL_S = 0.5
_SHUTDOWN_S = 5.0  # for an interrupted process to queue its trial again


class EngineConfig(Protocol):
    """Options of the search loop."""

    study: StudyConfig
    sampler: SamplerConfig
    seed: int  #: seed of the sampler
    n_trials: int  #: total number of trials


@dataclass(frozen=True)
class WorkerJob:
    """The task of a worker process; it is pickled."""

    problem: Callable[[], AbstractContextManager[loop.SearchProblem]]  #: opens the search problem
    config: EngineConfig
    membership: "Membership"  #: settings of the shared study
    end_by: float  #: time in seconds of ``time.monotonic``, which all processes share


def search_in_processes(job: WorkerJob, study: "SharedStudy", progress: Progress) -> list[str]:
    """Evaluate candidates in ``job.config.study.workers`` processes, by default one.

    Returns:
        A message for each process that failed; empty if ``job.end_by`` is over already.

    Raises:
        RunError: all processes failed before all trials were finished and before ``job.end_by``,
            or the database does not answer.
    """
    if time.monotonic() >= job.end_by:
        return []
    n = job.config.study.workers or 1
    shown, left_s = len(study.candidates), job.end_by - time.monotonic()
    phase = progress.phase("Search", job.config.n_trials, shown, left_s)
    with phase as advance, _workers(job, n) as workers:
        while workers.are_alive():
            time.sleep(_POLL_S)
            study.refresh()
            advance(len(study.candidates) - shown)
            shown = len(study.candidates)
    study.refresh()
    is_lost = len(workers.errors) >= n  # others end on their own, also shortly before the limit
    if is_lost and not is_searched(study, job.config, job.end_by):
        raise RunError(
            f"All worker processes of the search ended early: {'; '.join(workers.errors)}. Resume "
            "it with: hwnas resume FOLDER"
        )
    return workers.errors


@final
class _Workers:
    """Worker processes that evaluate candidates.

    Args:
        job: The task of each process.
        n: Number of processes.
    """

    def __init__(self, job: WorkerJob, n: int):
        context = WorkerContext()
        self._messages: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
        self._processes: list[BaseProcess] = [
            context.Process(target=_work, args=(job, self._messages), name=f"worker {i}")
            for i in range(n)
        ]
        self.errors: list[str] = []  #: a message for each process that failed, once all have ended

    def start(self) -> None:
        """Start all processes."""
        for process in self._processes:
            process.start()

    def are_alive(self) -> bool:
        """Return whether any process has not ended."""
        return any(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        """Interrupt the processes that have not ended; their trials are queued again."""
        started = [process for process in self._processes if process.pid is not None]
        interrupted = [process for process in started if process.is_alive()]
        for process in interrupted:
            process.terminate()
        for process in started:
            process.join(_SHUTDOWN_S)
            process.kill()
            process.join()
        self.errors += [
            f"{p.name} ended with exit code {p.exitcode}"
            for p in started
            if p.exitcode and p not in interrupted
        ]
        while not self._messages.empty():
            self.errors.append(self._messages.get())


@contextmanager
def _workers(job: WorkerJob, n: int) -> Iterator[_Workers]:
    """Yield ``n`` worker processes; they are interrupted at the end of the context."""
    workers = _Workers(job, n)
    try:
        workers.start()
        yield workers
    finally:
        workers.stop()


def _work(job: WorkerJob, messages: "multiprocessing.SimpleQueue[str]") -> None:
    """Evaluate candidates until all trials are finished; main function of a process."""
    from hwnas.nas.shared_study import SharedStudy

    host.tune_worker(job.config.study.workers or 1)
    host.interrupt_on_signals()
    host.end_with_parent()  # other processes queue its trial again
    try:
        with job.problem() as problem:
            c = job.config
            study = SharedStudy(job.membership, problem.space)
            try:
                n, shown = c.n_trials, NullProgress()
                loop.run_trials(problem, study, c.sampler, c.seed, n, shown, job.end_by)
            finally:
                study.close()
    except HwnasError as error:
        messages.put(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


AnyStudy: TypeAlias = "LocalStudy | SharedStudy"


@dataclass(frozen=True)
class SearchTask:
    """The search problem, with a factory for other processes."""

    problem: loop.SearchProblem
    #: opens the search problem in another process; picklable
    again: Callable[[], AbstractContextManager[loop.SearchProblem]]
    objectives: tuple[str, ...]  #: columns: the metric, then costs
    digests: Mapping[str, str]  #: digests of the settings that determine the results, by name


@dataclass(frozen=True)
class EngineOutcome:
    """The result of the search loop."""

    candidates: list[Candidate]  #: in order of trials
    #: name of another command that finished the last trial in a shared database and verifies the
    #: front; empty: this command verifies it
    leader: str = ""
    ended: list[str] = field(default_factory=list)  #: a message for each process that failed


@contextmanager
def study(search: SearchTask, config: EngineConfig, folder: RunFolder) -> Iterator[AnyStudy]:
    """Yield the study; then write ``candidates.parquet`` if trials are new or it is missing.

    The file is written after errors, too, but not without candidates.

    Raises:
        ConfigError: no driver is installed for the database.
        RunError: the file of the study is damaged, or has more trials than ``n_trials``; or the
            database does not answer, or holds a study of another search.
    """
    with verbosity_kept():
        opened = _open_study(search, config, folder)
        n_before = len(opened.candidates)
        try:
            if config.n_trials < n_before and config.study.storage is None:
                raise RunError(
                    f"{folder.path} has {n_before} finished trials, and n_trials={config.n_trials} "
                    f"is their total number. Set n_trials={n_before} or more, such as "
                    f"n_trials={n_before + config.n_trials} for {config.n_trials} more."
                )
            yield opened
        finally:
            opened.close()
            exists = (folder.path / CANDIDATES).exists()
            if len(opened.candidates) > n_before or (opened.candidates and not exists):
                space, metric = search.problem.space, quality_in(search.objectives)
                rows = [candidate.row(space, metric) for candidate in opened.candidates]
                folder.write_parquet(CANDIDATES, rows)


def _open_study(search: SearchTask, config: EngineConfig, folder: RunFolder) -> AnyStudy:
    """Return the study: private to this process, or shared."""
    space, is_local = search.problem.space, config.study.storage is None
    if is_local and (config.study.workers or 1) == 1 and not is_shared(folder.study):
        return LocalStudy(folder.study, space, search.objectives)
    from hwnas.nas.shared_study import Membership, SharedStudy

    c = config.study
    if c.storage is None:  # the manifest of the folder has the digests
        url = database.sqlite_url(folder.study.absolute())
        membership = Membership(c, url, NAME, search.objectives, {})
    else:
        membership = Membership(c, c.storage, c.name, search.objectives, search.digests)
    return SharedStudy(membership, space)


def is_searched(opened: AnyStudy, config: EngineConfig, end_by: float) -> bool:
    """Return whether the search has finished all trials, or ``end_by`` (monotonic) is over."""
    return len(opened.candidates) >= config.n_trials or time.monotonic() >= end_by


def prepare(opened: AnyStudy, work: Callable[[], None]) -> None:
    """Call ``work``, for which all processes wait; a shared study records its duration."""
    if isinstance(opened, LocalStudy):
        work()
    else:
        counted = _Counted(opened)
        ticking = PeriodicTimer(counted, SAVE_INTERVAL_S)  # maximum loss after a kill
        try:
            work()
        finally:
            ticking.stop()
        counted()


@final
class _Counted:
    """Adds the seconds since the last call to those of preparation."""

    def __init__(self, opened: "SharedStudy"):
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
    end_by: float = math.inf,
) -> EngineOutcome:
    """Search until ``n_trials`` are finished, or until ``end_by`` in ``time.monotonic`` seconds.

    Raises:
        CollapseError: as of ``run_trials``, with one process.
        RunError: the database does not answer, or all processes failed.
    """
    ended: list[str] = []
    if not isinstance(opened, LocalStudy) and config.study.storage is None:
        opened.take_over()  # the folder is locked: no other process works on it
    if (config.study.workers or 1) > 1:
        assert not isinstance(opened, LocalStudy)
        job = WorkerJob(search.again, config, opened.membership, end_by)
        ended = search_in_processes(job, opened, progress)
    else:
        n, sampler = config.n_trials, config.sampler
        loop.run_trials(search.problem, opened, sampler, config.seed, n, progress, end_by)
    leader = ""
    if not isinstance(opened, LocalStudy) and config.study.storage is not None:
        commands = opened.workers()
        if opened.worker in commands[:-1]:
            leader = commands[-1]
    return EngineOutcome(list(opened.candidates), leader, ended)


#: Opens trials that run during the context, given its latest end in ``time.monotonic`` seconds;
#: their outcome is complete at its end
MoreTrials: TypeAlias = Callable[[float], AbstractContextManager[EngineOutcome]]


@contextmanager
def more_trials(
    search: SearchTask, config: EngineConfig, folder: RunFolder, end_by: float
) -> Iterator[EngineOutcome]:
    """Evaluate candidates in all worker processes but one while the caller does other work.

    Trials that are running at the end of the context are interrupted and queued again. The study
    must be private, and ``config.study.workers`` at least 2.

    Yields:
        The outcome; it is updated at the end of the context.
    """
    with study(search, config, folder) as opened:
        assert not isinstance(opened, LocalStudy)
        outcome = EngineOutcome([*opened.candidates])
        job = WorkerJob(search.again, config, opened.membership, end_by)
        with _workers(job, (config.study.workers or 1) - 1) as workers:
            yield outcome
        opened.take_over()  # trials whose processes were interrupted at their start
        opened.refresh()
        outcome.candidates[:] = opened.candidates
        outcome.ended[:] = workers.errors
