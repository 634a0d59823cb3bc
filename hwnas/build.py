"""Composition root: from a configuration to the objects that a verb needs."""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from hwnas import __version__, families, space
from hwnas.accuracy.supernet import SupernetEvaluator
from hwnas.config import SearchConfig
from hwnas.cost.vela import VelaCostModel, compile_tflite
from hwnas.families.base import Family
from hwnas.figure import Figure
from hwnas.op import Lowered
from hwnas.progress import Progress
from hwnas.results import RunFolder
from hwnas.search.verify import Workbench
from hwnas.space import Genotype, SearchSpace
from hwnas.training import loop
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.data import ImageData, load

#: Packages whose version decides the outcome of a run, beside torch's, which decides the supernet.
DECISIVE = ("hwnas", "optuna", "ethos-u-vela", "ai-edge-litert")


@dataclass(frozen=True)
class Parts:
    """What a search is made of, before any weight is trained."""

    config: SearchConfig
    space: SearchSpace
    family: Family
    data: ImageData

    def lower(self, genotype: Genotype) -> Lowered:
        """Return the operators of a genotype."""
        return self.family.lower(self.space, genotype, self.data.task)

    def resolution(self, genotype: Genotype) -> int:
        """Return the height and width of the images that a genotype reads."""
        return self.family.resolution(self.space, genotype)

    def cost_model(self) -> VelaCostModel:
        """Return the model of the target's costs."""
        return VelaCostModel(self.config.target, self.lower)

    def digests(self) -> dict[str, str]:
        """Return a digest of everything that decides the outcome, by name."""
        c = self.config
        return {
            "search_space": self.space.digest,
            "data": self.data.digest,
            "augmentation": _digest([c.dataset.flip, c.dataset.shift]),
            "target": _digest([asdict(c.target), _text(c.target.vela.config)]),
            "budget": _digest(asdict(c.budget)),
            "objectives": _digest(c.objectives),
            "sampler": _digest(asdict(c.sampler)),
            "training": _digest(asdict(c.training)),
            "scoring": _digest(asdict(c.scoring)),
            "seed": _digest(c.seed),
            "versions": _digest([importlib.metadata.version(name) for name in DECISIVE]),
            "supernet": self.checkpoint().path.parent.name,
        }

    def checkpoint(self) -> Checkpoint:
        """Return where the supernet of this space, data, training and seed is kept."""
        c = self.config
        what = [self.space.digest, self.data.search_digest, c.seed, torch.__version__, __version__]
        key = _digest([*what, c.dataset.flip, c.dataset.shift, asdict(c.training)])
        return Checkpoint(Path(self.config.run.supernets, key, "supernet.safetensors"))


def parts(config: SearchConfig, progress: Progress) -> Parts:
    """Read the search space and the data."""
    found = space.load(space.find(config.search_space))
    family = families.get(found.family)
    family.check(found)
    resolution = family.resolution(found, found.largest())
    return Parts(config, found, family, load(config.dataset, resolution, progress))


@final
class TrainedOnDemand:
    """An evaluator that trains its supernet, or loads it, when the first accuracy is asked for.

    A budget that nothing meets is then found out without any training.
    """

    def __init__(self, train: Callable[[], SupernetEvaluator]):
        self._train = train
        self._evaluator: SupernetEvaluator | None = None

    @property
    def evaluator(self) -> SupernetEvaluator:
        """The evaluator behind."""
        if self._evaluator is None:
            self._evaluator = self._train()
        return self._evaluator

    def accuracy(self, genotype: Genotype) -> Figure:
        """Return the accuracy on the validation split, with its interval."""
        return self.evaluator.accuracy(genotype)


def trained_evaluator(parts: Parts, progress: Progress) -> SupernetEvaluator:
    """Return an evaluator on the trained supernet; trains what is not trained yet."""
    config = parts.config
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        supernet = parts.family.supernet(parts.space, parts.data.task)
    checkpoint = parts.checkpoint()
    with contextlib.ExitStack() as stack:
        if checkpoint.n_steps() < loop.n_steps(config.training, len(parts.data.train)):
            folder = RunFolder(checkpoint.path.parent)
            folder.create()  # locked: one process at a time trains a supernet
            stack.callback(folder.close)
        loop.train(
            loop.Trainee(supernet, parts.space, parts.resolution),
            loop.Material(parts.data, config.dataset),
            config.training,
            config.seed,
            loop.Saving(checkpoint),
            progress,
        )
    supernet.module.eval()
    return SupernetEvaluator(supernet, parts.family, parts.space, parts.data, config.scoring)


def workbench(parts: Parts, evaluator: SupernetEvaluator) -> Workbench:
    """Return what verification needs; the only place that hands out the test split."""
    data = parts.data
    return Workbench(
        network=evaluator.network,
        lower=parts.lower,
        calibration_images=evaluator.calibration_images,
        test_images=lambda genotype: data.prepare(data.test.images, parts.resolution(genotype)),
        test=data.test,
        compile=lambda tflite, lowered: compile_tflite(tflite, lowered, parts.config.target),
    )


def _text(path: str) -> str:
    """Return the content of the user's own Vela configuration; Vela's come with its version."""
    return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else ""


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
