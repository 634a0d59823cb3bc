"""Optuna samplers by name.

Every trial gets its own sampler, seeded by the run's seed and the trial's number. A proposal
depends only on these and on earlier trials, so a resumed run makes the same proposals.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from hwnas.nas.options import SamplerConfig
from hwnas.nas.pareto.features import Assignment
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.trial_attributes import (
    ATTRIBUTE,
    GENERATION,
    Proposal,
    first_number,
    generate_child,
    is_new,
    set_system_attr,
)


@final
class RunSampler(BaseSampler):
    """The sampler of a run; delegates each trial to a sampler seeded by the trial's number.

    Args:
        config: Name and options of the sampler.
        seed: Seed of the run.
        search_space: Distributions of all choices, by name.
        pareto: The sampler for ``sampler=pareto``.
        first: Assignments of the first trials, for every sampler. An interrupted trial is repeated
            with the same assignment.
    """

    def __init__(
        self,
        config: SamplerConfig,
        seed: int,
        search_space: Mapping[str, BaseDistribution],
        pareto: ParetoSampler,
        first: Sequence[Assignment] = (),
    ):
        self._config, self._seed, self._first = config, seed, first
        self._search_space, self._pareto = search_space, pareto
        self._nsga2 = _Nsga2(self._trial_seed, config.population_size, search_space)
        self._current: tuple[int, BaseSampler] | None = None
        self._first_of: tuple[int, Assignment | None] | None = None  #: of the current trial

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions, by name, of the choices that are sampled together."""
        if self._initial_assignment(study, trial) is not None:
            return dict(self._search_space)
        return self._sampler_of(trial.number).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the options of these choices; one of the first trials gets its assignment."""
        if (initial := self._initial_assignment(study, trial)) is not None:
            # Call the sampler anyway: NSGA-II counts the trial as part of its generation.
            sampler = self._sampler_of(trial.number)
            sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial))
            set_system_attr(study, trial, ATTRIBUTE, Proposal("ladder").to_json())
            return dict(initial)
        return self._sampler_of(trial.number).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return an option of a choice that is sampled alone."""
        return self._sampler_of(trial.number).sample_independent(study, trial, name, distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Call ``before_trial`` of the trial's sampler."""
        self._sampler_of(trial.number).before_trial(study, trial)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Call ``after_trial`` of the trial's sampler."""
        self._sampler_of(trial.number).after_trial(study, trial, state, values)

    def _initial_assignment(self, study: optuna.Study, trial: FrozenTrial) -> Assignment | None:
        """Return the assignment of one of the first trials; ``None`` for later trials.

        A retried trial has a new number and its original assignment.
        """
        if not self._first:
            return None
        if self._first_of is not None and self._first_of[0] == trial.number:
            return self._first_of[1]  # constant for a trial, whatever other workers do meanwhile
        number = first_number(trial.number, trial.system_attrs)
        before = islice(study.get_trials(deepcopy=False), number)
        new = (other for other in before if is_new(other.system_attrs))
        i = sum(1 for _ in islice(new, len(self._first)))
        self._first_of = trial.number, self._first[i] if i < len(self._first) else None
        return self._first_of[1]

    def _sampler_of(self, number: int) -> BaseSampler:
        if self._current is None or self._current[0] != number:
            self._current = (number, self._create(number))
        return self._current[1]

    def _create(self, number: int) -> BaseSampler:
        config, seed = self._config, self._trial_seed(number)
        match config.name:
            case "pareto":
                return self._pareto  # seeds itself by the trial's number
            case "nsga2":
                return self._nsga2
            case "tpe":
                return TPESampler(seed=seed, n_startup_trials=config.n_startup_trials)
            case "gp":
                return GPSampler(seed=seed, n_startup_trials=config.n_startup_trials)
            case _:
                return RandomSampler(seed=seed)

    def _trial_seed(self, number: int) -> int:
        """Return the seed of a trial's sampler."""
        return random.Random(f"sampler {self._seed} {number}").getrandbits(32)


@final
class _Nsga2(BaseSampler):
    """Optuna's NSGA-II, without its repeated passes over all trials for every trial."""

    def __init__(
        self,
        seed: Callable[[int], int],
        population_size: int,
        search_space: Mapping[str, BaseDistribution],
    ):
        self._seed, self._population_size = seed, population_size
        choices = {name: d for name, d in search_space.items() if not d.single()}
        self._search_space = dict(sorted(choices.items()))  # in Optuna's order
        self._sampler = NSGAIISampler(seed=0, population_size=population_size)
        self._n_read, self._latest = 0, _Generation()  # of the finished prefix of all trials
        self._generation, self._parents = 0, list[FrozenTrial]()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Create the sampler of this trial."""
        seed, size = self._seed(trial.number), self._population_size
        self._sampler = NSGAIISampler(seed=seed, population_size=size)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the choices with more than one option."""
        return self._search_space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a child of the previous generation."""
        generation = trial.system_attrs.get(GENERATION)
        if generation is None:
            generation = self._next(study.get_trials(deepcopy=False))
            set_system_attr(study, trial, GENERATION, generation)
        if generation != self._generation:
            # A resumed study has no cached parents. Optuna selects parents by recursion over
            # generations, which exceeds Python's recursion limit after some hundred of them.
            for earlier in range(min(self._generation, generation), generation + 1):
                parents = self._sampler.get_parent_population(study, earlier)
                # Optuna returns computed parents in order of selection, and stored ones in order of
                # trials: without sorting, a resumed run would generate other children.
                self._parents = sorted(parents, key=lambda parent: parent.number)
            self._generation = generation
        if not self._parents:
            return {}
        return generate_child(self._sampler, study, search_space, self._parents)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return a random option: in the first generation, or by mutation."""
        return self._sampler.sample_independent(study, trial, name, distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Store constraint violations."""
        self._sampler.after_trial(study, trial, state, values)

    def _next(self, trials: Sequence[FrozenTrial]) -> int:
        """Return the generation of the next trial, as Optuna's ``get_trial_generation``."""
        while self._n_read < len(trials) and trials[self._n_read].state.is_finished():
            self._latest = self._latest.after(trials[self._n_read])
            self._n_read += 1
        latest = self._latest
        for trial in trials[self._n_read :]:
            latest = latest.after(trial)
        return latest.number + (latest.size >= self._population_size)


@dataclass(frozen=True)
class _Generation:
    """The latest generation and its number of complete trials."""

    number: int = 0
    size: int = 0

    def after(self, trial: FrozenTrial) -> "_Generation":
        """Return the latest generation, including one more trial."""
        number = trial.system_attrs.get(GENERATION, -1)
        if trial.state != TrialState.COMPLETE or number < self.number:
            return self
        return _Generation(number, self.size + 1 if number == self.number else 1)
