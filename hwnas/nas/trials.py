"""Candidates as trials of an Optuna study: writing and reading.

User attributes are for people (``optuna-dashboard``); hwnas reads system attributes.
"""

import base64
import copy
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.models.spaces import Space
from hwnas.models.spaces.union import to_json
from hwnas.nas.candidates import Candidate
from hwnas.nas.trial_attributes import CANDIDATE, STD, set_system_attr
from hwnas.tasks.metrics import costs_in, metric_of, quality_in, quality_names

SPACE = "space"  #: attribute of studies
ALIVE = "hwnas:alive"  #: system attribute of trials: when their worker gave its last sign of life
Span = tuple[datetime, datetime]
#: System attribute of trials: what was found of each image, packed by the task, in base64.
_PER_IMAGE = "hwnas:right"
_MARKS = "constraints"  # as Optuna kept them before version 5, and optuna-dashboard still reads


def spent_s(trials: Sequence[FrozenTrial], objectives: Sequence[str]) -> float:
    """Return the total duration of finished trials in seconds."""
    took = (trial.duration for trial in trials if is_finished(trial, objectives))
    return sum(duration.total_seconds() for duration in took if duration is not None)


def span(trial: FrozenTrial, objectives: Sequence[str]) -> list[Span]:
    """Return start and end of the work on a trial; empty if unknown.

    An interrupted trial may be marked as failed much later.
    """
    begun, seen = trial.datetime_start, trial.system_attrs.get(ALIVE)
    end = None if seen is None else datetime.fromisoformat(seen)
    if is_finished(trial, objectives):
        end = trial.datetime_complete
    if begun is None or end is None or end < begun:  # the sign was of an earlier try
        return []
    return [(begun, end)]


def clock_s(spans: Iterable[Span]) -> float:
    """Return the length of the union of time spans in seconds."""
    total, until = timedelta(), datetime.min
    for begun, end in sorted(spans):
        total += max(timedelta(), end - max(begun, until))
        until = max(until, end)
    return total.total_seconds()


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the Optuna distribution of each choice."""
    return {name: _distribution(options) for name, options in space.choices.items()}


@contextmanager
def verbosity_kept() -> Iterator[None]:
    """Restore Optuna's logging level on exit; ``create`` lowers it."""
    before = optuna.logging.get_verbosity()
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def create(storage: RDBStorage, name: str, space: Space, objectives: Sequence[str]) -> optuna.Study:
    """Return the study of a name; create it if necessary."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = [
        StudyDirection.MAXIMIZE if metric_of(name).maximise else StudyDirection.MINIMIZE
        for name in objectives
    ]
    study = optuna.create_study(
        storage=storage, study_name=name, directions=directions, load_if_exists=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # names for optuna-dashboard
        study.set_metric_names(list(objectives))
    if SPACE not in study.user_attrs:  # so that the study can be read without the space's file
        study.set_user_attr(SPACE, to_json(space))
    return study


def tell(
    study: optuna.Study,
    trial: Trial,
    candidate: Candidate,
    violations: Mapping[str, float],
    objectives: Sequence[str],
) -> FrozenTrial:
    """Finish a trial.

    An unscored candidate is reported with accuracy 0 or the largest error so far: samplers with
    constraints rank it by its violations. A candidate without costs is reported as failed.
    """
    with warnings.catch_warnings():
        # A database that was away, or a worker that died here: it is told again what it knows.
        warnings.simplefilter("ignore", UserWarning)
        for name, violation in violations.items():
            trial.set_constraint(name, violation)
    reason = {"reason": candidate.reason} if candidate.reason else {}
    for name, value in {"id": candidate.id, "state": candidate.state, **reason}.items():
        trial.set_user_attr(name, value)
    own: dict[str, Any] = {CANDIDATE: candidate.to_json()}
    if candidate.per_image:
        own[_PER_IMAGE] = base64.b64encode(candidate.per_image).decode()
    scored = candidate.figures.get(quality_in(objectives))
    if scored is not None and scored.std > 0:
        own[STD] = scored.std
    for name, content in own.items():
        set_system_attr(study, trial, name, content)
    if not _has_costs(candidate.figures, objectives):
        return study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
    known = {name: figure.value for name, figure in candidate.figures.items()}
    metric = quality_in(objectives)
    known.setdefault(metric, _worst(study, metric, objectives))
    values = [known[name] for name in objectives]
    return study.tell(trial, values, skip_if_finished=True)


def _worst(study: optuna.Study, metric: str, objectives: Sequence[str]) -> float:
    """Return the value reported for an unscored candidate: accuracy 0, or the largest error."""
    if metric_of(metric).maximise:
        return 0.0
    i, states = objectives.index(metric), (TrialState.COMPLETE,)
    return max((t.values[i] for t in study.get_trials(deepcopy=False, states=states)), default=0.0)


def marked(trial: FrozenTrial, candidate: Candidate, objectives: Sequence[str]) -> FrozenTrial:
    """Return a trial with additional attributes for ``optuna-dashboard``.

    Costs by names that end with their units; and constraints, by which it marks the infeasible.
    """
    marked, figures = copy.copy(trial), candidate.figures
    costs = {
        n: f.value for n, f in figures.items() if n not in objectives and n not in quality_names()
    }
    marked.user_attrs = {**trial.user_attrs, **costs}
    marked.system_attrs = {**trial.system_attrs, _MARKS: list(trial.constraints.values())}
    return marked


def unmarked(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial without these attributes: samplers would see each constraint twice."""
    plain = copy.copy(trial)
    plain.system_attrs = {n: value for n, value in trial.system_attrs.items() if n != _MARKS}
    return plain


def is_finished(trial: FrozenTrial, objectives: Sequence[str]) -> bool:
    """Return whether a trial ended regularly, not by the death of its process."""
    if trial.state != TrialState.FAIL:
        return trial.state == TrialState.COMPLETE
    told = _kept(trial, CANDIDATE)
    return told is not None and not _has_costs(told["figures"], objectives)


def candidate(trial: FrozenTrial, space: Space) -> Candidate:
    """Return the candidate of a finished trial."""
    genotype = space.genotype(trial.params)
    if not isinstance(kept := _kept(trial, CANDIDATE), dict):
        raise ValueError(f"trial {trial.number} does not hold its candidate")
    per_image = base64.b64decode(_kept(trial, _PER_IMAGE) or "")
    return Candidate.from_json(trial.number, genotype, kept, per_image)


def _kept(trial: FrozenTrial, name: str) -> Any:
    """Return what is read back of a trial; earlier versions kept it in user attributes."""
    earlier = trial.user_attrs.get(name.removeprefix("hwnas:"))
    return trial.system_attrs.get(name, earlier)


def _has_costs(figures: Container[str], objectives: Sequence[str]) -> bool:
    return all(name in figures for name in costs_in(objectives))


def _distribution(options: Sequence[Any]) -> BaseDistribution:
    """Return an integer range where the options are one, so that samplers see their order."""
    if len(options) > 1 and all(isinstance(option, int) for option in options):
        step = options[1] - options[0]
        if list(options) == list(range(options[0], options[-1] + 1, step)):
            return IntDistribution(options[0], options[-1], step=step)
    return CategoricalDistribution(options)
