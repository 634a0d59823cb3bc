"""Fine-tuning at the end of a search: likely front members get their final weights."""

import math
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice, zip_longest
from pathlib import Path

from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.models.graph import n_macs
from hwnas.models.spaces import Genotype
from hwnas.nas import candidates as columns
from hwnas.nas import front_probability
from hwnas.nas.candidates import Candidate
from hwnas.nas.front_probability import CandidatePosteriors
from hwnas.nas.search_progress import SearchView
from hwnas.tasks.metrics import is_better, metric_of
from hwnas.training.finetuning.time_budget import TimeBudget, TimeWindow
from hwnas.workflows.components import as_left, left_after
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finish_runs import (
    FinetuneBatch,
    FinetuneResult,
    FinetuneTarget,
    crew_of,
    finished,
)
from hwnas.workflows.search.finisher import Finetuner

_TEACHER_FRACTION = 0.25  # of finish.minutes, for the teacher
_MAX_TIMING_ROUNDS = 3
_LATER_ROUNDS = 5  # for candidates that earlier rounds made probable


@dataclass(frozen=True)
class NotFinetuned:
    """Likely front members of a target that are not fine-tuned."""

    ids: list[str]
    option: str  #: option that lets the resumed run fine-tune more

    def messages(self, probability: float, run: Path) -> list[str]:
        """Return their number and the command that fine-tunes them."""
        if not self.ids:
            return []
        again = shlex.join(["hwnas", "search", f"run.resume={run}", self.option])
        name = self.option.partition("=")[0]
        return [
            f"{len(self.ids)} more may be on the front (finish.probability={probability:g}), but "
            f"{name} ended before their fine-tuning. To continue: {again}"
        ]


@dataclass
class FinetuningOutcome:
    """The results of fine-tuning."""

    known: dict[str, CandidatePosteriors]  #: by target
    among_finished: dict[str, CandidatePosteriors]  #: the same, among fine-tuned candidates only
    finisher: Finetuner
    finished: dict[str, Quantity] = field(default_factory=dict)  #: on the validation split, by id
    left_out: set[str] = field(default_factory=set)  #: ids of networks for which time ran out
    #: ids of networks without int8 training, as time ran out
    without_int8_training: set[str] = field(default_factory=set)

    def add(self, found: Mapping[str, FinetuneResult | None], *, final: bool = True) -> None:
        """Add results of networks.

        Args:
            found: Results by id; ``None`` if time ran out.
            final: Whether this is the last round: the others are then marked as left out.
        """
        ready = {name: each for name, each in found.items() if each is not None}
        self.finished |= {name: each.figure for name, each in ready.items()}
        self.without_int8_training |= {
            name for name, each in ready.items() if each.without_int8_training
        }
        self.left_out |= {*found} if final else set()
        self.left_out -= {*self.finished}

    def facts(self) -> Row:
        """Return the entry of the manifest."""
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
        """Return a fine-tuned candidate with its new metric, and the observed one in details."""
        metric, figure = self.finisher.parts.config.metric, self.finished[candidate.id]
        read = candidate.figures[metric].value
        metrics = {columns.read_column(metric): read, columns.finished(metric): figure.value}
        return replace(
            candidate,
            figures={**candidate.figures, metric: figure},
            details={**candidate.details, **metrics},
            stopped=False,
        )

    def unfinished(self, target: str) -> NotFinetuned:
        """Return the likely front members without fine-tuning, most probable first."""
        config = self.finisher.parts.config.finish
        probable = self.known[target].band(config.probability)
        ids = [c.id for c in probable if c.id not in self.finished]
        if config.minutes is not None and self.left_out.intersection(ids):
            return NotFinetuned(ids, f"finish.minutes={2 * config.minutes:g}")
        return NotFinetuned(ids, f"finish.max_candidates={len(self.finished) + len(ids)}")

    def members(self, target: str) -> list[Candidate]:
        """Return the candidates to verify: fine-tuned, likely on the front, fastest first.

        At least the most probable one is returned: among many similar candidates, each probability
        may be low. Posterior estimates are among all candidates, as in ``candidates.parquet``.
        """
        config = self.finisher.parts.config.finish
        probable = self.among_finished[target].band(config.probability, 1)
        by_id = {c.id: c for c in reversed(self.known[target].candidates)}
        return sorted(
            (by_id[c.id] for c in probable), key=lambda c: (c.figures["latency_ms"].value, c.id)
        )


