"""Evaluation of genotypes with weights inherited from a supernet."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.core.errors import CollapseError, TrainingError
from hwnas.models.families import annotations
from hwnas.models.families.base import Family, Supernet
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph
from hwnas.models.int8.simulation import with_graph_precision
from hwnas.models.int8.weight_grids import quantise_weights_, weight_grids_of
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.tasks.base import Incumbent, Index, PerImageResults, Score
from hwnas.training.data import ImageData, InMemorySplit
from hwnas.training.evaluation.interfaces import ScoringConfig
from hwnas.training.inference import per_sample, recalibrate

_MAX_CACHED_BYTES = 1 << 30  # prepared images of all resolutions


@final
class SupernetEvaluator:
    """Evaluates subnets with the supernet's weights and recalibrated batch norm."""

    def __init__(
        self,
        supernet: Supernet,
        family: Family,
        space: SearchSpace,
        data: ImageData,
        config: ScoringConfig,
    ):
        self._supernet, self._family, self._space, self._data = supernet, family, space, data
        self._confidence = config.confidence
        n = min(config.n_recalibration, len(data.train))
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
        self._calibration = data.train.take(order[:n])
        self._prepared: dict[tuple[str, int], Tensor] = {}

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the metric on the validation split, with its 95 % interval.

        With an incumbent, evaluation stops early once the network is significantly worse, unless
        ``scoring.confidence`` is null. The metric is predicted then.
        """
        resolution = self._family.resolution(self._space, genotype)
        network, task = self._as_run(genotype), self._data.task
        if self._confidence is None:
            results = self._read(network, resolution)
            return Score(task.score(results), len(results))
        if incumbent is None or not all((incumbent.per_image, *incumbent.earlier)):
            return task.score_all(self._read(network, resolution))

        def read(index: Index) -> PerImageResults:
            return self._read(network, resolution, torch.from_numpy(index))

        order = np.random.default_rng(int(genotype.id, 16))
        n = len(self._data.validation)
        return task.score_early(read, n, incumbent, self._confidence, order)

    def _read(
        self, network: nn.Module, resolution: int, index: Tensor | None = None
    ) -> PerImageResults:
        """Return the results of all validation images, or of those at ``index``."""
        split, task = self._data.validation, self._data.task
        if isinstance(split, InMemorySplit) and self._has_room("validation", split, resolution):
            images, targets = self._prepare("validation", split, resolution), split.targets
            if index is not None:
                images, targets = images[index], targets[index]
            return per_sample(task, network, images, targets)
        batches = self._data.batches(split, resolution, index)
        return np.concatenate([per_sample(task, network, *batch) for batch in batches])

    def _has_room(self, name: str, split: InMemorySplit, resolution: int) -> bool:
        """Return whether the prepared images of a split, also of others so far, fit into memory."""
        others = sum(x.nbytes for key, x in self._prepared.items() if key != (name, resolution))
        return others + self._data.n_bytes(len(split), resolution) <= _MAX_CACHED_BYTES

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated, with batch norm folded."""
        return fold_batch_norm(self.extracted(genotype))

    @property
    def next_epoch(self) -> int:
        """0, as subnets are fine-tuned from the first epoch."""
        return 0

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype with recalibrated batch norm, for training.

        Sparse weights and those below 8 bits are rounded.
        """
        network = self._supernet.extract(genotype)
        quantise_weights_(network, weight_grids_of(network, self._graph(genotype)))
        recalibrate(network, self.calibration_images(genotype))
        return network

    def _as_run(self, genotype: Genotype) -> nn.Module:
        images = partial(self.calibration_images, genotype)
        return with_graph_precision(self.network(genotype), self._graph(genotype), images)

    def _graph(self, genotype: Genotype) -> Graph:
        return annotations.lower(self._family, self._space, genotype, self._data.signature)

    def origin(self, genotype: Genotype) -> str:
        """Return ``supernet``, which identifies the source of the weights in digests."""
        return "supernet"

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        resolution = self._family.resolution(self._space, genotype)
        return self._prepare("calibration", self._calibration, resolution)

    def _prepare(self, name: str, split: InMemorySplit, resolution: int) -> Tensor:
        """Return the normalised images of a split, from the cache if there is room."""
        if (images := self._prepared.get((name, resolution))) is None:
            images = self._data.prepare(split.images, resolution)
            if self._has_room(name, split, resolution):
                self._prepared[name, resolution] = images
        return images


@final
class TrainedOnDemand:
    """An evaluator that trains or loads the supernet of a space when it is first needed.

    Nothing is trained if no network meets the budget.

    Args:
        train: Returns the evaluator of a space after training its supernet, by name of the space.
    """

    def __init__(self, train: Mapping[str, Callable[[], SupernetEvaluator]]):
        self._train = train
        self._trained: dict[str, SupernetEvaluator] = {}

    def evaluator(self, genotype: Genotype) -> SupernetEvaluator:
        """Return the evaluator of the genotype's space; train its supernet if necessary.

        Raises:
            TrainingError: the training failed.
        """
        return self._evaluator_of(genotype.space)

    def _evaluator_of(self, space: str) -> SupernetEvaluator:
        if space not in self._trained:
            try:
                self._trained[space] = self._train[space]()
            except CollapseError as error:  # concerns all candidates
                raise TrainingError(str(error)) from None
        return self._trained[space]

    def train(self) -> None:
        """Train or load all supernets.

        Raises:
            TrainingError: a training failed.
        """
        for space in self._train:
            self._evaluator_of(space)

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the metric on the validation split: see ``SupernetEvaluator.score``.

        The supernet is trained first if necessary, as in ``evaluator``.
        """
        return self.evaluator(genotype).score(genotype, incumbent)

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated and with batch norm folded.

        The supernet is trained first if necessary; see ``evaluator`` for errors.
        """
        return self.evaluator(genotype).network(genotype)

    @property
    def next_epoch(self) -> int:
        """0, as subnets are fine-tuned from the first epoch."""
        return 0

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated, ready for further training."""
        return self.evaluator(genotype).extracted(genotype)

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        return self.evaluator(genotype).calibration_images(genotype)

    def origin(self, genotype: Genotype) -> str:
        """Return ``supernet``, which identifies the source of the weights in digests."""
        return "supernet"
