"""Simulated searches on the response surface: two processes, a simulated clock, and no training.

python -m experiments.landscape.searches DIR [--minutes 20] [--seeds 6] [--without-sums]
    [--searched] [--first-epoch-only] [--finetuned N]

DIR contains Fashion-MNIST as Parquet files. Costs are those of the roofline of the target ``npu``.
Accuracies have the noise of 6,000 images. Training stops early after the first epoch as in a
search.

Prints, for each seed, the slowdown of the search's front: its latency relative to the best front of
the surface at equal accuracy. The values are the geometric means over accuracies of 0.883 to 0.931,
and over the lower, middle and upper third of them. Also prints the number of candidates, and the
fraction with 16 pixels.
"""

import argparse
import functools
import heapq
import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution

from experiments.landscape.landscape import NETWORKS_CSV, SEARCHED_CSV, Landscape
from hwnas.core.pareto import non_dominated
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import NORMAL_95, Quantity
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.front_probability import posteriors
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
_MAX_LOG_SLOWDOWN = math.log(6)  # also if an accuracy is not reached
_Z, _MIN_COMPLETE = 1.645, 5  # of early stopping: 95 %, and complete trainings before the first
_FIRST_EPOCH = 0.37  # fraction of the seconds of a complete training
_PROPOSAL_S = 2.0
_GENERATIONS, _CHILDREN, _N_RANDOM = 40, 100, 400  # of the search for the best front


@dataclass
class SearchSetup:
    """The search space and the cost model of a search."""

    networks: Networks
    space: SearchSpace
    cost_model: CostModel
    is_allowed: Any

    def __post_init__(self) -> None:
        self.costs = functools.cache(self._costs)

    def _costs(self, genotype: Genotype) -> tuple[float, float]:
        """Return latency and energy; NaN beyond the budget."""
        cost = self.cost_model.cost(genotype)
        if cost.reason or not self.is_allowed(cost.figures):
            return math.nan, math.nan
        return cost.figures["latency_ms"].value, cost.figures["energy_mj"].value


@dataclass(eq=False)
class Training:
    """A training of the simulation."""

    genotype: Genotype
    true_error: float  #: after the last epoch, without measurement noise
    trial: optuna.Trial
    end_s: float
    duration_s: float
    costs: Array
    error: float  #: measured, or predicted if the training stops early
    std: float  #: standard error of ``error``
    is_complete: bool  #: whether it continues after the first epoch


def load_setup(data: str) -> SearchSetup:
    """Return the setup of ``search +target=npu`` on Fashion-MNIST with modelled costs."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["+target=npu", "dataset=fashion_mnist", f"dataset.path={data}", "cost=roofline"]
        config = compose("search", [*options, f"run.supernets={folder}"])
        parts = components.parts(config, NullProgress())
    (space,) = parts.space.members
    limits = parts.config.allowed
    cost_model = components.cost_model(parts, None)
    return SearchSetup(
        parts.networks, space, cost_model, lambda figures: not limits.exceeded(figures)
    )


def main() -> None:
    """Search with each seed, and print the slowdown of its front."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument(
        "--without-sums", action="store_true", help="use a sampler without graph features"
    )
    parser.add_argument(
        "--first-epoch-only", action="store_true", help="train each candidate for one epoch only"
    )
    parser.add_argument(
        "--finetuned",
        type=int,
        metavar="N",
        help="compare the N networks that are most probably on the front; default: all",
    )
    parser.add_argument(
        "--searched",
        action="store_true",
        help="fit the surface to the networks of two searches as well",
    )
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    setup = load_setup(arguments.data)
    paths = (NETWORKS_CSV, SEARCHED_CSV) if arguments.searched else (NETWORKS_CSV,)
    landscape = Landscape(setup.networks, setup.space, paths)
    print(
        f"response surface: residual {landscape.residual:.3f}, of which validation "
        f"{landscape.validation_std:.3f}",
        flush=True,
    )
    best, slowdowns = best_front(setup, landscape), []
    summary = (
        None if arguments.without_sums else summary_features(setup.space, setup.networks.lower)
    )
    for seed in range(arguments.seeds):
        trainings = simulate_search(
            setup, landscape, seed, 60 * arguments.minutes, summary,
            first_epoch_only=arguments.first_epoch_only,
        )  # fmt: skip
        points = [(float(t.costs[0]), t.true_error) for t in trainings if t.is_complete]
        if arguments.finetuned:
            points = finetuned(setup, trainings, arguments.finetuned)
        slowdowns.append(log_slowdowns(points, best))
        n_16 = sum(t.trial.params["resolution"] == 16 for t in trainings)
        print(
            f"seed {seed}: {len(trainings)} candidates, {format_slowdown(slowdowns[-1])}, "
            f"{n_16 / len(trainings):.0%} with 16 px",
            flush=True,
        )
    means = np.mean(slowdowns, axis=1)
    std_error = means.std() / math.sqrt(len(means))
    print(
        f"all: {format_slowdown(np.mean(slowdowns, axis=0))}; standard error: a factor of "
        f"{math.exp(std_error):.2f}"
    )


