"""Split the networks of a space into test and training networks, and smooth their latencies."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from experiments.devices import spaces
from hwnas.hardware.device_models.features import FeatureEncoder, NetworkFeatures
from hwnas.hardware.device_models.fitted_roofline import Floats, OperatorWork

N_TEST = 1000
_N_TRAIN = 2000


@dataclass(frozen=True)
class Benchmark:
    """The networks of a space and their latencies on several devices, by ``<device>_<batch>``."""

    name: str
    work: OperatorWork
    choices: Floats  #: one indicator per option, for baselines
    ms: Mapping[str, Floats]
    batch: Mapping[str, int]
    curves: Mapping[str, Floats]  #: smoothed latencies, fitted to the training networks

    @property
    def test(self) -> NDArray[np.intp]:
        """Indices of the networks on which predictions are evaluated."""
        return np.arange(N_TEST)

    @property
    def train(self) -> NDArray[np.intp]:
        """Indices of all other networks."""
        return np.arange(N_TEST, len(self.work))

    def others(self, device: str) -> list[str]:
        """Return the devices with different hardware."""
        hardware = spaces.hardware(device)
        return [name for name in self.ms if spaces.hardware(name) != hardware]

    def features(self, device: str, panel: list[str]) -> NetworkFeatures:
        """Return the features of all networks with the batch size of a device.

        ``panel``: other devices whose smoothed latencies are included.
        """
        curves = np.stack([self.curves[d] for d in panel], 1) if panel else None
        return FeatureEncoder(self.work, self.batch[device], curves)(self.work, curves)


def load(folder: Path, name: str) -> Benchmark:
    """Read a space from ``folder``; its networks are in a fixed random order."""
    space = spaces.read(folder, name)
    rows = np.random.default_rng(0).permutation(len(space.work))[: N_TEST + _N_TRAIN]
    work, choices = space.work[rows], space.choices[rows]
    ms = {device: values[rows] for device, values in space.ms.items()}
    features = FeatureEncoder(work, 1)(work)
    curves = _smooth(ms, np.arange(N_TEST, len(rows)), features)
    return Benchmark(name, work, choices, ms, space.batch, curves)


def _smooth(
    ms: Mapping[str, Floats], train: NDArray[np.intp], features: NetworkFeatures
) -> dict[str, Floats]:
    """Return smoothed latencies of all networks, fitted to those of the training networks.

    The method is a robust kernel ridge regression. All devices share one kernel, so that it is
    decomposed only once. The ridge is selected by generalised cross-validation. Outliers are moved
    to 2.5 robust standard deviations from the fit.
    """
    fine = features.fine - features.fine.mean(0)
    fine = fine / fine.std(0) / np.sqrt(fine.shape[1])
    linear, c = np.hstack([fine, features.likeness]), features.likeness

    def kernel(a: NDArray[np.intp] | slice, b: NDArray[np.intp]) -> Floats:
        squared_distance = (c[a] ** 2).sum(1)[:, None] + (c[b] ** 2).sum(1) - 2 * c[a] @ c[b].T
        matrix: Floats = 1 + 20 * linear[a] @ linear[b].T + 0.05 * np.exp(-0.5 * squared_distance)
        return matrix

    values, vectors = linalg.eigh(kernel(train, train))
    values, full = np.maximum(values, 0), kernel(slice(None), train)
    return {device: _curve(y, train, values, vectors, full) for device, y in ms.items()}


def _curve(
    ms: Floats, train: NDArray[np.intp], values: Floats, vectors: Floats, full: Floats
) -> Floats:
    """Return the smoothed latencies of a device.

    ``values`` and ``vectors``: eigendecomposition of the kernel of the training networks.
    ``full``: the kernel between all networks and the training networks.
    """
    median = np.median(ms[train])
    y = clean = ms[train] / median
    ridges = np.logspace(-6, 1, 15)
    shrinkage = [values / (values + ridge) for ridge in ridges]
    for _ in range(4):
        projected = vectors.T @ clean
        gcv = [np.mean(((1 - s) * projected) ** 2) / (1 - s.mean()) ** 2 for s in shrinkage]
        best = int(np.argmin(gcv))
        fitted = vectors @ (shrinkage[best] * projected)
        error = y / fitted - 1
        centre = np.median(error)
        limit = 2.5 * 1.4826 * np.median(np.abs(error - centre))
        clean = fitted * (1 + centre + np.clip(error - centre, -limit, limit))
    curve: Floats = full @ (vectors @ (projected / (values + ridges[best]))) * median
    return np.maximum(curve, 1e-3 * np.median(curve))
