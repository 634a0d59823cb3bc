"""A study that many processes work on, on one machine or on many, by Optuna's storage.

What is promised: every trial that is asked for is finished once, whoever dies. A worker gives signs
of life (Optuna's heartbeat) while it evaluates; when they stop, another worker fails the trial and
queues it again. Trials are numbered by the storage; those that were failed or are one too many have
a number and no candidate.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import final

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.core.errors import RunError
from hwnas.core.run_folder import DIFFERENCE_HINTS, MAY_GROW
from hwnas.models.spaces import Genotype, Space
from hwnas.nas import storage as storages
from hwnas.nas import trials
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import StudyConfig
from hwnas.nas.storage import AWAY, DatabaseRetry
from hwnas.nas.trial_attributes import SURPLUS, set_system_attr, trial_id

_WORKER = "worker"  # attribute of trials: the command that took it, of several the last
_WAITED = "waited_s:"  # attributes of the study, of each command
_POLL_S = 0.5  # between looks at what others do
_RETRIES = 3  # of a trial whose workers die: it may be what they die of
_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)


def _command() -> str:
    """Return a name for a command; in containers those that follow have the same process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Membership:
    """What it takes to work on a study; it is pickled."""

    config: StudyConfig
    url: str  #: of the database
    name: str  #: of the study in it
    objectives: tuple[str, ...]
    digests: Mapping[str, str]  #: what decides the outcome, by name: all must agree
    worker: str = field(default_factory=_command)  #: the command, for all its processes


