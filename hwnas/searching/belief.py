"""What is believed of the candidates that a search evaluated, whatever sampler proposed them.

The highest of many noisy readings was lucky. The Gaussian process that ``ParetoSampler`` searches
with, given all that was read and how noisily, says how well each candidate truly answers, and
how likely it is that none of the others beats it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.figure import NORMAL_95, Figure
from hwnas.gaussian_process import Surrogate, fit
from hwnas.graph import Graph
from hwnas.metrics import column, paid, perfect, quality
from hwnas.pareto import non_dominated
from hwnas.results import Candidate
from hwnas.searching import anatomy
from hwnas.searching.choices import Assignment
from hwnas.searching.expectation import CLIP, REFERENCE, CostedCandidates, Inputs
from hwnas.searching.features import Features
from hwnas.searching.least import least
from hwnas.space import Genotype, Space

Array = NDArray[np.float64]

MIN_CANDIDATES = 8  #: different ones, below which readings are believed as they are
# Candidates whose readings the process is given, and fitted to: time grows with their cube.
_MOST, _FITTED = 2_000, 400
_DRAWS = 512
_SEED = 0


@dataclass(frozen=True)
class Belief:
    """What is believed of a candidate."""

    figure: Figure  #: the true value of the metric, with the 95 % interval that it lies in
    on_front: float  #: the probability that no other candidate dominates it


@dataclass(frozen=True)
class _Readings:
    """What was read of different candidates, as errors: how far the metric is from perfect."""

    perfect: float  #: value of the metric: 1 of accuracies, or 100 where they are per cent; else 0
    sign: float  #: -1 where the metric is maximised, else 1
    errors: Array  #: ``(n,)``
    stds: Array  #: of the logarithms of errors, ``(n,)``
    costs: Array  #: ``(n, m)``, to be minimised


def beliefs(
    space: Space,
    candidates: Sequence[Candidate],
    objectives: Sequence[str],
    lower: Callable[[Genotype], Graph] | None = None,
) -> list[Belief]:
    """Return what is believed of scored candidates, in their order.

    The true metric of a candidate is what its choices and costs explain, and a part of its own.
    Errors of reading are what the intervals of figures say, and independent: that all candidates
    were read on the same images is not known here, so that differences between them are more
    certain than said. A figure without an interval is exact.

    A genotype that comes again with another reading is believed by both readings. What was stopped
    early counts with the wider interval that it has. Where there are fewer than ``MIN_CANDIDATES``
    different genotypes there is no model: the metric is the reading with its own interval and
    source, and the probability follows from readings alone.

    Args:
        space: Of the genotypes.
        candidates: Such as have the metric and all costs. What is infeasible has none, and is no
            incumbent of others: ``scored`` leaves it out.
        objectives: The metric and one to three costs, which are known.
        lower: Returns the operators of a network, which sum it up; none: nothing does.

    Raises:
        ValueError: a candidate lacks an objective.
    """
    for candidate in candidates:
        if missing := [name for name in objectives if name not in candidate.figures]:
            raise ValueError(f"Candidate {candidate.id} has no {', '.join(missing)}: only what was "
                             "scored can be believed anything of.")  # fmt: skip
    if not candidates:
        return []
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.id, []).append(candidate)
    readings = _readings(list(groups.values()), objectives)
    if len(groups) < MIN_CANDIDATES:
        rng = np.random.default_rng(_SEED)
        draws = _independent(np.log(readings.errors), readings.stds, rng)
        figures = [own[0].figures[quality(objectives)] for own in groups.values()]
    else:
        assignments = [space.assignment(own[0].genotype) for own in groups.values()]
        summary = None if lower is None else anatomy.summary(space, lower)
        features = Features(space.choices, space.optional(), summary)
        mean, std, draws = _posterior(features, assignments, readings)
        figures = _figures(readings, mean, std)
    on_front = _on_front(np.exp(draws), readings.costs)
    found = {
        name: Belief(figure, share)
        for name, figure, share in zip(groups, figures, on_front, strict=True)
    }
    return [found[candidate.id] for candidate in candidates]


def scored(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the candidates that something can be believed of: feasible, with all objectives."""
    return [
        c
        for c in candidates
        if c.state != "infeasible" and all(name in c.figures for name in objectives)
    ]


