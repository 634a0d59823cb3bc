"""Rules for early stopping, compared on the response surface.

python -m experiments.landscape.stopping DIR [--seeds 30 60] [--images 6000]

DIR contains Fashion-MNIST as Parquet files. A candidate stops after the first epoch if it is
unlikely to reach the best candidate that costs no more. The rule ``measured`` takes the accuracy of
that candidate from its measurement, ``posterior`` from the posterior mean.

All rules see the candidates in the same order. Some are random, and most are offspring of the front
of measured accuracies. For each rule and confidence, the script prints means over seeds:

- the number of candidates in 100 minutes of training
- the number of stopped candidates
- the number of wrong stops: no candidate that costs no more is truly more accurate
- the number of wrong stops that the stopping probabilities predict
- the logarithm of the slowdown of the front relative to the best front of the surface
"""

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from experiments.landscape.landscape import Landscape
from experiments.landscape.searches import (
    Point,
    SearchSetup,
    best_front,
    load_setup,
    log_slowdowns,
)
from hwnas.core.pareto import non_dominated
from hwnas.nas.pareto.features import Assignment, ChoiceFeatures, Offspring, ProposalSpace
from hwnas.tasks.intervals import proportion
from hwnas.training.evaluation import trained

Array = NDArray[np.float64]

RULES = ("measured", "posterior", "none")
_METRIC = "accuracy"
_MIN_COMPLETE, _MAX_COMPLETE = 5, 100  # complete trainings that a prediction uses
_N_COMPARED = 12  # most accurate candidates of which posterior means are computed
_LIMIT_S, _PROPOSAL_S = 6_000.0, 2.0
_FIRST_EPOCH = 0.37  # fraction of the seconds of a complete training
_RANDOM_FRACTION, _N_CANDIDATES = 0.3, 400


@dataclass(frozen=True)
class Candidate:
    """A candidate: its costs, true error, training time, and measured accuracies."""

    costs: Array  #: latency and energy
    true_error: float  #: after the last epoch
    seconds: float  #: of the complete training
    first: float  #: measured accuracy after the first epoch
    last: float  #: measured accuracy after the last epoch

    def posterior_log_error(self, pairs: Sequence[tuple[float, float]], n_images: int) -> float:
        """Return the posterior mean of the log error, given both measurements.

        The first measurement predicts the last with the known ``pairs`` of other candidates.
        """
        forecast = trained.forecast(_METRIC, self.first, pairs)
        figure = proportion(round(n_images * self.last), n_images)
        noise = trained.log_std(_METRIC, figure) ** 2
        # Variance of the true error, given the first measurement.
        prior = max(0.0, forecast.std**2 - noise)
        weight = prior / (prior + noise)
        measured = trained.log_error(_METRIC, figure.value)
        return forecast.mean + weight * (measured - forecast.mean)


