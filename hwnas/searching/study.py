"""The Optuna study of a run: a working copy in memory, and finished trials in SQLite.

A trial enters the file when it is finished, in one transaction: a killed run leaves no half trial.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import Trial

from hwnas.results import Candidate
from hwnas.searching import trials
from hwnas.searching.damage import readable
from hwnas.searching.options import NAME
from hwnas.searching.storage import open_file
from hwnas.space import Genotype, Space


@final
class Study:
    """Asks a sampler for candidates and keeps what became of them; one process works on it."""

    def __init__(self, path: Path, space: Space, objectives: Sequence[str]):
        self._space, self.objectives = space, tuple(objectives)
        self.distributions = trials.distributions(space)
        self._path = path
        with contextlib.ExitStack() as undo, readable(str(path)):
            self._storage = open_file(path)
            undo.callback(self.close)
            self._file = trials.create(self._storage, NAME, space, self.objectives)
            self._memory = optuna.create_study(directions=self._file.directions)
            finished = self._file.get_trials(deepcopy=False)
            self._memory.add_trials([trials.unmarked(trial) for trial in finished])
            self.candidates = [trials.candidate(trial, space) for trial in finished]
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
        told = trials.tell(self._memory, trial, candidate, violations, self.objectives)
        with readable(str(self._path)):
            self._file.add_trial(trials.marked(told, candidate, self.objectives))
        self.candidates.append(candidate)
        self._by_id[candidate.id] = candidate

    @property
    def spent_s(self) -> float:
        """The seconds that finished trials took."""
        return trials.spent_s(self._memory.get_trials(deepcopy=False), self.objectives)

    def close(self) -> None:
        """Close the file."""
        self._storage.engine.dispose()
