"""Which networks are fine-tuned within a time limit: the teacher, the others, and their epochs."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import final

from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.tasks.metrics import is_better, metric_of
from hwnas.training.finetuning.time_budget import TimeBudget, TimeWindow, TrainingTimes
from hwnas.workflows import components
from hwnas.workflows.search.finisher import Finetuner

_LONG_S = 1e9  # of a training after the time limit


@final
class FinetuneSchedule:
    """Networks that are fine-tuned within a time limit, and their epochs.

    Args:
        times: Durations of trainings.
        slot: Latest start and end of trainings.
        epochs: Epochs of each network.
        n_processes: Number of processes.
    """

    def __init__(self, times: TrainingTimes, slot: TimeWindow, epochs: int, n_processes: int):
        self._times, self._n = times, n_processes
        self.slot, self.epochs = slot, epochs
        self.started: set[str] = set()  #: ids of networks that were started

    @staticmethod
    def of(
        some: Sequence[Candidate],
        probable: Sequence[Candidate],
        finisher: Finetuner,
        allowance: TimeBudget,
    ) -> "FinetuneSchedule":
        """Return the schedule for candidates, by timing a few of them.

        Args:
            some: Candidates that may be fine-tuned.
            probable: Those of them that will be, if time permits; they determine the epochs. Those
                most probably on the front come first.
            finisher: Fine-tunes them.
            allowance: The time budget; the number of epochs is stored in it.
        """
        genotypes = {c.id: c.genotype for c in some}
        sizes = {c.id: finisher.n_macs(c.genotype) for c in some}
        config, left_s = finisher.parts.config, allowance.left_s()
        n = components.finetuning_processes(finisher.parts)
        times = TrainingTimes(
            sizes, lambda name: finisher.epoch_s(genotypes[name]) if left_s > 0 else _LONG_S
        )
        epochs = allowance.epochs
        if epochs is None:
            epochs = finisher.config.epochs
            if config.finish.epochs is None:
                epochs = times.epochs([c.id for c in probable], epochs, max(0.0, left_s), n)
            allowance.choose_epochs(epochs)
        return FinetuneSchedule(times, allowance.slot(1.0), epochs, n)

    def estimate_s(self, genotype: Genotype) -> float:
        """Return the estimated seconds of fine-tuning and int8 training of a network."""
        return self._times.member_s(genotype.id, self.epochs)

    def n_expected(self) -> int:
        """Return the number of networks that can be fine-tuned in the remaining time."""
        left_s = self.slot.left_s()
        return len(self._times.within(self._times.names, self.epochs, self._n * left_s, left_s))

    def take(
        self,
        wanted: Sequence[Candidate],
        durations_s: Mapping[str, float | None],
        is_begun: Callable[[Genotype], bool],
    ) -> list[Genotype]:
        """Return the networks to start next: all that were begun before, and one more.

        That is the first whose training takes at most half of the remaining time, so that no long
        training begins late; if there is none, the first that fits.

        Args:
            wanted: Candidates that were not started, in the order of preference. Those that are
                returned are added to ``started``.
            durations_s: Seconds of each training that ended, by id; ``None`` if it was not
                complete, or resumed.
            is_begun: Returns whether weights of a network are stored, complete or not.
        """
        times, epochs, left_s = self._times, self.epochs, self.slot.left_s()
        times.correct({n: s for n, s in durations_s.items() if s is not None}, epochs)
        resumable = [c.id for c in wanted if is_begun(c.genotype)]
        names = [c.id for c in wanted if c.id not in resumable]
        short = (n for n in names if times.member_s(n, epochs) <= left_s / 2)
        fitting = (n for n in names if times.member_s(n, epochs) <= left_s)
        chosen = [*resumable, *islice(chain(short, fitting), 1)]
        self.started.update(chosen)
        genotypes = {c.id: c.genotype for c in wanted}
        return [genotypes[name] for name in chosen]


# The teacher.

_TEACHER_FRACTION = 0.25  # of the remaining time, for the teacher
_MAX_TIMING_ROUNDS = 3


def choose_teacher(
    wanted: Sequence[Candidate],
    scored: Sequence[Candidate],
    finisher: Finetuner,
    left_s: Callable[[], float],
) -> Genotype:
    """Return the network to train as teacher; all others wait for its training and predictions.

    Without a time limit, it is the most accurate one in ``wanted``. With one, both must fit into a
    quarter of the remaining time; if none fits, it is the smallest network. A resumed run with a
    limit keeps the most accurate network whose training is complete, else the most accurate one
    with stored steps, unless one that fits is significantly more accurate.

    Args:
        wanted: Candidates to fine-tune.
        scored: All candidates of a resumed run with a limit: its teacher may not be in ``wanted``.
        finisher: Fine-tunes them.
        left_s: Returns the remaining seconds; infinite without a time limit.
    """
    config = finisher.parts.config
    sign = 1 if metric_of(config.metric).maximise else -1

    def ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (-sign * c.figures[config.metric].value, c.id))

    best = ordered(wanted)
    if math.isinf(left_s()):
        return best[0].genotype
    before = [c for c in chain(best, ordered(scored)) if finisher.checkpoint(c.genotype).n_steps()]
    # A more accurate one whose training is incomplete was stopped, as it was too slow.
    complete = (c for c in before if finisher.is_kept(c.genotype))
    started = next(chain(complete, before), None)
    if started is best[0]:
        return started.genotype
    first = _first_within(_TEACHER_FRACTION * left_s(), best, finisher)
    if started is None:
        return (first or least(best, finisher)).genotype
    if first is None:
        return started.genotype
    known = metric_of(config.metric).best(started.figures[config.metric])
    is_worse = is_better(config.metric, first.figures[config.metric].value, known)
    return (first if is_worse else started).genotype


def _first_within(
    limit_s: float, candidates: Sequence[Candidate], finisher: Finetuner
) -> Candidate | None:
    """Return the first candidate whose training and predictions fit into a time limit.

    Time is assumed to grow with the number of operations, so that only a few networks are timed
    (bisection). Other load can only slow a training down: the smallest network that was too slow
    is timed again, and then larger ones if it is fast enough.
    """
    if limit_s <= 0:
        return None
    by_size = sorted(
        range(len(candidates)), key=lambda i: (finisher.n_macs(candidates[i].genotype), i)
    )
    n, indices = 0, list[int]()
    for _ in range(_MAX_TIMING_ROUNDS):
        teaching_s = cache(lambda i: finisher.teaching_s(candidates[i].genotype))
        n = bisect_right(by_size, limit_s, lo=n, key=teaching_s)
        within = (i for i in sorted(by_size[:n]) if teaching_s(i) <= limit_s)
        indices += islice(within, 1)
        if n == len(by_size) or finisher.teaching_s(candidates[by_size[n]].genotype) > limit_s:
            break
    return candidates[min(indices)] if indices else None


def least(some: Sequence[Candidate], finisher: Finetuner) -> Candidate:
    """Return the candidate with the fewest multiply-accumulates."""
    return min(some, key=lambda c: (finisher.n_macs(c.genotype), c.id))
