"""A study in an Optuna storage that several processes share, on one or several machines.

Every requested trial is finished exactly once, even if workers die. A worker sends heartbeats
during an evaluation. If they stop, another worker marks the trial as failed and queues it again.
The storage numbers trials; failed and surplus trials have a number but no candidate.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import final

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.core.errors import RunError
from hwnas.core.run_folder import DIFFERENCE_HINTS, MAY_CHANGE
from hwnas.models.spaces import Genotype, Space
from hwnas.nas import storage as storages
from hwnas.nas import trials
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import StudyConfig
from hwnas.nas.storage import AWAY, DatabaseRetry
from hwnas.nas.trial_attributes import SURPLUS, set_system_attr, trial_id

_WORKER = "worker"  # attribute of trials: the last command that evaluated it
_WAITED = "waited_s:"  # attributes of the study: seconds of preparation by each command
_POLL_S = 0.5  # between two reads of the study
_RETRIES = 3  # of a trial whose workers die: the trial may be the cause
_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)


def _command() -> str:
    """Return a unique name of this command; containers reuse process ids."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Membership:
    """The settings of a worker of a study; they are pickled."""

    config: StudyConfig
    url: str  #: URL of the database
    name: str  #: name of the study
    objectives: tuple[str, ...]  #: columns, in the order of the study's objectives
    #: digests of the settings that determine the results, by name; equal for all workers
    digests: Mapping[str, str]
    worker: str = field(default_factory=_command)  #: name of the command, for all its processes


