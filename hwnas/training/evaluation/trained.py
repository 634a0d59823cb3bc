"""Evaluation of genotypes by separate training in successive fidelities.

A network is trained for a few epochs with a complete schedule and validated. If it may still reach
a cheaper network, training continues from its weights with a longer schedule, on the batches of
later epochs. Weights are stored, so that the same network costs nothing in another search.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor, nn

from hwnas.core.progress import NullProgress, Progress
from hwnas.core.quantity import Quantity
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.int8.simulation import with_graph_precision
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.predictions import Predictions, score_outputs
from hwnas.training import loop
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import ImageData
from hwnas.training.evaluation.interfaces import ENOUGH, TrainedConfig
from hwnas.training.inference import per_sample
from hwnas.training.options import TrainingConfig
from hwnas.training.single_network import StudentNetwork, estimate_seconds
from hwnas.training.supernet import TrainingSetup

_N_CALIBRATION = 512  # training images for quantisation
_MAX_CACHED_BYTES = 1 << 29  # of these, at all resolutions


@final
class TrainedEvaluator:
    """Trains networks, or resumes their trainings, and evaluates them on the validation split.

    Args:
        setups: Training setup of each space, by name of the space.
        config: Numbers of epochs (fidelities) and the confidence for early stopping.
        progress: Progress of single trainings.
        recorded: Number of completed fidelities that a search recorded, by id of the genotype.
            Other networks are used as far as they are trained, possibly by another search.
    """

    def __init__(
        self,
        setups: Mapping[str, TrainingSetup],
        config: TrainedConfig,
        progress: Progress | None = None,
        recorded: Mapping[str, int] | None = None,
    ):
        self._setups, self._config = setups, config
        self._progress = progress or NullProgress()
        #: number of completed fidelities, by id of the genotype
        self.recorded_fidelities = dict(recorded or {})
        self._images: dict[int, Tensor] = {}
        self._metric = next(iter(setups.values())).data.task.metric

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Train the network; return the metric on the validation split after the last fidelity.

        With an incumbent, training stops early once the network is probably worse than it. The
        metric is the forecast for the last fidelity then.

        Raises:
            CollapseError: the training collapsed.
        """
        config, details = self._config, dict[str, float]()
        last = len(config.fidelities) - 1
        for i in range(last + 1):
            figure = self._read(self._trained_network(genotype, i), genotype)
            details[config.column(self._metric, i)] = figure.value
            if i < last and incumbent is not None and config.confidence is not None:
                expected = self._forecast(figure, i, incumbent)
                threshold = 1 - config.confidence
                if expected is not None and expected.reaches(incumbent.value) < threshold:
                    return Score(expected.figure, stopped=True, details=details)
        return Score(figure, details=details)

    def exit_predictions(self, genotype: Genotype) -> list[Predictions]:
        """Return the predictions of each exit, and last of the final classifier, on validation.

        Empty for a network without exits. The network is that of ``extracted``.
        """
        setup, images = self._setups[genotype.space], partial(self.calibration_images, genotype)
        graph = setup.graph(genotype)
        if not graph.exits:
            return []
        return predict_exits(
            with_graph_precision(self.extracted(genotype), graph, images), setup, genotype
        )

    @property
    def next_epoch(self) -> int:
        """Index of the first epoch after the last fidelity."""
        return sum(self._config.fidelities)

    def train(self) -> None:
        """Do nothing: candidates are trained when they are scored."""

    def at_recorded_fidelity(self, recorded: Mapping[str, int]) -> "TrainedEvaluator":
        """Return an evaluator that uses networks after the fidelities that a search recorded.

        Args:
            recorded: Number of completed fidelities, by id of the genotype.
        """
        return TrainedEvaluator(self._setups, self._config, self._progress, recorded)

    def is_kept(self, genotype: Genotype) -> bool:
        """Return whether the weights after the recorded fidelities of a genotype still exist.

        True if none are recorded.
        """
        n = self.recorded_fidelities.get(genotype.id, 0)
        return n == 0 or self._is_trained(genotype, n - 1)

    def _forecast(
        self, figure: Quantity, i: int, incumbent: Incumbent
    ) -> "FidelityForecast | None":
        """Return the forecast after the last fidelity; ``None`` if too few networks are known."""
        config = self._config
        names = [config.column(self._metric, index) for index in (i, len(config.fidelities) - 1)]
        pairs = [
            (details[names[0]], details[names[1]])
            for details in incumbent.details
            if names[0] in details and names[1] in details
        ]
        return None if len(pairs) < ENOUGH else forecast(self._metric, figure.value, pairs)

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network with the weights of the search, ready for further training.

        It is trained first where weights are missing.
        """
        return self._trained_network(genotype, self._n_done(genotype) - 1)

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the network of ``extracted`` with batch norm folded."""
        return fold_batch_norm(self.extracted(genotype))

    def origin(self, genotype: Genotype) -> str:
        """Return the schedule that trained ``extracted``, as ``scratch, epochs: 2 + 4``."""
        return self._description(self._n_done(genotype) - 1)

    def n_missing(self, genotype: Genotype) -> int:
        """Return the number of training steps that ``extracted`` lacks in its last fidelity."""
        return self._n_missing(genotype, self._n_done(genotype) - 1)

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        setup = self._setups[genotype.space]
        resolution = setup.resolution(genotype)
        if resolution not in self._images:
            if sum(x.nbytes for x in self._images.values()) > _MAX_CACHED_BYTES:
                self._images.clear()
            self._images[resolution] = _calibration_images(setup.data, resolution)
        return self._images[resolution]

    def _n_done(self, genotype: Genotype) -> int:
        """Return the number of fidelities of the network to be used, at least 1."""
        if genotype.id in self.recorded_fidelities:
            return self.recorded_fidelities[genotype.id]
        n = 0
        while n < len(self._config.fidelities) and self._is_trained(genotype, n):
            n += 1
        return max(1, n)

    def _is_trained(self, genotype: Genotype, i: int) -> bool:
        return not self._n_missing(genotype, i)

    def _n_missing(self, genotype: Genotype, i: int) -> int:
        """Return the remaining steps of a fidelity."""
        setup = self._setups[genotype.space]
        total = loop.n_steps(self._options(setup, i), len(setup.data.train))
        return max(0, total - self._checkpoint(setup, genotype, i).n_steps())

    def _trained_network(self, genotype: Genotype, i: int) -> nn.Module:
        """Return the network after a fidelity; train it if its checkpoint is not complete."""
        setup = self._setups[genotype.space]
        options, checkpoint = self._options(setup, i), self._checkpoint(setup, genotype, i)
        network = setup.build(genotype)
        if i and checkpoint.n_steps() == 0:
            if not self._is_trained(genotype, i - 1):  # of a run whose networks were deleted
                self._trained_network(genotype, i - 1)
            network.load_state_dict(self._checkpoint(setup, genotype, i - 1).weights())
        student = self._student(setup, network, genotype, i)
        setup.train_single(student, options, checkpoint, self._progress)
        return network

    def epoch_s(self, genotype: Genotype) -> float:
        """Return the estimated duration of a training of one epoch in seconds.

        Batch norm recalibration and two validations are included. A few steps are timed, of a
        network that is not kept.
        """
        setup = self._setups[genotype.space]
        student = self._student(setup, setup.build(genotype), genotype, 0)
        options = setup.train.with_epochs(1)
        total = loop.n_steps(options, len(setup.data.train))
        return estimate_seconds(student, setup.material, options, setup.seed, total)

    def _student(
        self, setup: TrainingSetup, network: nn.Module, genotype: Genotype, i: int
    ) -> StudentNetwork:
        """Return the training of a network in a fidelity."""
        return StudentNetwork(
            network,
            setup.resolution(genotype),
            setup.train.recipe(setup.family.recipe),
            grids=setup.grids(network, genotype),
            dtype=setup.dtype(genotype),
            first_epoch=self._first_epoch(i),
        )

    def _options(self, setup: TrainingSetup, i: int) -> TrainingConfig:
        """Return the options of a fidelity; the recipe is given separately."""
        return setup.train.with_epochs(self._config.fidelities[i])

    def _checkpoint(self, setup: TrainingSetup, genotype: Genotype, i: int) -> Checkpoint:
        one_epoch = replace(setup, train=replace(setup.train, epochs=1))  # epochs are in ``start``
        return one_epoch.network_checkpoint(genotype, self._description(i), self._first_epoch(i))

    def _first_epoch(self, i: int) -> int:
        """Return the first epoch of a fidelity."""
        return sum(self._config.fidelities[:i])

    def _description(self, i: int) -> str:
        return f"scratch, epochs: {' + '.join(map(str, self._config.fidelities[: i + 1]))}"

    def _read(self, network: nn.Module, genotype: Genotype) -> Quantity:
        setup, images = self._setups[genotype.space], partial(self.calibration_images, genotype)
        return score(with_graph_precision(network, setup.graph(genotype), images), setup, genotype)