def _readings(groups: Sequence[Sequence[Candidate]], objectives: Sequence[str]) -> _Readings:
    metric = quality(objectives)
    read = [[c.figures[metric] for c in group] for group in groups]
    best = perfect(metric, (figure.value for own in read for figure in own))
    sign = -1.0 if column(metric).maximise else 1.0
    values, stds = np.array([_combined(own) for own in read]).T
    errors = sign * (values - best)
    errors = np.maximum(errors, np.maximum(stds, least(errors, is_share=best != 0)))
    names = paid(objectives)
    signs = [-1.0 if column(name).maximise else 1.0 for name in names]
    known = np.array([[group[0].figures[name].value for name in names] for group in groups])
    return _Readings(best, sign, errors, stds / errors, known * signs)


def _combined(readings: Sequence[Figure]) -> tuple[float, float]:
    """Return value and standard deviation of one candidate's readings; equal ones count once."""
    different = {(figure.value, figure.std) for figure in readings}
    if exact := [value for value, std in different if std == 0]:
        return float(np.mean(exact)), 0.0
    weights = [(value, std**-2) for value, std in different]
    total = math.fsum(weight for _, weight in weights)
    value = math.fsum(value * weight for value, weight in weights) / total
    return value, total**-0.5


def _posterior(
    features: Features, assignments: Sequence[Assignment], readings: _Readings
) -> tuple[Array, Array, Array]:
    """Return mean, standard deviation and draws of logarithms of errors: ``(n,)``, ``(draws, n)``.

    Where there are more candidates than the process is given, the others are believed by what it
    predicts and by their own readings, and drawn independently.
    """
    n = len(assignments)
    known = CostedCandidates(assignments, features(assignments), readings.costs)
    inputs = Inputs(known, None, features.n_shares)
    logs = np.log(readings.errors)
    # As the sampler does: what does not work at all would take the attention of the model.
    limit = math.log(float(np.quantile(readings.errors, REFERENCE))) + CLIP
    told = np.minimum(logs, limit)
    chosen = _spread(n, _FITTED)
    x, stds = inputs(known), readings.stds
    parameters = fit(x[chosen], told[chosen], stds[chosen], inputs.n_summary)
    given = _spread(n, _MOST)
    model = Surrogate(x[given], told[given], parameters, stds[given])
    rng = np.random.default_rng(_SEED)
    mean, std, draws = np.zeros(n), np.zeros(n), np.zeros((_DRAWS, n))
    mean[given], std[given] = model.observed()
    draws[:, given] = model.draws(_DRAWS, rng)
    exact = stds == 0
    draws[:, exact] = told[exact]  # without what rounding adds
    rest = np.setdiff1d(np.arange(n), given)
    if len(rest):
        expected, spread = model.predict(x[rest])
        variance = spread**2 + model.noise**2
        gain = variance / (variance + stds[rest] ** 2)
        mean[rest] = expected + gain * (told[rest] - expected)
        std[rest] = np.sqrt(gain) * stds[rest]
        draws[:, rest] = _independent(mean[rest], std[rest], rng)
    beyond = logs - told  # is taken as read
    return mean + beyond, std, draws + beyond


def _spread(n: int, most: int) -> NDArray[np.intp]:
    """Return which candidates stand for all where there are too many: not the luckiest."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.intp)


def _independent(mean: Array, std: Array, rng: np.random.Generator) -> Array:
    return np.asarray(mean + std * rng.standard_normal((_DRAWS, len(mean))))


def _figures(readings: _Readings, mean: Array, std: Array) -> list[Figure]:
    """Return the metric of logarithms of errors: mean and 95 % interval."""
    best, sign = readings.perfect, readings.sign
    low = best + sign * np.exp(mean - sign * NORMAL_95 * std)
    high = best + sign * np.exp(mean + sign * NORMAL_95 * std)
    value = np.clip(best + sign * np.exp(mean + std**2 / 2), low, high)
    columns = np.maximum(np.stack([value, low, high], axis=1), 0.0).tolist()
    return [Figure(v, "modelled", a, b) for v, a, b in columns]


def _on_front(draws: Array, costs: Array) -> list[float]:
    """Return in what part of draws of errors ``(draws, n)`` no other candidate dominates each."""
    minimised = [False] * (1 + costs.shape[1])
    count = np.zeros(draws.shape[1])
    for errors in draws:
        count += non_dominated(np.column_stack([errors, costs]), minimised, keep_equal=True)
    shares: list[float] = (count / len(draws)).tolist()
    return shares
