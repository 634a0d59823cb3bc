"""Conversion of candidates to trials of an Optuna study and back.

User attributes are for display (``optuna-dashboard``); hwnas reads system attributes.
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

SPACE = "space"  #: user attribute of studies: the search space as JSON
ALIVE = "hwnas:alive"  #: system attribute of trials: time of the last heartbeat
Span = tuple[datetime, datetime]  #: start and end
#: System attribute of trials: results per image, packed by the task, in base64.
_PER_IMAGE = "hwnas:right"
_MARKS = "constraints"  # attribute of Optuna before version 5, still read by optuna-dashboard


def spent_s(trials: Sequence[FrozenTrial], objectives: Sequence[str]) -> float:
    """Return the total duration of finished trials in seconds."""
    return sum(duration_s(trial) for trial in trials if is_finished(trial, objectives))


def duration_s(trial: FrozenTrial) -> float:
    """Return the duration of a trial in seconds; 0 if it is unknown."""
    return 0.0 if trial.duration is None else trial.duration.total_seconds()


def span(trial: FrozenTrial, objectives: Sequence[str]) -> list[Span]:
    """Return ``[(start, end)]`` of the work on a trial; empty if unknown.

    An interrupted trial ends with its last heartbeat.
    """
    start, alive = trial.datetime_start, trial.system_attrs.get(ALIVE)
    end = None if alive is None else datetime.fromisoformat(alive)
    if is_finished(trial, objectives):
        end = trial.datetime_complete
    if start is None or end is None or end < start:  # heartbeat of an earlier attempt
        return []
    return [(start, end)]


def clock_s(spans: Iterable[Span]) -> float:
    """Return the length of the union of time spans in seconds."""
    total, until = timedelta(), datetime.min
    for start, end in sorted(spans):
        total += max(timedelta(), end - max(start, until))
        until = max(until, end)
    return total.total_seconds()


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the Optuna distribution of each choice, by name."""
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
    """Return the study ``name`` in a storage; create it if it does not exist.

    Names of objectives and the search space are stored. Optuna's logging level becomes WARNING.
    """
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
    """Store the result of a trial in the study, and return the finished trial.

    An unscored candidate is reported with accuracy 0 or the largest error so far: samplers with
    constraints rank it by its violations. A candidate without one of the costs in ``objectives`` is
    reported as failed.
    """
    with warnings.catch_warnings():
        # After a retry or the death of a worker, constraints may be set already.
        warnings.simplefilter("ignore", UserWarning)
        for name, violation in violations.items():
            trial.set_constraint(name, violation)
    reason = {"reason": candidate.reason} if candidate.reason else {}
    for name, value in {"id": candidate.id, "state": candidate.state, **reason}.items():
        trial.set_user_attr(name, value)
    attributes: dict[str, Any] = {CANDIDATE: candidate.to_json()}
    if candidate.per_image:
        attributes[_PER_IMAGE] = base64.b64encode(candidate.per_image).decode()
    scored = candidate.figures.get(quality_in(objectives))
    if scored is not None and scored.std > 0:
        attributes[STD] = scored.std
    for name, content in attributes.items():
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

    They are costs that are no objectives, and constraints, which mark infeasible trials.
    """
    marked, figures = copy.copy(trial), candidate.figures
    costs = {
        n: f.value for n, f in figures.items() if n not in objectives and n not in quality_names()
    }
    marked.user_attrs = {**trial.user_attrs, **costs}
    marked.system_attrs = {**trial.system_attrs, _MARKS: list(trial.constraints.values())}
    return marked


def unmarked(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial without the attributes of ``marked``: samplers would see constraints twice."""
    plain = copy.copy(trial)
    plain.system_attrs = {n: value for n, value in trial.system_attrs.items() if n != _MARKS}
    return plain


def is_finished(trial: FrozenTrial, objectives: Sequence[str]) -> bool:
    """Return whether a trial ended regularly, not by the death of its process."""
    if trial.state != TrialState.FAIL:
        return trial.state == TrialState.COMPLETE
    stored = _stored_attribute(trial, CANDIDATE)
    return stored is not None and not _has_costs(stored["figures"], objectives)


def candidate(trial: FrozenTrial, space: Space) -> Candidate:
    """Return the candidate of a finished trial.

    Raises:
        ValueError: the trial was not written by a search.
    """
    genotype = space.genotype(trial.params)
    if not isinstance(stored := _stored_attribute(trial, CANDIDATE), dict):
        raise ValueError(f"trial {trial.number} does not hold its candidate")
    per_image = base64.b64decode(_stored_attribute(trial, _PER_IMAGE) or "")
    return Candidate.from_json(trial.number, genotype, stored, per_image)


def _stored_attribute(trial: FrozenTrial, name: str) -> Any:
    """Return an attribute of a trial; earlier versions stored it in user attributes."""
    earlier = trial.user_attrs.get(name.removeprefix("hwnas:"))
    return trial.system_attrs.get(name, earlier)


def _has_costs(figures: Container[str], objectives: Sequence[str]) -> bool:
    return all(name in figures for name in costs_in(objectives))


def _distribution(options: Sequence[Any]) -> BaseDistribution:
    """Return an integer range if possible, so that samplers know the order of options."""
    if len(options) > 1 and all(isinstance(option, int) for option in options):
        step = options[1] - options[0]
        if list(options) == list(range(options[0], options[-1] + 1, step)):
            return IntDistribution(options[0], options[-1], step=step)
    return CategoricalDistribution(options)