def finish(
    contexts: Sequence[TargetContext],
    views: Mapping[str, SearchView],
    candidates: Sequence[Candidate],
    allowance: TimeBudget,
    progress: Progress,
) -> FinetuningOutcome:
    """Fine-tune the candidates that are likely on the front of a target.

    The most accurate candidate is fine-tuned first and teaches the others. The others are ordered
    to fill gaps in latency first, so that a front cut short by the time limit still covers the
    whole range. Each round updates the posterior and may make other candidates probable. The first
    round uses half of ``finish.max_candidates`` and ``finish.minutes``, so that later rounds can
    use its results. With a time limit, int8 training follows fine-tuning directly, so that the
    limit covers both; otherwise it runs at verification.

    Args:
        contexts: One for each target.
        views: The search from the perspective of each target.
        candidates: All candidates of the search.
        allowance: The time budget.
        progress: Progress of the command.
    """
    parts, phases = contexts[0].parts, allowance.tracked(progress)
    lower = parts.networks.lower
    config = parts.config.finish
    weights = as_left(contexts[0].evaluator, left_after(parts.config, candidates))
    state = FinetuningOutcome({}, {}, Finetuner(parts, weights, progress=phases))
    trains = bool(state.finisher.config.epochs)

    def look() -> list[Candidate]:
        """Update posteriors; return candidates to fine-tune, most probable of each target first."""
        state.known = posteriors(candidates)
        probable = [k.band(config.probability, config.min_candidates) for k in state.known.values()]
        distinct = {c.id: c for row in zip_longest(*probable) for c in row if c is not None}
        return [c for c in distinct.values() if c.id not in {*state.finished, *state.left_out}]

    def posteriors(some: Sequence[Candidate]) -> dict[str, CandidatePosteriors]:
        return {
            s.target: front_probability.known(
                parts.space, some, views[s.target], state.finished, lower
            )
            for s in contexts
        }

    wanted, teacher, searched = look(), list[Genotype](), {c.id: c for c in candidates}
    if wanted and trains and config.alpha:
        before = state.known.values() if allowance.is_resumed else ()
        scored = [c for known in before for c in known.band(0.0)]
        teacher = [_teacher(wanted, scored, state.finisher, allowance.left_s)]
        state.finisher = Finetuner(parts, weights, teacher[0], phases)
        state.add(finished(state.finisher, teacher, phases, "Train the teacher"))
    most = len(contexts) * config.most(len({c.id for c in candidates if not c.reason}))
    with crew_of(state.finisher, [s.config for s in contexts]) or nullcontext() as crew:
        for share in (0.5, *[1.0] * _LATER_ROUNDS):
            wanted, slot = look(), allowance.slot(share)
            if trains:
                wanted = wanted[: max(0, math.ceil(share * most) - len(state.finished))]
            done = [c for c in candidates if c.id in state.finished]
            # With the costs on all targets: targets may see different ones.
            wanted = [replace(c, figures=searched[c.id].figures) for c in wanted]
            genotypes = [c.genotype for c in front_probability.spread(wanted, done)]
            if share < 1.0 and slot.is_limited:
                genotypes = [*teacher, *genotypes]  # its int8 training is still missing
            if genotypes := _in_time(genotypes, slot, state.finisher):
                targets = [
                    FinetuneTarget(s.config, state.known[s.target].on_front) for s in contexts
                ]
                how = FinetuneBatch(slot, targets, crew)
                results = finished(state.finisher, genotypes, phases, "Finish members", how)
                state.add(results, final=share == 1.0)
            elif share == 1.0:
                break
    look()
    for needed in _needed(state, is_limited=allowance.limit_s < math.inf):
        state.add(finished(state.finisher, [needed], phases, "Finish members"))
    look()
    state.among_finished = posteriors([c for c in candidates if c.id in state.finished])
    without_int8_training = state.without_int8_training
    state.finisher = replace(state.finisher, without_int8_training=without_int8_training)
    allowance.end(was_short=bool(state.left_out or without_int8_training))
    return state


