"""The trials of a study as ``ParetoSampler`` sees them: choices, errors, costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hwnas.search.choices import Choices
from hwnas.search.expectation import History

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """What objectives are minimised as: errors, how far from the best possible value; and costs."""

    best: float  #: of the expensive objective, as it is minimised
    maximised: bool  #: the expensive objective
    costs_maximised: Sequence[bool]

    def errors(self, values: Array) -> Array:
        """Return the errors of values to be minimised."""
        return np.maximum(values - self.best, 1e-9)

    def value(self, error: float) -> float:
        """Return the expensive objective's value of an error."""
        value = self.best + error
        return -value if self.maximised else value

    def costs(self, costs: Array) -> tuple[float, ...]:
        """Return the other objectives' values of costs ``(m,)``."""
        pairs = zip(costs.tolist(), self.costs_maximised, strict=True)
        return tuple(-cost if maximised else cost for cost, maximised in pairs)


@final
class Trials:
    """Reads trials; each is read once.

    Args:
        space: What is chosen among.
        expensive: The number of the expensive objective.
        bound: The best value that it can have, if known.
    """

    def __init__(self, space: Choices, expensive: int, bound: float | None):
        self._space, self._expensive, self._bound = space, expensive, bound
        self._rows: dict[int, tuple[Array, float, Array]] = {}

    def history(self, study: optuna.Study, trial: FrozenTrial) -> tuple[History, Scale]:
        """Return what is known before a trial, and the scale of its errors."""
        states = (TrialState.COMPLETE, TrialState.RUNNING)
        names = self._space.options.keys()
        rows, numbers, assignments, pending = [], [], [], []
        for other in study.get_trials(deepcopy=False, states=states):
            if other.number == trial.number or not names <= other.params.keys():
                continue
            params = {name: other.params[name] for name in names}
            if other.state == TrialState.RUNNING:
                pending.append(params)
                continue
            if other.number not in self._rows:
                self._rows[other.number] = self._row(study, other)
            rows.append(self._rows[other.number])
            numbers.append(other.number)
            assignments.append(params)
        if not rows:
            empty = np.zeros((0, 0))
            scale = self._scale(np.zeros(0), study)
            return History([], [], empty, np.zeros(0), empty, pending), scale
        features, values, costs = (np.array(column) for column in zip(*rows, strict=True))
        scale = self._scale(values, study)
        errors = scale.errors(values)
        return History(numbers, assignments, features, errors, costs, pending), scale

    def _row(self, study: optuna.Study, trial: FrozenTrial) -> tuple[Array, float, Array]:
        maximised = _maximised(study)
        signed = [-v if m else v for v, m in zip(trial.values, maximised, strict=True)]
        expensive = signed.pop(self._expensive)
        if any(value > 0 for value in trial.constraints.values()):
            expensive = math.nan
        return self._space.vectors([trial.params])[0], expensive, np.array(signed)

    def _scale(self, values: Array, study: optuna.Study) -> Scale:
        """Return the scale that values, to be minimised, suggest where no bound is given."""
        costs_maximised = _maximised(study)
        maximised = costs_maximised.pop(self._expensive)
        known = values[np.isfinite(values)]
        if self._bound is not None:
            best = -self._bound if maximised else self._bound
        elif len(known) == 0:
            best = 0.0
        elif maximised and known.max() <= 0 and known.min() >= -100:
            best = -1.0 if known.min() >= -1 else -100.0
        elif not maximised and known.min() > 0:
            best = 0.0
        else:  # nothing says what the best is
            best = float(known.min() - max(np.ptp(known), 1e-9))
        return Scale(best, maximised, costs_maximised)


def _maximised(study: optuna.Study) -> list[bool]:
    return [direction == StudyDirection.MAXIMIZE for direction in study.directions]
