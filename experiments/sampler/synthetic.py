"""Evaluate ``sampler=pareto`` on a synthetic space of 30 choices, with exact and noisy accuracies.

    python experiments/sampler/synthetic.py --seeds 5 --trials 100

Networks of five stages, each with a depth of 1 to 3, a width, and an operator for each block:
blocks beyond the depth have no effect. Accuracies saturate with the work, decrease with narrow and
unbalanced stages, and have a constant part for each network. With ``--n-images``, an accuracy is
measured on this number of images, with the corresponding noise. Prints the hypervolume of true
accuracies (not normalised: compare versions only), and the coverage of the sampler's 95 %
intervals.
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
    own = int.from_bytes(digest[:4]) / 2**32 - 0.5
    strength = np.mean(stages) + 0.5 * min(stages) + 0.05 * large
    strength *= (a["resolution"] / 32) ** 0.5
    return 1 - 0.6 * math.exp(-0.9 * strength + 0.15 * own)


def _search(arguments: argparse.Namespace, seed: int) -> tuple[list[float], int, int]:
    space = _space()
    sampler = ParetoSampler(
        lambda rows: np.array([[_latency(a)] for a in rows]),
        seed=seed, search_space=space, active=_active, n_startup=arguments.startup,
        optional=[n for n in space if ".blocks." in n and ".blocks.0" not in n],
    )  # fmt: skip
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    rng = np.random.default_rng(seed)
    points, kept, n_intervals = [], 0, 0
    for _ in range(arguments.trials):
        trial = study.ask(space)
        truth = read = _accuracy(trial.params)
        if n := arguments.n_images:
            read = rng.binomial(n, truth) / n
            study._storage.set_trial_system_attr(
                trial._trial_id, _STD, math.sqrt(max(read * (1 - read), 1 / n) / n)
            )
        latency = _latency(trial.params)
        study.tell(trial, [read, latency])
        points.append((truth, latency))
        why = study.trials[-1].system_attrs["pareto:proposal"]
        if expected := why.get("expected"):
            n_intervals += 1
            kept += expected[1] <= read <= expected[2]
    volumes = []
    for n in arguments.at:
        known = np.array(points[:n])
        inside = known[(known[:, 0] > _REFERENCE[0]) & (known[:, 1] < _REFERENCE[1])]
        volumes.append(hypervolume(inside, _REFERENCE, [True, False]))
    return volumes, kept, n_intervals


def main() -> None:
    """Search with each seed and print the means."""
    arguments = _parse()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = [_search(arguments, seed) for seed in range(arguments.seeds)]
    volumes = np.array([volumes for volumes, _, _ in found])
    error = volumes.std(axis=0, ddof=1) / math.sqrt(len(found))
    for n, mean, sem in zip(arguments.at, volumes.mean(axis=0), error, strict=True):
        print(f"{n}: {mean:.4f} +- {sem:.4f}")
    print(f"coverage {sum(k for _, k, _ in found) / sum(n for _, _, n in found):.1%}")


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