def _needed(state: FinetuningOutcome, *, is_limited: bool) -> Iterator[Genotype]:
    """Yield a network for each target without a fine-tuned one: at least one is required."""
    config = state.finisher.parts.config.finish
    for known in state.known.values():
        if not known.on_front.keys() & state.finished.keys():
            some = known.band(config.probability, config.min_candidates)
            yield (_least(some, state.finisher) if is_limited else some[0]).genotype


def _in_time(genotypes: list[Genotype], slot: TimeWindow, finisher: Finetuner) -> list[Genotype]:
    """Return the genotypes that can still be fine-tuned; after the limit, only cached ones."""
    if slot.open_s() >= 0:
        return genotypes
    return [genotype for genotype in genotypes if finisher.is_kept(genotype)]


def _teacher(
    wanted: Sequence[Candidate],
    scored: Sequence[Candidate],
    finisher: Finetuner,
    left_s: Callable[[], float],
) -> Genotype:
    """Return the most accurate network that can be trained as teacher in time.

    All others wait for its training and its predictions. With a time limit, these must fit into a
    fraction of the remaining time. A resumed run keeps its teacher, unless it is significantly
    less accurate than another one for which there is time.

    Args:
        wanted: Candidates to fine-tune.
        scored: All candidates of a resumed run: its teacher may no longer be in ``wanted``.
        finisher: Fine-tunes them.
        left_s: Returns the remaining seconds.
    """
    config = finisher.parts.config
    sign = 1 if metric_of(config.metric).maximise else -1

    def ordered(some: Sequence[Candidate]) -> list[Candidate]:
        return sorted(some, key=lambda c: (-sign * c.figures[config.metric].value, c.id))

    best = ordered(wanted)
    if math.isinf(left_s()):
        return best[0].genotype
    before = (c for c in chain(best, ordered(scored)) if finisher.checkpoint(c.genotype).n_steps())
    started = next(before, None)
    if started is best[0]:
        return started.genotype
    first = _first_within(_TEACHER_FRACTION * left_s(), best, finisher)
    if started is None:
        return (first or _least(best, finisher)).genotype
    if first is None:
        return started.genotype
    known = metric_of(config.metric).best(started.figures[config.metric])
    is_worse = is_better(config.metric, first.figures[config.metric].value, known)
    return (first if is_worse else started).genotype


def _first_within(
    limit_s: float, some: Sequence[Candidate], finisher: Finetuner
) -> Candidate | None:
    """Return the first candidate whose training and predictions fit into a time limit.

    Time is assumed to grow with the number of operations, so that only a few networks are timed
    (bisection). Other load can only slow a training down: the smallest network that was too slow
    is timed again, and then larger ones if it is fast enough.
    """
    if limit_s <= 0:
        return None
    by_size = sorted(range(len(some)), key=lambda i: (_macs(some[i], finisher), i))
    n, found = 0, list[int]()
    for _ in range(_MAX_TIMING_ROUNDS):
        teaching_s = cache(lambda i: finisher.teaching_s(some[i].genotype))
        n = bisect_right(by_size, limit_s, lo=n, key=teaching_s)
        within = (i for i in sorted(by_size[:n]) if teaching_s(i) <= limit_s)
        found += islice(within, 1)
        if n == len(by_size) or finisher.teaching_s(some[by_size[n]].genotype) > limit_s:
            break
    return some[min(found)] if found else None


def _least(some: Sequence[Candidate], finisher: Finetuner) -> Candidate:
    return min(some, key=lambda c: (_macs(c, finisher), c.id))


def _macs(candidate: Candidate, finisher: Finetuner) -> int:
    return n_macs(finisher.parts.networks.lower(candidate.genotype))
