"""The Optuna study of a run: a working copy in memory, and finished trials in SQLite.

A trial enters the file when it is finished, in one transaction: a killed run leaves no half trial.
User attributes are for people who look at a study (``optuna-dashboard``); what is read back is in
system attributes.
"""

import base64
import contextlib
import copy
import sqlite3
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import DateTime, Integer, NullPool, event, text

from hwnas.errors import RunError
from hwnas.files import without_password
from hwnas.metrics import column, paid, qualities, quality
from hwnas.results import Candidate
from hwnas.searching.damage import check_whole, readable
from hwnas.searching.options import NAME
from hwnas.searching.proposal import STD, Proposal, recorded
from hwnas.space import Genotype, Space
from hwnas.union import from_json, to_json

SHARED = "digests"  #: attribute of studies that processes share: what decides the outcome
_SPACE = "space"  # attribute of studies
_CANDIDATE = "hwnas:candidate"  # system attributes of trials
_PER_IMAGE = "hwnas:right"  # what was found of each image, packed by the task, in base64
_MARKS = "constraints"  # as Optuna kept them before version 5, and optuna-dashboard still reads
# Optuna reads trials with all that is in them, which takes a second a thousand.
_TIMES = text(
    "SELECT number, datetime_start, datetime_complete FROM trials JOIN studies USING (study_id) "
    "WHERE study_name = :name AND state IN ('COMPLETE', 'FAIL') ORDER BY number"
).columns(number=Integer, datetime_start=DateTime, datetime_complete=DateTime)
SQLITE: dict[str, Any] = {"connect_args": {"timeout": 60}}  #: of engines


@final
class Study:
    """Asks a sampler for candidates and keeps what became of them; one process works on it."""

    def __init__(self, path: Path, space: Space, objectives: Sequence[str]):
        self._space, self.objectives = space, tuple(objectives)
        self.distributions = distributions(space)
        self._path = path
        with contextlib.ExitStack() as undo, readable(str(path)):
            self._storage = open_file(path)
            undo.callback(self.close)
            self._file = create(self._storage, NAME, space, self.objectives)
            self._memory = optuna.create_study(directions=self._file.directions)
            finished = self._file.get_trials(deepcopy=False)
            self._memory.add_trials([_unmarked(trial) for trial in finished])
            self.candidates = [candidate(trial, space) for trial in finished]
            undo.pop_all()
        self._by_id = {known.id: known for known in self.candidates}

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return what became of a genotype, if it was tried before."""
        return self._by_id.get(genotype.id)

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return a trial with an option for every choice; none where there are enough."""
        if len(self.candidates) >= n_trials:
            return None
        self._memory.sampler = sampler
        return self._memory.ask(self.distributions)

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Keep what became of a trial."""
        told = tell(self._memory, trial, candidate, violations, self.objectives)
        with readable(str(self._path)):
            self._file.add_trial(_marked(told, candidate, self.objectives))
        self.candidates.append(candidate)
        self._by_id[candidate.id] = candidate

    @property
    def spent_s(self) -> float:
        """The seconds that finished trials took."""
        return spent_s(self._memory.get_trials(deepcopy=False), self.objectives)

    def close(self) -> None:
        """Close the file."""
        self._storage.engine.dispose()


def spent_s(trials: Sequence[FrozenTrial], objectives: Sequence[str]) -> float:
    """Return the seconds that finished trials took, one after the other.

    When a trial was cut off is not known: it may be found dead, and failed, the day after.
    """
    took = (trial.duration for trial in trials if is_finished(trial, objectives))
    return sum(duration.total_seconds() for duration in took if duration is not None)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return what Optuna draws from for each choice."""
    return {name: _distribution(options) for name, options in space.choices.items()}


