"""Evaluate ``sampler=pareto`` on a synthetic space of 30 choices.

    python experiments/sampler/synthetic.py --seeds 5 --trials 100

A network has five stages, each with a depth of 1 to 3, a width, and an operator for each block.
Blocks beyond the depth have no effect. The accuracy saturates with the work, and is lower with
narrow or unbalanced stages. It also has a pseudo-random part, which is a fixed function of the
network. With ``--n-images``, the accuracy is measured on this number of images, with the
corresponding noise.

Prints the hypervolume of true accuracies, and the coverage of the sampler's 95 % intervals. The
hypervolume is not normalised: use it only to compare versions of the sampler.
"""

import argparse
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna

from hwnas.core.pareto import hypervolume
from hwnas.nas.pareto.sampler import ParetoSampler

Assignment = Mapping[str, Any]

_OPERATORS = ("conv3", "conv5", "dw3", "dw5", "skip")
_WORK = {"conv3": 1.0, "conv5": 2.2, "dw3": 0.25, "dw5": 0.4, "skip": 0.02}
_STAGES, _BLOCKS, _WIDTHS = 5, 3, (8, 16, 24, 32)
_REFERENCE = (0.7, 20.0)
_STD = "pareto:std"


def _space() -> dict[str, optuna.distributions.BaseDistribution]:
    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for i in range(_STAGES):
        space[f"s{i}.depth"] = optuna.distributions.IntDistribution(1, _BLOCKS)
        space[f"s{i}.width"] = optuna.distributions.CategoricalDistribution(_WIDTHS)
        for j in range(_BLOCKS):
            operators = optuna.distributions.CategoricalDistribution(_OPERATORS)
            space[f"s{i}.blocks.{j}.op"] = operators
    space["resolution"] = optuna.distributions.IntDistribution(16, 32, step=4)
    return space


def _active(a: Assignment) -> Assignment:
    def has_effect(name: str) -> bool:
        stage, *rest = name.split(".")
        return rest[:1] != ["blocks"] or int(rest[1]) < a[f"{stage}.depth"]

    return {name: value for name, value in a.items() if has_effect(name)}


def _blocks(a: Assignment) -> list[list[str]]:
    return [[a[f"s{i}.blocks.{j}.op"] for j in range(a[f"s{i}.depth"])] for i in range(_STAGES)]


def _latency(a: Assignment) -> float:
    """Return the latency in milliseconds."""
    size = (a["resolution"] / 32) ** 2
    per_stage = [
        sum(_WORK[op] ** 0.8 for op in ops) * (a[f"s{i}.width"] / 16) ** 1.5 / 2 ** (i / 3)
        for i, ops in enumerate(_blocks(a))
    ]
    return float(0.3 + size * 3 * sum(per_stage))


def _accuracy(a: Assignment) -> float:
    stages = [
        math.log1p(sum(_WORK[op] ** 0.5 for op in ops) * a[f"s{i}.width"] / 8)
        for i, ops in enumerate(_blocks(a))
    ]
    large = sum("5" in op for ops in _blocks(a) for op in ops)
    digest = hashlib.sha256(repr(sorted(_active(a).items())).encode()).digest()
    offset = int.from_bytes(digest[:4]) / 2**32 - 0.5
    strength = np.mean(stages) + 0.5 * min(stages) + 0.05 * large
    strength *= (a["resolution"] / 32) ** 0.5
    return 1 - 0.6 * math.exp(-0.9 * strength + 0.15 * offset)


def _search(arguments: argparse.Namespace, seed: int) -> tuple[list[float], int, int]:
    """Return hypervolumes, and the numbers of measurements within intervals and of intervals."""
    space = _space()
    sampler = ParetoSampler(
        lambda rows: np.array([[_latency(a)] for a in rows]),
        seed=seed, search_space=space, active=_active, n_startup=arguments.startup,
        optional=[n for n in space if ".blocks." in n and ".blocks.0" not in n],
    )  # fmt: skip
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    rng = np.random.default_rng(seed)
    points, n_within, n_intervals = [], 0, 0
    for _ in range(arguments.trials):
        trial = study.ask(space)
        accuracy = measured = _accuracy(trial.params)
        if n := arguments.n_images:
            measured = rng.binomial(n, accuracy) / n
            std = math.sqrt(max(measured * (1 - measured), 1 / n) / n)
            study._storage.set_trial_system_attr(trial._trial_id, _STD, std)
        latency = _latency(trial.params)
        study.tell(trial, [measured, latency])
        points.append((accuracy, latency))
        proposal = study.trials[-1].system_attrs["pareto:proposal"]
        if expected := proposal.get("expected"):
            n_intervals += 1
            n_within += expected[1] <= measured <= expected[2]
    volumes = []
    for n in arguments.at:
        first = np.array(points[:n])
        inside = first[(first[:, 0] > _REFERENCE[0]) & (first[:, 1] < _REFERENCE[1])]
        volumes.append(hypervolume(inside, _REFERENCE, [True, False]))
    return volumes, n_within, n_intervals


def main() -> None:
    """Search with each seed, and print the means."""
    arguments = _parse()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results = [_search(arguments, seed) for seed in range(arguments.seeds)]
    volumes = np.array([volumes for volumes, _, _ in results])
    std_errors = volumes.std(axis=0, ddof=1) / math.sqrt(len(results))
    for n, mean, std_error in zip(arguments.at, volumes.mean(axis=0), std_errors, strict=True):
        print(f"{n}: {mean:.4f} +- {std_error:.4f}")
    coverage = sum(within for _, within, _ in results) / sum(n for _, _, n in results)
    print(f"coverage {coverage:.1%}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--at", nargs="+", type=int, default=[25, 50, 100])
    parser.add_argument("--startup", type=int, default=10)
    parser.add_argument("--n-images", type=int, default=0, help="0: accuracies are exact")
    return parser.parse_args()


if __name__ == "__main__":
    main()
