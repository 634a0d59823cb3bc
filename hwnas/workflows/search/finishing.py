"""The end of a search: candidates that may be on the front get the weights that are delivered."""

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

_TEACHER = 0.25  # of finish.minutes, that the teacher may take
_LOOKS = 3  # at what takes that long, at most
_LATER_ROUNDS = 5  # of finishing what became probable by what was finished before


@dataclass(frozen=True)
class NotFinetuned:
    """Candidates that may be on the front of a target, and were not finished."""

    ids: list[str]
    option: str  #: with which the same run, resumed, finishes more

    def sentences(self, probability: float, run: Path) -> list[str]:
        """Return what a user is told of them, and what would finish them."""
        if not self.ids:
            return []
        again = shlex.join(["python", "-m", "hwnas", "search", f"run.resume={run}", self.option])
        name = self.option.partition("=")[0]
        return [
            f"{len(self.ids)} more may be on the front (finish.probability={probability:g}), but "
            f"{name} left them unfinished. To go on with them: {again}"
        ]


@dataclass
class FinetuningOutcome:
    """What finishing came to."""

    known: dict[str, CandidatePosteriors]  #: by target
    among_finished: dict[str, CandidatePosteriors]  #: the same, as if there were no others
    finisher: Finetuner
    finished: dict[str, Quantity] = field(default_factory=dict)  #: on the validation split, by id
    left_out: set[str] = field(default_factory=set)  #: ids of those that there was no time for
    hurried: set[str] = field(default_factory=set)  #: ids of those that are in int8 in haste

    def add(self, found: Mapping[str, FinetuneResult | None], *, for_good: bool = True) -> None:
        """Take in what became of networks.

        Args:
            found: By id; ``None`` where there was no time for one.
            for_good: Whether there will be no time for these either.
        """
        ready = {name: each for name, each in found.items() if each is not None}
        self.finished |= {name: each.figure for name, each in ready.items()}
        self.hurried |= {name for name, each in ready.items() if each.without_int8_training}
        self.left_out |= {*found} if for_good else set()
        self.left_out -= {*self.finished}

    def facts(self) -> Row:
        """Return what a manifest says of it."""
        config, teacher = self.finisher.config, self.finisher.teacher
        return {
            "finishing": {
                "epochs": config.epochs,
                "rate": config.rate,
                "alpha": config.alpha,
                "max_int8_drop": config.max_int8_drop,
                "teacher": None if teacher is None else teacher.id,
                "finished": {name: figure.to_json() for name, figure in self.finished.items()},
                **({"hurried": hurried} if (hurried := sorted(self.hurried)) else {}),
            }
        }

    def as_finished(self, candidate: Candidate) -> Candidate:
        """Return a finished candidate with the metric that it has then, beside what was read."""
        metric, figure = self.finisher.parts.config.metric, self.finished[candidate.id]
        read = candidate.figures[metric].value
        told = {columns.read_column(metric): read, columns.finished(metric): figure.value}
        return replace(
            candidate,
            figures={**candidate.figures, metric: figure},
            details={**candidate.details, **told},
            stopped=False,
        )

    def unfinished(self, target: str) -> NotFinetuned:
        """Return what may be on the front of a target as well, the most probable first."""
        config = self.finisher.parts.config.finish
        probable = self.known[target].band(config.probability)
        left = [c.id for c in probable if c.id not in self.finished]
        if config.minutes is not None and self.left_out.intersection(left):
            return NotFinetuned(left, f"finish.minutes={2 * config.minutes:g}")
        return NotFinetuned(left, f"finish.max_candidates={len(self.finished) + len(left)}")

    def members(self, target: str) -> list[Candidate]:
        """Return what is verified: finished candidates that may be on the front, fastest first.

        Where many are alike none may be probable: one is verified then, the most probable. What is
        believed of them is what is believed among all candidates, whose file has it, too.
        """
        config = self.finisher.parts.config.finish
        probable = self.among_finished[target].band(config.probability, 1)
        believed = {c.id: c for c in reversed(self.known[target].candidates)}
        found = [believed[c.id] for c in probable]
        return sorted(found, key=lambda c: (c.figures["latency_ms"].value, c.id))


