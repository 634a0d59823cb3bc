"""A space with its held-out networks, and the latency curves of known devices."""

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
_N_KNOWN = 2000  #: networks of a known device to which its curve is fitted


@dataclass(frozen=True)
class Case:
    """A space and its devices; the first networks are the test networks."""

    name: str
    work: OperatorWork
    choices: Floats  #: one indicator per option, for baselines
    ms: Mapping[str, Floats]
    batch: Mapping[str, int]
    curves: Mapping[str, Floats]  #: of each device over all networks, from those not tested

    @property
    def test(self) -> NDArray[np.intp]:
        """The networks on which predictions are evaluated."""
        return np.arange(N_TEST)

    @property
    def known(self) -> NDArray[np.intp]:
        """All others."""
        return np.arange(N_TEST, len(self.work))

    def others(self, device: str) -> list[str]:
        """Return the devices with different hardware."""
        own = spaces.hardware(device)
        return [name for name in self.ms if spaces.hardware(name) != own]

    def features(self, device: str, panel: list[str]) -> NetworkFeatures:
        """Return all networks with the batch size of a device."""
        curves = np.stack([self.curves[d] for d in panel], 1) if panel else None
        return FeatureEncoder(self.work, self.batch[device], curves)(self.work, curves)


def prepare(folder: Path, name: str) -> Case:
    """Read a space; networks are in a fixed random order."""
    found = spaces.read(folder, name)
    rows = np.random.default_rng(0).permutation(len(found.work))[: N_TEST + _N_KNOWN]
    work, choices = found.work[rows], found.choices[rows]
    ms = {device: values[rows] for device, values in found.ms.items()}
    features = FeatureEncoder(work, 1)(work)
    curves = _smooth(ms, np.arange(N_TEST, len(rows)), features)
    return Case(name, work, choices, ms, found.batch, curves)


def _smooth(
    ms: Mapping[str, Floats], known: NDArray[np.intp], features: NetworkFeatures
) -> dict[str, Floats]:
    """Return curves over all networks from noisy latencies of the known ones: robust kernel ridge.

    One kernel for all devices, so that one decomposition serves; the ridge is chosen by generalised
    cross-validation; outliers are moved to 2.5 robust deviations from the curve.
    """
    fine = features.fine - features.fine.mean(0)
    fine = fine / fine.std(0) / np.sqrt(fine.shape[1])
    linear, c = np.hstack([fine, features.likeness]), features.likeness

    def kernel(a: NDArray[np.intp] | slice, b: NDArray[np.intp]) -> Floats:
        apart = (c[a] ** 2).sum(1)[:, None] + (c[b] ** 2).sum(1) - 2 * c[a] @ c[b].T
        found: Floats = 1 + 20 * linear[a] @ linear[b].T + 0.05 * np.exp(-0.5 * apart)
        return found

    values, vectors = linalg.eigh(kernel(known, known))
    values, full = np.maximum(values, 0), kernel(slice(None), known)
    return {device: _curve(y, known, values, vectors, full) for device, y in ms.items()}


def _curve(
    ms: Floats, known: NDArray[np.intp], values: Floats, vectors: Floats, full: Floats
) -> Floats:
    middle = np.median(ms[known])
    y = clean = ms[known] / middle
    for _ in range(4):
        projected = vectors.T @ clean
        keep = [values / (values + r) for r in np.logspace(-6, 1, 15)]
        gcv = [np.mean(((1 - k) * projected) ** 2) / (1 - k.mean()) ** 2 for k in keep]
        best = int(np.argmin(gcv))
        fitted = vectors @ (keep[best] * projected)
        error = y / fitted - 1
        centre = np.median(error)
        limit = 2.5 * 1.4826 * np.median(np.abs(error - centre))
        clean = fitted * (1 + centre + np.clip(error - centre, -limit, limit))
    ridge = np.logspace(-6, 1, 15)[best]
    found: Floats = full @ (vectors @ (projected / (values + ridge))) * middle
    return np.maximum(found, 1e-3 * np.median(found))
