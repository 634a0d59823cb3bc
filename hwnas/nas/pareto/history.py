"""The trials of a study as input of ``ParetoSampler``: choices, errors, costs."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hwnas.nas.pareto.expectation import History
from hwnas.nas.pareto.features import Assignment, ProposalSpace
from hwnas.nas.pareto.models import LARGEST, least
from hwnas.nas.trial_attributes import CANDIDATE, STD, SURPLUS, read_proposal

Array = NDArray[np.float64]

_USED_STATES = (TrialState.COMPLETE, TrialState.RUNNING, TrialState.FAIL)


@dataclass(frozen=True)
class ObjectiveScale:
    """Conversion of objectives to quantities to minimise: errors and costs.

    An error is the distance from the best possible value of the expensive objective.
    """

    best: float  #: best value of the expensive objective, negated if it is maximised
    maximised: bool  #: True if the expensive objective is maximised
    costs_maximised: Sequence[bool]  #: for each other objective, whether it is maximised
    worst: float = math.inf  #: highest possible error
    least: float = 1e-9  #: lowest possible error

    def errors(self, values: Array, stds: Array) -> Array:
        """Return the errors of values, ``(n,)``, at least ``least`` and the standard deviation.

        Args:
            values: Values of the expensive objective, negated if it is maximised, ``(n,)``.
            stds: Their standard deviations, ``(n,)``.
        """
        return np.maximum(values - self.best, np.maximum(stds, self.least))

    def value(self, error: float) -> float:
        """Return the value of the expensive objective for an error, which ``worst`` limits."""
        value = self.best + min(error, self.worst)
        return -value if self.maximised else value

    def costs(self, costs: Array) -> tuple[float, ...]:
        """Return the values of the other objectives, given costs to be minimised ``(m,)``."""
        pairs = zip(costs.tolist(), self.costs_maximised, strict=True)
        return tuple(-cost if maximised else cost for cost, maximised in pairs)


@final
class Trials:
    """Reads each trial once; results depend only on the trials.

    Args:
        space: Space of the candidates.
        expensive: Index of the expensive objective.
        bound: Best possible value of the expensive objective; ``None``: inferred from the trials.
    """

    def __init__(self, space: ProposalSpace, expensive: int, bound: float | None):
        self._space, self._expensive, self._bound = space, expensive, bound
        self._clear()

    def _clear(self) -> None:
        self._read: list[int] = []  # numbers of finished trials, including incomplete assignments
        self._numbers: list[int] = []
        self._assignments: list[Assignment] = []
        self._features, self._costs = np.zeros((0, 0)), np.zeros((0, 0))
        self._values, self._stds = np.zeros(0), np.zeros(0)
        self._seconds = np.zeros(0)
        self._expected = np.zeros(
            (0, 2)
        )  # predicted medians, and standard deviations of log errors
        self.taken: set[Hashable] = set()  #: keys of the candidates of finished and failed trials

    def history(self, study: optuna.Study, trial: FrozenTrial) -> tuple[History, ObjectiveScale]:
        """Return the other trials of the study, and the conversion of objectives to errors.

        ``taken`` is updated.
        """
        finished, refused, failed = [], list[Assignment](), list[Assignment]()
        trials = study.get_trials(deepcopy=False, states=_USED_STATES)
        for other in trials:
            if SURPLUS in other.system_attrs:  # its candidate is left to the next trial
                continue
            if self._is_refused(other):
                refused.append(self._assignment(other))
            elif other.state == TrialState.COMPLETE:
                finished.append(other)
            elif other.state == TrialState.FAIL and self._is_within(other):
                failed.append(self._assignment(other))
        n = len(self._read)
        if [
            other.number for other in finished[:n]
        ] != self._read:  # an earlier trial ended in the meantime
            self._clear()
            n = 0
        self._read += [other.number for other in finished[n:]]
        if new := [other for other in finished[n:] if self._is_within(other)]:
            self._add(study, new)
        self.taken |= {self._space.key(assignment) for assignment in [*refused, *failed]}
        scale = self._scale(self._values, study)
        errors = scale.errors(self._values, self._stds)
        known = (self._numbers, self._assignments, self._features, errors, self._costs)
        medians, stds = self._expected.T
        predicted = np.log(scale.errors(-medians if scale.maximised else medians, 0.0 * medians))
        surprises = (np.log(errors) - predicted) / stds
        details = (self._stds / errors, surprises, self._seconds)
        others = self._others(trials, trial)
        return History(*known, *details, *others, [*self._space.vectors(refused)]), scale

    def others(self, study: optuna.Study, trial: FrozenTrial) -> tuple[list[Assignment], int]:
        """Return the candidates that other workers evaluate or finished since ``history``.

        The second value is the number of earlier trials whose candidates are not chosen yet.
        """
        return self._others(study.get_trials(deepcopy=False, states=_USED_STATES), trial)

    def _others(
        self, trials: Sequence[FrozenTrial], trial: FrozenTrial
    ) -> tuple[list[Assignment], int]:
        pending, n_ahead, known = list[Assignment](), 0, {trial.number, *self._read}
        for other in trials:
            if other.state == TrialState.FAIL or other.number in known or self._is_refused(other):
                continue
            if self._is_within(other):
                pending.append(self._assignment(other))
            elif other.state == TrialState.RUNNING and other.number < trial.number:
                n_ahead += 1  # its candidate is not stored yet
        return pending, n_ahead

    def _add(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
        assignments = [self._assignment(trial) for trial in trials]
        sign = np.where(_are_maximised(study), -1.0, 1.0)
        signed = np.array([trial.values for trial in trials]) * sign
        violated = [any(value > 0 for value in trial.constraints.values()) for trial in trials]
        values = np.where(violated, math.nan, signed[:, self._expensive])
        costs = np.delete(signed, self._expensive, axis=1)
        stds = np.array([float(trial.system_attrs.get(STD, 0.0)) for trial in trials])
        seconds = np.array([_seconds(trial) for trial in trials])
        expected = np.array([_read_prediction(trial) for trial in trials])
        features = self._space.vectors(assignments)
        if self._numbers:
            features = np.concatenate([self._features, features])
            costs = np.concatenate([self._costs, costs])
            values = np.concatenate([self._values, values])
            stds = np.concatenate([self._stds, stds])
            seconds = np.concatenate([self._seconds, seconds])
            expected = np.concatenate([self._expected, expected])
        self._features, self._costs = features, costs
        self._values, self._stds, self._expected = values, stds, expected
        self._seconds = seconds
        self._numbers += [trial.number for trial in trials]
        self._assignments += assignments
        self.taken |= {self._space.key(assignment) for assignment in assignments}

    def _is_refused(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has no finite objectives: its candidate would fail again."""
        if trial.state == TrialState.COMPLETE:
            failed = max(map(abs, trial.values)) > LARGEST
        else:
            failed = trial.state == TrialState.FAIL and CANDIDATE in trial.system_attrs
        return failed and self._is_within(trial)

    def _is_within(self, trial: FrozenTrial) -> bool:
        return self._space.options.keys() <= trial.params.keys()

    def _assignment(self, trial: FrozenTrial) -> Assignment:
        return {name: trial.params[name] for name in self._space.options}

    def _scale(self, values: Array, study: optuna.Study) -> ObjectiveScale:
        """Return the scale of errors; without a bound, it is inferred from values to minimise."""
        costs_maximised = _are_maximised(study)
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
        else:  # the best possible value is unknown
            best = float(known.min() - (np.ptp(known) or 1e-9))
        # Accuracies are not negative.
        positive = maximised and best < 0 and bool((known <= 0).all())
        worst = -best if positive else math.inf
        return ObjectiveScale(
            best, maximised, costs_maximised, worst, least(known - best, positive)
        )


def _read_prediction(trial: FrozenTrial) -> tuple[float, float]:
    """Return the predicted value of a trial and its standard deviation; NaN if unknown."""
    proposal = read_proposal(trial.system_attrs)
    if proposal.expected is None or proposal.std is None:
        return math.nan, math.nan
    return proposal.expected[0], proposal.std


def _seconds(trial: FrozenTrial) -> float:
    """Return the duration of a trial in seconds; NaN if unknown."""
    return math.nan if trial.duration is None else trial.duration.total_seconds()


def _are_maximised(study: optuna.Study) -> list[bool]:
    return [direction == StudyDirection.MAXIMIZE for direction in study.directions]
