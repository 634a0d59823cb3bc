"""How well a genotype answers whose network is trained alone, in successive fidelities.

The network is trained for a few epochs, to the end of their schedule, and read on the validation
split. Where it may still become as good as one that costs no more, it goes on from its weights
with a longer schedule, and sees what it has not seen yet: order and changes of images are those of
later epochs. What it learned is kept: the same network costs nothing a second time, in another
search, for another target, or after a kill.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.core.progress import NullProgress, Progress
from hwnas.core.quantity import Quantity
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.int8.simulation import as_run
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.predictions import ExitPredictionRecord, heard
from hwnas.training import loop
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.evaluation import fidelity
from hwnas.training.evaluation.scoring_options import ENOUGH, TrainedConfig
from hwnas.training.inference import per_sample
from hwnas.training.options import TrainingConfig
from hwnas.training.single_network import StudentNetwork
from hwnas.training.supernet import TrainingSetup

_CALIBRATION = 512  # training images, for quantisation


@final
class TrainedEvaluator:
    """Trains a network, or goes on with it, and reads the validation split.

    Args:
        setups: Data, options and seed, for each space by name.
        config: For how long.
        progress: Of single trainings.
        left: After how many fidelities a search left networks, by id. Others are taken as far as
            they are trained, which another search may have been the one to do.
    """

    def __init__(
        self,
        setups: Mapping[str, TrainingSetup],
        config: TrainedConfig,
        progress: Progress | None = None,
        left: Mapping[str, int] | None = None,
    ):
        self._setups, self._config = setups, config
        self._progress = progress or NullProgress()
        self.left = dict(left or {})  #: after how many fidelities, by id
        self._images: dict[int, Tensor] = {}
        self._metric = next(iter(setups.values())).data.task.metric

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the metric after the last fidelity, or what is expected of it."""
        config, details = self._config, dict[str, float]()
        last = len(config.fidelities) - 1
        for i in range(last + 1):
            figure = self._read(self._trained(genotype, i), genotype)
            details[config.column(self._metric, i)] = figure.value
            if i < last and incumbent is not None and config.confidence is not None:
                expected = self._expected(figure, i, incumbent)
                if (
                    expected is not None
                    and expected.reaches(incumbent.value) < 1 - config.confidence
                ):
                    return Score(expected.figure, stopped=True, details=details)
        return Score(figure, details=details)

    def heard(self, genotype: Genotype) -> tuple[ExitPredictionRecord, ...]:
        """Return what each exit of a network answers to validation images, and its end.

        One without exits: nothing.
        """
        setup, images = self._setups[genotype.space], partial(self.calibration_images, genotype)
        graph = setup.graph(genotype)
        if not graph.exits:
            return ()
        return predict_exits(as_run(self.extracted(genotype), graph, images), setup, genotype)

    @property
    def next_epoch(self) -> int:
        """The number of the epoch after the last fidelity, wherever a search left a network."""
        return sum(self._config.fidelities)

    def train(self) -> None:
        """Do nothing: each candidate is trained when it is scored."""

    def at_recorded_fidelity(self, left: Mapping[str, int]) -> "TrainedEvaluator":
        """Return the same with networks as a search left them, whatever others did with them."""
        return TrainedEvaluator(self._setups, self._config, self._progress, left)

    def is_kept(self, genotype: Genotype) -> bool:
        """Return whether a network is still there as search left it; one it never had is."""
        n = self.left.get(genotype.id, 0)
        return n == 0 or self._is_trained(genotype, n - 1)

    def _expected(
        self, figure: Quantity, i: int, incumbent: Incumbent
    ) -> fidelity.FidelityForecast | None:
        """Return what is expected of a network after the last fidelity, where that is known."""
        config = self._config
        names = [config.column(self._metric, at) for at in (i, len(config.fidelities) - 1)]
        pairs = [
            (of[names[0]], of[names[1]])
            for of in incumbent.details
            if names[0] in of and names[1] in of
        ]
        return None if len(pairs) < ENOUGH else fidelity.outlook(self._metric, figure.value, pairs)

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the network with the weights that search left it; it can be trained on."""
        return self._trained(genotype, self._n_done(genotype) - 1)

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the network with batch norm folded."""
        return fold_batch_norm(self.extracted(genotype))

    def origin(self, genotype: Genotype) -> str:
        """Return where the weights of ``extracted`` come from, in words that decide them."""
        return self._words(self._n_done(genotype) - 1)

    def n_missing(self, genotype: Genotype) -> int:
        """Return the steps that ``extracted`` would train."""
        return self._n_left(genotype, self._n_done(genotype) - 1)

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        setup = self._setups[genotype.space]
        resolution, train = setup.resolution(genotype), setup.data.train
        if resolution not in self._images:
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
            images = train.take(order[:_CALIBRATION]).images
            self._images[resolution] = setup.data.prepare(images, resolution)
        return self._images[resolution]

    def _n_done(self, genotype: Genotype) -> int:
        """Return how many fidelities the network has behind it, or is given now: at least one."""
        if genotype.id in self.left:
            return self.left[genotype.id]
        n = 0
        while n < len(self._config.fidelities) and self._is_trained(genotype, n):
            n += 1
        return max(1, n)

    def _is_trained(self, genotype: Genotype, i: int) -> bool:
        return not self._n_left(genotype, i)

    def _n_left(self, genotype: Genotype, i: int) -> int:
        """Return the steps that are left of a fidelity."""
        setup = self._setups[genotype.space]
        total = loop.n_steps(self._options(setup, i), len(setup.data.train))
        return max(0, total - self._checkpoint(setup, genotype, i).n_steps())

    def _trained(self, genotype: Genotype, i: int) -> nn.Module:
        """Return the network after a fidelity, ready for use; train what is not trained yet."""
        setup = self._setups[genotype.space]
        options, checkpoint = self._options(setup, i), self._checkpoint(setup, genotype, i)
        network = setup.build(genotype)
        if i and checkpoint.n_steps() == 0:
            network.load_state_dict(self._checkpoint(setup, genotype, i - 1).weights())
        recipe = setup.train.recipe(setup.family.recipe)
        student = StudentNetwork(
            network,
            setup.resolution(genotype),
            recipe,
            grids=setup.grids(network, genotype),
            dtype=setup.dtype(genotype),
            has_exits=bool(setup.graph(genotype).exits),
            first_epoch=self._first_epoch(i),
        )
        setup.train_single(student, options, checkpoint, self._progress)
        return network

    def _options(self, setup: TrainingSetup, i: int) -> TrainingConfig:
        """Return how a fidelity trains; what the family's recipe leaves open is in the student."""
        return setup.train.of_recipe(self._config.fidelities[i])

    def _checkpoint(self, setup: TrainingSetup, genotype: Genotype, i: int) -> Checkpoint:
        alone = replace(setup, train=replace(setup.train, epochs=1))  # epochs are in the words
        return alone.network_checkpoint(genotype, self._words(i), self._first_epoch(i))

    def _first_epoch(self, i: int) -> int:
        """Return the number of the first epoch of a fidelity."""
        return sum(self._config.fidelities[:i])

    def _words(self, i: int) -> str:
        return f"scratch, epochs: {' + '.join(map(str, self._config.fidelities[: i + 1]))}"

    def _read(self, network: nn.Module, genotype: Genotype) -> Quantity:
        setup, images = self._setups[genotype.space], partial(self.calibration_images, genotype)
        return score(as_run(network, setup.graph(genotype), images), setup, genotype)


def predict_exits(
    network: nn.Module, setup: TrainingSetup, genotype: Genotype
) -> tuple[ExitPredictionRecord, ...]:
    """Return what each exit of a network answers on the validation split, and its end."""
    data, outputs, targets = setup.data, list[NDArray[np.float32]](), list[NDArray[np.int64]]()
    with torch.inference_mode():
        for batch in data.batches(data.validation, setup.resolution(genotype)):
            outputs.append(network(batch[0], every=True).numpy())
            targets.append(batch[1].numpy())
    found, right = np.concatenate(outputs, axis=1), np.concatenate(targets)
    return tuple(heard(data.task, answers, right) for answers in found)


def score(network: nn.Module, setup: TrainingSetup, genotype: Genotype) -> Quantity:
    """Return the metric of a plain network on the validation split."""
    data = setup.data
    batches = data.batches(data.validation, setup.resolution(genotype))
    found = [per_sample(data.task, network, *batch) for batch in batches]
    return data.task.score(np.concatenate(found))
