"""Studies as they are read: of a run that may be going on."""

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

from hwnas import database
from hwnas.errors import RunError
from hwnas.results import Candidate
from hwnas.searching.damage import check_whole, readable
from hwnas.searching.options import NAME
from hwnas.searching.proposal import Proposal, recorded
from hwnas.searching.trials import SPACE, candidate, is_finished
from hwnas.space import Space
from hwnas.union import from_json

# Optuna reads trials with all that is in them, which takes a second a thousand.
_TIMES = text(
    "SELECT number, datetime_start, datetime_complete FROM trials JOIN studies USING (study_id) "
    "WHERE study_name = :name AND state IN ('COMPLETE', 'FAIL') ORDER BY number"
).columns(number=Integer, datetime_start=DateTime, datetime_complete=DateTime)
_PATIENCE_S = 30  # with a database that does not answer


@dataclass(frozen=True)
class Record:
    """What a study holds so far."""

    objectives: Sequence[str]
    candidates: Sequence[Candidate]  #: in order of trials
    proposals: Mapping[int, Proposal]  #: by number of the trial
    seconds: Mapping[int, float]  #: from the start of the first trial to the end of each, by number


@dataclass(frozen=True)
class Outline:
    """What a study says without its candidates: quickly read, however many there are."""

    objectives: Sequence[str]
    space: Space
    seconds: Mapping[int, float]  #: as of a ``Record``, of all trials that ended


@dataclass(frozen=True)
class Source:
    """Where a study lies, to be read."""

    url: str
    engine: Mapping[str, Any]  #: options of SQLAlchemy's engine
    name: str
    where: str  #: in messages
    file: Path | None = None  #: if it is one

    def read(self) -> Record:
        """Return all of it.

        Raises:
            RunError: it cannot be read, it is no such study, or no trial is finished yet.
        """
        with self._opened() as (_, study):
            objectives = tuple(study.metric_names or ())
            trials = [t for t in study.get_trials(deepcopy=False) if is_finished(t, objectives)]
            if not trials:
                raise RunError(f"{self.where} holds no finished trial yet.")
            space = self._space(study)
            candidates = [candidate(trial, space) for trial in trials]
            proposals = {trial.number: recorded(trial.system_attrs) for trial in trials}
        times = [(t.number, t.datetime_start, t.datetime_complete) for t in trials]
        return Record(objectives, candidates, proposals, _seconds(times))

    def outline(self) -> Outline:
        """Return what it says without its candidates.

        Raises:
            RunError: it cannot be read, or is no such study.
        """
        # An unknown schema has no such columns; checking its version would take longer than this.
        opened = self._opened(skip_compatibility_check=True)
        with opened as (storage, study), storage.engine.connect() as connection:
            rows = connection.execute(_TIMES, {"name": self.name})
            times = [(number, start, end) for number, start, end in rows]
            objectives = tuple(study.metric_names or ())
            return Outline(objectives, self._space(study), _seconds(times))

    @contextmanager
    def _opened(
        self, *, skip_compatibility_check: bool = False
    ) -> Iterator[tuple[RDBStorage, optuna.Study]]:
        with readable(self.where):
            if self.file is not None:
                check_whole(self.file)
            storage = RDBStorage(
                self.url,
                engine_kwargs=dict(self.engine),
                skip_compatibility_check=skip_compatibility_check,
                skip_table_creation=True,
            )
            yield storage, optuna.load_study(study_name=self.name, storage=storage)

    def _space(self, study: optuna.Study) -> Space:
        if (raw := study.user_attrs.get(SPACE)) is None:
            raise RunError(
                f"{self.where} does not hold its search space: an earlier version wrote it."
            )
        return from_json(raw)


def read(path: Path) -> Record:
    """Read the file of a study that a run may be writing.

    Raises:
        RunError: there are no trials yet, or it is not such a file.
    """
    return in_file(path).read()


def in_file(path: Path) -> Source:
    """Return the study in a file that a run may be writing."""
    # Where nobody has it open there is no log beside it, and SQLite would make one, even to read.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    address = f"{path.absolute().as_uri()}?{mode}"
    engine = {"creator": lambda: sqlite3.connect(address, uri=True), "poolclass": NullPool}
    return Source("sqlite://", engine, NAME, str(path), path)


def in_database(url: str, name: str) -> Source:
    """Return the study of that name in a database."""
    engine = {"poolclass": NullPool, **database.waiting(url, _PATIENCE_S)}
    if (path := database.file(url)) is not None:  # SQLite would make one that is not there
        address = f"{path.absolute().as_uri()}?mode=rw"
        engine["creator"] = lambda: sqlite3.connect(address, uri=True)
    return Source(url, engine, name, f"study.storage={database.public(url)}")


def _seconds(
    trials: Sequence[tuple[int, datetime | None, datetime | None]],
) -> dict[int, float]:
    """Return when each trial ended, of numbers with their start and end."""
    start = min((start for _, start, _ in trials if start is not None), default=None)
    return {
        number: (end - start).total_seconds()
        for number, _, end in trials
        if start is not None and end is not None
    }
