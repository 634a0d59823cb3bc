"""The Optuna study of a run: a working copy in memory, and finished trials in SQLite.

A finished trial is written in one transaction. A killed run leaves no partial trial, only its
elapsed time.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import final

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import Trial

from hwnas.core.progress import SAVE_INTERVAL_S, PeriodicTimer
from hwnas.models.spaces import Genotype, Space
from hwnas.nas import trials
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import NAME
from hwnas.nas.storage import open_file, readable

_CUT_OFF = (
    "cut_off"  # attribute of the study: elapsed time of the current trial and of killed trials
)


@final
class LocalStudy:
    """The study of a single process."""

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
            self._cut_off_s = _cut_off_s(self._file)
            undo.pop_all()
        self._by_id = {known.id: known for known in self.candidates}

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return the result of an earlier trial of a genotype."""
        return self._by_id.get(genotype.id)

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return a trial with an option for every choice; ``None`` after ``n_trials``."""
        if len(self.candidates) >= n_trials:
            return None
        self._memory.sampler = sampler
        trial = self._memory.ask(self.distributions)
        self._still()
        self._timer = PeriodicTimer(partial(self._save_elapsed, trial), SAVE_INTERVAL_S)
        return trial

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Store the result of a trial."""
        self._still()
        finished = trials.tell(self._memory, trial, candidate, violations, self.objectives)
        with readable(str(self._path)):
            self._file.add_trial(trials.marked(finished, candidate, self.objectives))
        self.candidates.append(candidate)
        self._by_id[candidate.id] = candidate

    @property
    def spent_s(self) -> float:
        """Elapsed seconds of finished and of interrupted trials.

        Interrupted trials count only after the first scored candidate: before, the time may have
        been supernet training.
        """
        is_scored = any(candidate.state != "infeasible" for candidate in self.candidates)
        finished_s = trials.spent_s(self._memory.get_trials(deepcopy=False), self.objectives)
        return self._cut_off_s * is_scored + finished_s

    def close(self) -> None:
        """Close the file."""
        self._still()
        self._storage.engine.dispose()

    def _save_elapsed(self, trial: Trial) -> None:
        """Store the elapsed time of the current trial, in case the run is killed."""
        start = trial.datetime_start
        assert start is not None
        elapsed_s = (datetime.now() - start).total_seconds()
        record = {"began": str(start), "seconds": elapsed_s, "before": self._cut_off_s}
        self._file.set_user_attr(_CUT_OFF, record)

    def _still(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None


def _cut_off_s(study: optuna.Study) -> float:
    """Return the seconds of interrupted trials."""
    if (record := study.user_attrs.get(_CUT_OFF)) is None:
        return 0.0
    finished = {str(trial.datetime_start) for trial in study.get_trials(deepcopy=False)}
    return float(record["before"] + record["seconds"] * (record["began"] not in finished))
