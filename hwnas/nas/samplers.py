"""Optuna samplers by name.

A sampler is made anew for every trial, from the run's seed and the trial's number: what it proposes
depends on these and on the trials before it alone, so that a resumed run proposes the same.
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
from hwnas.nas.pareto.features import Assignment, FeatureFunction
from hwnas.nas.pareto.models import Work
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.pareto.selection import Costs
from hwnas.nas.trial_attributes import (
    ATTRIBUTE,
    GENERATION,
    Proposal,
    child,
    first_number,
    is_new,
    keep,
)


@dataclass(frozen=True)
class SamplerContext:
    """What a sampler may know of a search before anything is evaluated."""

    search_space: Mapping[str, BaseDistribution]
    active: Callable[[Assignment], Assignment]
    optional: Sequence[str]
    root: str
    scope: Callable[[Assignment], Sequence[str]]
    costs: Costs | None
    n_costs: int | None
    expensive: int
    work: Work | None = None
    summary: FeatureFunction | None = None


@final
class RunSampler(BaseSampler):
    """The sampler of a run: another one for every trial, by the trial's number.

    Args:
        config: Which sampler.
        seed: Of the run.
        known: What it may know.
        first: What the first trials are, whatever the sampler: each once, however often cut off.
    """

    def __init__(
        self,
        config: SamplerConfig,
        seed: int,
        known: SamplerContext,
        first: Sequence[Assignment] = (),
    ):
        self._config, self._seed, self._first = config, seed, first
        self._search_space = known.search_space
        self._nsga2 = _Nsga2(self._draw, config.population_size, known.search_space)
        self._pareto = ParetoSampler(
            known.costs,
            seed=seed,
            search_space=known.search_space,
            active=known.active,
            optional=known.optional,
            root=known.root,
            scope=known.scope,
            expensive=known.expensive,
            n_startup=config.n_startup_trials,
            n_costs=known.n_costs,
            work=known.work,
            summary=known.summary,
        )
        self._current: tuple[int, BaseSampler] | None = None
        self._asked: tuple[int, Assignment | None] | None = None  #: the first trial that one is

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return what is proposed together."""
        if self._given(study, trial) is not None:
            return dict(self._search_space)
        return self._of(trial.number).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return what is proposed together."""
        if (given := self._given(study, trial)) is not None:
            # It is asked all the same: NSGA-II takes what it was asked for as its generation.
            own = self._of(trial.number)
            own.sample_relative(study, trial, own.infer_relative_search_space(study, trial))
            ladder = Proposal("ladder").to_json()
            keep(study, trial, ATTRIBUTE, ladder)
            return dict(given)
        return self._of(trial.number).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return what is proposed by itself."""
        return self._of(trial.number).sample_independent(study, trial, name, distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Let the trial's sampler prepare."""
        self._of(trial.number).before_trial(study, trial)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Let the trial's sampler keep what it needs."""
        self._of(trial.number).after_trial(study, trial, state, values)

    def _given(self, study: optuna.Study, trial: FrozenTrial) -> Assignment | None:
        """Return which of the first trials this is; none where all of them were begun.

        What is tried again has a new number, and is the one that it was.
        """
        if not self._first:
            return None
        if self._asked is not None and self._asked[0] == trial.number:
            return self._asked[1]  # asked again: others may have begun and given back meanwhile
        number = first_number(trial.number, trial.system_attrs)
        before = islice(study.get_trials(deepcopy=False), number)
        new = (other for other in before if is_new(other.system_attrs))
        place = sum(1 for _ in islice(new, len(self._first)))
        self._asked = trial.number, self._first[place] if place < len(self._first) else None
        return self._asked[1]

    def _of(self, number: int) -> BaseSampler:
        if self._current is None or self._current[0] != number:
            self._current = (number, self._made(number))
        return self._current[1]

    def _made(self, number: int) -> BaseSampler:
        config, draw = self._config, self._draw(number)
        match config.name:
            case "pareto":
                return self._pareto  # a function of the seed, the number and the history by itself
            case "nsga2":
                return self._nsga2
            case "tpe":
                return TPESampler(seed=draw, n_startup_trials=config.n_startup_trials)
            case "gp":
                return GPSampler(seed=draw, n_startup_trials=config.n_startup_trials)
            case _:
                return RandomSampler(seed=draw)

    def _draw(self, number: int) -> int:
        """Return the seed of what proposes a trial."""
        return random.Random(f"sampler {self._seed} {number}").getrandbits(32)


@final
class _Nsga2(BaseSampler):
    """Optuna's NSGA-II without what it would infer from all trials for each trial anew."""

    def __init__(
        self,
        seed: Callable[[int], int],
        population_size: int,
        search_space: Mapping[str, BaseDistribution],
    ):
        self._seed, self._population_size = seed, population_size
        several = {name: d for name, d in search_space.items() if not d.single()}
        self._search_space = dict(sorted(several.items()))  # in the order in which Optuna infers it
        self._sampler = NSGAIISampler(seed=0, population_size=population_size)
        self._n_read, self._latest = 0, _Generation()  # of the first trials that are all finished
        self._generation, self._parents = 0, list[FrozenTrial]()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Make the sampler of this trial."""
        seed, size = self._seed(trial.number), self._population_size
        self._sampler = NSGAIISampler(seed=seed, population_size=size)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all choices among several options."""
        return self._search_space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a child of the generation before."""
        generation = trial.system_attrs.get(GENERATION)
        if generation is None:
            generation = self._next(study.get_trials(deepcopy=False))
            keep(study, trial, GENERATION, generation)
        if generation != self._generation:
            # Of a resumed study no parents are known. Optuna would select those of each generation
            # by recursion: deeper than Python allows after some hundred generations.
            for earlier in range(min(self._generation, generation), generation + 1):
                parents = self._sampler.get_parent_population(study, earlier)
                # They come in order of selection where they are computed, and in order of trials
                # where Optuna kept them, as of a resumed run: its children would differ.
                self._parents = sorted(parents, key=lambda parent: parent.number)
            self._generation = generation
        if not self._parents:
            return {}
        return child(self._sampler, study, search_space, self._parents)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return a random option: of the first generation, or by mutation."""
        return self._sampler.sample_independent(study, trial, name, distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Keep how far constraints are violated."""
        self._sampler.after_trial(study, trial, state, values)

    def _next(self, trials: Sequence[FrozenTrial]) -> int:
        """Return the generation of the next trial, as ``get_trial_generation`` does from all."""
        while self._n_read < len(trials) and trials[self._n_read].state.is_finished():
            self._latest = self._latest.after(trials[self._n_read])
            self._n_read += 1
        latest = self._latest
        for trial in trials[self._n_read :]:
            latest = latest.after(trial)
        return latest.number + (latest.size >= self._population_size)


@dataclass(frozen=True)
class _Generation:
    """The latest generation, and how many trials of it are complete."""

    number: int = 0
    size: int = 0

    def after(self, trial: FrozenTrial) -> "_Generation":
        """Return what is the latest when one more trial is known."""
        number = trial.system_attrs.get(GENERATION, -1)
        if trial.state != TrialState.COMPLETE or number < self.number:
            return self
        return _Generation(number, self.size + 1 if number == self.number else 1)
