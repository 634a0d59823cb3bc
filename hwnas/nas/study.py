"""The Optuna study of a run: a working copy in memory, and finished trials in SQLite.

A finished trial is written in one transaction. A killed run leaves no partial trial, only its
elapsed time.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, final

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import Trial
from sqlalchemy import DateTime, Integer, NullPool, text

from hwnas.core import database
from hwnas.core.errors import RunError
from hwnas.core.progress import SAVE_INTERVAL_S, PeriodicTimer
from hwnas.models.spaces import Genotype, Space
from hwnas.models.spaces.union import from_json
from hwnas.nas import trials
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import NAME
from hwnas.nas.storage import check_intact, open_file, readable
from hwnas.nas.trial_attributes import Proposal, read_proposal
from hwnas.nas.trials import SPACE, candidate, is_finished

_CUT_OFF = (
    "cut_off"  # attribute of the study: elapsed time of the current trial and of killed trials
)


@final
class LocalStudy:
    """The study of a single process.

    Args:
        path: SQLite file, which is created if missing.
        space: Search space.
        objectives: Columns of the objectives.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, path: Path, space: Space, objectives: Sequence[str]):
        self._space, self.objectives = space, tuple(objectives)
        self.distributions = trials.distributions(space)
        self._path = path
        self._timer: PeriodicTimer | None = None
        with contextlib.ExitStack() as undo, readable(str(path)):
            self._storage = open_file(path)
            undo.callback(self.close)
            self._file = trials.create(self._storage, NAME, space, self.objectives)
            self._memory = optuna.create_study(directions=self._file.directions)
            finished = self._file.get_trials(deepcopy=False)
            self._memory.add_trials([trials.unmarked(trial) for trial in finished])
            self.candidates = [trials.candidate(trial, space) for trial in finished]
            self.durations = {trial.number: trials.duration_s(trial) for trial in finished}
            self._cut_off_s = _cut_off_s(self._file)
            undo.pop_all()
        self._by_id = {known.id: known for known in self.candidates}

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return the result of an earlier trial of a genotype; ``None`` if there is none."""
        return self._by_id.get(genotype.id)

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return the next trial, with an option for every choice; ``None`` after ``n_trials``."""
        if len(self.candidates) >= n_trials:
            return None
        self._memory.sampler = sampler
        trial = self._memory.ask(self.distributions)
        self._stop_timer()
        self._timer = PeriodicTimer(partial(self._save_elapsed, trial), SAVE_INTERVAL_S)
        return trial

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Store the result of a trial; violations are by name of the limit, feasible if <= 0."""
        self._stop_timer()
        finished = trials.tell(self._memory, trial, candidate, violations, self.objectives)
        with readable(str(self._path)):
            self._file.add_trial(trials.marked(finished, candidate, self.objectives))
        self.candidates.append(candidate)
        self.durations[candidate.trial] = trials.duration_s(finished)
        self._by_id[candidate.id] = candidate

    #: seconds of preparation in ``spent_s``: it does not count here
    waited_s = 0.0

    @property
    def spent_s(self) -> float:
        """Total seconds of finished and of interrupted trials.

        Interrupted trials count only after the first scored candidate: before, the time may have
        been supernet training.
        """
        is_scored = any(candidate.state != "infeasible" for candidate in self.candidates)
        finished_s = trials.spent_s(self._memory.get_trials(deepcopy=False), self.objectives)
        return self._cut_off_s * is_scored + finished_s

    def close(self) -> None:
        """Close the file."""
        self._stop_timer()
        self._storage.engine.dispose()

    def _save_elapsed(self, trial: Trial) -> None:
        """Store the elapsed time of the current trial, in case the run is killed."""
        start = trial.datetime_start
        assert start is not None
        elapsed_s = (datetime.now() - start).total_seconds()
        record = {"began": str(start), "seconds": elapsed_s, "before": self._cut_off_s}
        self._file.set_user_attr(_CUT_OFF, record)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None


def _cut_off_s(study: optuna.Study) -> float:
    """Return the seconds of interrupted trials."""
    if (record := study.user_attrs.get(_CUT_OFF)) is None:
        return 0.0
    finished = {str(trial.datetime_start) for trial in study.get_trials(deepcopy=False)}
    return float(record["before"] + record["seconds"] * (record["began"] not in finished))


# Optuna reads trials with all their attributes, which takes a second per thousand.
_TIMES = text(
    "SELECT number, datetime_start, datetime_complete FROM trials JOIN studies USING (study_id) "
    "WHERE study_name = :name AND state IN ('COMPLETE', 'FAIL') ORDER BY number"
).columns(number=Integer, datetime_start=DateTime, datetime_complete=DateTime)
_TIMEOUT_S = 30  # of a database that does not answer


@dataclass(frozen=True)
class StudyRecord:
    """The finished trials of a study."""

    objectives: Sequence[str]  #: columns: the metric and costs
    candidates: Sequence[Candidate]  #: in order of trials
    proposals: Mapping[int, Proposal]  #: why each candidate was proposed, by number of the trial
    #: seconds from the start of the first trial to the end of each, by number of the trial
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class StudySummary:
    """A study without its candidates, which take long to read."""

    objectives: Sequence[str]  #: columns: the metric and costs
    space: Space
    seconds: Mapping[int, float]  #: as in ``StudyRecord``, but of failed trials, too


@dataclass(frozen=True)
class StudySource:
    """The storage of a study, for reading."""

    url: str  #: URL of the database
    engine: Mapping[str, Any]  #: keyword arguments of ``sqlalchemy.create_engine``
    name: str  #: name of the study
    where: str  #: description of the storage, for messages
    file: Path | None = None  #: path of the SQLite file; ``None`` for a database server
    refusal: str = ""  #: why it must not be opened; empty: it may

    def read(self) -> StudyRecord:
        """Return all finished trials.

        Raises:
            RunError: the study cannot be read, or no trial is finished yet.
        """
        with self._open() as (_, study):
            objectives = self._objectives(study)
            trials = [t for t in study.get_trials(deepcopy=False) if is_finished(t, objectives)]
            if not trials:
                raise RunError(
                    f"{self.where} holds no finished trial yet. Wait for the first one, or "
                    "continue a stopped search: hwnas resume RUN."
                )
            space = self._space(study)
            candidates = [candidate(trial, space) for trial in trials]
            proposals = {trial.number: read_proposal(trial.system_attrs) for trial in trials}
        times = [(t.number, t.datetime_start, t.datetime_complete) for t in trials]
        return StudyRecord(objectives, candidates, proposals, _seconds(times))

    def summary(self) -> StudySummary:
        """Return the study without its candidates.

        Raises:
            RunError: the study cannot be read.
        """
        # An unknown schema lacks the columns of the query; checking its version would take longer.
        opened = self._open(skip_compatibility_check=True)
        with opened as (storage, study), storage.engine.connect() as connection:
            rows = connection.execute(_TIMES, {"name": self.name})
            times = [(number, start, end) for number, start, end in rows]
            objectives = self._objectives(study)
            return StudySummary(objectives, self._space(study), _seconds(times))

    @contextmanager
    def _open(
        self, *, skip_compatibility_check: bool = False
    ) -> Iterator[tuple[RDBStorage, optuna.Study]]:
        if self.refusal:
            raise RunError(self.refusal)
        with readable(self.where, writes=False):
            if self.file is not None:
                check_intact(self.file)
            storage = RDBStorage(
                self.url,
                engine_kwargs=dict(self.engine),
                skip_compatibility_check=skip_compatibility_check,
                skip_table_creation=True,
            )
            yield storage, optuna.load_study(study_name=self.name, storage=storage)

    def _objectives(self, study: optuna.Study) -> tuple[str, ...]:
        if not study.metric_names:
            raise RunError(
                f"{self.where} does not hold the names of its objectives: it is no study of a "
                "search by hwnas. Name another study or folder."
            )
        return tuple(study.metric_names)

    def _space(self, study: optuna.Study) -> Space:
        if (raw := study.user_attrs.get(SPACE)) is None:
            raise RunError(
                f"{self.where} does not hold its search space: an earlier version wrote it. Search "
                "again with this version."
            )
        return from_json(raw)


def study_in_file(path: Path) -> StudySource:
    """Return the study in a file, for reading only; a search may be writing it."""
    # Without a log next to the file nobody has it open; SQLite would create one, even to read.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    address = f"{path.absolute().as_uri()}?{mode}"
    engine = {"creator": lambda: sqlite3.connect(address, uri=True), "poolclass": NullPool}
    return StudySource("sqlite://", engine, NAME, str(path), path)


def study_in_database(url: str, name: str, trusted: str | None) -> StudySource:
    """Return the study ``name`` in the database that a run folder names.

    Args:
        url: URL of the database, such as ``postgresql://...``, without its password.
        name: Name of the study.
        trusted: URL that the user gave. Only this database is opened: a run may be foreign.
    """
    setting, refusal = f"study.storage={database.redact(url)}", ""
    if trusted is None or database.redact(trusted) != database.redact(url):
        refusal = (
            f"the run folder names {setting}, and runs may not choose databases by themselves. If "
            f"you trust it, add it to the command: {setting}"
        )
    url = trusted or url
    engine = {"poolclass": NullPool, **database.connect_options(url, _TIMEOUT_S)}
    if (path := database.sqlite_file(url)) is not None:  # SQLite must not create it
        address = f"{path.absolute().as_uri()}?mode=rw"
        engine["creator"] = lambda: sqlite3.connect(address, uri=True)
    return StudySource(url, engine, name, setting, refusal=refusal)


def _seconds(
    trials: Sequence[tuple[int, datetime | None, datetime | None]],
) -> dict[int, float]:
    """Return the end of each trial in seconds after the first start, by number."""
    start = min((start for _, start, _ in trials if start is not None), default=None)
    return {
        number: (end - start).total_seconds()
        for number, _, end in trials
        if start is not None and end is not None
    }
