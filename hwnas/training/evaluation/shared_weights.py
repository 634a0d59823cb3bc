"""How well a genotype answers with the weights it inherits from the supernet."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.core.errors import CollapseError, TrainingError
from hwnas.models.families import annotations, weight_compression
from hwnas.models.families.base import Family, Supernet
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.graph import Graph
from hwnas.models.int8.simulation import as_run
from hwnas.models.int8.weight_grids import grids, quantise_weights_
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.tasks.base import Incumbent, Index, PerImageResults, Score
from hwnas.training.data import ImageData, InMemorySplit
from hwnas.training.evaluation.scoring_options import ScoringConfig
from hwnas.training.inference import per_sample, recalibrate

_KEPT = 1 << 30  # bytes of prepared images that are kept of all resolutions together


@final
class SupernetEvaluator:
    """Extracts a subnet, recalibrates its batch norm and reads the validation split."""

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
        """Return the metric on the validation split, with its interval.

        Given an incumbent, reading stops once the network is found to be worse: the figure is
        predicted then.
        """
        resolution = self._family.resolution(self._space, genotype)
        network, task = self._as_run(genotype), self._data.task
        if self._confidence is None:
            found = self._read(network, resolution)
            return Score(task.score(found), len(found))
        if incumbent is None or not all((incumbent.per_image, *incumbent.earlier)):
            return task.whole(self._read(network, resolution))

        def read(index: Index) -> PerImageResults:
            return self._read(network, resolution, torch.from_numpy(index))

        order = np.random.default_rng(int(genotype.id, 16))
        n = len(self._data.validation)
        return task.read(read, n, incumbent, self._confidence, order)

    def _read(
        self, network: nn.Module, resolution: int, index: Tensor | None = None
    ) -> PerImageResults:
        """Return what is found of all validation images, or of those at ``index``."""
        split, task = self._data.validation, self._data.task
        if isinstance(split, InMemorySplit) and self._has_room(split, resolution):
            images, targets = self._at("validation", split, resolution), split.targets
            if index is not None:
                images, targets = images[index], targets[index]
            return per_sample(task, network, images, targets)
        batches = self._data.batches(split, resolution, index)
        return np.concatenate([per_sample(task, network, *batch) for batch in batches])

    def _has_room(self, split: InMemorySplit, resolution: int) -> bool:
        """Return whether the prepared images of validation are kept, or may be."""
        sides = {r for name, r in self._prepared if name == "validation"} | {resolution}
        return sum(self._data.n_bytes(len(split), side) for side in sides) <= _KEPT

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated and with batch norm folded."""
        return fold_batch_norm(self.extracted(genotype))

    @property
    def next_epoch(self) -> int:
        """0: a supernet's networks are trained on as if they had been shown nothing alone."""
        return 0

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated; it can be trained on."""
        network = self._supernet.extract(genotype)
        if weight_compression.names(self._space):
            quantise_weights_(network, grids(network, self._lowered(genotype)))
        recalibrate(network, self.calibration_images(genotype))
        return network

    def _as_run(self, genotype: Genotype) -> nn.Module:
        images = partial(self.calibration_images, genotype)
        return as_run(self.network(genotype), self._lowered(genotype), images)

    def _lowered(self, genotype: Genotype) -> Graph:
        return annotations.lower(self._family, self._space, genotype, self._data.signature)

    def origin(self, genotype: Genotype) -> str:
        """Return where the weights of a subnet come from."""
        return "supernet"

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        resolution = self._family.resolution(self._space, genotype)
        return self._at("calibration", self._calibration, resolution)

    def _at(self, name: str, split: InMemorySplit, resolution: int) -> Tensor:
        """Return the normalised images of a split; kept, there are few resolutions."""
        if (name, resolution) not in self._prepared:
            self._prepared[name, resolution] = self._data.prepare(split.images, resolution)
        return self._prepared[name, resolution]


# Supernets that are trained when their first accuracy is asked for.


@final
class TrainedOnDemand:
    """An evaluator that trains a supernet, or loads it, when the first network is to be scored.

    A budget that nothing meets is then found out without any training.

    Args:
        train: Trains and returns the evaluator of each space, by the name of the space.
    """

    def __init__(self, train: Mapping[str, Callable[[], SupernetEvaluator]]):
        self._train = train
        self._trained: dict[str, SupernetEvaluator] = {}

    def of(self, genotype: Genotype) -> SupernetEvaluator:
        """Return the evaluator of the genotype's space."""
        return self._of(genotype.space)

    def _of(self, space: str) -> SupernetEvaluator:
        if space not in self._trained:
            try:
                self._trained[space] = self._train[space]()
            except CollapseError as error:  # of all candidates, not of one
                raise TrainingError(str(error)) from None
        return self._trained[space]

    def train(self) -> None:
        """Train all supernets, or load them, now."""
        for space in self._train:
            self._of(space)

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the metric on the validation split, with its interval."""
        return self.of(genotype).score(genotype, incumbent)

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated and with batch norm folded."""
        return self.of(genotype).network(genotype)

    @property
    def next_epoch(self) -> int:
        """0: a supernet's networks are trained on as if they had been shown nothing alone."""
        return 0

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network of a genotype, recalibrated."""
        return self.of(genotype).extracted(genotype)

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        return self.of(genotype).calibration_images(genotype)

    def origin(self, genotype: Genotype) -> str:
        """Return where the weights of a network come from."""
        return self.of(genotype).origin(genotype)
