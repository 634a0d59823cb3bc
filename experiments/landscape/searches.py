"""Complete searches on the response surface: two processes, a simulated clock, and no training.

python -m experiments.landscape.searches DIR [--minutes 20] [--seeds 6] [--without-sums]
    [--searched]

Costs are those of the roofline of the target ``npu``. Accuracies have the noise of 6,000 images,
and a network stops after its first epoch as in a search. Prints, for each seed, the slowdown of the
front relative to the best front of the surface at equal accuracy: the geometric mean over
accuracies of 0.883 to 0.931, those of each third, and the number of candidates with 16 pixels.
"""

import argparse
import functools
import heapq
import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution

from experiments.landscape.landscape import READ, SEARCHED, Landscape
from hwnas.core.pareto import non_dominated
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.pareto.features import (
    ChoiceFeatures,
    FeatureFunction,
    Offspring,
    ProposalSpace,
    summary_features,
    work_features,
)
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.trial_attributes import STD
from hwnas.workflows import components
from hwnas.workflows.config.compose import compose
from hwnas.workflows.networks import Networks

Array = NDArray[np.float64]
Point = tuple[float, float]  # latency in ms, error

LEVELS = np.exp(np.linspace(math.log(1 - 0.883), math.log(1 - 0.931), 13))
_THIRDS = slice(0, 4), slice(4, 9), slice(9, 13)
_WORST = math.log(6)  # slowdown if an accuracy is not reached
_CONFIDENCE, _ENOUGH = 1.645, 5
_FIRST = 0.37  # fraction of the seconds of both trainings for the first
_THOUGHT_S = 2.0
_GENERATIONS, _CHILDREN, _DRAWN = 40, 100, 400  # evaluations for the best front of the surface


@dataclass
class World:
    """The configuration of a search."""

    networks: Networks
    space: SearchSpace
    cost_model: CostModel
    fits: Any

    def __post_init__(self) -> None:
        self.costs = functools.cache(self._costs)

    def _costs(self, genotype: Genotype) -> tuple[float, float]:
        """Return latency and energy; NaN beyond the budget."""
        cost = self.cost_model.cost(genotype)
        if cost.reason or not self.fits(cost.figures):
            return math.nan, math.nan
        return cost.figures["latency_ms"].value, cost.figures["energy_mj"].value


def opened(data: str) -> World:
    """Return the configuration of ``search +target=npu`` on Fashion-MNIST with modelled costs."""
    with tempfile.TemporaryDirectory() as kept:
        words = ["+target=npu", "dataset=fashion_mnist", f"dataset.path={data}", "cost=roofline"]
        parts = components.parts(
            compose("search", [*words, f"run.supernets={kept}"]), NullProgress()
        )
    (space,) = parts.space.members
    limits = parts.config.allowed
    cost_model = components.cost_model(parts, None)
    return World(parts.networks, space, cost_model, lambda found: not limits.exceeded(found))


