"""Accuracy loss of calibration methods for activation ranges in int8.

    python -m experiments.calibration.compare --out FILE dataset=digits
    python -m experiments.calibration.compare --out FILE dataset=fashion_mnist dataset.path=DIR

Trains the supernet of `hwnas train ...`, unless it exists, and evaluates random subnets on the
validation split: in float32, and as the int8 TFLite file of each method.
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
    """Print the loss of each method, and write the results of each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=20, help="random subnets")
    parser.add_argument("--out", required=True, metavar="FILE", help="a CSV file")
    parser.add_argument("overrides", nargs="*", help="overrides of the configuration of train")
    arguments = parser.parse_args()
    config.register("train")
    with initialize_config_dir(str(package.ROOT / "conf"), version_base="1.3"):
        found: Any = OmegaConf.to_object(compose("train", arguments.overrides))
    with Phases(Console()) as phases:
        rows = _read(found, arguments.n, phases)
    with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _print(rows)


def _range(sample: NDArray[np.float32]) -> QuantisationScale:
    return QuantisationScale.of_range(float(sample.min()), float(sample.max()))


def _percentile(sample: NDArray[np.float32], tail: float) -> QuantisationScale:
    low, high = np.percentile(sample, [tail, 100 - tail])
    return QuantisationScale.of_range(float(low), float(high))


def _entropy(sample: NDArray[np.float32]) -> QuantisationScale:
    """Return the range, among fractions, with the least divergence.

    Source: Migacz, "8-bit Inference with TensorRT", GTC 2017: the least Kullback-Leibler
    divergence of the histogram of values, clipped to the range, from its approximation by 256
    levels.
    """
    low, high = float(sample.min()), float(sample.max())
    counts, edges = np.histogram(sample, _BINS)
    centres = (edges[:-1] + edges[1:]) / 2

    def divergence(scale: QuantisationScale) -> float:
        level = np.round(centres / scale.scale) + scale.zero_point
        inside = (level >= -128) & (level <= 127)
        cut = (np.clip(level, -128, 127) + 128).astype(int)
        real = np.bincount(cut[inside], counts[inside], 256)  # the approximation by 256 levels
        filled = np.bincount(cut[inside], counts[inside] > 0, 256)
        kept = np.where(inside & (counts > 0), (real / np.maximum(filled, 1))[cut], 0)
        wanted = np.where(inside, counts, 0).astype(float)
        ends = np.flatnonzero(inside)[[0, -1]]
        wanted[ends] += [counts[: ends[0]].sum(), counts[ends[1] + 1 :].sum()]
        p, q = wanted / wanted.sum(), np.maximum(kept / max(kept.sum(), 1), 1e-9)
        return float(np.sum(np.where(p > 0, p * np.log(np.maximum(p, 1e-12) / q), 0)))

    shrunk = [
        QuantisationScale.of_range(low * part, high * part) for part in np.linspace(0.5, 1.0, 26)
    ]
    return min(shrunk, key=divergence)


METHODS: Mapping[str, Choose] = {
    "range": _range,
    "percentile 99.9": lambda sample: _percentile(sample, 0.1),
    "percentile 99.99": lambda sample: _percentile(sample, 0.01),
    "entropy": _entropy,
    "least error": min_error_scale,
}


def _read(found: TrainConfig, n: int, phases: Phases) -> list[dict[str, Any]]:
    read = supernet.read_space_and_data([found.search_space], found.dataset, phases)
    kept = Path(found.run.supernets)
    training = supernet.SupernetTraining(found.dataset, found.train, found.seed, kept)
    (setup,) = training.setups(*read).values()
    space, family, data = setup.space, setup.family, setup.data
    evaluator = setup.evaluator(setup.trained(phases)[0], found.scoring)
    rng = random.Random(f"calibration {found.seed}")
    rows = []
    with phases.phase("Read validation split", n * len(METHODS)) as advance:
        for genotype in [space.sample(rng) for _ in range(n)]:
            network = evaluator.network(genotype)
            lowered = family.lower(space, genotype, data.signature)
            images = evaluator.calibration_images(genotype)
            batches = [*data.batches(data.validation, setup.resolution(genotype))]
            labels = np.concatenate([batch[1].numpy() for batch in batches])
            with torch.inference_mode():
                real = np.concatenate([network(batch[0]).numpy() for batch in batches])
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
                        "accuracy_float32": float(np.mean(real.argmax(1) == labels)),
                        "accuracy_int8": float(np.mean(int8.argmax(1) == labels)),
                        "agreement": float(np.mean(int8.argmax(1) == real.argmax(1))),
                        "error": float(np.abs(int8 - real).mean() / real.std()),
                    }
                )
                advance(1)
    return rows


def _print(rows: list[dict[str, Any]]) -> None:
    for name in METHODS:
        own = [row for row in rows if row["method"] == name]
        lost = [100 * (row["accuracy_float32"] - row["accuracy_int8"]) for row in own]
        agree, error = (statistics.mean(row[key] for row in own) for key in ("agreement", "error"))
        apart = statistics.stdev(lost) / len(lost) ** 0.5
        print(
            f"{name:17} loses {statistics.mean(lost):.2f} points (+- {1.96 * apart:.2f}), at most "
            f"{max(lost):.2f}; agrees on {agree:.4f}; logits apart by {error:.4f} deviations"
        )


if __name__ == "__main__":
    main()