def simulate_search(  # noqa: PLR0913, PLR0917
    setup: SearchSetup,
    landscape: Landscape,
    seed: int,
    limit_s: float,
    summary: FeatureFunction | None,
    first: Sequence[Mapping[str, Any]] = (),
    n_complete: float = math.inf,
    first_epoch_only: bool = False,
) -> list[Training]:
    """Return the trainings of a simulated search, in order.

    Args:
        setup: The setup of the search.
        landscape: The response surface.
        seed: Seed of the sampler and of the noise.
        limit_s: Simulated time limit in seconds.
        summary: Summary features of the sampler.
        first: Assignments of the first trials.
        n_complete: Maximum number of completely trained networks.
        first_epoch_only: Whether all trainings end after the first epoch, as with one fidelity.
    """
    space = setup.space
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(options) for name, options in space.choices.items()
    }

    def costs_of(assignments: Sequence[Mapping[str, Any]]) -> Array:
        return np.array([setup.costs(space.genotype(a)) for a in assignments]).reshape(-1, 2)

    sampler = ParetoSampler(
        costs_of,
        seed=seed,
        search_space=distributions,
        active=lambda assignment: space.assignment(space.genotype(assignment)),
        optional=space.optional(),
        scope=space.scope,
        n_costs=12,
        work=work_features(space, setup.networks.lower),
        summary=summary,
    )
    study = optuna.create_study(directions=["maximize", "minimize", "minimize"], sampler=sampler)
    for assignment in first:
        study.enqueue_trial(dict(assignment))
    rng = np.random.default_rng(1000 + seed)
    idle = [(0.0, 0), (0.0, 1)]  # time at which a process is idle, index of the process
    running, finished, trainings = list[Training](), list[Training](), list[Training]()
    while idle:
        now, process = heapq.heappop(idle)
        for training in [training for training in running if training.end_s <= now]:
            running.remove(training)
            finished.append(training)
            _tell(study, training)
        if now > limit_s or sum(t.is_complete for t in trainings) >= n_complete:
            continue
        trial = study.ask(distributions)
        genotype = space.genotype(trial.params)
        costs, n = np.array(setup.costs(genotype)), landscape.n_images
        *true_errors, seconds = landscape.evaluate(genotype)
        first_error, error = (max(1, rng.binomial(n, e)) / n for e in true_errors)
        std, is_complete = math.sqrt(error * (1 - error) / n), True
        complete = [training for training in finished if training.is_complete]
        rivals = [training.error for training in complete if (training.costs <= costs).all()]
        predicted = math.log(first_error) - landscape.gain
        if first_epoch_only:
            error = math.exp(predicted)
            std = error * math.hypot(std / error, landscape.gain_std)
            seconds *= _FIRST_EPOCH
        elif (
            rivals
            and len(complete) >= _MIN_COMPLETE
            and math.log(min(rivals)) < predicted - _Z * landscape.gain_std
        ):
            error, is_complete = math.exp(predicted), False
            std, seconds = error * landscape.gain_std, _FIRST_EPOCH * seconds
        study._storage.set_trial_system_attr(trial._trial_id, STD, std)
        duration_s = _PROPOSAL_S + seconds
        training = Training(
            genotype, true_errors[-1], trial, now + duration_s, duration_s, costs, error, std,
            is_complete,
        )  # fmt: skip
        running.append(training)
        trainings.append(training)
        heapq.heappush(idle, (training.end_s, process))
    return trainings


