"""The end of a search: candidates that may be on the front get the weights that are delivered."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest

from hwnas import build
from hwnas.api.context import TargetContext
from hwnas.api.jobs import together
from hwnas.config import SearchConfig
from hwnas.figure import Figure
from hwnas.finishing.finisher import Finisher
from hwnas.graph import n_macs
from hwnas.metrics import better, column
from hwnas.progress import Progress
from hwnas.results import Candidate, Row
from hwnas.searching import band
from hwnas.searching.band import Beliefs
from hwnas.searching.view import View
from hwnas.space import Genotype
from hwnas.weights import accuracies, as_left, left_after

_TEACHER = 0.25  # of finish.minutes, that the teacher may take
_LATER_ROUNDS = 5  # of finishing what became probable by what was finished before


@dataclass
class Finish:
    """What finishing came to."""

    known: dict[str, Beliefs]  #: by target
    among_finished: dict[str, Beliefs]  #: the same, as if there were no others
    finisher: Finisher
    finished: dict[str, Figure] = field(default_factory=dict)  #: on the validation split, by id

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
            }
        }

    def as_finished(self, candidate: Candidate) -> Candidate:
        """Return a finished candidate with the metric that it has then."""
        metric = self.finisher.parts.config.metric
        figures = {**candidate.figures, metric: self.finished[candidate.id]}
        return replace(candidate, figures=figures, stopped=False)

    def members(self, target: str) -> list[Candidate]:
        """Return what is verified: finished candidates that may be on the front, fastest first.

        Where many are alike none may be probable: one is verified then, the most probable.
        """
        config = self.finisher.parts.config.finish
        probable = self.among_finished[target].band(config.probability, 1)
        return sorted(probable, key=lambda c: (c.figures["latency_ms"].value, c.id))


def finish(
    contexts: Sequence[TargetContext],
    views: Mapping[str, View],
    candidates: Sequence[Candidate],
    phases: Progress,
) -> Finish:
    """Finish the candidates that may be on the front of a target.

    The one that answers best is finished first and teaches the others; those fill the gaps between
    what is finished, so that a front that is cut off by the time is as wide. What is finished says
    more of the others, too, so that some may become probable: they are finished then. The first
    round takes half of what ``finish.n_most`` and ``finish.minutes`` allow, so that what it says
    can still be heeded.

    Args:
        contexts: One for each target.
        views: How each target sees the candidates.
        candidates: All of the search.
        phases: Of the command.
    """
    parts = contexts[0].parts
    config, began = parts.config.finish, time.monotonic()
    weights = as_left(contexts[0].evaluator, left_after(parts.config, candidates))
    finisher = Finisher(parts, weights)
    state = Finish({}, {}, finisher)

    def look() -> list[Candidate]:
        """Return what is to be finished, of each target the most probable first."""
        state.known = seen(candidates)
        wanted = [k.band(config.probability, config.n_least) for k in state.known.values()]
        distinct = {c.id: c for row in zip_longest(*wanted) for c in row if c is not None}
        return [c for c in distinct.values() if c.id not in state.finished]

    def seen(some: Sequence[Candidate]) -> dict[str, Beliefs]:
        return {
            s.target: band.known(parts.space, some, views[s.target], state.finished)
            for s in contexts
        }

    def left_s(share: float) -> float:
        """Return the seconds that are left of a share of the time."""
        seconds = math.inf if config.minutes is None else 60 * config.minutes
        return share * seconds - (time.monotonic() - began)

    wanted = look()
    if wanted and finisher.config.epochs and config.alpha:
        teacher = _teacher(wanted, finisher)
        state.finisher = Finisher(parts, weights, teacher, phases)
        state.finished |= _finished(state.finisher, [teacher], phases, "Train the teacher")
    most = len(contexts) * config.most(len({c.id for c in candidates if not c.reason}))
    for share in (0.5, *[1.0] * _LATER_ROUNDS):
        wanted, left_of_it = look(), partial(left_s, share)
        if finisher.config.epochs:
            wanted = wanted[: max(0, math.ceil(share * most) - len(state.finished))]
        everything = chain.from_iterable(k.candidates for k in state.known.values())
        done = [c for c in everything if c.id in state.finished]
        left = [c.genotype for c in band.spread(wanted, done)]
        if left_s(1.0) < 0:  # what is trained already costs no time
            left = [genotype for genotype in left if state.finisher.is_kept(genotype)]
        if left:
            known = _finished(state.finisher, left, phases, "Finish members", left_of_it)
            state.finished |= known
        elif share == 1.0:
            break
    look()
    state.among_finished = seen([c for c in candidates if c.id in state.finished])
    return state


def _teacher(wanted: Sequence[Candidate], finisher: Finisher) -> Genotype:
    """Return the network that answers best.

    All others wait for its training. Where the time is limited, this has to fit into a part of it;
    a run that goes on keeps the one that it had, unless that one surely answers worse.
    """
    config = finisher.parts.config
    sign = 1 if column(config.metric).maximise else -1
    best = sorted(wanted, key=lambda c: (-sign * c.figures[config.metric].value, c.id))
    if config.finish.minutes is None:
        return best[0].genotype
    begun = next((c for c in best if finisher.checkpoint(c.genotype).n_steps()), None)
    if begun is best[0]:
        return begun.genotype
    limit_s = _TEACHER * 60 * config.finish.minutes
    lower = finisher.parts.networks.lower
    least = min(best, key=lambda c: (n_macs(lower(c.genotype)), c.id))
    first = next((c for c in best if finisher.training_s(c.genotype) <= limit_s), least)
    if begun is None:
        return first.genotype
    known = column(config.metric).best(begun.figures[config.metric])
    is_worse = better(config.metric, first.figures[config.metric].value, known)
    return (first if is_worse else begun).genotype


def _finished(
    finisher: Finisher,
    genotypes: Sequence[Genotype],
    phases: Progress,
    phase: str,
    left_s: Callable[[], float] = lambda: math.inf,
) -> dict[str, Figure]:
    """Finish networks; return their metric on the validation split by id.

    Those that were not begun while there was time left are left out.
    """
    parts, epochs = finisher.parts, finisher.config.epochs
    n_workers = min(parts.config.study.workers or 1, len(genotypes))
    n_steps = max(1, finisher.n_steps)
    taught = [genotype for genotype in genotypes if not finisher.is_teacher(genotype)]
    if finisher.teacher is not None and taught:
        finisher.prepare(taught[0])
    paths = [finisher.checkpoint(genotype) for genotype in genotypes] if epochs else []
    if paths:  # first what is finished already, or nearly
        order = sorted(range(len(paths)), key=lambda i: -paths[i].n_steps())
        genotypes, paths = [genotypes[i] for i in order], [paths[i] for i in order]

    def n_done() -> int:
        return sum(path.n_steps() for path in paths)

    def late() -> bool:
        return left_s() < 0

    before = n_done()
    with phases.phase(phase, len(genotypes) * n_steps, before, left_s()) as advance:
        if n_workers > 1 and before < len(genotypes) * n_steps:
            again = partial(_again, parts.config, finisher.teacher, finisher.left)
            tasks = [partial(_tuned, genotype) for genotype in genotypes]
            figures = together(tasks, again, n_workers, lambda: n_done() - before, advance, late)
        else:
            figures = []
            for i, genotype in enumerate(genotypes, 1):
                if late() and not finisher.is_kept(genotype):
                    break
                figures.append(finisher.tuned(genotype))
                advance(max(0, i * n_steps - before))
                before = max(before, i * n_steps)
    return {g.id: figure for g, figure in zip(genotypes, figures, strict=False)}


def _again(
    config: SearchConfig, teacher: Genotype | None, left: Mapping[str, int], progress: Progress
) -> Finisher:
    parts = build.parts(config, progress)
    weights = as_left(accuracies(parts, progress), left)
    return Finisher(parts, weights, teacher, progress)


def _tuned(genotype: Genotype, finisher: Finisher) -> Figure:
    return finisher.tuned(genotype)
