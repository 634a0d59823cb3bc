"""Checks the artefacts of an export against torch, the test split and the budget; needs torch."""

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
    """Data, devices and limits with which an export is checked."""

    data: ImageData
    artefacts: Artefacts  #: runs the artefact of the target, and returns its costs
    #: process for artefacts for which ``runtimes.needs_worker`` is True; ``None``: there are none
    worker: RetryingPool | None
    limits: Mapping[str, float]  #: limits of the budget, by name of the cost
    max_int8_drop: float  #: allowed loss by int8, in the points of ``MetricLoss``
    images: ReferenceImages  #: images of the export, with the outputs of torch
    #: whether the artefact of the target is compared with torch in the worker, because another
    #: runtime opens it in this process
    in_worker: bool = False


@dataclass(frozen=True)
class ProofEvidence:
    """Results of the checks of an export."""

    metric: str  #: name of the metric, as ``accuracy``
    reference: Quantity  #: the metric of the float32 network in torch on the test split
    #: the metric on the test split of each artefact that runs on this machine
    figures: Mapping[str, Quantity]
    agreements: Mapping[str, Agreement]  #: differences to torch, by artefact that runs here
    not_run: Mapping[str, str]  #: reasons why artefacts do not run on this machine, by name
    cost: Cost  #: costs of the artefact that the target runs
    checks: Sequence[Check]

    @property
    def failed(self) -> list[str]:
        """The names of failed checks, as ``model.onnx.error``; empty if all passed."""
        return [check.name for check in self.checks if not check.holds]

    def artefacts(self) -> dict[str, Row]:
        """Return the results of each artefact as in ``proof.json``, by name.

        Artefacts that do not run on this machine have the reason (``not_run``) instead of results.
        """
        rows: dict[str, Row] = {}
        kinds = runtimes.kinds()
        for name in [*self.agreements, *self.not_run]:
            kind = kinds[name]
            rows[name] = {"runtime": kind.runtime, "dtype": kind.dtype}
            rows[name]["files"] = list(kind.files.values())
            if name in self.not_run:
                rows[name]["not_run"] = self.not_run[name]
                continue
            rows[name]["agreement"] = asdict(self.agreements[name])
            rows[name][self.metric] = self.figures[name].to_json()
        return {name: rows[name] for name in kinds if name in rows}


def choose_images(finished: DeployableNetwork, data: ImageData) -> ReferenceImages:
    """Return at most 256 images for an export, evenly spaced in the test split.

    They have the outputs of the float32 network in torch and, after int8 training, those of its
    simulation of int8.
    """
    resolution = finished.graph[0].op.in_shape[1]
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
    sessions: Mapping[str, Session], reference: ReferenceImages, data: ImageData
) -> dict[str, Agreement]:
    """Return the difference of each artefact to torch on the images of the export, by name.

    Args:
        sessions: Loaded artefacts by name, a key of ``runtimes.kinds``.
        reference: Images of the export.
        data: The data set, whose normalisation is applied to the images.
    """
    images = prepared(reference.pixels, list(data.mean), list(data.std))
    return {
        name: reference.agreement(data.task, session.run(images), runtimes.kinds()[name].dtype)
        for name, session in sessions.items()
    }


def prove(
    folder: Path,
    names: Sequence[str],
    own: str,
    finished: DeployableNetwork,
    bench: Prover,
) -> ProofEvidence:
    """Run the artefacts of an export, and return the results of all checks.

    A failed check raises no error.

    Args:
        folder: The export.
        names: Names of its artefacts, keys of ``runtimes.kinds``.
        own: Name of the artefact that the target runs.
        finished: The network.
        bench: Data, devices and limits.

    Raises:
        CompileError: the runtime of an artefact cannot load it.
    """
    data, lowered = bench.data, finished.graph
    not_run = {name: why for name in names if (why := runtimes.unavailable_reason(name))}
    runnable = [name for name in names if name not in not_run]
    sessions = {name: runtimes.session(folder, name, bench.worker) for name in runnable}
    if bench.in_worker and bench.worker is not None:
        sessions[own] = runtimes.WorkerSession(runtimes.paths(folder, own), bench.worker)
    near = agreements(sessions, bench.images, data)
    others = {name: session for name, session in sessions.items() if name != own}
    resolution = lowered[0].op.in_shape[1]

    def test() -> Iterable[ImageBatch]:
        return data.batches(data.test, resolution, rounded=True)

    reading = TestSplitPass(data.task, finished.network, others, test)
    judge = bench.artefacts.evaluate
    outputs, cost = judge(runtimes.paths(folder, own), lowered, reading.images())
    task, kinds = data.task, runtimes.kinds()
    results = {name: np.concatenate(parts) for name, parts in reading.results.items()}
    results[own] = task.per_sample(outputs, np.concatenate(reading.targets))
    reference = results.pop("torch")
    checks = [near[name].check(name, kinds[name].dtype) for name in runnable]
    checks += [
        drop(task, name, results[name], reference, bench.max_int8_drop)
        for name in runnable
        if kinds[name].dtype == "int8"
    ]
    checks += within_budget(bench.limits, cost.figures)
    trained = TrainedNetwork(lowered, weights_of(finished.network, lowered), finished.int8)
    beside = compare_with_float32(trained, runtimes.paths(folder, own), bench.artefacts)
    checks += faster_than_float(beside)
    cost = replace(cost, details={**cost.details, **beside})
    figures = {name: task.score(results[name]) for name in runnable}
    return ProofEvidence(task.metric, task.score(reference), figures, near, not_run, cost, checks)


class TestSplitPass:
    """One pass over the test split that runs torch and all artefacts but the target's.

    ``targets`` and ``results`` are filled while ``images`` is read.
    """

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
        #: per-image results by artefact; ``torch``: the network
        self.results: dict[str, list[PerImageResults]] = {name: [] for name in ("torch", *sessions)}

    def images(self) -> Iterator[Floats]:
        """Yield batches of normalised test images ``(N, C, R, R)``.

        The targets of each batch are appended to ``targets``, the per-image results to ``results``.
        """
        for batch in self._batches():
            images, targets = batch[0].numpy(), batch[1].numpy()
            self.targets.append(targets)
            self.results["torch"].append(per_sample(self._task, self._network, *batch))
            for name, session in self._sessions.items():
                self.results[name].append(self._task.per_sample(session.run(images), targets))
            yield images