def finetuned(setup: SearchSetup, trainings: Sequence[Training], n: int) -> list[Point]:
    """Return latency and true error of the ``n`` networks that are most probably on the front."""
    candidates = []
    for training in trainings:
        low, high = (training.error + sign * NORMAL_95 * training.std for sign in (1, -1))
        figures = {
            "accuracy": Quantity(1 - training.error, "measured", 1 - low, 1 - high),
            "latency_ms": Quantity(float(training.costs[0]), "modelled"),
        }
        candidates.append(Candidate(training.trial.number, training.genotype, figures))
    objectives, lower = ("accuracy", "latency_ms"), setup.networks.lower
    estimates = posteriors(setup.space, candidates, objectives, lower)
    order = sorted(range(len(trainings)), key=lambda i: -estimates[i].on_front)
    return [(float(trainings[i].costs[0]), trainings[i].true_error) for i in order[:n]]


def _tell(study: optuna.Study, training: Training) -> None:
    study.tell(training.trial, [1 - training.error, *training.costs.tolist()])
    # Set the simulated duration: Optuna returns the content of its storage.
    trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
    trial = trials[training.trial.number]
    assert trial.datetime_start is not None
    trial.datetime_complete = trial.datetime_start + timedelta(seconds=training.duration_s)


def best_front(setup: SearchSetup, landscape: Landscape) -> list[Point]:
    """Return points that contain the best front of the surface that ``evolve`` finds."""
    return [point for point, _ in evolve(setup, lambda g: landscape.evaluate(g)[1], _GENERATIONS)]


def evolve(
    setup: SearchSetup, error: Callable[[Genotype], float], generations: int
) -> list[tuple[Point, Mapping[str, Any]]]:
    """Return latency, error and assignment of all networks of an evolutionary search."""
    space, rng = setup.space, random.Random(7)
    options = {name: list(values) for name, values in space.choices.items()}
    choices = ProposalSpace(options, dict, ChoiceFeatures(options), "", space.scope)
    pool = dict[str, tuple[Point, Mapping[str, Any]]]()

    def add(assignment: Mapping[str, Any]) -> None:
        genotype = space.genotype(assignment)
        latency = setup.costs(genotype)[0]
        if genotype.id not in pool and math.isfinite(latency):
            pool[genotype.id] = (latency, error(genotype)), assignment

    for _ in range(_N_RANDOM):
        add(choices.draw(rng))
    for _ in range(generations):
        points = np.array([[math.log(latency), value] for (latency, value), _ in pool.values()])
        front = non_dominated(points, [False, False])
        parents = [Offspring(a) for (_, a), on in zip(pool.values(), front, strict=True) if on]
        for _ in range(_CHILDREN):
            add(choices.child(parents, rng).assignment)
    return [*pool.values()]


def log_slowdowns(points: Sequence[Point], best: Sequence[Point]) -> Array:
    """Return the logarithm of the slowdown of ``points`` relative to ``best``, ``(levels,)``."""

    def min_latency(points: Sequence[Point], level: float) -> float:
        return min((latency for latency, error in points if error <= level), default=math.inf)

    return np.array(
        [
            min(_MAX_LOG_SLOWDOWN, math.log(min_latency(points, level) / min_latency(best, level)))
            for level in LEVELS
        ]
    )


def format_slowdown(slowdowns: Array) -> str:
    """Return the geometric mean of slowdowns, and those of the thirds."""
    thirds = ", ".join(f"{math.exp(slowdowns[part].mean()):.2f}" for part in _THIRDS)
    return f"{math.exp(slowdowns.mean()):.2f} times as slow ({thirds})"


if __name__ == "__main__":
    main()
