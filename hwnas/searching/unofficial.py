"""What is used of Optuna that it does not promise to keep: all of it, and why."""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import NSGAIISampler
from optuna.trial import FrozenTrial, Trial


def identity(trial: Trial | FrozenTrial) -> int:
    """Return by which number storages know a trial; public is only its number in the study.

    Of what there is to give a sign of life of a trial, all asks for it.
    """
    return trial._trial_id


def keep(study: optuna.Study, trial: Trial | FrozenTrial, name: str, value: Any) -> None:
    """Write a system attribute of a trial.

    Anyone may read these, but only Optuna may write them. User attributes, which are public, are
    shown to people.
    """
    study._storage.set_trial_system_attr(identity(trial), name, value)


def child(
    sampler: NSGAIISampler,
    study: optuna.Study,
    search_space: dict[str, BaseDistribution],
    parents: Sequence[FrozenTrial],
) -> dict[str, Any]:
    """Return a child of known parents.

    ``NSGAIISampler.sample_relative``, which is public, infers them from all trials for each trial
    anew.
    """
    return sampler._child_generation_strategy(study, search_space, [*parents])
