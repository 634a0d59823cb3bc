"""Studies of searches, read while a search may still write them."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import DateTime, Integer, NullPool, text

from hwnas.core import database
from hwnas.core.errors import RunError
from hwnas.models.spaces import Space
from hwnas.models.spaces.union import from_json
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import NAME
from hwnas.nas.storage import check_intact, readable
from hwnas.nas.trial_attributes import Proposal, read_proposal
from hwnas.nas.trials import SPACE, candidate, is_finished

# Optuna reads trials with all their attributes, which takes a second per thousand.
_TIMES = text(
    "SELECT number, datetime_start, datetime_complete FROM trials JOIN studies USING (study_id) "
    "WHERE study_name = :name AND state IN ('COMPLETE', 'FAIL') ORDER BY number"
).columns(number=Integer, datetime_start=DateTime, datetime_complete=DateTime)
_TIMEOUT_S = 30  # of a database that does not answer


@dataclass(frozen=True)
class StudyRecord:
    """The finished trials of a study."""

    objectives: Sequence[str]
    candidates: Sequence[Candidate]  #: in order of trials
    proposals: Mapping[int, Proposal]  #: by number of the trial
    seconds: Mapping[int, float]  #: from the start of the first trial to the end of each, by number


@dataclass(frozen=True)
class StudySummary:
    """A study without its candidates: quick to read, however many there are."""

    objectives: Sequence[str]
    space: Space
    seconds: Mapping[int, float]  #: as in ``StudyRecord``, of all ended trials


@dataclass(frozen=True)
class StudySource:
    """The storage of a study, for reading."""

    url: str
    engine: Mapping[str, Any]  #: options of SQLAlchemy's engine
    name: str
    where: str  #: description of the storage in messages
    file: Path | None = None  #: if the storage is a file

    def read(self) -> StudyRecord:
        """Return all finished trials.

        Raises:
            RunError: the study cannot be read, or no trial is finished yet.
        """
        with self._open() as (_, study):
            objectives = self._objectives(study)
            trials = [t for t in study.get_trials(deepcopy=False) if is_finished(t, objectives)]
            if not trials:
                raise RunError(f"{self.where} holds no finished trial yet.")
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
            raise RunError(f"{self.where} does not hold the names of its objectives.")
        return tuple(study.metric_names)

    def _space(self, study: optuna.Study) -> Space:
        if (raw := study.user_attrs.get(SPACE)) is None:
            raise RunError(
                f"{self.where} does not hold its search space: an earlier version wrote it."
            )
        return from_json(raw)


def study_in_file(path: Path) -> StudySource:
    """Return the study in a file that a run may be writing."""
    # Without a log next to the file nobody has it open; SQLite would create one, even to read.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    address = f"{path.absolute().as_uri()}?{mode}"
    engine = {"creator": lambda: sqlite3.connect(address, uri=True), "poolclass": NullPool}
    return StudySource("sqlite://", engine, NAME, str(path), path)


def study_in_database(url: str, name: str) -> StudySource:
    """Return the study of a name in a database."""
    engine = {"poolclass": NullPool, **database.connect_options(url, _TIMEOUT_S)}
    if (path := database.sqlite_file(url)) is not None:  # SQLite must not create it
        address = f"{path.absolute().as_uri()}?mode=rw"
        engine["creator"] = lambda: sqlite3.connect(address, uri=True)
    return StudySource(url, engine, name, f"study.storage={database.redact(url)}")


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