def _calibration_images(data: ImageData, resolution: int) -> Tensor:
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    return data.prepare(data.train.take(order[:_N_CALIBRATION]).images, resolution)


def predict_exits(
    network: nn.Module, setup: TrainingSetup, genotype: Genotype
) -> list[Predictions]:
    """Return the predictions of each exit, and last of the final classifier, on validation."""
    data, outputs, targets = setup.data, list[NDArray[np.float32]](), list[NDArray[np.int64]]()
    with torch.inference_mode():
        for batch in data.batches(data.validation, setup.resolution(genotype)):
            outputs.append(network(batch[0], every=True).numpy())
            targets.append(batch[1].numpy())
    of_images = np.concatenate(outputs, axis=1).swapaxes(0, 1)
    return score_outputs(data.task, of_images, np.concatenate(targets))


def score(network: nn.Module, setup: TrainingSetup, genotype: Genotype) -> Quantity:
    """Return the metric of a plain network on the validation split, with its 95 % interval."""
    data = setup.data
    batches = data.batches(data.validation, setup.resolution(genotype))
    results = [per_sample(data.task, network, *batch) for batch in batches]
    return data.task.score(np.concatenate(results))


_SLOPE = (1.0, 0.25)  # prior: mean and standard deviation
_SHIFT = 1.0  # prior: standard deviation of the mean change of the log error
_RESIDUAL, _N_PRIOR = 0.08, 4  # prior: residual standard deviation, worth this many networks
# Lower bounds of errors, for finite logarithms: of error rates, and of errors in any unit.
_MIN_RATE, _MIN_ERROR = 1e-4, 1e-45
_NORMAL_95 = 1.96


