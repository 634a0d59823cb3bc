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

READ = Path(__file__).with_name("networks.csv")
#: Networks trained in two searches of 50 minutes (``experiments/worth_it``), without seconds.
SEARCHED = Path(__file__).with_name("searched.csv")
_N_IMAGES = 6_000  # of the validation split on which accuracies are measured
_KINDS = ("separable", "plain", "fused", "residual")
_FOLDS = 8
_OWN, _OWN_OF_FIRST = (
    0.02,
    0.04,
)  # minimum for logarithms of errors: variation not explained by any feature


def read(
    space: SearchSpace, paths: Sequence[Path] = (READ,)
) -> tuple[list[Genotype], dict[str, Array]]:
    """Return the trained networks, and the numbers of their rows by column."""
    rows = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            rows += [*csv.DictReader(file)]
    said = [
        {n: o for n, options in space.choices.items() for o in options if str(o) == row[n]}
        for row in rows
    ]
    numbers = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs", "seconds")
    columns = {n: np.array([float(row[n] or "nan") for row in rows]) for n in numbers}
    for n in ("after_1", "after_3"):
        columns[n] = np.log([1 - float(row[n]) for row in rows])  # logarithms of errors
    return [space.genotype(choices) for choices in said], columns


class Landscape:
    """Errors after one and after three epochs, and the seconds of both trainings.

    The features differ from those of the sampler: sizes, the resolution after each stage, widths,
    depths, and types of blocks.
    """

    def __init__(
        self,
        networks: Networks,
        space: SearchSpace,
        paths: Sequence[Path] = (READ,),
        n_images: int = _N_IMAGES,
    ):
        self._networks, self._space, self.n_images = networks, space, n_images
        genotypes, columns = read(space, paths)
        x = np.array([self._features(genotype) for genotype in genotypes])
        self._mean, self._std = x.mean(axis=0), x.std(axis=0) + 1e-9
        x = (x - self._mean) / self._std
        last, gain = columns["after_3"], columns["after_1"] - columns["after_3"]
        self.mean, self.std = float(last.mean()), float(last.std())  #: of log errors
        self.gain, self.gain_std = float(gain.mean()), float(gain.std())
        self._last, self._gain = _fitted(x, last), _fitted(x, gain)
        left = last - _foretold(self._last, x, last)
        error = np.exp(last)
        reading = float(np.mean((1 - error) / error / n_images))
        self.residual, self.reading = float(left.std()), math.sqrt(reading)
        self._own = math.sqrt(max(float(left.var()) - reading, _OWN**2))
        n_operators = [len(networks.lower(genotype)) for genotype in genotypes]
        timed = np.isfinite(columns["seconds"])
        work = np.column_stack([np.ones(len(x)), columns["macs"], n_operators])[timed]
        seconds = columns["seconds"][timed]
        weights = 1 / np.maximum(seconds, np.median(seconds))
        scale = work.max(axis=0)
        found = nnls(weights[:, None] * work / scale, weights * seconds)[0]
        self._pace = found / scale
        self.truth = functools.cache(self._truth)

    def _truth(self, genotype: Genotype) -> tuple[float, float, float]:
        """Return the errors after one and after three epochs, and the seconds."""
        x = (np.array([self._features(genotype)]) - self._mean) / self._std
        last = float(self._last.predict(x)[0]) + self._own * _normal(genotype, "3")
        first = last + float(self._gain.predict(x)[0]) + _OWN_OF_FIRST * _normal(genotype, "1")
        lowered = self._networks.lower(genotype)
        seconds = float(self._pace @ [1.0, n_macs(lowered), len(lowered)])
        return min(0.9, math.exp(first)), min(0.9, math.exp(last)), seconds

    def predict(self, genotypes: Sequence[Genotype]) -> Array:
        """Return the smooth part of the log errors after the last epoch, ``(n,)``."""
        x = np.array([self._features(genotype) for genotype in genotypes])
        return np.asarray(self._last.predict((x - self._mean) / self._std))

    def _features(self, genotype: Genotype) -> list[float]:
        a, lowered = self._space.assignment(genotype), self._networks.lower(genotype)
        option: Any = a.get
        side = option("resolution") / option("stem.stride")
        sides, stages = [side], list[float]()
        for i in range(3):
            side = math.ceil(side / (2 if i == 1 else option(f"stages.{i}.stride")))
            sides.append(side)
            depth = option(f"stages.{i}.depth")
            kinds = [option(f"stages.{i}.blocks.{j}.kind") for j in range(depth)]
            stages += [math.log(option(f"stages.{i}.width")), depth]
            stages += [kinds.count(kind) / depth for kind in _KINDS]
        sizes = [n_macs(lowered), n_params(lowered), option("resolution"), option("stem.width")]
        return [
            *map(math.log, [*sizes, option("weight_bits"), *sides]),
            *(option("stem.stride"), option("stem.kernel")),
            *stages,
        ]


def _fitted(x: Array, y: Array) -> GaussianProcessRegressor:
    smooth = ConstantKernel(0.1) * RBF(np.full(x.shape[1], 6.0), (1, 300))
    kernel = smooth + ConstantKernel(0.1) * DotProduct(1.0) + WhiteKernel(0.003, (5e-4, 0.05))
    with warnings.catch_warnings():  # an irrelevant feature is not a failure to converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel, normalize_y=True).fit(x, y)


def _foretold(model: GaussianProcessRegressor, x: Array, y: Array) -> Array:
    """Return the prediction for each row without its fold, with these hyperparameters."""
    found, fold = np.zeros(len(y)), np.arange(len(y)) % _FOLDS
    for k in range(_FOLDS):
        told = GaussianProcessRegressor(model.kernel_, optimizer=None, normalize_y=True)
        found[fold == k] = told.fit(x[fold != k], y[fold != k]).predict(x[fold == k])
    return found


def _normal(genotype: Genotype, what: str) -> float:
    """Return a standard normal number that is a fixed function of a genotype."""
    digest = hashlib.sha256(f"{genotype.id} {what}".encode()).digest()
    return float(ndtri((int.from_bytes(digest[:6], "big") + 0.5) / 2**48))