@final
class SharedStudy:
    """Asks for trials and keeps what became of them, together with other processes.

    Raises:
        ConfigError: there is no driver for such a database.
        RunError: it does not answer, or its study is of another search.
    """

    def __init__(self, membership: Membership, space: Space):
        self.membership, self._config, self._space = membership, membership.config, space
        self.objectives, self.worker = membership.objectives, membership.worker
        self.distributions = trials.distributions(space)
        self._connection = DatabaseRetry(membership.url, membership.config, self._retry)
        self._since = datetime.now()
        self._known: dict[int, Candidate] = {}
        self._by_id: dict[str, Candidate] = {}
        self._vouched: set[int] = set()
        self._pulse: _Heartbeat | None = None
        self.candidates: list[Candidate] = []
        try:
            self._study = _joined(self._connection, membership, space)
            self.waited_s = self._waited()  #: that all processes waited before any trial
            self.refresh()
        except BaseException:
            self._connection.close()
            raise

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return what became of a genotype, if it was tried before."""
        return self._by_id.get(genotype.id)

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return the next trial, or wait for those of others; none where ``n_trials`` are finished.

        Raises:
            RunError: the database does not answer for ``reconnect_timeout_s``.
        """
        self._study.sampler = sampler
        while True:
            self._connection.patiently(self._revive)
            counted = self.refresh()
            if len(self.candidates) >= n_trials:
                return None
            waiting = any(trial.state == TrialState.WAITING for trial in counted)
            if (waiting or len(counted) < n_trials) and (trial := self._taken(n_trials)):
                return trial
            time.sleep(_POLL_S)

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Keep what became of a trial, unless this process was thought dead and others took it."""
        try:
            self._connection.patiently(
                lambda: trials.tell(self._study, trial, candidate, violations, self.objectives)
            )
        except UpdateFinishedTrialError:
            pass
        finally:
            self._still()
        self.refresh()

    def refresh(self) -> list[FrozenTrial]:
        """Read what others finished; return all trials that count: finished, or to be finished."""
        known = self._connection.patiently(lambda: self._study.get_trials(deepcopy=False))
        counted = [trial for trial in known if self._counts(trial)]
        for trial in counted:
            if trial.state not in _UNFINISHED and trial.number not in self._known:
                found = trials.candidate(trial, self._space)
                self._known[trial.number] = self._by_id[found.id] = found
        self.candidates = [self._known[number] for number in sorted(self._known)]
        return counted

    def wait(self, seconds: float) -> None:
        """Count seconds that all processes waited before any trial.

        They are spent once a candidate is scored, as where one process trains for its first one.
        """
        own, patiently = _WAITED + self.worker, self._connection.patiently
        before = patiently(lambda: self._study.user_attrs.get(own, 0.0))
        patiently(lambda: self._study.set_user_attr(own, before + seconds))
        self.waited_s += seconds

    @property
    def spent_s(self) -> float:
        """The seconds in which any trial was under way, and the waiting for them.

        In a database that commands share, of those of this command: each has its own time. What was
        cut off counts up to its last sign of life, once a candidate is scored.
        """
        known = self._connection.patiently(lambda: self._study.get_trials(deepcopy=False))
        if self._config.storage is not None:
            known = [trial for trial in known if trial.user_attrs.get(_WORKER) == self.worker]
        is_scored = any(t.user_attrs.get("state") in {"complete", "stopped"} for t in known)
        now, spans = datetime.now(), list[trials.Span]()
        for trial in known:
            begun = trial.datetime_start
            if trial.state == TrialState.RUNNING and begun and begun >= self._since:
                spans.append((begun, now))
            elif is_scored or trials.is_finished(trial, self.objectives):
                spans += trials.span(trial, self.objectives)
        return self.waited_s * is_scored + trials.clock_s(spans)

    def workers(self) -> list[str]:
        """Return which commands finished trials, in the order of their last ones."""
        finished = [trial for trial in self.refresh() if trial.state not in _UNFINISHED]
        finished.sort(key=lambda trial: (trial.datetime_complete, trial.number))
        names = [str(trial.user_attrs.get(_WORKER)) for trial in finished]
        return list(dict.fromkeys(reversed(names)))[::-1]

    def take_over(self) -> None:
        """Queue again what others have begun; for who knows that there are no others."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._queue_again(trial)

    def close(self) -> None:
        """Give back what was begun, and let go of the database."""
        pulse = self._pulse
        self._still()
        if pulse is not None:
            with contextlib.suppress(*AWAY):  # others find it when its signs of life are gone
                self._queue_again(self._study.trials[pulse.trial.number])
        self._connection.close()

    def _waited(self) -> float:
        known = self._connection.patiently(lambda: self._study.user_attrs)
        if self._config.storage is not None:
            return float(known.get(_WAITED + self.worker, 0.0))
        return sum(float(seconds) for name, seconds in known.items() if name.startswith(_WAITED))

    def _taken(self, n_trials: int) -> Trial | None:
        """Return a new trial or one that was queued again; none if it is one too many."""

        def asked() -> Trial:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # heartbeats are ours to give
                return self._study.ask(self.distributions)

        try:
            trial = self._connection.patiently(asked)
            earlier = [other for other in self.refresh() if other.number < trial.number]
            if len(earlier) >= n_trials:
                self._connection.patiently(lambda: self._give_back(trial))
                return None
            self._connection.patiently(lambda: trial.set_user_attr(_WORKER, self.worker))
        except UpdateFinishedTrialError:
            return None  # it took so long that others thought this process dead
        self._pulse = _Heartbeat(self._connection, trial)
        return trial

    def _give_back(self, trial: Trial) -> None:
        """Fail a trial that is one too many; what it was is for the next one."""
        set_system_attr(self._study, trial, SURPLUS, value=True)
        self._study.tell(trial, state=TrialState.FAIL)

    def _counts(self, trial: FrozenTrial) -> bool:
        return trial.state in _UNFINISHED or trials.is_finished(trial, self.objectives)

    def _revive(self) -> None:
        """Queue trials of dead workers again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self._study)
        # A worker that died before its first sign of life is not found by that: give one for it.
        begun = datetime.now() - timedelta(seconds=self._config.heartbeat_timeout_s)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in self._vouched and (trial.datetime_start or begun) <= begun:
                self._vouched.add(trial.number)
                self._connection.storage.record_heartbeat(trial_id(trial))

    def _queue_again(self, trial: FrozenTrial) -> None:
        try:
            self._study.tell(trial.number, state=TrialState.FAIL)
        except (UpdateFinishedTrialError, ValueError):
            return  # finished, by whoever
        self._retry(self._study, self._study.trials[trial.number])

    def _retry(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if not trials.is_finished(trial, self.objectives):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES)(study, trial)

    def _still(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None


def _joined(connection: DatabaseRetry, membership: Membership, space: Space) -> optuna.Study:
    """Return the study, new or as others began it.

    Raises:
        RunError: it is of another search.
    """
    name, digests = membership.name, membership.digests

    def found() -> tuple[dict[str, str] | None, bool]:
        try:
            known = optuna.load_study(study_name=name, storage=connection.storage)
        except KeyError:
            return None, False
        # In this order: whoever makes it just now says whose it is before the first trial.
        is_begun = bool(known.get_trials(deepcopy=False))
        return known.user_attrs.get(storages.SHARED), is_begun

    theirs, is_begun = connection.patiently(found)
    differing = []
    if theirs is not None or is_begun:  # else it is new, or somebody is making it just now
        differing = [key for key in digests if (theirs or {}).get(key) != digests[key]]
    if differing:
        raise RunError(
            f"{connection.where} holds a study '{name}' of another search: "
            f"{', '.join(differing)} differ. Choose another name with study.name=NAME, or use "
            f"the same settings ({MAY_GROW})."
            + "".join(DIFFERENCE_HINTS.get(name, "") for name in differing)
        )

    def made() -> optuna.Study:
        study = trials.create(connection.storage, name, space, membership.objectives)
        if theirs is None:
            study.set_user_attr(storages.SHARED, dict(digests))
        return study

    return connection.patiently(made)


@final
class _Heartbeat:
    """Signs of life of a trial, until it is stopped or the process ends."""

    def __init__(self, connection: DatabaseRetry, trial: Trial):
        self.trial, self._connection = trial, connection
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop them."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while True:
            # Whatever it was, the next one may arrive; without any the trial is taken by others.
            with contextlib.suppress(Exception):
                self._connection.beat(self.trial)
            if self._stopped.wait(self._connection.beat_s):
                return
