"""System attributes of trials: why a candidate was proposed, and Optuna's private interfaces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import NSGAIISampler
from optuna.trial import FrozenTrial, Trial

#: ``ladder``: one of the fixed first trials; ``startup``: spread over the range of costs, before
#: there is a model; ``gain``: highest expected gain of hypervolume, or of gain per second;
#: ``smallest``: nothing else is known to be feasible; ``random``: no new feasible candidate was
#: found; ``generation``: by a genetic algorithm; ``sampler``: by a sampler without reasons.
Phase = Literal["ladder", "startup", "gain", "smallest", "random", "generation", "sampler"]

ATTRIBUTE = "pareto:proposal"  #: under which ``ParetoSampler`` records a proposal
#: System attribute of trials: standard deviation of the expensive objective's value, in its units;
#: absent if the value is exact or the deviation is unknown.
STD = "pareto:std"
CANDIDATE = "hwnas:candidate"  #: system attribute of trials that a search finished
GENERATION = "NSGAIISampler:generation"  #: under which Optuna records a generation
#: System attribute of trials beyond ``n_trials``, which were returned without a result.
SURPLUS = "hwnas:surplus"
_RETRIED = "failed_trial"  # Optuna's: original number of a retried trial
_FIXED = "fixed_params"  # Optuna's
_DIGITS = 6


@dataclass(frozen=True)
class Proposal:
    """Why a candidate was proposed; the fields are keys of the attribute."""

    phase: Phase
    n_candidates: int = 0  #: number of compared candidates
    n_costed: int = 0  #: number of them with computed, not modelled, costs
    #: Median, lower and upper end of the 95 % interval of the expensive objective; ``None`` if the
    #: model was not used.
    expected: tuple[float, float, float] | None = None
    #: Predicted values of the other objectives in the study's order, if they were modelled.
    costs: tuple[float, ...] = ()
    #: Expected gain as a fraction of the hypervolume before the trial: see ``Expectation.gains``;
    #: ``None`` if the model was not used, or the hypervolume was 0.
    gain: float | None = None
    parents: tuple[int, ...] = ()  #: numbers of the parent trials
    generation: int | None = None  #: number of the generation, for a genetic algorithm
    #: The model's standard deviation of the logarithm of the error; the interval is wider if
    #: earlier proposals showed that the deviation is too small.
    std: float | None = None
    by_ratio: bool = False  #: whether gains also count log costs: see ``Expectation.gains``
    #: Expected seconds of the trial, if candidates are chosen by gain per second.
    seconds: float | None = None
    curiosity: float = 1.0  #: exploration factor: multiplies the standard deviation in gains

    def to_json(self) -> dict[str, Any]:
        """Return the phase and the fields that differ from their defaults, by name.

        Numbers have six significant digits.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        default = vars(Proposal(self.phase)) | {"phase": None}
        return {
            name: _round_floats(value) for name, value in values.items() if value != default[name]
        }


def read_proposal(attributes: Mapping[str, Any]) -> Proposal:
    """Return the proposal that is recorded in the system attributes of a trial.

    Without a record by ``ParetoSampler``, only the phase is known, and the generation of NSGA-II.
    """
    if _FIXED in attributes:
        return Proposal("ladder")
    if ATTRIBUTE in attributes:
        names = {field.name for field in fields(Proposal)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes[ATTRIBUTE].items()
            if name in names
        }
        return Proposal(**values)
    if GENERATION in attributes:
        return Proposal("generation", generation=int(attributes[GENERATION]))
    return Proposal("sampler")


def first_number(number: int, attributes: Mapping[str, Any]) -> int:
    """Return the number of a trial; of a retried trial, its original number."""
    return int(attributes.get(_RETRIED, number))


def is_new(attributes: Mapping[str, Any]) -> bool:
    """Return whether a trial is neither retried nor surplus."""
    return _RETRIED not in attributes and SURPLUS not in attributes


def is_fixed(attributes: Mapping[str, Any]) -> bool:
    """Return whether the user gave the options of a trial (``Study.enqueue_trial``)."""
    return _FIXED in attributes


def _round_floats(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_round_floats(part) for part in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


# Private interfaces of Optuna: all that hwnas uses, and why.


def trial_id(trial: Trial | FrozenTrial) -> int:
    """Return the id of a trial in its storage; heartbeats need it, only its number is public."""
    return trial._trial_id


def set_system_attr(study: optuna.Study, trial: Trial | FrozenTrial, name: str, value: Any) -> None:
    """Set a system attribute of a trial.

    Reading is public, writing is not. The public user attributes are shown to people.
    """
    study._storage.set_trial_system_attr(trial_id(trial), name, value)


def generate_child(
    sampler: NSGAIISampler,
    study: optuna.Study,
    search_space: dict[str, BaseDistribution],
    parents: Sequence[FrozenTrial],
) -> dict[str, Any]:
    """Return the options of a child of given parents, by choice.

    The public ``NSGAIISampler.sample_relative`` infers the parents from all trials each time.
    """
    return sampler._child_generation_strategy(study, search_space, [*parents])
