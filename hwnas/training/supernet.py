"""Composition root of training: from a configuration to a trained supernet."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from hwnas import tasks
from hwnas.core import files
from hwnas.core.errors import RunError
from hwnas.core.options import digest
from hwnas.core.package import __version__
from hwnas.core.progress import NullProgress, Progress
from hwnas.models import families, spaces
from hwnas.models.families import annotations, early_exits, layers, weight_compression
from hwnas.models.families import annotations as running
from hwnas.models.families.base import Family, Supernet
from hwnas.models.families.elastic_layers import Rounding
from hwnas.models.graph import Graph
from hwnas.models.int8 import weight_grids
from hwnas.models.int8.weight_grids import WeightGrids, grids, quantise_weights_
from hwnas.models.spaces import Genotype, SearchSpace, Space
from hwnas.models.spaces.union import joined
from hwnas.training import loop, precision
from hwnas.training.batches import TrainingData
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import DatasetConfig, ImageData, load_data, some
from hwnas.training.evaluation.scoring_options import ScoringConfig
from hwnas.training.evaluation.shared_weights import SupernetEvaluator
from hwnas.training.inference import per_sample, recalibrate
from hwnas.training.initial_weights import initialise
from hwnas.training.loop import (
    CheckpointPolicy,
    LogRow,
    TrainingJobSpec,
    TrainingLog,
    TrainingSummary,
)
from hwnas.training.options import TrainingConfig, by_descent
from hwnas.training.parallel import train_once
from hwnas.training.sandwich import Sandwich
from hwnas.training.single_network import StudentNetwork, train_network

_GLANCE = 2000  # validation images that a log's figures are read from
_GLANCE_CALIBRATION = 512


def read_space_and_data(
    names: Sequence[str],
    dataset: DatasetConfig,
    progress: Progress,
    numbers: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> tuple[Space, dict[str, Family], ImageData]:
    """Return what is searched, the family of each space by its name, and the data.

    Args:
        names: Names or paths of the search spaces.
        dataset: Which data; they are read at the largest resolution of any of the spaces.
        progress: Is told of what takes time.
        numbers: What networks choose from how they run, by key: see ``families.running``.
    """
    loaded = [spaces.load_space(spaces.find(name)) for name in names]
    found = joined([running.chosen_of(each, numbers) for each in loaded])
    by_name, resolutions = dict[str, Family](), []
    for member in found.members:
        by_name[member.name] = families.family_of(member)
        resolutions.append(by_name[member.name].resolution(member, member.largest()))
    return found, by_name, load_data(dataset, max(resolutions), progress)


@dataclass(frozen=True)
class TrainingSetup:
    """The training of a supernet: all that decides its weights, and where they are kept."""

    space: SearchSpace
    family: Family
    data: ImageData
    dataset: DatasetConfig
    train: TrainingConfig
    seed: int
    supernets: Path = Path("runs", "supernets")

    @property
    def material(self) -> TrainingData:
        """What is trained on."""
        return TrainingData(self.data, self.dataset)

    def resolution(self, genotype: Genotype) -> int:
        """Return the height and width of the images that a genotype reads."""
        return self.family.resolution(self.space, genotype)

    def graph(self, genotype: Genotype) -> Graph:
        """Return the operators of a genotype."""
        return annotations.lower(self.family, self.space, genotype, self.data.signature)

    def dtype(self, genotype: Genotype) -> str:
        """Return the number format that the network of a genotype is trained in."""
        device = loop.device(self.train).type
        return precision.choose_precision(self.train.dtype, self.graph(genotype), device)

    def build(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, freshly initialised from the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return layers.build(self.family, self.space, genotype, self.data.signature)

    def grids(self, network: nn.Module, genotype: Genotype) -> WeightGrids:
        """Return what the weights of the plain network of a genotype lie on."""
        return grids(network, self.graph(genotype)) if weight_compression.names(self.space) else {}

    def rounding(self, supernet: Supernet, genotype: Genotype) -> Rounding:
        """Return what shared weights are rounded to where they compute a genotype."""
        if not weight_compression.names(self.space):
            return {}
        return weight_grids.rounding(supernet, genotype, self.graph(genotype))

    def checkpoint(self) -> Checkpoint:
        """Return where the supernet of this space, data, training and seed is kept."""
        # Shared weights of earlier versions never saw their grids.
        what = self.of | (
            {"packed weights": "trained"} if weight_compression.names(self.space) else {}
        )
        path = Path(self.supernets, digest(what), "supernet.safetensors")
        return Checkpoint(path, what)

    @property
    def of(self) -> dict[str, Any]:
        """Return what decides the weights, by the names that messages use."""
        signature, task = self.data.signature, self.data.task
        options = self.train.decisive(by_descent(self.family.recipe))
        bare, outputs = annotations.weight_relevant_space(self.space), task.words.outputs
        brought = "".join(f", {word}" for word in tasks.brought(task.name))
        return {
            "family": self.space.family,
            "search space": f"{bare.name} ({bare.digest})",
            "task": f"{signature.in_channels} channels, {outputs}{brought}",
            "data": f"{self.data.name} ({self.data.search_digest})",
            "augmentation": self.dataset.augmentation,
            "seed": self.seed,
            "version": [torch.__version__, __version__, *families.origin(self.space.family)],
            "train.init_from": _content(self.train.init_from),
            **{f"train.{name}": value for name, value in options.items()},
        }

    def untrained(self) -> Supernet:
        """Return the supernet as its training begins.

        Raises:
            SpaceError: the space has exits.
            RunError: ``train.init_from`` cannot be read, or is of another network.
        """
        return self._begun()[0]

    def _begun(self) -> tuple[Supernet, Sequence[str]]:
        """Return the supernet as its training begins, and what ``train.init_from`` left random."""
        early_exits.check_none(self.space)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            supernet = self.family.supernet(self.space, self.data.signature)
        given = self.train.init_from
        return supernet, initialise(supernet.module, self.space, Path(given)) if given else ()

    def check(self) -> None:
        """Refuse what could not be trained, before anything is written.

        Raises:
            RunError: ``train.init_from`` cannot be read, is of another network, or has no
                classifier for these data where none is trained.
            ConfigError: the images do not fill a batch, or there is no such device.
        """
        loop.check_training(self.train, len(self.data.train))
        if self.train.init_from and self._begun()[1] and not self.train.epochs:
            raise RunError(
                f"train.init_from={self.train.init_from} has a classifier of another number of "
                "outputs, and with train.epochs=0 none is trained: say train.epochs=1 or more."
            )

    def trained(
        self, progress: Progress, log: TrainingLog | None = None
    ) -> tuple[Supernet, TrainingSummary]:
        """Return the trained supernet; trains what is not trained yet.

        Where another process trains it, wait for that.
        """
        loop.check_training(self.train, len(self.data.train))
        supernet, checkpoint = self.untrained(), self.checkpoint()
        rounding = partial(self.rounding, supernet)
        dtype = self.dtype(self.space.largest())
        bare = annotations.weight_relevant_space(
            self.space
        )  # what else is drawn would draw other subnets
        sandwich = Sandwich(supernet, bare, self.resolution, self.train, rounding, dtype)
        trainee = TrainingJobSpec(
            supernet.module,
            sandwich,
            by_descent(self.family.recipe),
            measure=lambda: _glance(self, supernet),
        )
        total = loop.n_steps(self.train, len(self.data.train))
        with train_once(checkpoint, total, progress):
            saving = CheckpointPolicy(checkpoint, log=log)
            summary = loop.train(trainee, self.material, self.train, self.seed, saving, progress)
        supernet.module.eval()
        return supernet, summary

    def network_checkpoint(
        self, genotype: Genotype, start: str, first_epoch: int = 0
    ) -> Checkpoint:
        """Return where one network is kept.

        Args:
            genotype: Of the network.
            start: What else decides its weights, beside what decides the supernet's.
            first_epoch: The number of the first one of its last training.
        """
        what = self.of | {
            "genotype": annotations.weight_relevant_genotype(genotype).id,
            "start": start,
        }
        if first_epoch:
            what["first epoch"] = first_epoch
        recipe = self.train.recipe(self.family.recipe)
        if recipe != self.train.recipe(by_descent(self.family.recipe)):
            what["recipe"] = asdict(recipe)
        return Checkpoint(Path(self.supernets, digest(what), "network.safetensors"), what)

    def train_single(
        self,
        student: StudentNetwork,
        options: TrainingConfig,
        checkpoint: Checkpoint,
        progress: Progress,
        log: TrainingLog | None = None,
    ) -> TrainingSummary:
        """Train one network alone, in place, going on from its checkpoint.

        Where another process trains it, wait for that. What is trained already shows no bar.
        """
        total = loop.n_steps(options, len(self.data.train))
        progress = progress if checkpoint.n_steps() < total else NullProgress()
        with train_once(checkpoint, total, progress):
            saving = CheckpointPolicy(checkpoint, log=log)
            return train_network(student, self.material, options, self.seed, saving, progress)

    def evaluator(self, supernet: Supernet, scoring: ScoringConfig) -> SupernetEvaluator:
        """Return what scores subnets."""
        return SupernetEvaluator(supernet, self.family, self.space, self.data, scoring)

    def quick_validation(self, network: nn.Module, genotype: Genotype) -> float:
        """Return the metric of a network, which is spent by it, on a part of validation."""
        resolution = self.resolution(genotype)
        quantise_weights_(network, self.grids(network, genotype))
        images = some(self.data.train, _GLANCE_CALIBRATION).images
        recalibrate(network.cpu(), self.data.prepare(images, resolution))
        part = some(self.data.validation, _GLANCE)
        prepared = self.data.prepare(part.images, resolution)
        return float(per_sample(self.data.task, network, prepared, part.targets).mean())


def _glance(setup: TrainingSetup, supernet: Supernet) -> LogRow:
    """Return the metric of both ends on a part of the validation split."""
    ends = {"smallest": setup.space.smallest(), "largest": setup.space.largest()}
    return {
        f"{setup.data.task.metric}_{name}": setup.quick_validation(
            supernet.extract(genotype), genotype
        )
        for name, genotype in ends.items()
    }


@dataclass(frozen=True)
class SupernetTraining:
    """How supernets are trained, whatever their space."""

    dataset: DatasetConfig
    train: TrainingConfig
    seed: int
    supernets: Path

    def setups(
        self, space: Space, families: Mapping[str, Family], data: ImageData
    ) -> dict[str, TrainingSetup]:
        """Return the training of the supernet of each space, by the name of the space."""
        return {
            member.name: TrainingSetup(
                member, families[member.name], data,
                self.dataset, self.train, self.seed, self.supernets,
            )
            for member in space.members
        }  # fmt: skip


def _content(path: str | None) -> str | None:
    """Return a digest of a file; ``None`` where none is named or there is none."""
    return files.file_digest(Path(path))[:16] if path is not None and Path(path).is_file() else None
