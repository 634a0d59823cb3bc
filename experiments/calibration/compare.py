"""Compare the accuracy loss of calibration methods for int8 activation ranges.

    python -m experiments.calibration.compare --out FILE dataset=digits
    python -m experiments.calibration.compare --out FILE dataset=fashion_mnist dataset.path=DIR

Trains the supernet of `hwnas train ...`, unless it exists. Evaluates random subnets on the
validation split, in float32 and as int8 TFLite files, one file per method.
"""

import argparse
import csv
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray
from omegaconf import OmegaConf
from rich.console import Console

from hwnas.cli.console import Phases
from hwnas.core import package
from hwnas.hardware.backends.vela.litert import LiteRTSession
from hwnas.models.int8.quantisation import Choose, calibrate, min_error_scale, quantise_with_scales
from hwnas.models.int8.quantised_network import QuantisationScale
from hwnas.models.int8.tflite import write_tflite
from hwnas.training import supernet
from hwnas.workflows import config
from hwnas.workflows.config import TrainConfig

_BINS = 2048


def main() -> None:
    """Evaluate the subnets, write the result of each, and print the loss of each method."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=20, help="random subnets")
    parser.add_argument("--out", required=True, metavar="FILE", help="a CSV file")
    parser.add_argument("overrides", nargs="*", help="overrides of the configuration of train")
    arguments = parser.parse_args()
    config.register("train")
    with initialize_config_dir(str(package.ROOT / "conf"), version_base="1.3"):
        train_config: Any = OmegaConf.to_object(compose("train", arguments.overrides))
    with Phases(Console()) as phases:
        rows = _evaluate(train_config, arguments.n, phases)
    with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _print_losses(rows)


def _range(sample: NDArray[np.float32]) -> QuantisationScale:
    return QuantisationScale.of_range(float(sample.min()), float(sample.max()))


def _percentile(sample: NDArray[np.float32], tail: float) -> QuantisationScale:
    low, high = np.percentile(sample, [tail, 100 - tail])
    return QuantisationScale.of_range(float(low), float(high))


def _entropy(sample: NDArray[np.float32]) -> QuantisationScale:
    """Return the range with the least Kullback-Leibler divergence.

    The candidates are fractions of the observed range. The divergence compares the histogram of the
    values, clipped to the range, with its approximation by 256 levels.

    Source: Migacz, "8-bit Inference with TensorRT", GTC 2017.
    """
    low, high = float(sample.min()), float(sample.max())
    counts, edges = np.histogram(sample, _BINS)
    centres = (edges[:-1] + edges[1:]) / 2

    def divergence(scale: QuantisationScale) -> float:
        level = np.round(centres / scale.scale) + scale.zero_point
        inside = (level >= -128) & (level <= 127)
        index = (np.clip(level, -128, 127) + 128).astype(int)
        level_counts = np.bincount(index[inside], counts[inside], 256)
        n_filled = np.bincount(index[inside], counts[inside] > 0, 256)
        mean_counts = (level_counts / np.maximum(n_filled, 1))[index]
        approximation = np.where(inside & (counts > 0), mean_counts, 0)
        clipped = np.where(inside, counts, 0).astype(float)
        ends = np.flatnonzero(inside)[[0, -1]]
        clipped[ends] += [counts[: ends[0]].sum(), counts[ends[1] + 1 :].sum()]
        p = clipped / clipped.sum()
        q = np.maximum(approximation / max(approximation.sum(), 1), 1e-9)
        return float(np.sum(np.where(p > 0, p * np.log(np.maximum(p, 1e-12) / q), 0)))

    fractions = np.linspace(0.5, 1.0, 26)
    return min((QuantisationScale.of_range(low * f, high * f) for f in fractions), key=divergence)


METHODS: Mapping[str, Choose] = {
    "range": _range,
    "percentile 99.9": lambda sample: _percentile(sample, 0.1),
    "percentile 99.99": lambda sample: _percentile(sample, 0.01),
    "entropy": _entropy,
    "least error": min_error_scale,
}


def _evaluate(train_config: TrainConfig, n: int, phases: Phases) -> list[dict[str, Any]]:
    """Return a row for each of ``n`` random subnets and each method."""
    dataset, seed = train_config.dataset, train_config.seed
    space_and_data = supernet.read_space_and_data([train_config.search_space], dataset, phases)
    folder = Path(train_config.run.supernets)
    training = supernet.SupernetTraining(dataset, train_config.train, seed, folder)
    (setup,) = training.setups(*space_and_data).values()
    space, family, data = setup.space, setup.family, setup.data
    evaluator = setup.evaluator(setup.trained(phases)[0], train_config.scoring)
    rng = random.Random(f"calibration {seed}")
    rows = []
    with phases.phase("Evaluate on the validation split", n * len(METHODS)) as advance:
        for genotype in [space.sample(rng) for _ in range(n)]:
            network = evaluator.network(genotype)
            lowered = family.lower(space, genotype, data.signature)
            images = evaluator.calibration_images(genotype)
            batches = [*data.batches(data.validation, setup.resolution(genotype))]
            labels = np.concatenate([batch[1].numpy() for batch in batches])
            with torch.inference_mode():
                float32 = np.concatenate([network(batch[0]).numpy() for batch in batches])
            for name, choose in METHODS.items():
                scales = calibrate(network, lowered, images, choose)
                session = LiteRTSession(
                    write_tflite(quantise_with_scales(network, lowered, scales))
                )
                int8 = np.concatenate([session.run(batch[0].numpy()) for batch in batches])
                rows.append(
                    {
                        "id": genotype.id,
                        "method": name,
                        "accuracy_float32": float(np.mean(float32.argmax(1) == labels)),
                        "accuracy_int8": float(np.mean(int8.argmax(1) == labels)),
                        "agreement": float(np.mean(int8.argmax(1) == float32.argmax(1))),
                        "error": float(np.abs(int8 - float32).mean() / float32.std()),
                    }
                )
                advance(1)
    return rows


def _print_losses(rows: list[dict[str, Any]]) -> None:
    for method in METHODS:
        selected = [row for row in rows if row["method"] == method]
        losses = [100 * (row["accuracy_float32"] - row["accuracy_int8"]) for row in selected]
        agreement, error = (
            statistics.mean(row[key] for row in selected) for key in ("agreement", "error")
        )
        half_width = 1.96 * statistics.stdev(losses) / len(losses) ** 0.5
        print(
            f"{method:17} accuracy loss {statistics.mean(losses):.2f} points "
            f"(+- {half_width:.2f}), at most {max(losses):.2f}; same class as float32 "
            f"{agreement:.4f}; logit error {error:.4f} standard deviations"
        )


if __name__ == "__main__":
    main()
