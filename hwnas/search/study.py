"""The Optuna study of a run: a working copy in memory, and finished trials in SQLite.

A trial enters the file when it is finished, in one transaction: a killed run leaves no half trial.
"""

import base64
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event

from hwnas.figure import COLUMNS
from hwnas.results import Candidate
from hwnas.space import SearchSpace

_NAME = "hwnas"
_ATTRIBUTE = "candidate"
_RIGHT = "right"  # bits in base64


@final
class Study:
    """Asks a sampler for candidates and keeps what became of them."""

    def __init__(self, path: Path, space: SearchSpace, objectives: Sequence[str]):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self.objectives = space, tuple(objectives)
        directions = [
            StudyDirection.MAXIMIZE if COLUMNS[name].maximise else StudyDirection.MINIMIZE
            for name in objectives
        ]
        self.distributions = {n: _distribution(o) for n, o in space.choices.items()}
        self._storage = _open(path)
        self._file = optuna.create_study(
            storage=self._storage, study_name=_NAME, directions=directions, load_if_exists=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # names for optuna-dashboard
            self._file.set_metric_names(list(objectives))
        self._memory = optuna.create_study(directions=directions)
        finished = self._file.get_trials(deepcopy=False)
        self._memory.add_trials(finished)
        self.candidates = [self._candidate(trial) for trial in finished]

    def ask(self, sampler: BaseSampler) -> Trial:
        """Return a trial with an option for every choice."""
        self._memory.sampler = sampler
        return self._memory.ask(self.distributions)

    def enqueue(self, assignment: dict[str, Any]) -> None:
        """Have the next trial take these options."""
        self._memory.enqueue_trial(assignment)

    def tell(self, trial: Trial, candidate: Candidate, violations: dict[str, float]) -> None:
        """Keep what became of a trial.

        A candidate that was not scored is told accuracy 0: samplers that know constraints rank it
        by its violations. One without a cost is told as failed.
        """
        for name, violation in violations.items():
            trial.set_constraint(name, violation)
        trial.set_user_attr(_ATTRIBUTE, candidate.to_json())
        if candidate.right:
            trial.set_user_attr(_RIGHT, base64.b64encode(candidate.right).decode())
        known = {name: figure.value for name, figure in candidate.figures.items()}
        if all(name in known for name in self.objectives if name != "accuracy"):
            values = [known.get(name, 0.0) for name in self.objectives]
            frozen = self._memory.tell(trial, values)
        else:
            frozen = self._memory.tell(trial, state=TrialState.FAIL)
        self._file.add_trial(frozen)
        self.candidates.append(candidate)

    def close(self) -> None:
        """Close the file."""
        self._storage.engine.dispose()

    def _candidate(self, trial: FrozenTrial) -> Candidate:
        genotype = self._space.genotype(trial.params)
        right = base64.b64decode(trial.user_attrs.get(_RIGHT, ""))
        return Candidate.from_json(trial.number, genotype, trial.user_attrs[_ATTRIBUTE], right)


def _distribution(options: Sequence[Any]) -> BaseDistribution:
    """Return an integer range where the options are one, so that samplers see their order."""
    if len(options) > 1 and all(isinstance(option, int) for option in options):
        step = options[1] - options[0]
        if list(options) == list(range(options[0], options[-1] + 1, step)):
            return IntDistribution(options[0], options[-1], step=step)
    return CategoricalDistribution(options)


def _open(path: Path) -> RDBStorage:
    storage = RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}})

    @event.listens_for(storage.engine, "connect")
    def configure(connection: Any, record: object) -> None:
        # Write-ahead logging: a commit survives a kill without waiting for the disk each time.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()  # connections opened before the listener was there
    return storage
