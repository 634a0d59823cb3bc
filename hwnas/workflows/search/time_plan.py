"""Division of the time limit ``minutes`` among the phases of a search, by measured step times."""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from hwnas.core import processes
from hwnas.core.errors import ConfigError, RunError
from hwnas.core.progress import TimeLimitReached
from hwnas.core.run_folder import Row
from hwnas.nas.candidates import Candidate
from hwnas.training import loop
from hwnas.training.data import ImageData
from hwnas.training.finetuning.time_budget import INT8_TRAINING, N_MEMBERS
from hwnas.training.options import FinetuningConfig
from hwnas.workflows import components
from hwnas.workflows.components import SearchComponents, have_exits
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.custom import CustomComponents
from hwnas.workflows.search.phase_times import PhaseTimes

_SLOW_EPOCH_S = 10.0  # of a medium network: a supernet is considered then
_MAX_SUPERNET = 0.5  # fraction of the limit for the full schedule of a supernet by default
_SUPERNET = 0.45  # fraction of the remaining time for a supernet with a shortened schedule
_MAX_LEFT = 0.6  # fraction of the remaining time for a supernet with its full schedule
_RESERVE = 0.5  # fraction of the other phases' time that a slow supernet may use
_FINETUNING = 0.4  # maximum fraction of the remaining time for fine-tuning
_MIN_TRIALS = 8  # without which there is no front
_WANTED_TRIALS = 60  # the first 10 are startup trials; shorter trainings make room for the others
_N_VERIFIED = 15  # members for which time is reserved, if there is enough
START_S = 4.0  # of worker processes, and of reports
_MARGIN = 1.3  # of the shortest limit that is accepted
_LOAD = 1.25  # of the limit that is suggested, as step times vary


@dataclass(frozen=True)
class TimePlan:
    """The division of a time limit, in seconds, and the schedules that fit."""

    limit_s: float
    preparation_s: float
    supernet_s: float
    search_s: float
    finetuning_s: float
    verification_s: float
    accuracy: str  #: ``trained`` or ``supernet``
    epochs: int  #: epochs of a supernet
    fidelities: tuple[int, ...]  #: epochs of successive trainings of a candidate

    def describe(self, before: SearchConfig) -> list[str]:
        """Return messages about the division, and about schedules shorter than in ``before``."""
        parts = {
            "preparation": self.preparation_s,
            "supernet": self.supernet_s,
            "search": self.search_s,
            "fine-tuning": self.finetuning_s,
            "verification": self.verification_s,
        }
        listed = ", ".join(f"{name} {_minutes(s)}" for name, s in parts.items() if s)
        lines = [f"{_minutes(self.limit_s)} min: {listed}."]
        if self.accuracy == "supernet" and self.epochs < before.train.epochs:
            lines.append(
                f"The supernet is trained for {self.epochs} of train.epochs={before.train.epochs}, "
                "which fit into the limit."
                + " With so few epochs, accuracy=trained is better."
                * (4 * self.epochs < before.train.epochs)
            )
        if self.accuracy == "trained" and self.fidelities != tuple(before.trained.fidelities):
            full, short = list(before.trained.fidelities), list(self.fidelities)
            lines.append(
                f"Candidates are trained with trained.fidelities={short} instead of {full}: "
                f"fewer than {_WANTED_TRIALS} candidates would fit into the limit."
            )
        return lines

    def applied(self, config: SearchConfig) -> SearchConfig:
        """Return a configuration with the schedules of the plan."""
        return replace(
            config,
            accuracy=self.accuracy,
            train=replace(config.train, epochs=self.epochs),
            trained=replace(config.trained, fidelities=list(self.fidelities)),
        )

    def check_unchanged(self, config: SearchConfig) -> None:
        """Check that a resumed search has the schedules of its plan.

        Raises:
            RunError: an option differs.
        """
        given = {
            "accuracy": (config.accuracy, self.accuracy),
            "train.epochs": (config.train.epochs, self.epochs),
            "trained.fidelities": (tuple(config.trained.fidelities), self.fidelities),
        }
        for name, (value, planned) in given.items():
            if value != planned:
                raise RunError(
                    f"{name} differs from that of the run, and would change its results. Leave it "
                    "out, or begin a new run with start_from=RUN."
                )

    def to_json(self) -> Row:
        """Return the fields by name, for the manifest."""
        return asdict(self)

    @staticmethod
    def of(row: Mapping[str, Any], limit_s: float) -> "TimePlan":
        """Return the recorded plan of a resumed search, extended or shortened to ``limit_s``."""
        plan = TimePlan(**{f.name: row[f.name] for f in fields(TimePlan)})
        free_s = plan.search_s + plan.finetuning_s
        search_s, finetuning_s = plan.search_s, plan.finetuning_s
        if search_s <= 0:  # an earlier limit left no time for the search
            search_s, finetuning_s = 1 - _FINETUNING, _FINETUNING
        factor = max(0.0, free_s + limit_s - plan.limit_s) / (search_s + finetuning_s)
        return replace(
            plan,
            limit_s=limit_s,
            search_s=factor * search_s,
            finetuning_s=factor * finetuning_s,
            fidelities=tuple(plan.fidelities),
        )