def main() -> None:
    """Search with each seed, and print the slowdown of its front."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--without-sums", action="store_true")
    parser.add_argument(
        "--searched",
        action="store_true",
        help="fit the surface to the networks of two searches as well",
    )
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    world = opened(asked.data)
    paths = (READ, SEARCHED) if asked.searched else (READ,)
    land = Landscape(world.networks, world.space, paths)
    print(
        f"landscape: {land.residual:.3f} left, {land.reading:.3f} of it from validation", flush=True
    )
    best, behind = _best(world, land), []
    for seed in range(asked.seeds):
        summary = (
            None if asked.without_sums else summary_features(world.space, world.networks.lower)
        )
        found, n, small = searched(world, land, seed, 60 * asked.minutes, summary)
        behind.append(_behind(found, best))
        print(f"seed {seed}: {n} candidates, {_said(behind[-1])}, {small:.0%} of 16 px", flush=True)
    means = np.mean(behind, axis=1)
    spread = means.std() / math.sqrt(len(means))
    print(f"all: {_said(np.mean(behind, axis=0))}; times or over {math.exp(spread):.2f}")


def searched(  # noqa: PLR0913, PLR0917
    world: World,
    land: Landscape,
    seed: int,
    limit_s: float,
    summary: FeatureFunction | None,
    first: Sequence[Mapping[str, Any]] = (),
    n_points: float = math.inf,
) -> tuple[list[Point], int, float]:
    """Return true points of fully trained networks, the number of candidates, the part of 16 px.

    Args:
        world: The configuration of the search.
        land: The response surface.
        seed: Seed of the sampler and of the noise.
        limit_s: Simulated time limit in seconds.
        summary: Summary features of the sampler.
        first: Assignments of the first trials.
        n_points: Maximum number of fully trained networks.
    """
    space = world.space
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(options) for name, options in space.choices.items()
    }

    def costs(assignments: Sequence[Mapping[str, Any]]) -> Array:
        return np.array([world.costs(space.genotype(a)) for a in assignments]).reshape(-1, 2)

    sampler = ParetoSampler(
        costs,
        seed=seed,
        search_space=distributions,
        active=lambda assignment: space.assignment(space.genotype(assignment)),
        optional=space.optional(),
        scope=space.scope,
        n_costs=12,
        work=work_features(space, world.networks.lower),
        summary=summary,
    )
    study = optuna.create_study(directions=["maximize", "minimize", "minimize"], sampler=sampler)
    for assignment in first:
        study.enqueue_trial(dict(assignment))
    rng = np.random.default_rng(1000 + seed)
    free, running = [(0.0, 0), (0.0, 1)], list[tuple[float, Any, float, float, Array, bool]]()
    told: list[
        tuple[Array, float, bool]
    ] = []  # costs, measured error, whether training is complete
    points, sides = list[Point](), list[int]()
    while free:
        now, process = heapq.heappop(free)
        for ended in [one for one in running if one[0] <= now]:
            running.remove(ended)
            _tell(study, *ended[1:5])
            told.append((ended[4], ended[2], ended[5]))
        if now > limit_s or len(points) >= n_points:
            continue
        trial = study.ask(distributions)
        genotype = space.genotype(trial.params)
        once, last, seconds = land.truth(genotype)
        own = np.array(world.costs(genotype))
        n = land.n_images
        read = [max(1, rng.binomial(n, e)) / n for e in (once, last)]
        error, std, whole = read[1], math.sqrt(read[1] * (1 - read[1]) / n), True
        rivals = [e for c, e, is_whole in told if is_whole and (c <= own).all()]
        if rivals and sum(is_whole for *_, is_whole in told) >= _ENOUGH:
            outlook = math.log(read[0]) - land.gain
            if math.log(min(rivals)) < outlook - _CONFIDENCE * land.gain_std:
                error, whole = math.exp(outlook), False
                std, seconds = error * land.gain_std, _FIRST * seconds
        if whole:
            points.append((float(own[0]), last))
        sides.append(int(trial.params["resolution"]))
        took = _THOUGHT_S + seconds
        study._storage.set_trial_system_attr(trial._trial_id, STD, std)
        running.append((now + took, (trial, took), error, std, own, whole))
        heapq.heappush(free, (now + took, process))
    return points, len(sides), sides.count(16) / len(sides)


def _tell(study: optuna.Study, asked: Any, error: float, std: float, costs: Array) -> None:
    trial, took = asked
    study.tell(trial, [1 - error, *costs.tolist()])
    # Set the simulated duration: Optuna returns the content of its storage.
    own = study._storage.get_all_trials(study._study_id, deepcopy=False)[trial.number]
    assert own.datetime_start is not None
    own.datetime_complete = own.datetime_start + timedelta(seconds=took)


def _best(world: World, land: Landscape) -> list[Point]:
    """Return the best front of the surface, as far as an evolutionary search finds it."""
    space, rng, pool = world.space, random.Random(7), dict[str, tuple[Point, Any]]()
    options = {name: list(values) for name, values in space.choices.items()}
    choices = ProposalSpace(options, dict, ChoiceFeatures(options), "", space.scope)

    def add(assignment: Mapping[str, Any]) -> None:
        genotype = space.genotype(assignment)
        latency = world.costs(genotype)[0]
        if genotype.id not in pool and math.isfinite(latency):
            pool[genotype.id] = (latency, land.truth(genotype)[1]), assignment

    for _ in range(_DRAWN):
        add(choices.draw(rng))
    for _ in range(_GENERATIONS):
        points = np.array([[math.log(point[0]), point[1]] for point, _ in pool.values()])
        front = non_dominated(points, [False, False])
        parents = [Offspring(a) for (_, a), on in zip(pool.values(), front, strict=True) if on]
        for _ in range(_CHILDREN):
            add(choices.child(parents, rng).assignment)
    return [point for point, _ in pool.values()]


def _behind(found: Sequence[Point], best: Sequence[Point]) -> Array:
    """Return the logarithm of the slowdown of ``found`` at each level of errors."""

    def fastest(points: Sequence[Point], level: float) -> float:
        return min((latency for latency, error in points if error <= level), default=math.inf)

    return np.array(
        [min(_WORST, math.log(fastest(found, at) / fastest(best, at))) for at in LEVELS]
    )


def _said(behind: Array) -> str:
    thirds = ", ".join(f"{math.exp(behind[part].mean()):.2f}" for part in _THIRDS)
    return f"{math.exp(behind.mean()):.2f} times as slow ({thirds})"


if __name__ == "__main__":
    main()