def finish(
    contexts: Sequence[TargetContext],
    views: Mapping[str, SearchView],
    candidates: Sequence[Candidate],
    allowance: TimeBudget,
    progress: Progress,
) -> FinetuningOutcome:
    """Finish the candidates that may be on the front of a target.

    The one that answers best is finished first and teaches the others; those fill the gaps between
    what is finished, so that a front that is cut off by the time is as wide. What is finished says
    more of the others, too, so that some may become probable: they are finished then. The first
    round takes half of what ``finish.max_candidates`` and ``finish.minutes`` allow, so that what it
    says can still be heeded. Where time is limited, a network is trained for int8 right after it
    was fine-tuned, so that the limit is of both; else that waits until it is verified.

    Args:
        contexts: One for each target.
        views: How each target sees the candidates.
        candidates: All of the search.
        allowance: The time that it may take.
        progress: Of the command.
    """
    parts, phases = contexts[0].parts, allowance.tracked(progress)
    lower = parts.networks.lower
    config = parts.config.finish
    weights = as_left(contexts[0].evaluator, left_after(parts.config, candidates))
    state = FinetuningOutcome({}, {}, Finetuner(parts, weights, progress=phases))
    trains = bool(state.finisher.config.epochs)

    def look() -> list[Candidate]:
        """Return what is to be finished, of each target the most probable first."""
        state.known = seen(candidates)
        wanted = [k.band(config.probability, config.min_candidates) for k in state.known.values()]
        distinct = {c.id: c for row in zip_longest(*wanted) for c in row if c is not None}
        return [c for c in distinct.values() if c.id not in {*state.finished, *state.left_out}]

    def seen(some: Sequence[Candidate]) -> dict[str, CandidatePosteriors]:
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
            # By what they cost on all targets: each may be seen by another one.
            wanted = [replace(c, figures=searched[c.id].figures) for c in wanted]
            left = [c.genotype for c in front_probability.spread(wanted, done)]
            if share < 1.0 and slot.is_limited:
                left = [*teacher, *left]  # its training for int8 is still to come
            if left := _in_time(left, slot, state.finisher):
                targets = [
                    FinetuneTarget(s.config, state.known[s.target].on_front) for s in contexts
                ]
                how = FinetuneBatch(slot, targets, crew)
                found = finished(state.finisher, left, phases, "Finish members", how)
                state.add(found, for_good=share == 1.0)
            elif share == 1.0:
                break
    look()
    for needed in _needed(state, is_limited=allowance.limit_s < math.inf):
        state.add(finished(state.finisher, [needed], phases, "Finish members"))
    look()
    state.among_finished = seen([c for c in candidates if c.id in state.finished])
    state.finisher = replace(state.finisher, hurried=state.hurried)
    allowance.end(was_short=bool(state.left_out or state.hurried))
    return state


def _needed(state: FinetuningOutcome, *, is_limited: bool) -> Iterator[Genotype]:
    """Yield a network for each target that has none yet: there has to be one member."""
    config = state.finisher.parts.config.finish
    for known in state.known.values():
        if not known.on_front.keys() & state.finished.keys():
            some = known.band(config.probability, config.min_candidates)
            yield (_least(some, state.finisher) if is_limited else some[0]).genotype


def _in_time(genotypes: list[Genotype], slot: TimeWindow, finisher: Finetuner) -> list[Genotype]:
    """Return what may still be finished: what is trained already costs no time."""
    if slot.open_s() >= 0:
        return genotypes
    return [genotype for genotype in genotypes if finisher.is_kept(genotype)]


def _teacher(
    wanted: Sequence[Candidate],
    scored: Sequence[Candidate],
    finisher: Finetuner,
    left_s: Callable[[], float],
) -> Genotype:
    """Return the network that answers best.

    All others wait for its training, and for its answers. Where the time is limited, these have to
    fit into a part of what is left; a run that goes on keeps the one that it had, unless that one
    surely answers worse and there is time for another.

    Args:
        wanted: Those that are to be finished.
        scored: All, where a run goes on: the teacher that it had may be wanted no more.
        finisher: Finishes them.
        left_s: Seconds that are left.
    """
    config = finisher.parts.config
    sign = 1 if metric_of(config.metric).maximise else -1

    def ordered(some: Sequence[Candidate]) -> list[Candidate]:
        return sorted(some, key=lambda c: (-sign * c.figures[config.metric].value, c.id))

    best = ordered(wanted)
    if math.isinf(left_s()):
        return best[0].genotype
    before = (c for c in chain(best, ordered(scored)) if finisher.checkpoint(c.genotype).n_steps())
    begun = next(before, None)
    if begun is best[0]:
        return begun.genotype
    first = _first_within(_TEACHER * left_s(), best, finisher)
    if begun is None:
        return (first or _least(best, finisher)).genotype
    if first is None:
        return begun.genotype
    known = metric_of(config.metric).best(begun.figures[config.metric])
    is_worse = is_better(config.metric, first.figures[config.metric].value, known)
    return (first if is_worse else begun).genotype


def _first_within(
    limit_s: float, some: Sequence[Candidate], finisher: Finetuner
) -> Candidate | None:
    """Return the first that is trained, and answers for others, in so many seconds.

    The time is taken to grow with the operations, so that a few are timed, however many there are.
    What else a machine does makes a training slower, never faster: the smallest that was too slow
    is timed again, and larger ones if it is not.
    """
    if limit_s <= 0:
        return None
    by_size = sorted(range(len(some)), key=lambda i: (_macs(some[i], finisher), i))
    n, found = 0, list[int]()
    for _ in range(_LOOKS):
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
