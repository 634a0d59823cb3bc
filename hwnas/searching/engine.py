"""Runs a search by one process or many, on a study of its own or one that others share."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import final

from hwnas import database
from hwnas.metrics import quality
from hwnas.progress import Progress
from hwnas.results import Candidate, RunFolder
from hwnas.searching import loop, workers
from hwnas.searching.options import NAME
from hwnas.searching.shared_study import Membership, SharedStudy
from hwnas.searching.storage import is_shared
from hwnas.searching.study import Study
from hwnas.searching.ticking import EVERY_S, Ticking
from hwnas.searching.trials import verbosity_kept
from hwnas.searching.workers import EngineConfig

AnyStudy = Study | SharedStudy


@dataclass(frozen=True)
class Search:
    """What is searched for, and how other processes come to know."""

    problem: loop.Problem
    again: Callable[[], AbstractContextManager[loop.Problem]]  #: for other processes: pickled
    objectives: tuple[str, ...]
    digests: Mapping[str, str]  #: what decides the outcome, by name


@dataclass(frozen=True)
class Outcome:
    """What became of a search."""

    candidates: list[Candidate]
    leader: str = ""  #: the command that finished the last trial, if it was another one
    ended: tuple[str, ...] = ()  #: why processes ended early


@contextmanager
def study(search: Search, config: EngineConfig, folder: RunFolder) -> Iterator[AnyStudy]:
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
                space, metric = search.problem.space, quality(search.objectives)
                rows = [candidate.row(space, metric) for candidate in opened.candidates]
                folder.write_parquet("candidates.parquet", rows)


def _opened(search: Search, config: EngineConfig, folder: RunFolder) -> AnyStudy:
    """Return the study: of this process alone, or one that others share."""
    space, own = search.problem.space, config.study.storage is None
    if own and (config.study.workers or 1) == 1 and not is_shared(folder.study):
        return Study(folder.study, space, search.objectives)
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
        ticking = Ticking(counted, EVERY_S)  # a kill loses no more than that
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


def run(
    search: Search,
    config: EngineConfig,
    folder: RunFolder,
    opened: AnyStudy,
    progress: Progress,
) -> Outcome:
    """Search until ``n_trials`` are finished.

    Raises:
        RunError: the database does not answer, or all processes ended early.
    """
    ended: list[str] = []
    if (config.study.workers or 1) > 1:
        assert isinstance(opened, SharedStudy)
        job = workers.Job(search.again, config, opened.membership)
        ended = workers.search(job, opened, progress)
    else:
        n, limit_s = config.n_trials, workers.limit_s(config)
        loop.search(search.problem, opened, config.sampler, config.seed, n, progress, limit_s)
    leader = ""
    if isinstance(opened, SharedStudy) and config.study.storage is not None:
        commands = opened.workers()
        if opened.worker in commands[:-1]:
            leader = commands[-1]
    return Outcome(list(opened.candidates), leader, tuple(ended))


def _membership(search: Search, config: EngineConfig, folder: RunFolder) -> Membership:
    if config.study.storage is None:  # what decides the outcome is in the folder's manifest
        url = database.of_file(folder.study.absolute())
        return Membership(config.study, url, NAME, search.objectives, {})
    url, name = config.study.storage, config.study.name
    return Membership(config.study, url, name, search.objectives, search.digests)
