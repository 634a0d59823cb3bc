"""Predict latencies from a few measured networks, with each device held out in turn.

    python -m experiments.devices.evaluate FOLDER [ofa anb fbnet] [--baselines]

Writes ``scores_<space>.csv`` to this folder.
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
from experiments.devices.benchmark import Benchmark, load
from hwnas.core.agreement import agreement
from hwnas.hardware.device_models import predictor
from hwnas.hardware.device_models.device_file import select_first_networks
from hwnas.hardware.device_models.fitted_roofline import Floats
from hwnas.hardware.device_models.predictor import DevicePrior

N_MEASURED, DRAWS, POOL = (3, 5, 10, 20, 50), 5, 400
BASELINE_DRAWS = 2  #: fewer, as baselines take longer
Indices = NDArray[np.intp]


def evaluate(benchmark: Benchmark, n_baseline_draws: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each device, draw, number of measured networks and method."""
    test = benchmark.test
    for device, ms in benchmark.ms.items():
        features_by_method = {
            "alone": benchmark.features(device, []),
            "panel": benchmark.features(device, benchmark.others(device)),
        }
        for draw in range(DRAWS):
            pool = np.random.default_rng(draw).choice(benchmark.train, POOL, replace=False)
            pool_features = features_by_method["alone"][pool]
            selected = pool[select_first_networks(pool_features, max(N_MEASURED), DevicePrior())]
            for n in N_MEASURED:
                key = {"space": benchmark.name, "device": device, "draw": draw, "n": n}
                measured = selected[:n]
                for method, features in features_by_method.items():
                    start = time.perf_counter()
                    model = predictor.fit_device(features[measured], ms[measured], DevicePrior())
                    seconds = time.perf_counter() - start
                    predicted, std = model.predict(features[test])
                    half_width = model.interval_factor * std
                    row = {
                        "coverage": (np.abs(ms[test] - predicted) <= half_width).mean(),
                        "half_width": float(np.median(half_width / predicted)),
                        "seconds": seconds,
                    }
                    yield key | {"method": method} | agreement(predicted, ms[test]) | row
                if draw >= n_baseline_draws:
                    continue
                for method, predicted in baselines(benchmark, device, pool[:n]).items():
                    yield key | {"method": method} | agreement(predicted[test], ms[test])
        print(benchmark.name, device, flush=True)


def baselines(benchmark: Benchmark, device: str, measured: Indices) -> dict[str, Floats]:
    """Return the latencies of all networks predicted by simple methods from the measured ones."""
    ms, x = benchmark.ms[device], benchmark.choices
    log = np.log(ms[measured])
    scaled = [_affine(benchmark.curves[other], ms, measured) for other in benchmark.others(device)]
    predictions = {
        "macs": _affine(benchmark.work.macs.sum(1), ms, measured),
        "one device": min(
            scaled, key=lambda p: float(np.abs(p[measured] / ms[measured] - 1).mean())
        ),
        "classes": _by_class(benchmark, device, measured),
    }
    if len(measured) >= 5:
        ridge = RidgeCV(np.logspace(-1, 4, 11)).fit(x[measured], log)
        predictions["ridge"] = np.exp(ridge.predict(x))
    if len(measured) >= 10:
        kernel = ConstantKernel(0.1) * RBF(np.sqrt(x.shape[1])) + WhiteKernel(0.01)
        process = GaussianProcessRegressor(kernel, normalize_y=True).fit(x[measured], log)
        predictions["process"] = np.exp(process.predict(x))
        scaled_x = x / np.sqrt(x.shape[1])
        network = MLPRegressor(
            hidden_layer_sizes=(64, 64), alpha=0.01, max_iter=300, solver="lbfgs", random_state=0
        )
        network.fit(scaled_x[measured], (log - log.mean()) / log.std())
        predictions["perceptron"] = np.exp(network.predict(scaled_x) * log.std() + log.mean())
    return predictions


def _affine(x: Floats, ms: Floats, measured: Indices) -> Floats:
    """Fit a scale and a constant, both non-negative, by least squares; apply them to ``x``."""
    columns = np.stack([x, np.ones_like(x)], 1)
    weights = optimize.nnls(columns[measured] / ms[measured, None], np.ones(len(measured)))[0]
    fitted: Floats = columns @ weights
    return fitted


def _by_class(benchmark: Benchmark, device: str, measured: Indices) -> Floats:
    """Fit non-negative weights of the work by operator class, regularised to equal weights."""
    x, ms = benchmark.features(device, []).coarse, benchmark.ms[device][measured]
    scale, penalty = np.median(ms) / x.shape[1], 0.05 * np.eye(x.shape[1])
    rows = np.vstack([x[measured] * scale / ms[:, None], penalty])
    weights = optimize.nnls(rows, np.append(np.ones(len(measured)), np.diag(penalty)))[0]
    fitted: Floats = x @ weights * scale
    return np.maximum(fitted, 1e-9)


def report(table: pd.DataFrame) -> None:
    """Print means over the devices of each space; of Once-for-all without batch size 1."""
    table = table[(table.space != "ofa") | ~table.device.str.endswith("_1")]
    by_device = table.groupby(["space", "method", "n", "device"]).mean(numeric_only=True)
    means = by_device.groupby(["space", "method", "n"]).mean()
    columns = ["spearman", "mape", "within_5", "within_10", "coverage", "half_width", "seconds"]
    print(means[columns].round(3).to_string())


def main() -> None:
    """Evaluate the predictions for the spaces of a folder."""
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    folder, *names = [argument for argument in sys.argv[1:] if argument != "--baselines"]
    n_baseline_draws = BASELINE_DRAWS if "--baselines" in sys.argv else 0
    tables = []
    for name in names or spaces.NAMES:
        tables.append(pd.DataFrame(evaluate(load(Path(folder), name), n_baseline_draws)))
        path = Path(__file__).parent / f"scores_{name}.csv"
        tables[-1].to_csv(path, index=False, float_format="%.5g")
    report(pd.concat(tables))


if __name__ == "__main__":
    main()
