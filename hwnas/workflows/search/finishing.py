"""Fine-tuning at the end of a search: likely front members get their final weights."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest
from typing import final

from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.nas import front_probability
from hwnas.nas.candidates import Candidate
from hwnas.nas.engine import MoreTrials
from hwnas.nas.front_probability import CandidatePosteriors
from hwnas.nas.search_progress import SearchView
from hwnas.training.finetuning.time_budget import TimeBudget, TimeWindow
from hwnas.workflows import components
from hwnas.workflows.components import Accuracies, at_recorded_fidelity, completed_trainings
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import context
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finetuning_outcome import FinetuningOutcome
from hwnas.workflows.search.finish_runs import (
    FinetuneBatch,
    FinetuneResult,
    FinetuneTarget,
    finetuning_processes_of,
    finished,
)
from hwnas.workflows.search.finisher import Finetuner
from hwnas.workflows.search.schedule import FinetuneSchedule, choose_teacher, least

_MAX_TEACHER_FRACTION = 0.5  # after which a teacher that is slower than estimated is replaced
_MAX_TEACHERS = 3
_LATER_ROUNDS = 5  # for candidates that earlier rounds made probable
_LEAST_PROBABILITY = 0.02  # of candidates that are fine-tuned in time that is left


def finish(
    contexts: Sequence[TargetContext],
    views: Mapping[str, SearchView],
    candidates: Sequence[Candidate],
    allowance: TimeBudget,
    reporter: Reporter,
    more_trials: MoreTrials | None = None,
) -> FinetuningOutcome:
    """Fine-tune the candidates that are likely on the front of a target; return the results.

    The most accurate candidate is fine-tuned first and teaches the others. Results update the
    posterior and may make other candidates probable. Without a time limit, candidates are trained
    in rounds, the first of which uses half of ``finish.max_candidates``; the longest trainings of
    a round begin first. With a limit, the next candidate is chosen whenever a process is free:
    candidates that fill gaps in latency come first, so that the front covers the whole range, and
    int8 training follows fine-tuning directly. Without a limit it runs at verification.

    Args:
        contexts: One for each target.
        views: Objectives, limits and candidates of each target, by its name.
        candidates: All candidates of the search.
        allowance: The time budget.
        reporter: Is notified of progress.
        more_trials: Opens the trials that run while the teacher is trained, which all other
            networks wait for; ``None``: none.
    """
    return _Finishing(contexts, views, candidates, allowance, reporter, more_trials).outcome()


@final
class _Finishing:
    """The fine-tuning of a search; see ``finish``."""

    def __init__(
        self,
        contexts: Sequence[TargetContext],
        views: Mapping[str, SearchView],
        candidates: Sequence[Candidate],
        allowance: TimeBudget,
        reporter: Reporter,
        more_trials: MoreTrials | None,
    ):
        self._contexts, self._views, self._candidates = contexts, views, candidates
        self._reporter, self._more_trials = reporter, more_trials
        self._allowance, self._phases = allowance, allowance.tracked(reporter)
        parts = contexts[0].parts
        self._config = parts.config.finish
        weights = _recorded_weights(contexts[0], candidates)
        finisher = Finetuner(parts, weights, progress=self._phases)
        self._state = FinetuningOutcome({}, {}, finisher, candidates=[*candidates])
        self._trains = bool(finisher.config.epochs)
        self._n_known = 0, -1  # numbers of candidates and results in ``_known``
        self._known: list[CandidatePosteriors] = []  # of each target, then of all together

    def outcome(self) -> FinetuningOutcome:
        """Fine-tune, and return the results."""
        state, allowance = self._state, self._allowance
        self._train_all()
        self._update_candidates()
        for needed in _needed_networks(state, is_limited=allowance.is_limited):
            self._train([needed], FinetuneBatch())
        self._update_candidates()
        done = [c for c in self._candidates if c.id in state.finished]
        state.among_finished = _posteriors(self._contexts, self._views, done, state.finished)
        without_int8 = state.without_int8_training
        state.finisher = replace(state.finisher, without_int8_training=without_int8)
        allowance.end(was_short=bool(state.left_out - {*state.collapsed} or without_int8))
        return state

    def _train_all(self) -> None:
        """Fine-tune the teacher and then the others; choose a smaller teacher if it is too slow."""
        state, n_before = self._state, len(self._candidates)
        wanted, schedule = self._update_candidates(), self._schedule()
        teacher = self._choose_teacher(wanted)
        targets = [FinetuneTarget(s.config, state.known[s.target].on_front) for s in self._contexts]
        configs = [s.config for s in self._contexts]
        with finetuning_processes_of(state.finisher, configs) or nullcontext() as crew:
            batch = FinetuneBatch(targets=targets, crew=crew)
            if any(g.id not in state.finished for g in teacher):
                self._train_teacher(teacher, wanted, replace(batch, targets=()))
            is_slow = any(g.id not in state.finished for g in teacher)
            if is_slow:
                state.slow_teachers += [g.id for g in teacher]
                state.finisher = replace(state.finisher, teacher=None)
            elif len(self._candidates) == n_before:
                self._say_stored(wanted)
                if schedule is None:
                    self._train_in_rounds(batch)
                else:
                    self._train_in_time(schedule, teacher, batch)
                return
        self._train_all()

    def _schedule(self) -> FinetuneSchedule | None:
        """Return the schedule within the time limit; ``None`` without a limit or training."""
        state = self._state
        done = [c for c in self._candidates if c.id in state.finished]
        candidates = [*done, *self._update_candidates(0.0)]
        if not (self._allowance.is_limited and self._trains and candidates):
            return None
        probable = [*done, *self._update_candidates(_LEAST_PROBABILITY)]
        schedule = FinetuneSchedule.of(candidates, probable, state.finisher, self._allowance)
        state.finisher = replace(state.finisher, chosen_epochs=schedule.epochs)
        return schedule

    def _train_teacher(
        self, teacher: Sequence[Genotype], wanted: Sequence[Candidate], batch: FinetuneBatch
    ) -> None:
        """Fine-tune the teacher and compute its predictions, while other processes run trials."""
        state = self._state
        left_s = _MAX_TEACHER_FRACTION * self._allowance.left_s()
        batch = replace(batch, slot=TimeWindow(end_by=time.monotonic() + max(0.0, left_s)))
        if self._more_trials is None or state.finisher.is_kept(teacher[0]):
            self._train(teacher, batch, "Train the teacher")
            return
        with self._allowance.paused(), self._more_trials(batch.slot.end_by) as more:
            self._train(teacher, batch, "Train the teacher")
            students = [c.genotype for c in wanted if not state.finisher.is_teacher(c.genotype)]
            if students and all(g.id in state.finished for g in teacher):
                state.finisher.prepare(students[0])
        self._reporter.say([f"A process ended early: {why}" for why in more.ended], alarming=True)
        self._candidates = state.candidates = more.candidates
        weights = _recorded_weights(self._contexts[0], self._candidates)
        state.finisher = replace(state.finisher, weights=weights)

    def _say_stored(self, wanted: Sequence[Candidate]) -> None:
        """Report how many networks an interrupted command has fine-tuned."""
        state = self._state
        others = [c.genotype for c in wanted if c.id not in state.finished] if self._trains else []
        if n_stored := sum(map(state.finisher.is_kept, others)):
            n = min(len(wanted), self._n_max()) - len(state.finished)  # without the teacher
            self._reporter.say([f"{n_stored} of {max(n_stored, n)} members were finished before."])

    def _choose_teacher(self, wanted: Sequence[Candidate]) -> list[Genotype]:
        """Return the teacher, if there is one, and add it to the fine-tuner."""
        state, allowance = self._state, self._allowance
        if not ((wanted or state.slow_teachers) and self._trains and self._config.alpha):
            return []
        if (teacher := state.finisher.teacher) is not None and teacher.id in state.finished:
            return [teacher]
        slow = state.slow_teachers
        if len(slow) >= _MAX_TEACHERS or (slow and (not wanted or allowance.left_s() <= 0)):
            parts = state.finisher.parts
            config = replace(parts.config, finish=replace(self._config, alpha=0.0))
            parts = components.retargeted(parts, config)
            state.finisher = replace(state.finisher, parts=parts, teacher=None)
            return []
        before = state.known.values() if allowance.is_resumed else ()
        scored = [c for k in before for c in k.most_probable(0.0) if c.id not in slow]
        teacher = choose_teacher(wanted, scored, state.finisher, allowance.left_s)
        state.finisher = replace(state.finisher, teacher=teacher)
        return [teacher]

    def _train(
        self, genotypes: Sequence[Genotype], batch: FinetuneBatch, phase: str = "Finish members"
    ) -> None:
        self._state.add(finished(self._state.finisher, genotypes, self._phases, phase, batch))

    def _train_in_rounds(self, batch: FinetuneBatch) -> None:
        """Fine-tune without a time limit; all results of a round determine the next one."""
        for share in (0.5, *[1.0] * _LATER_ROUNDS):
            chosen = self._chosen_candidates(share)
            if chosen:
                finisher = self._state.finisher
                # Longest first, so that no process is idle at the end.
                chosen.sort(key=lambda c: (-finisher.n_macs(c.genotype), c.id))
                self._train([c.genotype for c in chosen], batch)
            elif share == 1.0:
                break

    def _train_in_time(
        self, schedule: FinetuneSchedule, teacher: Sequence[Genotype], batch: FinetuneBatch
    ) -> None:
        """Fine-tune until the time limit."""
        state = self._state

        def refill(results: Mapping[str, FinetuneResult | None]) -> list[Genotype]:
            state.add(results, final=False)
            durations_s = {n: None if r is None else r.elapsed_s for n, r in results.items()}
            started = [c for c in self._candidates if c.id in {*state.finished, *schedule.started}]
            for probability in (self._config.probability, _LEAST_PROBABILITY):
                chosen = self._chosen_candidates(1.0, probability)
                new = [c for c in chosen if c.id not in schedule.started]
                ordered = front_probability.space_filling_order(new, started)
                if genotypes := schedule.take(ordered, durations_s, state.finisher.is_begun):
                    return genotypes
            return []

        batch = replace(
            batch,
            slot=schedule.slot,
            estimate_s=schedule.estimate_s,
            n_expected=schedule.n_expected(),
            refill=refill,
        )
        self._train([*teacher, *refill({})], batch)  # the teacher's int8 training is still missing
        state.left_out |= {c.id for c in self._chosen_candidates(1.0)}  # up to ``max_candidates``

    def _chosen_candidates(self, share: float, probability: float | None = None) -> list[Candidate]:
        """Return candidates to fine-tune, with their costs on all targets."""
        chosen = self._update_candidates(probability)
        if self._trains:
            n = math.ceil(share * self._n_max())
            chosen = chosen[: max(0, n - len(self._state.finished))]
        figures = {c.id: c.figures for c in self._candidates}  # targets may see different ones
        return [replace(c, figures=figures[c.id]) for c in chosen]

    def _n_max(self) -> int:
        """Return the maximum number of networks to fine-tune for all targets."""
        n_scored = len({c.id for c in self._candidates if not c.reason})
        n_max = self._config.max_networks(n_scored, is_limited=self._allowance.is_limited)
        return len(self._contexts) * n_max

    def _update_candidates(self, probability: float | None = None) -> list[Candidate]:
        """Update posteriors; return candidates to fine-tune, most probable of each target first."""
        state, config = self._state, self._config
        n_known = len(self._candidates), len(state.finished)  # both only grow
        if n_known != self._n_known:
            state.known = _posteriors(self._contexts, self._views, self._candidates, state.finished)
            self._known = [*state.known.values()]
            if len(self._contexts) > 1:
                view = context.followed(self._contexts)[-1]
                self._known.append(
                    _posterior(self._contexts, view, self._candidates, state.finished)
                )
            self._n_known = n_known
        bound = config.probability if probability is None else probability
        probable = [known.most_probable(bound, config.min_candidates) for known in self._known]
        distinct = {c.id: c for row in zip_longest(*probable) for c in row if c is not None}
        return [c for c in distinct.values() if c.id not in {*state.finished, *state.left_out}]


def _posteriors(
    contexts: Sequence[TargetContext],
    views: Mapping[str, SearchView],
    candidates: Sequence[Candidate],
    finished: Mapping[str, Quantity],
) -> dict[str, CandidatePosteriors]:
    """Return the posteriors of candidates, by target, given the metric of fine-tuned ones."""
    return {
        target.target: _posterior(contexts, views[target.target], candidates, finished)
        for target in contexts
    }


def _posterior(
    contexts: Sequence[TargetContext],
    view: SearchView,
    candidates: Sequence[Candidate],
    finished: Mapping[str, Quantity],
) -> CandidatePosteriors:
    parts = contexts[0].parts
    return front_probability.candidate_posteriors(
        parts.space, candidates, view, finished, parts.networks.lower
    )


def _recorded_weights(context: TargetContext, candidates: Sequence[Candidate]) -> Accuracies:
    """Return the provider of the weights with which the search scored the candidates."""
    return at_recorded_fidelity(context.evaluator, completed_trainings(context.config, candidates))


def _needed_networks(state: FinetuningOutcome, *, is_limited: bool) -> Iterator[Genotype]:
    """Yield a network for each target without a fine-tuned one: at least one is required."""
    config = state.finisher.parts.config.finish
    for known in state.known.values():
        while not known.on_front.keys() & state.finished.keys():
            every = [c for c in known.most_probable(0.0) if c.id not in state.collapsed]
            ids = {c.id for c in known.most_probable(config.probability, config.min_candidates)}
            probable = [c for c in every if c.id in ids] or every
            if not probable:
                break
            needed = least(probable, state.finisher) if is_limited else probable[0]
            yield needed.genotype
            if needed.id not in state.collapsed:
                break