@final
@dataclass(frozen=True)
class TimeLimit:
    """The time limit of a search, across interruptions.

    Args:
        plan: Division of the limit among the phases.
        spent_s: Seconds spent before this command started.
        searched_s: Seconds of them in which trials ran.
        finetuned_s: Seconds of them in which networks were fine-tuned.
    """

    plan: TimePlan
    spent_s: float = 0.0
    searched_s: float = 0.0
    finetuned_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the command, plus those spent before."""
        return self.spent_s + processes.elapsed_s()

    def supernet_end(self) -> float:
        """Return the latest end of the supernets' training, in ``time.monotonic`` seconds.

        A supernet that is slower than planned takes a part of the time of later phases.
        """
        plan = self.plan
        free_s = plan.search_s + plan.finetuning_s
        share = (plan.supernet_s + _RESERVE * free_s) / max(1e-9, plan.supernet_s + free_s)
        return time.monotonic() + share * self.finetuning_left_s()

    def search_end(self) -> float:
        """Return the latest end of trials that begin now, in ``time.monotonic`` seconds.

        The remaining time is divided in proportion to what the plan leaves for each phase, even if
        earlier phases took longer or shorter.
        """
        search_s = max(0.0, self.plan.search_s - self.searched_s)
        finetuning_s = max(0.0, self.plan.finetuning_s - self.finetuned_s)
        share = search_s / (search_s + finetuning_s) if search_s else 0.0
        return time.monotonic() + share * self.finetuning_left_s()

    def finetuning_left_s(self) -> float:
        """Return the seconds left before verification must begin; 0 if it is late."""
        return max(0.0, self.plan.limit_s - self.plan.verification_s - self.elapsed_s)


def plan_time(
    parts: SearchComponents,
    before: SearchConfig,
    runtimes: Sequence[str],
    *,
    is_new: bool,
    trains: bool,
) -> TimePlan:
    """Return the division of the time limit ``minutes`` among the phases of a search.

    A supernet is chosen only if an epoch of a medium network takes long and the supernet's full
    schedule fits into half of the limit.

    Args:
        parts: Components of the search, with accuracy source and number of processes.
        before: Options as given by the user; ``accuracy`` may be ``None``.
        runtimes: Runtime of each target.
        is_new: Whether this is a new search: resumed ones keep their schedules.
        trains: Whether candidates are trained; False with a custom evaluator.

    Raises:
        ConfigError: the limit is too short for a front.
    """
    assert before.minutes is not None
    shortens = is_new and before.study.storage is None  # other commands share a stored study
    limit_s = 60 * before.minutes
    if before.accuracy is None and shortens and not have_exits(parts.networks):
        parts = _with_accuracy(parts, before, limit_s)
    config, times = parts.config, PhaseTimes(parts, trains=trains)
    verified_s = sum(map(times.verification_s, runtimes))
    preparation_s = processes.elapsed_s()
    fixed_s = preparation_s + 2 * START_S
    left_s = limit_s - fixed_s - min(_N_VERIFIED * verified_s, 0.15 * limit_s)
    epochs, fidelities = config.train.epochs, tuple(config.trained.fidelities)
    supernet_s = 0.0
    # Trained supernets are used. Of a resumed search they count as a part of the trials so far.
    if config.accuracy == "supernet" and trains and not _has_supernets(parts):
        supernet_s = times.supernet_s(epochs)
        if shortens and supernet_s > min(_MAX_SUPERNET * limit_s, _MAX_LEFT * left_s):
            epochs = max(1, math.floor(epochs * _SUPERNET * left_s / supernet_s))
            supernet_s = times.supernet_s(epochs)
    n_epochs = _n_epochs(config)
    member_s = INT8_TRAINING * times.medium_s * n_epochs / components.finetuning_processes(parts)
    free_s = max(0.0, left_s - supernet_s)
    finetuning_s = min((N_MEMBERS + 2) * member_s, _FINETUNING * free_s)
    if config.finish.minutes is not None:
        finetuning_s = 60 * config.finish.minutes
    search_s = left_s - supernet_s - finetuning_s
    search_s = search_s if is_new else max(0.0, search_s)
    if shortens and trains and config.accuracy == "trained":
        fidelities = times.fidelities(search_s, min(_WANTED_TRIALS, config.n_trials))
    verification_s = limit_s - left_s - preparation_s
    durations = (limit_s, preparation_s, supernet_s, search_s, finetuning_s, verification_s)
    plan = TimePlan(*durations, str(config.accuracy), epochs, fidelities)
    least_supernet_s = times.supernet_s(1 if shortens else epochs) if supernet_s else 0.0
    n_least = min(1, n_epochs) if config.finish.epochs is None else n_epochs
    least_s = (
        fixed_s
        + least_supernet_s
        + _MIN_TRIALS * times.trial_s((1,) if shortens else fidelities) / times.n_processes
        + (60 * config.finish.minutes if config.finish.minutes else 2 * times.smallest_s * n_least)
        + 2 * verified_s
    )
    if is_new and (plan.search_s <= 0 or _MARGIN * least_s > limit_s):
        raise _too_short_error(config, max(_MARGIN * least_s, limit_s - plan.search_s), plan)
    return plan


def _has_supernets(parts: SearchComponents) -> bool:
    """Return whether the supernets of all spaces are trained."""
    n_images = len(parts.data.train)
    return all(
        setup.checkpoint().n_steps() >= loop.n_steps(setup.train, n_images)
        for setup in parts.setups.values()
    )


def _with_accuracy(
    parts: SearchComponents, before: SearchConfig, limit_s: float
) -> SearchComponents:
    """Return components with the default accuracy source within a limit."""
    trained = components.retargeted(parts, replace(before, accuracy="trained"))
    times = PhaseTimes(trained)
    is_quick = times.medium_s <= _SLOW_EPOCH_S
    if is_quick or times.supernet_s(before.train.epochs) > _MAX_SUPERNET * limit_s:
        return trained
    return components.retargeted(parts, replace(before, accuracy="supernet"))


def _n_epochs(config: SearchConfig) -> int:
    """Return the epochs of a complete fine-tuning."""
    if config.finish.epochs is not None:
        return config.finish.epochs
    return config.train.epochs if config.accuracy == "trained" else FinetuningConfig().epochs


def _too_short_error(config: SearchConfig, least_s: float, plan: TimePlan) -> ConfigError:
    """Return the error for a limit that cannot give a front."""
    parts = [f"preparation {_minutes(plan.preparation_s)}"]
    parts += [f"supernet {_minutes(plan.supernet_s)}"] * bool(plan.supernet_s)
    if config.finish.minutes is not None:
        parts.append(f"finish.minutes={config.finish.minutes:g}")
    least_s *= _LOAD
    least = math.ceil(least_s / 6) / 10 if least_s < 600 else math.ceil(least_s / 60)
    return ConfigError(
        f"minutes={config.minutes:g} is too short for a front on this machine "
        f"({', '.join(parts)}). Set a longer limit: minutes={least:g}."
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.2g}" if seconds < 600 else f"{seconds / 60:.0f}"


@final
class Planner:
    """Plans the time of a command, given the components of the search.

    Args:
        configs: Options as given, one for each target.
        earlier: Manifest of the run to be resumed; empty for a new run.
        own: Custom evaluator, which needs no training.
    """

    def __init__(
        self, configs: Sequence[SearchConfig], earlier: Row, own: CustomComponents | None = None
    ):
        self.configs, self._earlier = configs, earlier
        self._trains = own is None or own.evaluator is None
        self._plan: TimePlan | None = None
        self.data: ImageData | None = None  #: the data, once they have been read
        self.is_first = True  #: False if the schedule of the first plan was too long
        self.messages: list[str] = []  #: the division, and the schedules that were shortened

    def __call__(self, parts: SearchComponents) -> Sequence[SearchConfig]:
        """Return the configurations with schedules that fit into the limit, if there is one."""
        first, earlier, self.data = self.configs[0], self._earlier, parts.data
        if first.minutes is None:
            return self.configs
        if "time_plan" in earlier:
            self._plan = TimePlan.of(earlier["time_plan"], 60 * first.minutes)
            self._plan.check_unchanged(first)
        else:
            runtimes = [config.target.runtime for config in self.configs]
            self._plan = plan_time(parts, first, runtimes, is_new=not earlier, trains=self._trains)
        self.messages = self._plan.describe(parts.config)
        return [self._plan.applied(config) for config in self.configs]

    def shorter(self, error: TimeLimitReached, run: Path) -> str:
        """Return the message on a supernet that is too slow; the next plan has fewer epochs.

        Args:
            error: The steps of the stopped training.
            run: The run folder.

        Raises:
            RunError: the schedule cannot change: the run was resumed, or its study is shared.
        """
        minutes = self.configs[0].minutes
        late = (
            f"After {error.done:,} of {error.total:,} steps, the supernet's training would end too "
            f"late for minutes={minutes:g}"
        )
        if self._earlier or self.configs[0].study.storage is not None:
            command = shlex.join(["hwnas", "resume", str(run), f"minutes={2 * (minutes or 0):g}"])
            raise RunError(f"{late}. Nothing is lost. To continue: {command}")
        self.is_first = False
        return f"{late}: it starts again with a shorter schedule."

    def facts(self) -> Row:
        """Return the entry ``time_plan`` of the manifest; empty without a time limit."""
        return {} if self._plan is None else {"time_plan": self._plan.to_json()}

    def limit(self, study_s: float, prepared_s: float = 0.0) -> TimeLimit | None:
        """Return the time limit, if there is one.

        Args:
            study_s: Seconds of earlier trials and of their preparation.
            prepared_s: Those of the preparation, such as the training of a supernet.
        """
        if self._plan is None:
            return None
        if not self._earlier:
            return TimeLimit(self._plan)
        finetuned_s = self._earlier.get("finishing_s", 0.0)
        spent_s = max(study_s + finetuned_s, self._earlier.get("elapsed_s", 0.0))
        return TimeLimit(self._plan, spent_s, max(0.0, study_s - prepared_s), finetuned_s)

    def outcome(self, candidates: Sequence[Candidate], n_trials: int) -> list[str]:
        """Return a message if the limit ended the search with few scored candidates."""
        n_scored = sum(candidate.state != "infeasible" for candidate in candidates)
        if self._plan is None or len(candidates) >= n_trials or n_scored >= _MIN_TRIALS:
            return []
        return [
            f"minutes={self.configs[0].minutes:g} ended the search after {n_scored} scored "
            "candidates, too few for a good front. Resume with a longer limit."
        ]