@final
class SharedStudy:
    """A study whose trials are requested and finished by several processes.

    Raises:
        ConfigError: no driver is installed for the database.
        RunError: the database does not answer, or the study belongs to another search.
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
        self.durations: dict[int, float] = {}  #: seconds of each finished trial, by its number
        try:
            self._study = _load_or_create(self._connection, membership, space)
            self.waited_s = self._recorded_wait_s()  #: seconds of preparation, see ``wait``
            self.refresh()
        except BaseException:
            self._connection.close()
            raise

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return the candidate of a genotype; ``None`` if it was not evaluated."""
        return self._by_id.get(genotype.id)

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return the next trial to evaluate; ``None`` once ``n_trials`` are finished.

        While other workers evaluate the last trials, wait for them: they may fail.

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
            if (waiting or len(counted) < n_trials) and (trial := self._next_trial(n_trials)):
                return trial
            time.sleep(_POLL_S)

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Store the result of a trial, unless another worker took it over (missing heartbeats).

        Violations are by name of the limit; the candidate is feasible if all are <= 0.

        Raises:
            RunError: the database does not answer for ``reconnect_timeout_s``.
        """
        try:
            self._connection.patiently(
                lambda: trials.tell(self._study, trial, candidate, violations, self.objectives)
            )
        except UpdateFinishedTrialError:
            pass
        finally:
            self._stop_heartbeat()
        self.refresh()

    def refresh(self) -> list[FrozenTrial]:
        """Update ``candidates`` from the storage; return finished, running and queued trials.

        Raises:
            RunError: the database does not answer for ``reconnect_timeout_s``.
        """
        known = self._connection.patiently(lambda: self._study.get_trials(deepcopy=False))
        counted = [trial for trial in known if self._counts(trial)]
        for trial in counted:
            if trial.state not in _UNFINISHED and trial.number not in self._known:
                candidate = trials.candidate(trial, self._space)
                self._known[trial.number] = self._by_id[candidate.id] = candidate
                self.durations[trial.number] = trials.duration_s(trial)
        self.candidates = [self._known[number] for number in sorted(self._known)]
        return counted

    def wait(self, seconds: float) -> None:
        """Add seconds of preparation, for which all processes waited, to those recorded.

        They count in ``spent_s`` once a candidate is scored.
        """
        name, patiently = _WAITED + self.worker, self._connection.patiently
        before = patiently(lambda: self._study.user_attrs.get(name, 0.0))
        patiently(lambda: self._study.set_user_attr(name, before + seconds))
        self.waited_s += seconds

    @property
    def spent_s(self) -> float:
        """Seconds in which any trial ran, overlaps once, plus those of preparation (``wait``).

        In a shared database, only trials and preparation of this command count. Preparation, and
        interrupted trials up to their last heartbeat, count once a candidate is scored.
        """
        known = self._connection.patiently(lambda: self._study.get_trials(deepcopy=False))
        if self._config.storage is not None:
            known = [trial for trial in known if trial.user_attrs.get(_WORKER) == self.worker]
        is_scored = any(t.user_attrs.get("state") in {"complete", "stopped"} for t in known)
        now, spans = datetime.now(), list[trials.Span]()
        for trial in known:
            start = trial.datetime_start
            if trial.state == TrialState.RUNNING and start and start >= self._since:
                spans.append((start, now))
            elif is_scored or trials.is_finished(trial, self.objectives):
                spans += trials.span(trial, self.objectives)
        return self.waited_s * is_scored + trials.clock_s(spans)

    def workers(self) -> list[str]:
        """Return the names of the commands that finished trials, in order of their last trials."""
        finished = [trial for trial in self.refresh() if trial.state not in _UNFINISHED]
        finished.sort(key=lambda trial: (trial.datetime_complete, trial.number))
        names = [str(trial.user_attrs.get(_WORKER)) for trial in finished]
        return list(dict.fromkeys(reversed(names)))[::-1]

    def take_over(self) -> None:
        """Queue running trials again, each at most three times. No other worker may be alive."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._queue_again(trial)

    def close(self) -> None:
        """Queue the running trial again, and close the database."""
        pulse = self._pulse
        self._stop_heartbeat()
        if pulse is not None:
            with contextlib.suppress(*AWAY):  # another worker queues it when heartbeats are missing
                self._queue_again(self._study.trials[pulse.trial.number])
        self._connection.close()

    def _recorded_wait_s(self) -> float:
        known = self._connection.patiently(lambda: self._study.user_attrs)
        if self._config.storage is not None:
            return float(known.get(_WAITED + self.worker, 0.0))
        return sum(float(seconds) for name, seconds in known.items() if name.startswith(_WAITED))

    def _next_trial(self, n_trials: int) -> Trial | None:
        """Return a new trial or one that was queued again; ``None`` if it is surplus."""

        def ask() -> Trial:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # this class sends heartbeats
                return self._study.ask(self.distributions)

        try:
            trial = self._connection.patiently(ask)
            earlier = [other for other in self.refresh() if other.number < trial.number]
            if len(earlier) >= n_trials:
                self._connection.patiently(lambda: self._give_back(trial))
                return None
            self._connection.patiently(lambda: trial.set_user_attr(_WORKER, self.worker))
        except UpdateFinishedTrialError:
            return None  # another worker took it over because of missing heartbeats
        self._pulse = _Heartbeat(self._connection, trial)
        return trial

    def _give_back(self, trial: Trial) -> None:
        """Mark a surplus trial as failed; its candidate is left to the next trial."""
        set_system_attr(self._study, trial, SURPLUS, value=True)
        self._study.tell(trial, state=TrialState.FAIL)

    def _counts(self, trial: FrozenTrial) -> bool:
        return trial.state in _UNFINISHED or trials.is_finished(trial, self.objectives)

    def _revive(self) -> None:
        """Queue trials of dead workers again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self._study)
        # Optuna does not detect a worker that died before its first heartbeat: send one for it.
        limit = datetime.now() - timedelta(seconds=self._config.heartbeat_timeout_s)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in self._vouched and (trial.datetime_start or limit) <= limit:
                self._vouched.add(trial.number)
                self._connection.storage.record_heartbeat(trial_id(trial))

    def _queue_again(self, trial: FrozenTrial) -> None:
        try:
            self._study.tell(trial.number, state=TrialState.FAIL)
        except (UpdateFinishedTrialError, ValueError):
            return  # another worker finished it
        self._retry(self._study, self._study.trials[trial.number])

    def _retry(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if not trials.is_finished(trial, self.objectives):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES)(study, trial)

    def _stop_heartbeat(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None


def _load_or_create(
    connection: DatabaseRetry, membership: Membership, space: Space
) -> optuna.Study:
    """Return the study; create it if necessary.

    Raises:
        RunError: the study belongs to another search.
    """
    name, digests = membership.name, membership.digests

    def load() -> tuple[dict[str, str] | None, bool]:
        try:
            known = optuna.load_study(study_name=name, storage=connection.storage)
        except KeyError:
            return None, False
        # In this order: a worker that creates the study stores the digests before the first trial.
        has_trials = bool(known.get_trials(deepcopy=False))
        return known.user_attrs.get(storages.SHARED), has_trials

    stored, has_trials = connection.patiently(load)
    differing = []
    if stored is not None or has_trials:  # else it is new, or another worker is creating it
        differing = _differing(stored or {}, digests)
    if differing:
        raise _another_search_error(connection, name, differing)

    def create() -> optuna.Study:
        study = trials.create(connection.storage, name, space, membership.objectives)
        if stored is None and storages.SHARED not in study.user_attrs:
            study.set_user_attr(storages.SHARED, dict(digests))
        return study

    study = connection.patiently(create)
    # Another search may have created the study at the same moment.
    now = connection.patiently(lambda: study.user_attrs.get(storages.SHARED, {}))
    if differing := _differing(now, digests):
        raise _another_search_error(connection, name, differing)
    return study


def _differing(stored: Mapping[str, str], digests: Mapping[str, str]) -> list[str]:
    """Return the names of the settings that differ, those of ``digests`` first."""
    names = dict.fromkeys([*digests, *stored])
    return [key for key in names if stored.get(key) != digests.get(key)]


def _another_search_error(
    connection: DatabaseRetry, name: str, differing: Sequence[str]
) -> RunError:
    return RunError(
        f"{connection.where} holds a study '{name}' of another search: {', '.join(differing)} "
        f"differ. Choose another name with study.name=NAME, or use the same settings "
        f"({MAY_CHANGE})." + "".join(DIFFERENCE_HINTS.get(key, "") for key in differing)
    )


@final
class _Heartbeat:
    """Sends heartbeats of a trial until it is stopped or the process ends."""

    def __init__(self, connection: DatabaseRetry, trial: Trial):
        self.trial, self._connection = trial, connection
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeats."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while True:
            # Ignore errors: the next heartbeat may arrive, else another worker takes the trial.
            with contextlib.suppress(Exception):
                self._connection.beat(self.trial)
            if self._stopped.wait(self._connection.beat_s):
                return
