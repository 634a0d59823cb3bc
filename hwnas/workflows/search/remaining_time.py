"""The estimate of the remaining time of a search, over all its phases."""

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import Protocol, final

from hwnas.hardware import backends
from hwnas.nas.candidates import Candidate
from hwnas.training.batches import steps_per_epoch
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.time_plan import COMPILE_S, INFERENCES, START_S, TimeLimit

#: Phases of fine-tuning: one network, then the others.
FINETUNING = ("Train the teacher", "Finish members")
_REPORT_S = 2.0  # for reports
_VERIFIED = 0.5  # fraction of the time reserved for verification that it takes on average


class TimedTrials(Protocol):
    """Finished trials with their durations."""

    candidates: list[Candidate]  #: in order of trials
    durations: dict[int, float]  #: seconds of each trial, by its number


@final
class RemainingTime:
    """Estimates the remaining time of a search over all its phases; see ``LaterWork``.

    Trials give the duration of an epoch, which gives that of fine-tuning and of verification.

    Args:
        contexts: One for each target.
        study: The trials.
        limit: Time limit of the command.
    """

    def __init__(
        self, contexts: Sequence[TargetContext], study: TimedTrials, limit: TimeLimit | None
    ):
        self._config, self._data = contexts[0].config, contexts[0].parts.data
        self._study, self._limit = study, limit
        self._n_targets, self._n_verified = len(contexts), 0
        self._n_begun = 0.0
        self._fitted: tuple[int, float | None] = (0, None)  #: number of trials, and their epoch
        finish, is_trained = self._config.finish, self._config.accuracy == "trained"
        self._epochs = finish.epochs
        if finish.epochs is None and is_trained:
            self._epochs = self._config.train.epochs
        train = self._config.train.for_images(n := len(self._data.train))
        steps = steps_per_epoch(train.images_per_step, n)
        self._n_steps = max(1, steps * (self._epochs or 0))

    def begin(self, name: str, n_steps: int) -> float:
        """Return the expected seconds of a phase, which no longer is later work."""
        if name in FINETUNING:
            self._n_begun += n_steps / self._n_steps
            seconds, epoch_s = self._finetuning_s(n_steps / self._n_steps), self._epoch_s()
            if name == FINETUNING[0] and epoch_s is not None:  # one process trains the teacher
                return (self._epochs or 0) * epoch_s
            return math.inf if seconds is None else seconds
        if name.startswith("Verify"):
            self._n_verified += 1
            return n_steps * self._verification_s()
        return math.inf

    def left_s(self, phase_s: float) -> float | None:
        """Return the seconds until the end; ``None`` if the duration of an epoch is unknown."""
        n_networks = self._n_networks()
        n_later = (self._n_targets - self._n_verified) * n_networks
        later_s = n_later * self._verification_s() + _REPORT_S
        if self._n_verified:
            return phase_s + later_s
        if (limit := self._limit) is not None:
            ends_s = limit.plan.limit_s - limit.elapsed_s
            return min(phase_s + limit.plan.verification_s, ends_s) if self._n_begun else ends_s
        finetuning_s = self._finetuning_s(max(0.0, self._n_targets * n_networks - self._n_begun))
        if self._config.finish.minutes is not None:
            most_s = 60 * self._config.finish.minutes
            finetuning_s = most_s if finetuning_s is None else min(finetuning_s, most_s)
        if finetuning_s is None:
            return None
        start_s = 0.0 if self._n_begun else START_S  # worker processes
        return phase_s + start_s + finetuning_s + later_s

    def _n_networks(self) -> float:
        """Return the expected number of networks to fine-tune for a target."""
        config, candidates = self._config, self._study.candidates
        scored = sum(not candidate.reason for candidate in candidates)
        n_trials = max(config.n_trials, len(candidates)) if self._limit is None else len(candidates)
        n_scored = n_trials * scored // max(1, len(candidates))
        return min(n_scored, config.finish.max_networks(n_scored, is_limited=False))

    def _finetuning_s(self, n_networks: float) -> float | None:
        if self._epochs == 0:
            return 0.0
        epoch_s = self._epoch_s()
        if epoch_s is None or self._epochs is None:
            return None
        return n_networks * self._epochs * epoch_s / (self._config.study.workers or 1)

    def _verification_s(self) -> float:
        """Return the expected seconds of the verification of one network."""
        data, is_measured = self._data, backends.get(self._config.target.runtime).measured
        n_images = len(data.test) + 2 * len(data.validation)
        image_s = (self._epoch_s() or 0.0) / len(data.train)
        return _VERIFIED * (COMPILE_S[is_measured] + INFERENCES * n_images * image_s)

    def _epoch_s(self) -> float | None:
        """Return the mean seconds of an epoch of a candidate; ``None`` before the first one."""
        if self._fitted[0] != (n := len(self._study.candidates)):
            self._fitted = (n, self._fitted_epoch_s())
        return self._fitted[1]

    def _fitted_epoch_s(self) -> float | None:
        """Fit the durations of trials by their numbers of epochs: proposals take time, too."""
        trained, metric = self._config.trained, self._config.metric
        distinct = {c.id: c for c in reversed(self._study.candidates)}.values()  # first trials
        epochs = [sum(trained.fidelities[: trained.n_read(metric, c.details)]) for c in distinct]
        if not any(epochs):
            return None
        seconds = [self._study.durations[c.trial] for c in distinct]
        bound = fmean(seconds) / fmean(epochs)
        slope = linear_regression(epochs, seconds).slope if len({*epochs}) > 1 else bound
        return min(slope, bound) if slope > 0 else bound
