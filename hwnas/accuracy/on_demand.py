"""Supernets that are trained when their first accuracy is asked for."""

from collections.abc import Callable, Mapping
from typing import final

from torch import Tensor, nn

from hwnas.accuracy.supernet import SupernetEvaluator
from hwnas.errors import CollapseError, TrainingError
from hwnas.space import Genotype
from hwnas.tasks.score import Incumbent, Score


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
