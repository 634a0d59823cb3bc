"""Training setups: search space, data and options, and the trainings that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hwnas import tasks
from hwnas.core import files
from hwnas.core.errors import RunError
from hwnas.core.options import digest
from hwnas.core.package import __version__
from hwnas.core.progress import NullProgress, Progress
from hwnas.models import families, spaces
from hwnas.models.families import annotations, early_exits, layers
from hwnas.models.families.base import Family, Supernet
from hwnas.models.graph import Graph
from hwnas.models.int8 import weight_grids
from hwnas.models.int8.weight_grids import WeightGrids, quantise_weights_, weight_grids_of
from hwnas.models.spaces import Genotype, SearchSpace, Space
from hwnas.models.spaces.union import join_spaces
from hwnas.training import inference, loop
from hwnas.training.batches import TrainingData
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import DatasetConfig, ImageData, load_data, sample
from hwnas.training.evaluation.interfaces import ScoringConfig
from hwnas.training.inference import per_sample, recalibrate
from hwnas.training.initial_weights import initialise
from hwnas.training.loop import (
    CheckpointPolicy,
    LogRow,
    TrainingJobSpec,
    TrainingLog,
    TrainingSummary,
)
from hwnas.training.options import TrainingConfig, without_muon
from hwnas.training.parallel import train_once
from hwnas.training.single_network import StudentNetwork, train_network

if TYPE_CHECKING:
    from hwnas.models.families.elastic_layers import Rounding
    from hwnas.training.evaluation.shared_weights import SupernetEvaluator

_N_QUICK_VALIDATION = 2000  # validation images for the metrics of a log
_N_QUICK_CALIBRATION = 512


def read_space_and_data(
    names: Sequence[str],
    dataset: DatasetConfig,
    progress: Progress,
    numbers: Mapping[str, Sequence[int]] = MappingProxyType({}),
    data: ImageData | None = None,
) -> tuple[Space, dict[str, Family], ImageData]:
    """Return the search space, the family of each member space by name, and the data.

    Args:
        names: Names or paths of search spaces.
        dataset: Data set options; images are read at the largest resolution of the spaces.
        progress: Progress of loading.
        numbers: Options of the choices ``batch`` and ``threads`` (see ``with_run_choices``).
        data: The data, if another process has read them.

    Raises:
        SpaceError: a search space is not found or invalid.
        ConfigError: an option does not suit the data set.
        DataError: the data set cannot be read.
    """
    loaded = [spaces.load_space(spaces.find(name)) for name in names]
    space = join_spaces(
        [annotations.with_run_choices(loaded_space, numbers) for loaded_space in loaded]
    )
    by_name, resolutions = dict[str, Family](), []
    for member in space.members:
        by_name[member.name] = families.family_of(member)
        resolutions.append(by_name[member.name].resolution(member, member.largest()))
    if data is None:
        data = load_data(dataset, max(resolutions), progress)
    return space, by_name, data


@dataclass(frozen=True)
class TrainingSetup:
    """Everything that determines the weights of a supernet, and the folder of checkpoints."""

    space: SearchSpace
    family: Family
    data: ImageData
    dataset: DatasetConfig
    train: TrainingConfig
    seed: int
    supernets: Path = Path("runs", "supernets")  #: folder of the checkpoints
    in_run: Path | None = None  #: folder in a run with copies of the checkpoints; ``None``: none

    @property
    def material(self) -> TrainingData:
        """Data and their options; the task's loss has the weights of ``train.class_weights``."""
        return TrainingData(self.data.for_training(self.train.class_weights), self.dataset)

    def resolution(self, genotype: Genotype) -> int:
        """Return the input height and width of a genotype, in pixels."""
        return self.family.resolution(self.space, genotype)

    def graph(self, genotype: Genotype) -> Graph:
        """Return the graph of a genotype."""
        return annotations.lower(self.family, self.space, genotype, self.data.signature)

    def dtype(self, genotype: Genotype) -> str:
        """Return the number format in which a genotype is trained: float32 or bfloat16."""
        device = loop.device(self.train).type
        return inference.choose_precision(self.train.dtype, self.graph(genotype), device)

    def build(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, initialised from the seed."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return layers.build(self.family, self.space, genotype, self.data.signature)

    def grids(self, network: nn.Module, genotype: Genotype) -> WeightGrids:
        """Return the grids of weights of fewer than 8 bits or 2:4 sparsity, by parameter name."""
        return weight_grids_of(network, self.graph(genotype))

    def rounding(self, supernet: Supernet, genotype: Genotype) -> "Rounding":
        """Return the rounding of the supernet's weights to a genotype's bits and sparsity."""
        is_packed = annotations.weight_option_names(self.space)
        subnet = (supernet, genotype, self.graph(genotype))
        return weight_grids.subnet_rounding(*subnet) if is_packed else {}

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the supernet."""
        is_packed = annotations.weight_option_names(self.space)
        identity = self.identity | ({"packed weights": "trained"} if is_packed else {})
        return _checkpoint(self, identity, "supernet.safetensors")

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the supernet's weights, by name such as ``train.lr``."""
        signature, task = self.data.signature, self.data.task
        options = self.train.decisive(without_muon(self.family.recipe))
        space, outputs = annotations.weight_relevant_space(self.space), task.description.outputs
        plugins = "".join(f", {name}" for name in tasks.plugin_identity(task.name))
        return {
            "family": self.space.family,
            "search space": f"{space.name} ({space.digest})",
            "task": f"{signature.in_channels} channels, {outputs}{plugins}",
            "data": f"{self.data.name} ({self.data.search_digest})",
            "augmentation": _augmentation(self.dataset, signature.in_channels),
            "seed": self.seed,
            "version": [
                torch.__version__,
                __version__,
                *families.plugin_identity(self.space.family),
            ],
            "train.init_from": _content(self.train.init_from),
            **{f"train.{name}": value for name, value in options.items()},
        }

    def untrained(self) -> Supernet:
        """Return the supernet with its initial weights.

        Raises:
            SpaceError: the space has exits.
            RunError: ``train.init_from`` cannot be read, or is of another network.
        """
        return self._initial_supernet()[0]

    def _initial_supernet(self) -> tuple[Supernet, Sequence[str]]:
        """Return the initial supernet, and the weights that ``train.init_from`` did not set."""
        early_exits.check_no_exits(self.space)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            supernet = self.family.supernet(self.space, self.data.signature)
        if self.train.init_from is None:
            return supernet, ()
        return supernet, initialise(supernet.module, self.space, Path(self.train.init_from))

    def check(self) -> None:
        """Check options before anything is written.

        Raises:
            RunError: ``train.init_from`` cannot be read, is of another network, or has a
                classifier for other data while ``train.epochs=0``.
            ConfigError: options do not suit the data, or the device is not available.
        """
        loop.check_training(self.train, len(self.material.data.train))
        if self.train.init_from and self._initial_supernet()[1] and not self.train.epochs:
            raise RunError(
                f"train.init_from={self.train.init_from} has a classifier with another number of "
                "outputs, which train.epochs=0 does not train. Set train.epochs=1 or more."
            )

    def trained(
        self, progress: Progress, log: TrainingLog | None = None
    ) -> tuple[Supernet, TrainingSummary]:
        """Return the trained supernet, in evaluation mode, and the work done by this call."""
        loop.check_training(self.train, len(self.data.train))
        supernet, checkpoint = self.untrained(), self.checkpoint()
        trainee, total = self._trainee(supernet), loop.n_steps(self.train, len(self.data.train))
        with train_once(checkpoint, total, progress):
            saving = CheckpointPolicy(checkpoint, log=log)
            summary = loop.train(trainee, self.material, self.train, self.seed, saving, progress)
        supernet.module.eval()
        return supernet, summary

    def epoch_s(self) -> float:
        """Return the duration of an epoch of the supernet in seconds, by timing a few steps."""
        trainee, n_images = self._trainee(self.untrained()), len(self.data.train)
        step_s = loop.step_s(trainee, self.material, self.train, self.seed)
        return loop.n_steps(self.train.with_epochs(1), n_images) * step_s

    def _trainee(self, supernet: Supernet) -> TrainingJobSpec:
        from hwnas.training.sandwich import Sandwich  # imported here: single networks do without

        rounding, dtype = partial(self.rounding, supernet), self.dtype(self.space.largest())
        space = annotations.weight_relevant_space(self.space)  # others change what is sampled
        sandwich = Sandwich(supernet, space, self.resolution, self.train, rounding, dtype)
        recipe, measure = without_muon(self.family.recipe), partial(self._validate_ends, supernet)
        return TrainingJobSpec(supernet.module, sandwich, recipe, measure=measure)

    def network_checkpoint(
        self, genotype: Genotype, start: str, first_epoch: int = 0
    ) -> Checkpoint:
        """Return the checkpoint of a single network.

        Args:
            genotype: Genotype of the network.
            start: Everything that determines its weights in addition to ``identity``.
            first_epoch: Index of the first epoch of its last training.
        """
        relevant = annotations.weight_relevant_genotype(genotype)
        identity = self.identity | {"genotype": relevant.id, "start": start}
        if first_epoch:
            identity["first epoch"] = first_epoch
        recipe = self.train.recipe(self.family.recipe)
        if recipe != self.train.recipe(without_muon(self.family.recipe)):
            identity["recipe"] = asdict(recipe)
        return _checkpoint(self, identity, "network.safetensors")

    def train_single(
        self,
        student: StudentNetwork,
        options: TrainingConfig,
        checkpoint: Checkpoint,
        progress: Progress,
        log: TrainingLog | None = None,
    ) -> TrainingSummary:
        """Train a single network in place, resuming from its checkpoint; return the work done.

        Waits if another process trains the same network. There is no progress bar if the
        checkpoint is complete. Errors are those of ``train_network``.
        """
        total = loop.n_steps(options, len(self.data.train))
        progress = progress if checkpoint.n_steps() < total else NullProgress()
        saving = CheckpointPolicy(checkpoint, log=log)
        with train_once(checkpoint, total, progress):
            return train_network(student, self.material, options, self.seed, saving, progress)

    def evaluator(self, supernet: Supernet, scoring: ScoringConfig) -> "SupernetEvaluator":
        """Return the evaluator of subnets."""
        from hwnas.training.evaluation.shared_weights import SupernetEvaluator

        return SupernetEvaluator(supernet, self.family, self.space, self.data, scoring)

    def quick_validation(self, network: nn.Module, genotype: Genotype) -> float:
        """Return the metric on up to 2,000 validation images; the network is quantised in place."""
        resolution = self.resolution(genotype)
        quantise_weights_(network, self.grids(network, genotype))
        calibration = sample(self.data.train, _N_QUICK_CALIBRATION)
        recalibrate(network.cpu(), self.data.prepare(calibration.images, resolution))
        part = sample(self.data.validation, _N_QUICK_VALIDATION)
        task, prepared = self.data.task, self.data.prepare(part.images, resolution)
        return task.score(per_sample(task, network, prepared, part.targets)).value

    def _validate_ends(self, supernet: Supernet) -> LogRow:
        """Return the quick metric of the smallest and the largest subnet."""
        metric = self.data.task.metric
        ends = {"smallest": self.space.smallest(), "largest": self.space.largest()}
        return {
            f"{metric}_{name}": self.quick_validation(supernet.extract(subnet), subnet)
            for name, subnet in ends.items()
        }


def _augmentation(dataset: DatasetConfig, n_channels: int) -> list[Any]:
    """Return the options of augmentation, for digests of trainings.

    Earlier versions filled shifted images with black, which is the border of most grey images.
    """
    is_shifted_colour = dataset.shift > 0 and n_channels > 1
    return [*dataset.augmentation, *["border pixels"] * is_shifted_colour]


def check_supernet_exists(setup: TrainingSetup) -> None:
    """Check that the supernet of a finished search has a checkpoint.

    Raises:
        RunError: it is missing at its path in this version, is damaged, or is of another training.
    """
    checkpoint = setup.checkpoint()
    if setup.train.epochs and not checkpoint.n_steps():
        raise RunError(
            f"The supernet of the search is not at {checkpoint.path}, its place in this version. "
            "Start from the folder in which the search was started, with the same versions and "
            "data."
        )


@dataclass(frozen=True)
class SupernetTraining:
    """Training options that apply to all spaces of a search."""

    dataset: DatasetConfig
    train: TrainingConfig
    seed: int
    supernets: Path  #: folder of the checkpoints
    in_run: Path | None = None  #: folder in a run with copies of the checkpoints; ``None``: none

    def setups(
        self, space: Space, families: Mapping[str, Family], data: ImageData
    ) -> dict[str, TrainingSetup]:
        """Return the training setup of each member space, by name."""
        train = self.train.for_images(len(data.train))
        return {
            member.name: TrainingSetup(
                member, families[member.name], data,
                self.dataset, train, self.seed, self.supernets, self.in_run,
            )
            for member in space.members
        }  # fmt: skip


def _checkpoint(setup: TrainingSetup, identity: Mapping[str, Any], name: str) -> Checkpoint:
    key = digest(identity)
    in_run = None if setup.in_run is None else Path(setup.in_run, key, name)
    return Checkpoint(Path(setup.supernets, key, name), identity, in_run)


def _content(path: str | None) -> str | None:
    """Return a digest of a file; ``None`` if there is no file."""
    return files.file_digest(Path(path))[:16] if path is not None and Path(path).is_file() else None