def main() -> None:
    """Apply all rules to the candidates of each seed, and print means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs=2, default=[30, 60], metavar=("FIRST", "END"))
    parser.add_argument("--images", type=int, default=6_000, help="number of validation images")
    arguments = parser.parse_args()
    setup = load_setup(arguments.data)
    landscape = Landscape(setup.networks, setup.space)
    best = best_front(setup, landscape)
    streams = [
        _sample(setup, landscape, seed, arguments.images) for seed in range(*arguments.seeds)
    ]
    baseline: Array | None = None
    for rule in RULES:
        for confidence in (0.9, 0.85, 0.8) if rule != "none" else (1.0,):
            rows = np.array(
                [_replay(stream, rule, confidence, arguments.images, best) for stream in streams]
            )
            n, stopped, wrong, predicted, slowdown = rows.mean(axis=0)
            baseline = rows[:, -1] if baseline is None else baseline
            difference = rows[:, -1] - baseline
            std_error = difference.std(ddof=1) / math.sqrt(len(difference))
            print(
                f"{rule} {confidence:g}: {n:.0f} candidates, {stopped:.1f} stopped, {wrong:.2f} "
                f"wrongly ({predicted:.2f} predicted), log slowdown {slowdown:.3f} "
                f"({difference.mean():+.4f} +- {std_error:.4f})",
                flush=True,
            )


def _sample(setup: SearchSetup, landscape: Landscape, seed: int, n_images: int) -> list[Candidate]:
    """Return the candidates of a seed, in the order in which they are trained."""
    space, rng, noise = setup.space, random.Random(seed), np.random.default_rng(seed)
    options = {name: list(values) for name, values in space.choices.items()}
    choices = ProposalSpace(options, dict, ChoiceFeatures(options), "", space.scope)
    pool: dict[str, tuple[Candidate, Assignment]] = {}
    while len(pool) < _N_CANDIDATES:
        if len(pool) < 12 or rng.random() < _RANDOM_FRACTION:
            assignment = choices.draw(rng)
        else:
            points = np.array([[c.costs[0], 1 - c.last] for c, _ in pool.values()])
            front = non_dominated(points, [False, False])
            parents = [Offspring(a) for (_, a), on in zip(pool.values(), front, strict=True) if on]
            assignment = choices.child(parents, rng).assignment
        genotype = space.genotype(assignment)
        costs = np.array(setup.costs(genotype))
        if genotype.id in pool or not np.isfinite(costs[0]):
            continue
        *errors, seconds = landscape.evaluate(genotype)
        first, last = (1 - max(1, noise.binomial(n_images, e)) / n_images for e in errors)
        pool[genotype.id] = Candidate(costs, errors[-1], seconds, first, last), assignment
    return [candidate for candidate, _ in pool.values()]


def _replay(
    stream: Sequence[Candidate],
    rule: str,
    confidence: float,
    n_images: int,
    best: Sequence[Point],
) -> tuple[int, int, int, float, float]:
    """Apply a rule to candidates in their order.

    Returns:
        The number of candidates, of stopped ones, of wrong stops, and of predicted wrong stops;
        the logarithm of the slowdown.
    """
    spent_s, n, n_wrong = 0.0, 0, 0
    complete, probabilities = list[Candidate](), list[float]()
    for candidate in stream:
        if spent_s > _LIMIT_S:
            break
        n += 1
        cheaper = [other for other in complete if (other.costs <= candidate.costs).all()]
        probability = 1.0
        if rule != "none" and len(complete) >= _MIN_COMPLETE and cheaper:
            latest = complete[-_MAX_COMPLETE:]
            probability = _reach_probability(candidate, cheaper, latest, rule, n_images)
        if stops := probability < 1 - confidence:
            probabilities.append(probability)
            n_wrong += not any(other.true_error <= candidate.true_error for other in cheaper)
        else:
            complete.append(candidate)
        spent_s += _PROPOSAL_S + candidate.seconds * (_FIRST_EPOCH if stops else 1.0)
    points = [(float(candidate.costs[0]), candidate.true_error) for candidate in complete]
    slowdown = float(log_slowdowns(points, best).mean())
    return n, len(probabilities), n_wrong, sum(probabilities), slowdown


def _reach_probability(
    candidate: Candidate,
    cheaper: Sequence[Candidate],
    latest: Sequence[Candidate],
    rule: str,
    n_images: int,
) -> float:
    """Return the probability that a candidate reaches the best one that costs no more."""
    pairs = [(other.first, other.last) for other in latest]
    forecast = trained.forecast(_METRIC, candidate.first, pairs)
    if rule == "measured":
        return forecast.reaches(max(other.last for other in cheaper))
    most_accurate = sorted(cheaper, key=lambda other: -other.last)[:_N_COMPARED]
    log_error = min(other.posterior_log_error(pairs, n_images) for other in most_accurate)
    return float(ndtr((log_error - forecast.mean) / forecast.std))


if __name__ == "__main__":
    main()
