"""Why a candidate was proposed, as the system attributes of its trial say it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import NSGAIISampler
from optuna.trial import FrozenTrial, Trial

#: ``ladder``: one of the fixed first trials; ``startup``: spread over the costs, before there is a
#: model; ``gain``: the highest expected gain of hypervolume, or of that for each second;
#: ``smallest``: nothing else was known to fit; ``random``: nothing else was left; ``generation``:
#: by a genetic algorithm; ``sampler``: by one that does not say more.
Phase = Literal["ladder", "startup", "gain", "smallest", "random", "generation", "sampler"]

ATTRIBUTE = "pareto:proposal"  #: under which ``ParetoSampler`` records a proposal
#: System attribute of trials: the standard deviation, in the units of the expensive objective, of
#: its value as it was told; none: it is exact, or nobody knows.
STD = "pareto:std"
CANDIDATE = "hwnas:candidate"  #: system attribute of trials that a search brought to their end
GENERATION = "NSGAIISampler:generation"  #: under which Optuna records a generation
#: System attribute of trials that were one too many: they were given back as they came.
SURPLUS = "hwnas:surplus"
_AGAIN = "failed_trial"  # Optuna's own, of what is tried again: the number that it had first
_FIXED = "fixed_params"  # Optuna's own, too
_DIGITS = 6


@dataclass(frozen=True)
class Proposal:
    """Why a candidate was proposed."""

    phase: Phase
    n_candidates: int = 0  #: how many were looked at
    n_costed: int = 0  #: of how many of these costs were computed, not modelled
    #: Median and 95 % interval of the expensive objective, where the model was asked.
    expected: tuple[float, float, float] | None = None
    #: The other objectives in the study's order, where they were modelled.
    costs: tuple[float, ...] = ()
    #: Expected, as a share of the hypervolume before the trial: see ``Expectation.gains``.
    gain: float | None = None
    parents: tuple[int, ...] = ()  #: numbers of the trials that it descends from
    generation: int | None = None
    #: The model's own standard deviation of the logarithm of the error; the interval is wider where
    #: earlier proposals showed that this says too little.
    std: float | None = None
    by_ratio: bool = False  #: whether costs counted by their logarithms, too
    #: That it was expected to take, where candidates are chosen by their gains for each second.
    seconds: float | None = None
    curiosity: float = 1.0  #: what uncertainty was multiplied by in the gains that chose it

    def to_json(self) -> dict[str, Any]:
        """Return what is known, with numbers of six digits."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        default = vars(Proposal(self.phase)) | {"phase": None}
        return {name: _short(value) for name, value in given.items() if value != default[name]}


def recorded(attributes: Mapping[str, Any]) -> Proposal:
    """Return what the system attributes of a trial say of its proposal."""
    if _FIXED in attributes:
        return Proposal("ladder")
    if ATTRIBUTE in attributes:
        names = {field.name for field in fields(Proposal)}
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes[ATTRIBUTE].items()
            if name in names
        }
        return Proposal(**known)
    if GENERATION in attributes:
        return Proposal("generation", generation=int(attributes[GENERATION]))
    return Proposal("sampler")


def first_number(number: int, attributes: Mapping[str, Any]) -> int:
    """Return the number of a trial, or of the one that was cut off where it is tried again."""
    return int(attributes.get(_AGAIN, number))


def is_new(attributes: Mapping[str, Any]) -> bool:
    """Whether a trial is neither one that is tried again nor one too many."""
    return _AGAIN not in attributes and SURPLUS not in attributes


def is_fixed(attributes: Mapping[str, Any]) -> bool:
    """Whether a trial takes given options (``Study.enqueue_trial``), whatever a sampler says."""
    return _FIXED in attributes


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_short(part) for part in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


# What is used of Optuna that it does not promise to keep: all of it, and why.


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
