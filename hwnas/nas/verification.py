"""Verification: each network is compiled, and the compiled file is run on the test split."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas import tasks
from hwnas.core.errors import CollapseError, CompileError, DeviceCrashError, short_reason
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import RunFolder, damaged_files
from hwnas.hardware.backends.artefact_wrappers import compare_with_float32
from hwnas.hardware.backends.base import Artefacts, TrainedNetwork
from hwnas.hardware.costs.cost_model import LayerCost
from hwnas.models.families.layers import weights_of
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype
from hwnas.nas import early_exits
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front
from hwnas.nas.member import Member
from hwnas.nas.verified_files import file_of_member, member_of_file, read_model
from hwnas.tasks.base import Outputs, Targets, Task
from hwnas.tasks.metrics import cost_names
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.predictions import (
    EXITS_FILE,
    PREDICTIONS_FILE,
    Predictions,
    pack_exit_predictions,
    pack_predictions,
    score_outputs,
)
from hwnas.training.data import ImageBatch
from hwnas.training.inference import per_sample


@dataclass(frozen=True)
class Verifier:
    """Functions and data that verification needs to compile and test a genotype."""

    #: returns the network with its final weights
    finetuned: Callable[[Genotype], DeployableNetwork]
    #: returns normalised test images and their targets, at the genotype's resolution, in batches
    test: Callable[[Genotype], Iterable[ImageBatch]]
    artefacts: Artefacts  #: compiles networks and runs the compiled files
    #: the same for the validation split, used for cascades and early exits
    validation: Callable[[Genotype], Iterable[ImageBatch]]
    task: Task
    dtype: str  #: number format of compiled files, if the space does not determine it
    #: returns a text that identifies the final weights of a network
    weights: Callable[[Genotype], str] = lambda genotype: ""
    phase: str = "Verify front"  #: title of the progress bar
    leaves: bool = False  #: whether expected costs with early exits are computed, too


#: Errors of one network that do not concern others.
NETWORK_ERRORS = (CompileError, CollapseError, DeviceCrashError)


def verify(
    candidates: Sequence[Candidate],
    verifier: Verifier,
    budget: Budget,
    objectives: Sequence[str],
    folder: RunFolder,
    progress: Progress,
) -> Front:
    """Compile candidates, test the compiled files and return the verified front.

    Compiled files, predictions and ``ID.json`` of each network are stored in ``folder / "models"``.
    Results of an earlier call are reused if the weights are the same: a resumed search may
    fine-tune with another teacher. ``NETWORK_ERRORS`` become the front's ``failed``; these networks
    are tried again in the next call.
    """
    members, failed = list[Member](), dict[str, str]()
    with progress.phase(verifier.phase, len(candidates)) as advance:
        for candidate in candidates:
            try:
                member = _verify_once(candidate, verifier, folder)
                over = [n for n, excess in budget.violations(member.figures).items() if excess > 0]
                members.append(dataclasses.replace(member, over_budget=tuple(over)))
            except NETWORK_ERRORS as error:
                failed[candidate.id] = short_reason(error)
            advance(1)
    return Front(objectives, members, failed).with_on_front()


def _verify_once(candidate: Candidate, verifier: Verifier, folder: RunFolder) -> Member:
    content, weights = read_model(folder.path, candidate.id), verifier.weights(candidate.genotype)
    name = f"models/{candidate.id}"
    if content is not None and content.get("weights", weights) == weights:
        recorded = {f"{name}{suffix}": digest for suffix, digest in content["files"].items()}
        if not damaged_files(folder.path, recorded):
            return member_of_file(candidate, content)
    name += ".json"
    (folder.path / name).unlink(missing_ok=True)  # of other weights; the new one is written last
    member, layers = _verify(candidate, verifier, folder)
    content = file_of_member(member, weights, map(dataclasses.asdict, layers))
    folder.write_json(name, content)
    return member


def _verify(
    candidate: Candidate, verifier: Verifier, folder: RunFolder
) -> tuple[Member, tuple[LayerCost, ...]]:
    genotype = candidate.genotype
    finetuned = verifier.finetuned(genotype)
    network, graph = finetuned.network, finetuned.graph
    trained = TrainedNetwork(graph, weights_of(network, graph), finetuned.int8)
    files = verifier.artefacts.build(trained)
    paths = {
        suffix: folder.write_bytes(f"models/{candidate.id}{suffix}", content)
        for suffix, content in files.items()
    }
    targets, others = list[Any](), list[Any]()  # of the test and the validation split
    in_fp32, task = [], verifier.task

    def images() -> Iterator[NDArray[np.float32]]:
        """Yield test images, then validation images for cascades; collect targets and results."""
        for batch in verifier.test(genotype):
            targets.append(batch[1].numpy())
            in_fp32.append(per_sample(task, network, *batch))
            yield batch[0].numpy()
        for batch in verifier.validation(genotype) if task.confidence is not None else ():
            others.append(batch[1].numpy())
            yield batch[0].numpy()

    outputs, cost = verifier.artefacts.evaluate(paths, graph, images())
    outputs = outputs.reshape(len(outputs), len(graph.outputs), -1)
    n, truth = sum(map(len, targets)), np.concatenate(targets)
    answers = outputs[:n, -1]
    dtype = graph.dtype or verifier.dtype
    expected: Quantities = {}
    if task.confidence is not None:
        splits = {
            "validation": score_outputs(task, outputs[n:], np.concatenate(others)),
            "test": score_outputs(task, outputs[:n], truth),
        }
        _write_predictions(candidate.id, f"{candidate.id}-{dtype}", splits, folder)
        if verifier.leaves:
            expected = early_exits.expected(cost.figures, cost.segments, splits)
    short = "int8" if dtype == "int8" else "fp32"
    figures = {
        f"{task.metric}_fp32": task.score(np.concatenate(in_fp32)),
        f"{task.metric}_{short}": task.score(task.per_sample(answers, truth)),
        **_other_metrics(task, answers, truth),
        **{name: cost.figures[name] for name in cost_names() if name in cost.figures},
        **expected,
    }
    digests = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in files.items()}
    details = {**cost.details, **compare_with_float32(trained, paths, verifier.artefacts)}
    confusion = task.confusion(answers, truth)
    member = Member(
        candidate, figures, details, digests, segments=cost.segments, confusion=confusion
    )
    return member, cost.layers


def _other_metrics(task: Task, outputs: Outputs, targets: Targets) -> dict[str, Quantity]:
    """Return the metrics of the task that are no objective."""
    names = [name for name in tasks.get(task.name).metrics if name != task.metric]
    others = {name: task.with_metric(name) for name in names}
    return {name: t.score(t.per_sample(outputs, targets)) for name, t in others.items()}


def _write_predictions(
    genotype_id: str,
    model: str,
    splits: Mapping[str, Sequence[Predictions]],
    folder: RunFolder,
) -> None:
    """Write the predictions of a network, and of its exits if it has any."""
    last = {split: predictions[-1] for split, predictions in splits.items()}
    folder.write_bytes(PREDICTIONS_FILE.format(genotype_id), pack_predictions(model, last))
    if n_exits := len(splits["test"]) - 1:
        models = [*(f"{model}-exit{i}" for i in range(n_exits)), model]
        folder.write_bytes(EXITS_FILE.format(genotype_id), pack_exit_predictions(models, splits))