def create(storage: RDBStorage, name: str, space: Space, objectives: Sequence[str]) -> optuna.Study:
    """Return the study of that name, new or as it is."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = [
        StudyDirection.MAXIMIZE if column(name).maximise else StudyDirection.MINIMIZE
        for name in objectives
    ]
    study = optuna.create_study(
        storage=storage, study_name=name, directions=directions, load_if_exists=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # names for optuna-dashboard
        study.set_metric_names(list(objectives))
    if _SPACE not in study.user_attrs:  # so that the study can be read without the space's file
        study.set_user_attr(_SPACE, to_json(space))
    return study


def tell(
    study: optuna.Study,
    trial: Trial,
    candidate: Candidate,
    violations: Mapping[str, float],
    objectives: Sequence[str],
) -> FrozenTrial:
    """Finish a trial.

    A candidate that was not scored is told no accuracy, or the largest error so far: samplers that
    know constraints rank it by its violations. One without a cost is told as failed.
    """
    with warnings.catch_warnings():
        # A database that was away, or a worker that died here: it is told again what it knows.
        warnings.simplefilter("ignore", UserWarning)
        for name, violation in violations.items():
            trial.set_constraint(name, violation)
    reason = {"reason": candidate.reason} if candidate.reason else {}
    for name, value in {"id": candidate.id, "state": candidate.state, **reason}.items():
        trial.set_user_attr(name, value)
    own: dict[str, Any] = {_CANDIDATE: candidate.to_json()}
    if candidate.per_image:
        own[_PER_IMAGE] = base64.b64encode(candidate.per_image).decode()
    scored = candidate.figures.get(quality(objectives))
    if scored is not None and scored.std > 0:
        own[STD] = scored.std
    for name, content in own.items():
        study._storage.set_trial_system_attr(trial._trial_id, name, content)
    if not _has_costs(candidate.figures, objectives):
        return study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
    known = {name: figure.value for name, figure in candidate.figures.items()}
    metric = quality(objectives)
    known.setdefault(metric, _worst(study, metric, objectives))
    values = [known[name] for name in objectives]
    return study.tell(trial, values, skip_if_finished=True)


def _worst(study: optuna.Study, metric: str, objectives: Sequence[str]) -> float:
    """Return what a candidate is told that was not scored: nothing right, or the largest error."""
    if column(metric).maximise:
        return 0.0
    i, states = objectives.index(metric), (TrialState.COMPLETE,)
    return max((t.values[i] for t in study.get_trials(deepcopy=False, states=states)), default=0.0)


def _marked(trial: FrozenTrial, candidate: Candidate, objectives: Sequence[str]) -> FrozenTrial:
    """Return a trial with what ``optuna-dashboard`` shows beside its objectives.

    Costs by names that end with their units; and constraints, by which it marks the infeasible.
    """
    marked, figures = copy.copy(trial), candidate.figures
    costs = {n: f.value for n, f in figures.items() if n not in objectives and n not in qualities()}
    marked.user_attrs = {**trial.user_attrs, **costs}
    marked.system_attrs = {**trial.system_attrs, _MARKS: list(trial.constraints.values())}
    return marked


def _unmarked(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as it was, for samplers: they would see each constraint twice."""
    plain = copy.copy(trial)
    plain.system_attrs = {n: value for n, value in trial.system_attrs.items() if n != _MARKS}
    return plain


def is_finished(trial: FrozenTrial, objectives: Sequence[str]) -> bool:
    """Return whether a trial came to its end, and not the process that worked on it."""
    if trial.state != TrialState.FAIL:
        return trial.state == TrialState.COMPLETE
    told = _kept(trial, _CANDIDATE)
    return told is not None and not _has_costs(told["figures"], objectives)


def candidate(trial: FrozenTrial, space: Space) -> Candidate:
    """Return the candidate of a finished trial."""
    genotype = space.genotype(trial.params)
    per_image = base64.b64decode(_kept(trial, _PER_IMAGE) or "")
    return Candidate.from_json(trial.number, genotype, _kept(trial, _CANDIDATE), per_image)


def _kept(trial: FrozenTrial, name: str) -> Any:
    """Return what is read back of a trial; earlier versions kept it in user attributes."""
    earlier = trial.user_attrs.get(name.removeprefix("hwnas:"))
    return trial.system_attrs.get(name, earlier)


def open_file(path: Path) -> RDBStorage:
    """Return the storage in a file of SQLite.

    Raises:
        sqlite3.Error: it is damaged.
    """
    check_whole(path)
    storage = RDBStorage(f"sqlite:///{path}", engine_kwargs=SQLITE)
    settle_sqlite(storage)
    return storage


def is_shared(path: Path) -> bool:
    """Return whether several processes worked on the study in a file."""
    if not path.exists():
        return False
    with readable(str(path)):
        storage = open_file(path)
        try:
            summaries = optuna.get_all_study_summaries(storage)
            return any(SHARED in study.user_attrs for study in summaries)
        finally:
            storage.engine.dispose()


def settle_sqlite(storage: RDBStorage) -> None:
    """Have SQLite log ahead: a commit survives a kill without waiting for the disk each time."""

    @event.listens_for(storage.engine, "connect")
    def configure(connection: Any, record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()  # connections opened before the listener was there


def _has_costs(figures: Container[str], objectives: Sequence[str]) -> bool:
    return all(name in figures for name in paid(objectives))


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
            storage = RDBStorage(
                self.url,
                engine_kwargs=dict(self.engine),
                skip_compatibility_check=skip_compatibility_check,
                skip_table_creation=True,
            )
            yield storage, optuna.load_study(study_name=self.name, storage=storage)

    def _space(self, study: optuna.Study) -> Space:
        if (raw := study.user_attrs.get(_SPACE)) is None:
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


def read_shared(url: str, name: str) -> Record:
    """Read a study from a database.

    Raises:
        RunError: it does not answer, there are no trials yet, or it is not such a study.
    """
    return in_database(url, name).read()


def in_file(path: Path) -> Source:
    """Return the study in a file that a run may be writing."""
    # Where nobody has it open there is no log beside it, and SQLite would make one, even to read.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    address = f"file:{quote(str(path.absolute()))}?{mode}"
    engine = {"creator": lambda: sqlite3.connect(address, uri=True), "poolclass": NullPool}
    return Source("sqlite://", engine, NAME, str(path))


def in_database(url: str, name: str) -> Source:
    """Return the study of that name in a database."""
    return Source(url, {"poolclass": NullPool}, name, f"study.storage={without_password(url)}")


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


def _distribution(options: Sequence[Any]) -> BaseDistribution:
    """Return an integer range where the options are one, so that samplers see their order."""
    if len(options) > 1 and all(isinstance(option, int) for option in options):
        step = options[1] - options[0]
        if list(options) == list(range(options[0], options[-1] + 1, step)):
            return IntDistribution(options[0], options[-1], step=step)
    return CategoricalDistribution(options)
