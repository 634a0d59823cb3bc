"""Networks are finished: one after another, or by several processes, as far as there is time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, zip_longest

from hwnas import build
from hwnas.api.jobs import Crew
from hwnas.config import SearchConfig
from hwnas.figure import Figure
from hwnas.finishing.allowance import ALWAYS, Slot
from hwnas.finishing.finisher import Finisher
from hwnas.progress import Progress
from hwnas.space import Genotype
from hwnas.weights import accuracies, as_left


@dataclass(frozen=True)
class Ready:
    """What finishing one network came to."""

    figure: Figure  #: its metric on the validation split
    in_haste: bool = False  #: whether there was no time to train it for int8, which it would need


@dataclass(frozen=True)
class Target:
    """One target of the search; networks that do not fit it are not trained for it."""

    config: SearchConfig
    fitting: Collection[str]  #: ids of the networks that fit it


@dataclass(frozen=True)
class Round:
    """How some networks are finished together."""

    #: when their trainings may begin, and must have ended; where that is limited, trainings for
    #: int8 come right behind
    slot: Slot = ALWAYS
    targets: Sequence[Target] = ()  #: the finisher's first, if there may be trainings for int8
    crew: Crew[list[Finisher]] | None = None  #: processes that finish several; else this one does


def finished(
    finisher: Finisher,
    genotypes: Sequence[Genotype],
    phases: Progress,
    phase: str,
    how: Round = Round(),
) -> dict[str, Ready | None]:
    """Finish networks; return by id what came of it, ``None`` where there was no time for one.

    Args:
        finisher: Finishes them.
        genotypes: Of the networks.
        phases: Of the command.
        phase: What progress calls it.
        how: When, by whom and for which targets.
    """
    epochs, slot, crew = finisher.config.epochs, how.slot, how.crew
    n_steps = max(1, finisher.n_steps)
    taught = [genotype for genotype in genotypes if not finisher.is_teacher(genotype)]
    if finisher.teacher is not None and taught:
        finisher.prepare(taught[0])
    paths = [finisher.checkpoint(genotype) for genotype in genotypes] if epochs else []
    if paths:  # first what is finished already, or nearly
        kept = [finisher.is_kept(genotype) for genotype in genotypes]
        order = sorted(range(len(paths)), key=lambda i: (not kept[i], -paths[i].n_steps()))
        genotypes, paths = [genotypes[i] for i in order], [paths[i] for i in order]

    def n_done() -> int:
        return sum(path.n_steps() for path in paths)

    def late(i: int) -> bool:
        return slot.open_s() < 0 and not finisher.is_kept(genotypes[i])

    before = n_done()
    with phases.phase(phase, len(genotypes) * n_steps, before, slot.open_s()) as advance:
        tasks = [
            partial(_ready, g, slot, [g.id in t.fitting for t in how.targets]) for g in genotypes
        ]
        if crew is not None and len(tasks) > 1 and before < len(tasks) * n_steps:
            found = crew.run(tasks, lambda: n_done() - before, advance, late)
        else:
            found, own = [], _finishers(finisher, [target.config for target in how.targets[1:]])
            for i, task in enumerate(tasks, 1):
                if late(i - 1):
                    break
                found.append(task(own))
                advance(max(0, i * n_steps - before))
                before = max(before, i * n_steps)
    return {g.id: ready for g, ready in zip_longest(genotypes, found)}


def crew_of(finisher: Finisher, configs: Sequence[SearchConfig]) -> Crew[list[Finisher]] | None:
    """Return processes that finish networks as one does; ``None`` where one process is wanted.

    Args:
        finisher: The one.
        configs: Of the search, of each target.
    """
    n = finisher.parts.config.study.workers or 1
    again = partial(_again, configs, finisher.teacher, finisher.left)
    return Crew(again, n) if n > 1 else None


def _finishers(finisher: Finisher, others: Sequence[SearchConfig]) -> list[Finisher]:
    """Return what finishes networks, and the same for other targets."""
    parts = [build.retargeted(finisher.parts, config) for config in others]
    return [finisher, *(replace(finisher, parts=each) for each in parts)]


def _again(
    configs: Sequence[SearchConfig],
    teacher: Genotype | None,
    left: Mapping[str, int],
    progress: Progress,
) -> list[Finisher]:
    parts = build.parts(configs[0], progress)
    weights = as_left(accuracies(parts, progress), left)
    return _finishers(Finisher(parts, weights, teacher, progress), configs[1:])


def _ready(
    genotype: Genotype, slot: Slot, fits: Sequence[bool], own: Sequence[Finisher]
) -> Ready | None:
    """Finish one network, unless there is no time for it; there is a finisher for each target."""
    if not own[0].fits(genotype, slot.left_s()):
        return None
    figure = own[0].tuned(genotype)
    if not slot.is_limited:  # it is trained for int8 when it is verified
        return Ready(figure)
    in_haste = [each.for_int8(genotype, slot.left_s) for each in compress(own, fits)]
    return Ready(figure, any(in_haste))
