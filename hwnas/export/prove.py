"""Runs the artefacts of an export against torch, the test split and the budget; needs torch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hwnas.core.quantity import Quantity
from hwnas.export import runtimes
from hwnas.export.artefacts import pixels_of
from hwnas.export.checks import (
    N_IMAGES,
    Agreement,
    Check,
    Floats,
    Row,
    drop,
    faster_than_float,
    within_budget,
)
from hwnas.export.reference_images import ReferenceImages, prepared
from hwnas.hardware.backends.artefact_wrappers import compare_with_float32
from hwnas.hardware.backends.base import Artefacts, TrainedNetwork
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.models.families.layers import weights_of
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.tasks.base import PerImageResults, Targets, Task
from hwnas.training.data import ImageBatch, ImageData
from hwnas.training.inference import per_sample


@dataclass(frozen=True)
class Prover:
    """What the artefacts of an export are judged with."""

    data: ImageData
    artefacts: Artefacts  #: of the target: what runs and costs its own artefact
    worker: RetryingPool | None  #: what runs artefacts that no other process does
    limits: Mapping[str, float]  #: the budget
    max_int8_drop: float  #: points that int8 may lose
    kept: ReferenceImages  #: the images that the export holds
    #: whether the target's own artefact is compared with torch as the target runs it, because this
    #: machine, where it is merely opened, runs it otherwise
    in_worker: bool = False


@dataclass(frozen=True)
class ProofEvidence:
    """What was found."""

    metric: str
    reference: Quantity  #: of torch on the test split
    figures: Mapping[str, Quantity]  #: of each artefact that runs here, on the test split
    agreements: Mapping[str, Agreement]
    not_run: Mapping[str, str]  #: why others do not
    cost: Cost
    checks: Sequence[Check]

    @property
    def failed(self) -> list[str]:
        """The names of what does not hold."""
        return [check.name for check in self.checks if not check.holds]

    def artefacts(self) -> dict[str, Row]:
        """Return what was found of each artefact, as JSON."""
        found: dict[str, Row] = {}
        kinds = runtimes.kinds()
        for name in [*self.agreements, *self.not_run]:
            kind = kinds[name]
            found[name] = {"runtime": kind.runtime, "dtype": kind.dtype}
            found[name]["files"] = list(kind.files.values())
            if name in self.not_run:
                found[name]["not_run"] = self.not_run[name]
                continue
            found[name]["agreement"] = asdict(self.agreements[name])
            found[name][self.metric] = self.figures[name].to_json()
        return {name: found[name] for name in kinds if name in found}


def kept_images(finished: DeployableNetwork, data: ImageData) -> ReferenceImages:
    """Return the test images that an export holds, evenly over the split, with torch's outputs."""
    resolution = finished.lowered[0].op.in_shape[1]
    n = min(N_IMAGES, len(data.test))
    index = torch.linspace(0, len(data.test) - 1, n).round().long()
    part = data.test.take(index)
    pixels = pixels_of(part.images, resolution)
    images = torch.from_numpy(prepared(pixels, list(data.mean), list(data.std)))
    with torch.inference_mode():
        expected = finished.network(images).numpy()
        trained = finished.simulated and finished.simulated(images).numpy()
    return ReferenceImages(pixels, part.targets.numpy(), expected, trained)


def agreements(
    sessions: Mapping[str, Session], kept: ReferenceImages, data: ImageData
) -> dict[str, Agreement]:
    """Return how near each artefact is to torch on the images that the export holds."""
    images = prepared(kept.pixels, list(data.mean), list(data.std))
    return {
        name: kept.agreement(data.task, session.run(images), runtimes.kinds()[name].dtype)
        for name, session in sessions.items()
    }


def prove(
    folder: Path,
    names: Sequence[str],
    own: str,
    finished: DeployableNetwork,
    bench: Prover,
) -> ProofEvidence:
    """Return what the artefacts of a folder show.

    Args:
        folder: Of the export.
        names: Its artefacts.
        own: The one that the target's figures are of.
        finished: The network that they were made of.
        bench: What they are judged with.
    """
    data, lowered = bench.data, finished.lowered
    not_run = {name: why for name in names if (why := runtimes.hindrance(name))}
    runnable = [name for name in names if name not in not_run]
    sessions = {name: runtimes.session(folder, name, bench.worker) for name in runnable}
    if bench.in_worker and bench.worker is not None:
        sessions[own] = runtimes.WorkerSession(runtimes.paths(folder, own), bench.worker)
    near = agreements(sessions, bench.kept, data)
    others = {name: session for name, session in sessions.items() if name != own}
    resolution = lowered[0].op.in_shape[1]

    def test() -> Iterable[ImageBatch]:
        return data.batches(data.test, resolution, rounded=True)

    reading = TestSplitPass(data.task, finished.network, others, test)
    judge = bench.artefacts.evaluate
    outputs, cost = judge(runtimes.paths(folder, own), lowered, reading.images())
    task, kinds = data.task, runtimes.kinds()
    found = {name: np.concatenate(parts) for name, parts in reading.found.items()}
    found[own] = task.per_sample(outputs, np.concatenate(reading.targets))
    reference = found.pop("torch")
    checks = [near[name].check(name, kinds[name].dtype) for name in runnable]
    checks += [
        drop(task, name, found[name], reference, bench.max_int8_drop)
        for name in runnable
        if kinds[name].dtype == "int8"
    ]
    checks += within_budget(bench.limits, cost.figures)
    trained = TrainedNetwork(lowered, weights_of(finished.network, lowered), finished.int8)
    beside = compare_with_float32(trained, runtimes.paths(folder, own), bench.artefacts)
    checks += faster_than_float(beside)
    cost = replace(cost, details={**cost.details, **beside})
    figures = {name: task.score(found[name]) for name in runnable}
    return ProofEvidence(task.metric, task.score(reference), figures, near, not_run, cost, checks)


class TestSplitPass:
    """One pass over the test split, in which everything but one artefact is run on the way."""

    def __init__(
        self,
        task: Task,
        network: nn.Module,
        sessions: Mapping[str, Session],
        batches: Callable[[], Iterable[ImageBatch]],
    ):
        self._task, self._network = task, network
        self._sessions, self._batches = sessions, batches
        self.targets: list[Targets] = []
        #: what the task found of each image; the network is ``torch``
        self.found: dict[str, list[PerImageResults]] = {name: [] for name in ("torch", *sessions)}

    def images(self) -> Iterator[Floats]:
        """Yield the test images, keeping on the way what is known of them."""
        for batch in self._batches():
            images, targets = batch[0].numpy(), batch[1].numpy()
            self.targets.append(targets)
            self.found["torch"].append(per_sample(self._task, self._network, *batch))
            for name, session in self._sessions.items():
                self.found[name].append(self._task.per_sample(session.run(images), targets))
            yield images
