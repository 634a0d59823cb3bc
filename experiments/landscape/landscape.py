"""A response surface fitted to trained networks: the error of any network of the space."""

import csv
import functools
import hashlib
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from hwnas.models.graph import n_macs, n_params
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.workflows.networks import Networks

Array = NDArray[np.float64]

NETWORKS_CSV = Path(__file__).with_name("networks.csv")
#: Networks trained in two searches of 50 minutes (``experiments/worth_it``), without seconds.
SEARCHED_CSV = Path(__file__).with_name("searched.csv")
_N_IMAGES = 6_000  # of the validation split on which accuracies are measured
_KINDS = ("separable", "plain", "fused", "residual")
_FOLDS = 8
#: Standard deviations of log errors that no feature explains: the minimum after three epochs, and
#: the additional one after the first epoch.
_MIN_UNEXPLAINED_STD, _FIRST_UNEXPLAINED_STD = 0.02, 0.04


def read_networks(
    space: SearchSpace, paths: Sequence[Path] = (NETWORKS_CSV,)
) -> tuple[list[Genotype], dict[str, Array]]:
    """Return the genotypes of the trained networks, and their numbers by column.

    The columns ``after_1`` and ``after_3`` are converted to logarithms of errors.
    """
    rows = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            rows += [*csv.DictReader(file)]
    choices = [
        {n: o for n, options in space.choices.items() for o in options if str(o) == row[n]}
        for row in rows
    ]
    names = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs", "seconds")
    columns = {n: np.array([float(row[n] or "nan") for row in rows]) for n in names}
    for n in ("after_1", "after_3"):
        columns[n] = np.log([1 - float(row[n]) for row in rows])
    return [space.genotype(assignment) for assignment in choices], columns


class Landscape:
    """Errors after one and after three epochs, and the seconds of both trainings.

    The features differ from those of the sampler: sizes, the resolution after each stage, widths,
    depths, and types of blocks.

    Attributes:
        n_images: Number of validation images.
        mean: Mean of the log errors after the last epoch.
        std: Their standard deviation.
        gain: Mean decrease of the log error after the first epoch.
        gain_std: Its standard deviation.
        residual: Standard deviation of the prediction errors in cross-validation.
        validation_std: The part of it that results from the number of validation images.
    """

    def __init__(
        self,
        networks: Networks,
        space: SearchSpace,
        paths: Sequence[Path] = (NETWORKS_CSV,),
        n_images: int = _N_IMAGES,
    ):
        self._networks, self._space, self.n_images = networks, space, n_images
        genotypes, columns = read_networks(space, paths)
        x = np.array([self.features(genotype) for genotype in genotypes])
        self._feature_mean, self._feature_std = x.mean(axis=0), x.std(axis=0) + 1e-9
        x = (x - self._feature_mean) / self._feature_std
        last, gain = columns["after_3"], columns["after_1"] - columns["after_3"]
        self.mean, self.std = float(last.mean()), float(last.std())
        self.gain, self.gain_std = float(gain.mean()), float(gain.std())
        self._last_model, self._gain_model = _fit(x, last), _fit(x, gain)
        residuals = last - _cross_validate(self._last_model, x, last)
        error = np.exp(last)
        validation_variance = float(np.mean((1 - error) / error / n_images))
        self.residual, self.validation_std = float(residuals.std()), math.sqrt(validation_variance)
        self._unexplained_std = math.sqrt(
            max(float(residuals.var()) - validation_variance, _MIN_UNEXPLAINED_STD**2)
        )
        n_operators = [len(networks.lower(genotype)) for genotype in genotypes]
        timed = np.isfinite(columns["seconds"])
        work = np.column_stack([np.ones(len(x)), columns["macs"], n_operators])[timed]
        seconds = columns["seconds"][timed]
        weights = 1 / np.maximum(seconds, np.median(seconds))
        scale = work.max(axis=0)
        self._seconds_model = nnls(weights[:, None] * work / scale, weights * seconds)[0] / scale
        self.evaluate = functools.cache(self._evaluate)

    def _evaluate(self, genotype: Genotype) -> tuple[float, float, float]:
        """Return the true errors after one and after three epochs, and the seconds."""
        x = (np.array([self.features(genotype)]) - self._feature_mean) / self._feature_std
        last = float(self._last_model.predict(x)[0])
        last += self._unexplained_std * _normal(genotype, "3")
        first = last + float(self._gain_model.predict(x)[0])
        first += _FIRST_UNEXPLAINED_STD * _normal(genotype, "1")
        graph = self._networks.lower(genotype)
        seconds = float(self._seconds_model @ [1.0, n_macs(graph), len(graph)])
        return min(0.9, math.exp(first)), min(0.9, math.exp(last)), seconds

    def predict(self, genotypes: Sequence[Genotype]) -> Array:
        """Return the smooth part of the log errors after the last epoch, ``(n,)``."""
        x = np.array([self.features(genotype) for genotype in genotypes])
        return np.asarray(self._last_model.predict((x - self._feature_mean) / self._feature_std))

    def predict_features(self, features: Sequence[float]) -> float:
        """Return the prediction of ``predict`` for one network, given its features."""
        x = (np.array([features]) - self._feature_mean) / self._feature_std
        return float(self._last_model.predict(x)[0])

    def features(self, genotype: Genotype) -> list[float]:
        """Return the features of a network: sizes, resolutions, widths, depths, types of blocks."""
        assignment, graph = self._space.assignment(genotype), self._networks.lower(genotype)
        option: Any = assignment.get
        size = option("resolution") / option("stem.stride")
        sizes, stages = [size], list[float]()
        for i in range(3):
            size = math.ceil(size / (2 if i == 1 else option(f"stages.{i}.stride")))
            sizes.append(size)
            depth = option(f"stages.{i}.depth")
            kinds = [option(f"stages.{i}.blocks.{j}.kind") for j in range(depth)]
            stages += [math.log(option(f"stages.{i}.width")), depth]
            stages += [kinds.count(kind) / depth for kind in _KINDS]
        network = [n_macs(graph), n_params(graph), option("resolution"), option("stem.width")]
        return [
            *map(math.log, [*network, option("weight_bits"), *sizes]),
            *(option("stem.stride"), option("stem.kernel")),
            *stages,
        ]


def _fit(x: Array, y: Array) -> GaussianProcessRegressor:
    smooth = ConstantKernel(0.1) * RBF(np.full(x.shape[1], 6.0), (1, 300))
    kernel = smooth + ConstantKernel(0.1) * DotProduct(1.0) + WhiteKernel(0.003, (5e-4, 0.05))
    with warnings.catch_warnings():  # the warning only means that a feature is irrelevant
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel, normalize_y=True).fit(x, y)


def _cross_validate(model: GaussianProcessRegressor, x: Array, y: Array) -> Array:
    """Return predictions by cross-validation with the hyperparameters of a model, ``(n,)``."""
    predicted, fold = np.zeros(len(y)), np.arange(len(y)) % _FOLDS
    for k in range(_FOLDS):
        fold_model = GaussianProcessRegressor(model.kernel_, optimizer=None, normalize_y=True)
        fold_model.fit(x[fold != k], y[fold != k])
        predicted[fold == k] = fold_model.predict(x[fold == k])
    return predicted


def _normal(genotype: Genotype, key: str) -> float:
    """Return a standard normal number that is a fixed function of a genotype and a key."""
    digest = hashlib.sha256(f"{genotype.id} {key}".encode()).digest()
    return float(ndtri((int.from_bytes(digest[:6], "big") + 0.5) / 2**48))
