"""Verification of a front: each member is judged by the file that goes onto the device."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CollapseError, CompileError, DeviceCrashError, short_reason
from hwnas.core.pareto import ParetoFront, no_worse
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantities, quantities_from_json
from hwnas.core.run_folder import RunFolder
from hwnas.hardware.backends.artefact_wrappers import compare_with_float32
from hwnas.hardware.backends.base import Artefacts, TrainedNetwork
from hwnas.hardware.costs.cost_model import LayerCost
from hwnas.models.families.layers import weights_of
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype
from hwnas.nas import early_exits
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.verified_files import FORMAT, read_made
from hwnas.tasks import metrics
from hwnas.tasks.base import Task
from hwnas.tasks.metrics import column, maximised
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.predictions import EXITS, FILES, ExitPredictionRecord, heard, packed, packed_each
from hwnas.training.data import ImageBatch
from hwnas.training.inference import per_sample


@dataclass(frozen=True)
class Verifier:
    """What verification needs to make an artefact of a genotype and to judge it."""

    finished: Callable[
        [Genotype], DeployableNetwork
    ]  #: the network with the weights that are delivered
    #: normalised test images and their targets, at the genotype's resolution, in batches
    test: Callable[[Genotype], Iterable[ImageBatch]]
    artefacts: Artefacts
    #: likewise those of the validation split, for cascades
    validation: Callable[[Genotype], Iterable[ImageBatch]]
    task: Task
    dtype: str  #: in which artefacts compute of spaces that do not say it
    #: tells the weights that a network is delivered with from others that it may have
    weights: Callable[[Genotype], str] = lambda genotype: ""
    phase: str = "Verify front"  #: what the progress bar says
    leaves: bool = False  #: whether means over images that leave early are asked for


#: What goes wrong with one network, and would not with others.
OF_ONE = (CompileError, CollapseError, DeviceCrashError)


@dataclass(frozen=True)
class Verification:
    """What verification came to."""

    members: list[Member]
    failed: dict[str, str]  #: why others could not be verified, by id


def verify(
    members: Sequence[Candidate],
    bench: Verifier,
    budget: Budget,
    objectives: Sequence[str],
    folder: RunFolder,
    progress: Progress,
) -> Verification:
    """Verify each member, keeping its files.

    Members that an earlier run verified are read, if with the same weights: what a run finishes
    later may be taught by another network. Those that could not be verified are tried again.
    """
    verified, failed = list[Member](), dict[str, str]()
    with progress.phase(bench.phase, len(members)) as advance:
        for candidate in members:
            try:
                verified.append(_verify_once(candidate, bench, folder))
            except OF_ONE as error:
                failed[candidate.id] = short_reason(error)
            advance(1)
    return Verification(_judge(verified, budget, objectives), failed)


def _verify_once(candidate: Candidate, bench: Verifier, folder: RunFolder) -> Member:
    known, weights = read_made(folder.path, candidate.id), bench.weights(candidate.genotype)
    if known is not None and known.get("weights", weights) == weights:
        segments = tuple(quantities_from_json(rows) for rows in known.get("segments", ()))
        figures, details = quantities_from_json(known["figures"]), known["details"]
        return Member(candidate, figures, details, known["files"], segments=segments)
    made = folder.path / "models" / f"{candidate.id}.json"
    made.unlink(missing_ok=True)  # of other weights; the next one says that all is done
    member, layers = _verify(candidate, bench, folder)
    content = {
        "format": FORMAT,
        "genotype": candidate.genotype.to_dict(),
        "figures": {name: figure.to_json() for name, figure in member.figures.items()},
        "details": member.details,
        "files": member.files,
        "weights": weights,
        "layers": [dataclasses.asdict(layer) for layer in layers],
    }
    if member.segments:
        content["segments"] = [
            {name: figure.to_json() for name, figure in figures.items()}
            for figures in member.segments
        ]
    folder.write_json(f"models/{candidate.id}.json", content)
    return member


def _verify(
    candidate: Candidate, bench: Verifier, folder: RunFolder
) -> tuple[Member, tuple[LayerCost, ...]]:
    genotype = candidate.genotype
    finished = bench.finished(genotype)
    network, lowered = finished.network, finished.lowered
    trained = TrainedNetwork(lowered, weights_of(network, lowered), finished.int8)
    files = bench.artefacts.build(trained)
    paths = {
        suffix: folder.write_bytes(f"models/{candidate.id}{suffix}", content)
        for suffix, content in files.items()
    }
    targets, others, found_fp32, task = list[Any](), list[Any](), [], bench.task

    def images() -> Iterator[NDArray[np.float32]]:
        """Yield test images, then those for cascades; keep on the way what is known of them."""
        for batch in bench.test(genotype):
            targets.append(batch[1].numpy())
            found_fp32.append(per_sample(task, network, *batch))
            yield batch[0].numpy()
        for batch in bench.validation(genotype) if task.confidence is not None else ():
            others.append(batch[1].numpy())
            yield batch[0].numpy()

    outputs, cost = bench.artefacts.evaluate(paths, lowered, images())
    n, n_exits = sum(map(len, targets)), len(lowered.exits)
    each = [outputs[:, i] for i in range(n_exits + 1)] if n_exits else [outputs]
    found = task.per_sample(each[-1][:n], np.concatenate(targets))
    dtype = lowered.dtype or bench.dtype
    early: Quantities = {}
    if task.confidence is not None:
        splits = {
            "validation": [heard(task, answers[n:], np.concatenate(others)) for answers in each],
            "test": [heard(task, answers[:n], np.concatenate(targets)) for answers in each],
        }
        _keep(candidate.id, f"{candidate.id}-{dtype}", splits, folder)
        if bench.leaves:
            early = early_exits.expected(cost.figures, cost.segments, splits)
    short = "int8" if dtype == "int8" else "fp32"
    figures = {
        f"{task.metric}_fp32": task.score(np.concatenate(found_fp32)),
        f"{task.metric}_{short}": task.score(found),
        **{name: cost.figures[name] for name in metrics.costs() if name in cost.figures},
        **early,
    }
    digests = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in files.items()}
    details = {**cost.details, **compare_with_float32(trained, paths, bench.artefacts)}
    member = Member(candidate, figures, details, digests, segments=cost.segments)
    return member, cost.layers


def _keep(
    genotype_id: str,
    model: str,
    splits: Mapping[str, Sequence[ExitPredictionRecord]],
    folder: RunFolder,
) -> None:
    """Write what a network answered, and what its exits did if it has any."""
    last = {split: each[-1] for split, each in splits.items()}
    folder.write_bytes(FILES.format(genotype_id), packed(model, last))
    if n_exits := len(splits["test"]) - 1:
        models = [*(f"{model}-exit{i}" for i in range(n_exits)), model]
        folder.write_bytes(EXITS.format(genotype_id), packed_each(models, splits))


def _judge(members: list[Member], budget: Budget, objectives: Sequence[str]) -> list[Member]:
    """Mark the members that leave the budget, and those that a member within it now dominates.

    What is not faster in int8 than in float32 is on no front.
    """
    over = [[n for n, by in budget.violations(m.figures).items() if by > 0] for m in members]
    fitting = [i for i, left in enumerate(over) if not left and not members[i].is_outrun]
    front = ParetoFront[int](maximised(objectives))
    front.add(fitting, [_objectives(members[i], objectives) for i in fitting])
    on, best = {*front.members}, [members[i] for i in front.members]
    near = on | {i for i in fitting if _is_near(members[i], best, objectives)}
    return [
        dataclasses.replace(
            member, over_budget=tuple(over[i]), on_front=i in on, near_front=i in near
        )
        for i, member in enumerate(members)
    ]


def _is_near(member: Member, front: Sequence[Member], objectives: Sequence[str]) -> bool:
    """Say whether no member of the front dominates one by more than chance may have done.

    That is the 95 % interval of the difference of two shares, from the intervals of both: method
    10 of Newcombe, "Interval estimation for the difference between independent proportions",
    Statistics in Medicine 17, 1998. On the same images differences vary less: a safe side.
    """
    known, maximise = column(member.metric), maximised(objectives)

    def is_ahead(other: Member) -> bool:
        below = known.best(member.quality) - member.quality.value
        above = other.quality.value - known.binding(other.quality)
        raised = math.copysign(math.hypot(below, above), 1 if known.maximise else -1)
        mine, theirs = _objectives(member, objectives, raised), _objectives(other, objectives)
        return bool(no_worse(np.array(theirs), np.array(mine), maximise))

    return not any(map(is_ahead, front))


def _objectives(member: Member, objectives: Sequence[str], raised: float = 0.0) -> list[float]:
    figures = member.all_figures
    values = {name: figures[name].value for name in objectives}
    if member.metric in values:
        values[member.metric] += raised
    return list(values.values())
