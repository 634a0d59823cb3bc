"""Early stopping on the response surface: compared with the best measurement or the posterior.

python -m experiments.landscape.stopping DIR [--seeds 30 60] [--images 6000]

The order of candidates does not depend on the rule: some are random, most are offspring of the
front of final accuracies. For each rule and confidence it prints means over seeds: the number of
candidates in 100 minutes of training, of stopped ones, of wrongly stopped ones (no candidate that
costs no more is truly more accurate), the number of wrong stops predicted by the stopping
probabilities, and the logarithm of the slowdown of the front relative to the best front.
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
from experiments.landscape.searches import World, _behind, _best, opened
from hwnas.core.pareto import non_dominated
from hwnas.nas.pareto.features import Assignment, ChoiceFeatures, Offspring, ProposalSpace
from hwnas.tasks.intervals import proportion
from hwnas.training.evaluation import trained
from hwnas.training.evaluation.trained import FidelityForecast

Array = NDArray[np.float64]

RULES = ("none", "read", "believed")
_METRIC, _ENOUGH, _LATEST, _BEST = "accuracy", 5, 100, 12
_LIMIT_S, _THOUGHT_S = 6_000.0, 2.0
_FIRST = 0.37  # fraction of the seconds of both trainings for the first
_DRAWN, _N = 0.3, 400  # fraction of random candidates; number of candidates


@dataclass(frozen=True)
class One:
    """A candidate: its costs, true error, training time, and measured accuracies."""

    costs: Array  #: latency and energy
    error: float  #: after the last epoch
    seconds: float
    first: float  #: the measured metric after the first epoch
    last: float  #: and after the last

    def believed(self, pairs: Sequence[tuple[float, float]], n_images: int) -> float:
        """Return the log error given both measurements: the first predicts the last."""
        told = trained.forecast(_METRIC, self.first, pairs)
        figure = proportion(round(n_images * self.last), n_images)
        reading = trained.log_std(_METRIC, figure) ** 2
        own = max(
            0.0, told.std**2 - reading
        )  # uncertainty of the true error after the first measurement
        gain = own / (own + reading)
        return told.mean + gain * (trained.log_error(_METRIC, figure.value) - told.mean)


def main() -> None:
    """Replay all rules with each seed, and print means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs=2, default=[30, 60], metavar=("FIRST", "END"))
    parser.add_argument("--images", type=int, default=6_000)
    asked = parser.parse_args()
    world = opened(asked.data)
    land = Landscape(world.networks, world.space)
    best = _best(world, land)
    streams = [_stream(world, land, seed, asked.images) for seed in range(*asked.seeds)]
    usual: Array | None = None
    for rule in RULES[1:] + RULES[:1]:
        for confidence in (0.9, 0.85, 0.8) if rule != "none" else (1.0,):
            found = np.array([_replayed(s, rule, confidence, asked.images, best) for s in streams])
            n, stopped, wrong, told, behind = found.mean(axis=0)
            usual = found[:, -1] if usual is None else usual
            more = found[:, -1] - usual
            error = more.std(ddof=1) / math.sqrt(len(more))
            print(
                f"{rule} {confidence:g}: {n:.0f} candidates, {stopped:.1f} stopped, {wrong:.2f} "
                f"wrongly ({told:.2f} predicted), {behind:.3f} ({more.mean():+.4f} +- {error:.4f})",
                flush=True,
            )


def _stream(world: World, land: Landscape, seed: int, n_images: int) -> list[One]:
    space, rng, noise = world.space, random.Random(seed), np.random.default_rng(seed)
    options = {name: list(values) for name, values in space.choices.items()}
    choices = ProposalSpace(options, dict, ChoiceFeatures(options), "", space.scope)
    found: dict[str, tuple[One, Assignment]] = {}
    while len(found) < _N:
        if len(found) < 12 or rng.random() < _DRAWN:
            assignment = choices.draw(rng)
        else:
            points = np.array([[one.costs[0], 1 - one.last] for one, _ in found.values()])
            front = non_dominated(points, [False, False])
            parents = [Offspring(a) for (_, a), on in zip(found.values(), front, strict=True) if on]
            assignment = choices.child(parents, rng).assignment
        genotype = space.genotype(assignment)
        costs = np.array(world.costs(genotype))
        if genotype.id in found or not np.isfinite(costs[0]):
            continue
        first, last, seconds = land.truth(genotype)
        read = [1 - max(1, noise.binomial(n_images, e)) / n_images for e in (first, last)]
        found[genotype.id] = One(costs, last, seconds, *read), assignment
    return [one for one, _ in found.values()]


def _replayed(
    stream: Sequence[One],
    rule: str,
    confidence: float,
    n_images: int,
    best: Sequence[tuple[float, float]],
) -> tuple[int, int, int, float, float]:
    """Return candidates, stopped ones, wrong stops, predicted wrong stops, and the slowdown."""
    spent, n, wrong, whole, reached = 0.0, 0, 0, list[One](), list[float]()
    for one in stream:
        if spent > _LIMIT_S:
            break
        n += 1
        cheaper = [other for other in whole if (other.costs <= one.costs).all()]
        reaches = 1.0
        if rule != "none" and len(whole) >= _ENOUGH and cheaper:
            reaches = _reaches(one, cheaper, whole[-_LATEST:], rule == "read", n_images)
        if stops := reaches < 1 - confidence:
            reached.append(reaches)
            wrong += not any(other.error <= one.error for other in cheaper)
        else:
            whole.append(one)
        spent += _THOUGHT_S + one.seconds * (_FIRST if stops else 1.0)
    points = [(float(one.costs[0]), one.error) for one in whole]
    return n, len(reached), wrong, sum(reached), float(_behind(points, best).mean())


def _reaches(
    one: One, cheaper: Sequence[One], latest: Sequence[One], by_reading: bool, n_images: int
) -> float:
    """Return the probability that a candidate reaches the best one that costs no more."""
    pairs = [(other.first, other.last) for other in latest]
    told: FidelityForecast = trained.forecast(_METRIC, one.first, pairs)
    if by_reading:
        return told.reaches(max(other.last for other in cheaper))
    few = sorted(cheaper, key=lambda other: -other.last)[:_BEST]
    least = min(other.believed(pairs, n_images) for other in few)
    return float(ndtr((least - told.mean) / told.std))


if __name__ == "__main__":
    main()