# Prediction of a long training from a short one, learned from networks with both.
#
# The logarithm of the error after the long training is a line in that after the short one, with a
# slope near one and normal residuals. Sources: Domhan et al., "Speeding up automatic hyperparameter
# optimization of deep neural networks by extrapolation of learning curves", IJCAI 2015 (early
# stopping); Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020,
# https://arxiv.org/abs/1810.05934 (asynchronous successive fidelities); Bishop, "Pattern
# recognition and machine learning", 2006, section 3.3 (Bayesian linear regression).


@dataclass(frozen=True)
class FidelityForecast:
    """Normal distribution of the log error (see ``log_error``) after the long training."""

    metric: str  #: name of the metric, such as ``accuracy``
    mean: float  #: of the log error
    std: float  #: of the log error

    def reaches(self, value: float) -> float:
        """Return the probability that the metric is as good as ``value`` or better."""
        return float(ndtr((log_error(self.metric, value) - self.mean) / self.std))

    def widened(self, std: float) -> "FidelityForecast":
        """Return the forecast with an additional, independent standard deviation ``std``."""
        return FidelityForecast(self.metric, self.mean, math.hypot(self.std, std))

    @property
    def figure(self) -> Quantity:
        """Median of the metric with its 95 % interval, in the metric's unit, at least 0."""
        metric = metric_of(self.metric)
        assert metric.perfect is not None
        sign = -1 if metric.maximise else 1
        value, low, high = (
            max(0.0, metric.perfect + sign * math.exp(self.mean + sign * z * self.std))
            for z in (0.0, -_NORMAL_95, _NORMAL_95)
        )
        return Quantity(value, "modelled", low, high)


def forecast(metric: str, value: float, known: Sequence[tuple[float, float]]) -> FidelityForecast:
    """Return the forecast of a network's metric after the long training.

    Args:
        metric: Name of the metric.
        value: Metric of the network after the short training.
        known: Metric of other networks after the short and after the long training.
    """
    error = log_error(metric, value)
    x = np.array([[1.0, log_error(metric, short) - error] for short, _ in known]).reshape(-1, 2)
    # Change of the log error, relative to a slope of one: the prior mean of both weights is 0.
    y = np.array([log_error(metric, b) - log_error(metric, a) for a, b in known])
    precision = np.diag([1 / _SHIFT**2, 1 / _SLOPE[1] ** 2])
    variance = _RESIDUAL**2
    for _ in range(3):  # residual variance and line depend on each other
        covariance = np.linalg.inv(precision + x.T @ x / variance)
        weights = covariance @ x.T @ y / variance
        squares = float(((y - x @ weights) ** 2).sum())
        variance = (squares + _N_PRIOR * _RESIDUAL**2) / (len(y) + _N_PRIOR)
    # At the network itself the second column is zero.
    return FidelityForecast(
        metric, error + float(weights[0]), math.sqrt(variance + float(covariance[0, 0]))
    )


def log_std(metric: str, figure: Quantity) -> float:
    """Return the standard deviation of the log error, given the metric's interval."""
    return figure.std / _error(metric, figure.value)


def log_error(metric: str, value: float) -> float:
    """Return the natural logarithm of the error, the difference from the perfect value.

    For example, the accuracy 0.9 gives ``log(0.1)``. The error is at least 1e-4 for metrics that
    are maximised, and 1e-45 for others.
    """
    return math.log(_error(metric, value))


def _error(metric: str, value: float) -> float:
    definition = metric_of(metric)
    assert definition.perfect is not None
    return (
        max(definition.perfect - value, _MIN_RATE)
        if definition.maximise
        else max(value - definition.perfect, _MIN_ERROR)
    )
