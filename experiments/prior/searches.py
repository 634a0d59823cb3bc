"""Simulated searches on one data set, with and without a prior from the other data sets.

python -m experiments.prior.searches DIR NAME=FILE.csv ... [--target NAME ...] [--seeds 10]

``DIR`` contains Fashion-MNIST; each file is one of ``experiments.prior.networks``. A response
surface is fitted to each file and to ``experiments/landscape/networks.csv`` (``fashion_mnist``). A
search on the surface of ``--target`` is repeated with a prior, which is the mean of the
standardised log errors that the other surfaces predict. Variants:

- ``none``: no prior.
- ``feature``: the prior is one more summary feature of the sampler's model, with a linear term.
- ``front``: that feature, and five of the ten initial candidates are on the prior's front.

Prints the hypervolume of the true errors of the first 15, 30 and 60 networks trained to the end, in
logarithms of latency and error, as a fraction of that of the best front of the surface.
"""

import argparse
import functools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from experiments.landscape.landscape import READ, Landscape
from experiments.landscape.searches import Point, World, opened, searched
from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.models.spaces import Genotype
from hwnas.nas.pareto.features import ChoiceFeatures, Offspring, ProposalSpace, summary_features

#: Validation images of each data set with the default split.
N_IMAGES = {
    "fashion_mnist": 6000, "digits": 360, "oracle": 240, "sign_digits": 165, "pneumonia": 441,
}  # fmt: skip
VARIANTS = "none", "feature", "front"
BUDGETS = 15, 30, 60
_LIMIT_S = 1e9
_N_FIRST = 5
_GENERATIONS, _CHILDREN, _DRAWN = 30, 100, 400


class Prior:
    """Standardised log errors, the mean over the surfaces of several data sets."""

    def __init__(self, world: World, lands: Sequence[Landscape]):
        self._world, self._lands = world, lands
        self.error = functools.cache(self._error)

    def _error(self, genotype: Genotype) -> float:
        """Return the standardised log error of a network; higher is worse."""
        return statistics.fmean(
            (float(land.predict([genotype])[0]) - land.mean) / land.std for land in self._lands
        )


def main() -> None:
    """Search with each variant and seed, and print hypervolumes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("files", nargs="+", metavar="NAME=FILE.csv")
    parser.add_argument("--target", nargs="+", default=["fashion_mnist"])
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    world = opened(arguments.data)
    paths = {"fashion_mnist": READ}
    paths |= {name: Path(path) for name, path in (text.split("=") for text in arguments.files)}
    lands = {
        name: Landscape(world.networks, world.space, (path,), N_IMAGES[name])
        for name, path in paths.items()
    }
    for name, land in lands.items():
        print(f"{name}: residual {land.residual:.3f}, validation {land.reading:.3f}", flush=True)
    _print_correlations(world, lands)
    for target in arguments.target:
        land = lands[target]
        prior = Prior(world, [other for name, other in lands.items() if name != target])
        best = [
            point for point, _ in _evolved(world, lambda g, land=land: math.log(land.truth(g)[1]))
        ]
        first = _spread_front(world, prior)
        for seed in range(arguments.seeds):
            for variant in VARIANTS:
                points = _points(world, land, prior, first, seed, variant)
                shares = [_volume(points[:n], best) / _volume(best, best) for n in BUDGETS]
                text = ", ".join(f"{share:.4f}" for share in shares)
                print(f"{target}, seed {seed}, {variant}: {text}", flush=True)


def _points(
    world: World,
    land: Landscape,
    prior: Prior,
    first: Sequence[Mapping[str, Any]],
    seed: int,
    variant: str,
) -> list[Point]:
    """Return latency and true log error of each network trained to the end, in their order."""
    sizes = summary_features(world.space, world.networks.lower)

    def summary(assignment: Mapping[str, Any]) -> Sequence[float]:
        own = [] if variant == "none" else [prior.error(world.space.genotype(assignment))]
        return [*sizes(assignment), *own]

    chosen = first if variant == "front" else ()
    points, *_ = searched(world, land, seed, _LIMIT_S, summary, chosen, max(BUDGETS))
    return [(latency, math.log(error)) for latency, error in points]


def _volume(points: Sequence[Point], best: Sequence[Point]) -> float:
    """Return the hypervolume in logarithms; the reference point is the worst of the best front."""
    rows = np.array([[math.log(latency), error] for latency, error in points])
    ends = np.array([[math.log(latency), error] for latency, error in best])
    ends = ends[non_dominated(ends, [False, False])]
    reference = ends.max(axis=0)
    inside = rows[(rows < reference).all(axis=1)]
    return hypervolume(inside, reference.tolist(), [False, False]) if len(inside) else 0.0


def _evolved(world: World, error: Any) -> list[tuple[Point, Mapping[str, Any]]]:
    """Return points and assignments that an evolutionary search with ``error`` evaluates."""
    space, rng = world.space, random.Random(7)
    options = {name: list(values) for name, values in space.choices.items()}
    choices = ProposalSpace(options, dict, ChoiceFeatures(options), "", space.scope)
    pool = dict[str, tuple[Point, Mapping[str, Any]]]()

    def add(assignment: Mapping[str, Any]) -> None:
        genotype = space.genotype(assignment)
        latency = world.costs(genotype)[0]
        if genotype.id not in pool and math.isfinite(latency):
            pool[genotype.id] = (latency, error(genotype)), assignment

    for _ in range(_DRAWN):
        add(choices.draw(rng))
    for _ in range(_GENERATIONS):
        points = np.array([[math.log(latency), value] for (latency, value), _ in pool.values()])
        front = non_dominated(points, [False, False])
        parents = [Offspring(a) for (_, a), on in zip(pool.values(), front, strict=True) if on]
        for _ in range(_CHILDREN):
            add(choices.child(parents, rng).assignment)
    return [*pool.values()]


def _spread_front(world: World, prior: Prior) -> list[Mapping[str, Any]]:
    """Return assignments of the prior's front, evenly spaced in the logarithm of latency."""
    pool = _evolved(world, prior.error)
    points = np.array([[math.log(latency), value] for (latency, value), _ in pool])
    rows = np.flatnonzero(non_dominated(points, [False, False]))
    rows = rows[np.argsort(points[rows, 0])]
    ends = points[rows[0], 0], points[rows[-1], 0]
    nearest = [
        int(rows[np.abs(points[rows, 0] - at).argmin()]) for at in np.linspace(*ends, _N_FIRST)
    ]
    return [pool[row][1] for row in dict.fromkeys(nearest)]


def _print_correlations(world: World, lands: Mapping[str, Landscape]) -> None:
    """Print Spearman's correlations of the predicted log errors of random networks."""
    from scipy.stats import spearmanr

    rng = random.Random(0)
    genotypes = [world.space.sample(rng) for _ in range(300)]
    predicted = {name: land.predict(genotypes) for name, land in lands.items()}
    for name, own in predicted.items():
        others = {
            other: spearmanr(own, values).statistic
            for other, values in predicted.items()
            if other != name
        }
        print(f"{name}: " + ", ".join(f"{o} {r:.2f}" for o, r in others.items()), flush=True)


if __name__ == "__main__":
    main()
