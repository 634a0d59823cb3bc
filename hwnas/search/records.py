"""What a sampler remembers of the trials of a study, so that it reads each of them once."""

import math
from collections.abc import Hashable
from typing import final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hwnas.search.choices import Assignment, Choices

Array = NDArray[np.float64]


@final
class Records:
    """The finished trials of a study, by number: a function of these trials alone.

    Args:
        space: Trials that lack one of its choices are passed over.
        expensive: The number of the expensive objective.
    """

    def __init__(self, space: Choices, expensive: int):
        self._space, self._expensive = space, expensive
        self._clear()

    def _clear(self) -> None:
        self._read: list[int] = []
        self.assignments: list[Assignment] = []
        self.features, self.costs = np.zeros((0, 0)), np.zeros((0, 0))
        #: Of the expensive objective, to be minimised; NaN where a limit is broken.
        self.values = np.zeros(0)
        self.taken: set[Hashable] = set()  #: keys of all assignments

    def update(self, study: optuna.Study, number: int) -> list[Assignment]:
        """Read what was finished since; return what is under evaluation beside trial ``number``."""
        states = (TrialState.COMPLETE, TrialState.RUNNING)
        finished, running = [], []
        for trial in study.get_trials(deepcopy=False, states=states):
            if trial.state == TrialState.COMPLETE:
                finished.append(trial)
            elif trial.number != number and self._within(trial):
                running.append(self._assignment(trial))
        n = len(self._read)
        if [trial.number for trial in finished[:n]] != self._read:  # others finished an earlier one
            self._clear()
            n = 0
        self._add([trial for trial in finished[n:] if self._within(trial)], study)
        self._read += [trial.number for trial in finished[n:]]
        return running

    def _add(self, trials: list[FrozenTrial], study: optuna.Study) -> None:
        if not trials:
            return
        assignments = [self._assignment(trial) for trial in trials]
        maximised = np.array([d == StudyDirection.MAXIMIZE for d in study.directions])
        values = np.array([trial.values for trial in trials]) * np.where(maximised, -1.0, 1.0)
        costs = np.delete(values, self._expensive, axis=1)
        broken = [any(value > 0 for value in trial.constraints.values()) for trial in trials]
        errors = np.where(broken, math.nan, values[:, self._expensive])
        features = self._space.vectors(assignments)
        if self.assignments:
            features = np.concatenate([self.features, features])
            costs = np.concatenate([self.costs, costs])
            errors = np.concatenate([self.values, errors])
        self.features, self.costs, self.values = features, costs, errors
        self.assignments += assignments
        self.taken |= {self._space.key(assignment) for assignment in assignments}

    def _within(self, trial: FrozenTrial) -> bool:
        return self._space.options.keys() <= trial.params.keys()

    def _assignment(self, trial: FrozenTrial) -> Assignment:
        return {name: trial.params[name] for name in self._space.options}
