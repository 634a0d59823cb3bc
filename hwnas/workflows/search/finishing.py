"""Fine-tuning at the end of a search: likely front members get their final weights."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import final

from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.models.spaces import Genotype
from hwnas.nas import candidates as columns
from hwnas.nas import front_probability
from hwnas.nas.candidates import Candidate
from hwnas.nas.engine import MoreTrials
from hwnas.nas.front_probability import CandidatePosteriors
from hwnas.nas.search_progress import SearchView
from hwnas.training.finetuning.time_budget import TimeBudget, TimeWindow
from hwnas.workflows import components
from hwnas.workflows.components import Accuracies, at_recorded_fidelity, completed_trainings
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finish_runs import (
    FinetuneBatch,
    FinetuneResult,
    FinetuneTarget,
    crew_of,
    finished,
)
from hwnas.workflows.search.finisher import (
    Finetuner,
    FinetuneSchedule,
    choose_teacher,
    least,
)
from hwnas.workflows.search.front import NotFinetuned

_MAX_TEACHER_FRACTION = 0.5  # after which a teacher that is slower than estimated is replaced
_MAX_TEACHERS = 3
_LATER_ROUNDS = 5  # for candidates that earlier rounds made probable
_LEAST_PROBABILITY = 0.02  # of candidates that are fine-tuned in time that is left


@dataclass
class FinetuningOutcome:
    """The results of fine-tuning."""

    known: dict[str, CandidatePosteriors]  #: posteriors of all candidates, by target
    among_finished: dict[str, CandidatePosteriors]  #: posteriors of fine-tuned candidates only
    finisher: Finetuner  #: fine-tunes the networks
    #: metric of fine-tuned networks on the validation split, by id
    finished: dict[str, Quantity] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)  #: ids of networks for which time ran out
    #: ids of networks without int8 training, because time ran out
    without_int8_training: set[str] = field(default_factory=set)
    slow_teachers: list[str] = field(default_factory=list)  #: ids of stopped teachers
    candidates: list[Candidate] = field(default_factory=list)  #: of all trials

    @property
    def messages(self) -> list[str]:
        """One message on stopped teachers, and what replaced them; empty without such teachers."""
        if not self.slow_teachers:
            return []
        names, teacher = ", ".join(self.slow_teachers), self.finisher.teacher
        other = (
            "networks are fine-tuned without one"
            if teacher is None
            else f"a smaller network, {teacher.id}, replaces it"
        )
        return [f"The training of the teacher ({names}) was too slow for the time limit: {other}."]

    def add(self, found: Mapping[str, FinetuneResult | None], *, final: bool = True) -> None:
        """Add results of networks.

        Args:
            found: Results by id; ``None`` if time ran out.
            final: Whether this is the last round: networks without a result are then ``left_out``.
        """
        ready = {name: result for name, result in found.items() if result is not None}
        self.finished |= {name: result.figure for name, result in ready.items()}
        self.without_int8_training |= {
            name for name, result in ready.items() if result.without_int8_training
        }
        self.left_out |= {*found} if final else set()
        self.left_out -= {*self.finished}

    def facts(self) -> Row:
        """Return the entry ``finishing`` of the manifest, with its key."""
        config, teacher = self.finisher.config, self.finisher.teacher
        return {
            "finishing": {
                "epochs": config.epochs,
                "rate": config.rate,
                "alpha": config.alpha,
                "max_int8_drop": config.max_int8_drop,
                "teacher": None if teacher is None else teacher.id,
                "finished": {name: figure.to_json() for name, figure in self.finished.items()},
                **({"hurried": ids} if (ids := sorted(self.without_int8_training)) else {}),
            }
        }

    def as_finished(self, candidate: Candidate) -> Candidate:
        """Return a fine-tuned candidate with its new metric, and that of the search in details."""
        metric, figure = self.finisher.parts.config.metric, self.finished[candidate.id]
        value = candidate.figures[metric].value
        metrics = {columns.read_column(metric): value, columns.finished(metric): figure.value}
        return replace(
            candidate,
            figures={**candidate.figures, metric: figure},
            details={**candidate.details, **metrics},
            stopped=False,
        )

    def unfinished(self, target: str) -> NotFinetuned:
        """Return the likely front members without fine-tuning, most probable first."""
        config = self.finisher.parts.config.finish
        probable = self.known[target].most_probable(config.probability)
        ids = [c.id for c in probable if c.id not in self.finished]
        search = self.finisher.parts.config
        if self.left_out.intersection(ids):
            limits = {"minutes": search.minutes, "finish.minutes": config.minutes}
            longer = [f"{name}={2 * n:g}" for name, n in limits.items() if n is not None]
            return NotFinetuned(ids, longer)
        return NotFinetuned(ids, [f"finish.max_candidates={len(self.finished) + len(ids)}"])

    def members(self, target: str) -> list[Candidate]:
        """Return the candidates to compile: fine-tuned, likely on the front, fastest first.

        At least the most probable one is returned: among many similar candidates, each probability
        may be low. Posterior estimates are among all candidates, as in ``candidates.parquet``.
        """
        config = self.finisher.parts.config.finish
        probable = self.among_finished[target].most_probable(config.probability, 1)
        by_id = {c.id: c for c in reversed(self.known[target].candidates)}
        return sorted(
            (by_id[c.id] for c in probable), key=lambda c: (c.figures["latency_ms"].value, c.id)
        )


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
        self._n_known = 0, -1  # numbers of candidates and results in ``known`` of the state

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
        short_of_time = state.without_int8_training
        state.finisher = replace(state.finisher, without_int8_training=short_of_time)
        allowance.end(was_short=bool(state.left_out or short_of_time))
        return state

    def _train_all(self) -> None:
        """Fine-tune the teacher and then the others; choose a smaller teacher if it is too slow."""
        state, n_before = self._state, len(self._candidates)
        wanted, schedule = self._update_candidates(), self._schedule()
        teacher = self._choose_teacher(wanted)
        targets = [FinetuneTarget(s.config, state.known[s.target].on_front) for s in self._contexts]
        configs = [s.config for s in self._contexts]
        with crew_of(state.finisher, configs) or nullcontext() as crew:
            batch = FinetuneBatch(targets=targets, crew=crew)
            if any(g.id not in state.finished for g in teacher):
                self._train_teacher(teacher, wanted, replace(batch, targets=()))
            is_slow = any(g.id not in state.finished for g in teacher)
            if is_slow:
                state.slow_teachers += [g.id for g in teacher]
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
        candidates = [c for c in self._candidates if c.id in state.finished]
        candidates += self._update_candidates(0.0)
        if not (self._allowance.is_limited and self._trains and candidates):
            return None
        schedule = FinetuneSchedule.of(candidates, state.finisher, self._allowance)
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
        if not (wanted and self._trains and self._config.alpha):
            return []
        if (teacher := state.finisher.teacher) is not None and teacher.id in state.finished:
            return [teacher]
        n_slow = len(state.slow_teachers)
        if n_slow >= _MAX_TEACHERS or (n_slow and allowance.left_s() <= 0):
            parts = state.finisher.parts
            config = replace(parts.config, finish=replace(self._config, alpha=0.0))
            parts = components.retargeted(parts, config)
            state.finisher = replace(state.finisher, parts=parts, teacher=None)
            return []
        before = state.known.values() if allowance.is_resumed else ()
        scored = [c for known in before for c in known.most_probable(0.0)]
        scored = [c for c in scored if c.id not in state.slow_teachers]
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

        def is_begun(genotype: Genotype) -> bool:
            finisher = state.finisher
            return finisher.is_kept(genotype) or finisher.checkpoint(genotype).n_steps() > 0

        def refill(results: Mapping[str, FinetuneResult | None]) -> list[Genotype]:
            state.add(results, final=False)
            durations_s = {n: None if r is None else r.elapsed_s for n, r in results.items()}
            started = [c for c in self._candidates if c.id in {*state.finished, *schedule.started}]
            for probability in (self._config.probability, _LEAST_PROBABILITY):
                chosen = self._chosen_candidates(1.0, probability)
                new = [c for c in chosen if c.id not in schedule.started]
                ordered = front_probability.space_filling_order(new, started)
                if genotypes := schedule.take(ordered, durations_s, is_begun):
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
        state.left_out |= {c.id for c in self._update_candidates()}

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
            self._n_known = n_known
        bound = config.probability if probability is None else probability
        probable = [
            known.most_probable(bound, config.min_candidates) for known in state.known.values()
        ]
        distinct = {c.id: c for row in zip_longest(*probable) for c in row if c is not None}
        return [c for c in distinct.values() if c.id not in {*state.finished, *state.left_out}]


def _posteriors(
    contexts: Sequence[TargetContext],
    views: Mapping[str, SearchView],
    candidates: Sequence[Candidate],
    finished: Mapping[str, Quantity],
) -> dict[str, CandidatePosteriors]:
    """Return the posteriors of candidates, by target, given the metric of fine-tuned ones."""
    parts = contexts[0].parts
    return {
        context.target: front_probability.candidate_posteriors(
            parts.space, candidates, views[context.target], finished, parts.networks.lower
        )
        for context in contexts
    }


def _recorded_weights(context: TargetContext, candidates: Sequence[Candidate]) -> Accuracies:
    """Return the provider of the weights with which the search scored the candidates."""
    return at_recorded_fidelity(context.evaluator, completed_trainings(context.config, candidates))


def _needed_networks(state: FinetuningOutcome, *, is_limited: bool) -> Iterator[Genotype]:
    """Yield a network for each target without a fine-tuned one: at least one is required."""
    config = state.finisher.parts.config.finish
    for known in state.known.values():
        if not known.on_front.keys() & state.finished.keys():
            probable = known.most_probable(config.probability, config.min_candidates)
            yield (least(probable, state.finisher) if is_limited else probable[0]).genotype
