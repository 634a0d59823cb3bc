"""Latency prediction from a few measured networks, with each device held out in turn.

python -m experiments.devices.evaluate FOLDER [ofa anb fbnet] [--baselines]   # writes scores_*.csv
"""

import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.neural_network import MLPRegressor

from experiments.devices import spaces
from experiments.devices.cases import Case, prepare
from hwnas.core.agreement import agreement
from hwnas.hardware.device_models import predictor
from hwnas.hardware.device_models.device_file import select_first_networks
from hwnas.hardware.device_models.fitted_roofline import Floats
from hwnas.hardware.device_models.predictor import DevicePrior

SIZES, DRAWS, POOL = (3, 5, 10, 20, 50), 5, 400
BASELINE_DRAWS = 2  #: baselines take longer
Rows = NDArray[np.intp]


def scores(case: Case, n_baselines: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each device, method, draw and number of measured networks."""
    for device, ms in case.ms.items():
        panels = {
            "alone": case.features(device, []),
            "panel": case.features(device, case.others(device)),
        }
        for draw in range(DRAWS):
            pool = np.random.default_rng(draw).choice(case.known, POOL, replace=False)
            chosen = pool[select_first_networks(panels["alone"][pool], max(SIZES), DevicePrior())]
            for n in SIZES:
                key = {"space": case.name, "device": device, "draw": draw, "n": n}
                for method, features in panels.items():
                    begun = time.perf_counter()
                    found = predictor.fit_device(
                        features[chosen[:n]], ms[chosen[:n]], DevicePrior()
                    )
                    seconds = time.perf_counter() - begun
                    value, std = found.predict(features[case.test])
                    off = np.abs(ms[case.test] - value) <= found.interval_factor * std
                    half = float(np.median(found.interval_factor * std / value))
                    extra = {"coverage": off.mean(), "half_width": half, "seconds": seconds}
                    yield key | {"method": method} | agreement(value, ms[case.test]) | extra
                if draw >= n_baselines:
                    continue
                for method, value in baselines(case, device, pool[:n]).items():
                    yield key | {"method": method} | agreement(value[case.test], ms[case.test])
        print(case.name, device, flush=True)


def baselines(case: Case, device: str, chosen: Rows) -> dict[str, Floats]:
    """Return the predictions of simple methods for all networks from random measured ones."""
    ms, macs, x = case.ms[device], case.work.macs.sum(1), case.choices
    log = np.log(ms[chosen])
    found = {"macs": _affine(macs, ms, chosen)}
    fits = [_affine(case.curves[other], ms, chosen) for other in case.others(device)]
    found["one device"] = min(fits, key=lambda p: float(np.abs(p[chosen] / ms[chosen] - 1).mean()))
    found["classes"] = _by_class(case, device, chosen)
    if len(chosen) >= 5:
        found["ridge"] = np.exp(RidgeCV(np.logspace(-1, 4, 11)).fit(x[chosen], log).predict(x))
    if len(chosen) >= 10:
        kernel = ConstantKernel(0.1) * RBF(np.sqrt(x.shape[1])) + WhiteKernel(0.01)
        process = GaussianProcessRegressor(kernel, normalize_y=True).fit(x[chosen], log)
        found["process"] = np.exp(process.predict(x))
        unit = x / np.sqrt(x.shape[1])
        network = MLPRegressor(
            hidden_layer_sizes=(64, 64), alpha=0.01, max_iter=300, solver="lbfgs", random_state=0
        )
        network.fit(unit[chosen], (log - log.mean()) / log.std())
        found["perceptron"] = np.exp(network.predict(unit) * log.std() + log.mean())
    return found


def _affine(x: Floats, ms: Floats, chosen: Rows) -> Floats:
    """Return the least-squares scale and constant of ``x``, both non-negative, applied to ``x``."""
    columns = np.stack([x, np.ones_like(x)], 1)
    weights = optimize.nnls(columns[chosen] / ms[chosen, None], np.ones(len(chosen)))[0]
    fitted: Floats = columns @ weights
    return fitted


def _by_class(case: Case, device: str, chosen: Rows) -> Floats:
    """Return non-negative sums of work by operator class, regularised to equal weights."""
    x, ms = case.features(device, []).coarse, case.ms[device][chosen]
    level, pull = np.median(ms) / x.shape[1], 0.05 * np.eye(x.shape[1])
    rows = np.vstack([x[chosen] * level / ms[:, None], pull])
    weights = optimize.nnls(rows, np.append(np.ones(len(chosen)), np.diag(pull)))[0]
    fitted: Floats = x @ weights * level
    return np.maximum(fitted, 1e-9)


def report(table: pd.DataFrame) -> None:
    """Print means over the devices of each space."""
    table = table[(table.space != "ofa") | ~table.device.str.endswith("_1")]
    device = table.groupby(["space", "method", "n", "device"]).mean(numeric_only=True)
    mean = device.groupby(["space", "method", "n"]).mean()
    columns = ["spearman", "mape", "within_5", "within_10", "coverage", "half_width", "seconds"]
    print(mean[columns].round(3).to_string())


def main() -> None:
    """Evaluate the model on the tables of a folder."""
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    words = [word for word in sys.argv[1:] if word != "--baselines"]
    n_baselines = BASELINE_DRAWS if "--baselines" in sys.argv else 0
    tables = []
    for name in words[1:] or spaces.NAMES:
        rows = scores(prepare(Path(words[0]), name), n_baselines)
        tables.append(pd.DataFrame(rows))
        path = Path(__file__).parent / f"scores_{name}.csv"
        tables[-1].to_csv(path, index=False, float_format="%.5g")
    table = pd.concat(tables)
    report(table)


if __name__ == "__main__":
    main()
