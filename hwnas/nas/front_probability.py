"""What is believed of the candidates that a search evaluated, whatever sampler proposed them.

The highest of many noisy readings was lucky. The Gaussian process that ``ParetoSampler`` searches
with, given all that was read and how noisily, says how well each candidate truly answers, and
how likely it is that none of the others beats it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import NORMAL_95, Quantity
from hwnas.models.graph import Graph
from hwnas.models.spaces import Genotype, Space
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate
from hwnas.nas.pareto import network_summary
from hwnas.nas.pareto.expectation import CLIP, REFERENCE, CostedCandidates, Inputs
from hwnas.nas.pareto.features import Assignment, ChoiceFeatures
from hwnas.nas.pareto.models import least
from hwnas.nas.search_progress import SearchView
from hwnas.tasks.metrics import costs_in, metric_of, perfect_value, quality_in
from hwnas.training.evaluation import fidelity

Array = NDArray[np.float64]

MIN_CANDIDATES = 8  #: different ones, below which readings are believed as they are
# Candidates whose readings the process is given, and fitted to: time grows with their cube.
_MOST, _FITTED = 2_000, 400
_DRAWS = 512
_SEED = 0


@dataclass(frozen=True)
class CandidatePosterior:
    """What is believed of a candidate."""

    figure: Quantity  #: the true value of the metric, with the 95 % interval that it lies in
    on_front: float  #: the probability that no other candidate dominates it


@dataclass(frozen=True)
class _Observations:
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
) -> list[CandidatePosterior]:
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
        figures = [own[0].figures[quality_in(objectives)] for own in groups.values()]
    else:
        assignments = [space.assignment(own[0].genotype) for own in groups.values()]
        summary = None if lower is None else network_summary.summary(space, lower)
        features = ChoiceFeatures(space.choices, space.optional(), summary)
        mean, std, draws = _posterior(features, assignments, readings)
        figures = _figures(readings, mean, std)
    on_front = _on_front(np.exp(draws), readings.costs)
    found = {
        name: CandidatePosterior(figure, share)
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


def _readings(groups: Sequence[Sequence[Candidate]], objectives: Sequence[str]) -> _Observations:
    metric = quality_in(objectives)
    read = [[c.figures[metric] for c in group] for group in groups]
    best = perfect_value(metric, (figure.value for own in read for figure in own))
    sign = -1.0 if metric_of(metric).maximise else 1.0
    values, stds = np.array([_combined(own) for own in read]).T
    errors = sign * (values - best)
    errors = np.maximum(errors, np.maximum(stds, least(errors, is_share=best != 0)))
    names = costs_in(objectives)
    signs = [-1.0 if metric_of(name).maximise else 1.0 for name in names]
    known = np.array([[group[0].figures[name].value for name in names] for group in groups])
    return _Observations(best, sign, errors, stds / errors, known * signs)


def _combined(readings: Sequence[Quantity]) -> tuple[float, float]:
    """Return value and standard deviation of one candidate's readings; equal ones count once."""
    different = {(figure.value, figure.std) for figure in readings}
    if exact := [value for value, std in different if std == 0]:
        return float(np.mean(exact)), 0.0
    weights = [(value, std**-2) for value, std in different]
    total = math.fsum(weight for _, weight in weights)
    value = math.fsum(value * weight for value, weight in weights) / total
    return value, total**-0.5


def _posterior(
    features: ChoiceFeatures, assignments: Sequence[Assignment], readings: _Observations
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
    parameters = fit_hyperparameters(x[chosen], told[chosen], stds[chosen], inputs.n_summary)
    given = _spread(n, _MOST)
    model = Surrogate(x[given], told[given], parameters, stds[given])
    rng = np.random.default_rng(_SEED)
    mean, std, draws = np.zeros(n), np.zeros(n), np.zeros((_DRAWS, n))
    mean[given], std[given] = model.observed()
    draws[:, given] = model.sample(_DRAWS, rng)
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


def _figures(readings: _Observations, mean: Array, std: Array) -> list[Quantity]:
    """Return the metric of logarithms of errors: mean and 95 % interval."""
    best, sign = readings.perfect, readings.sign
    low = best + sign * np.exp(mean - sign * NORMAL_95 * std)
    high = best + sign * np.exp(mean + sign * NORMAL_95 * std)
    value = np.clip(best + sign * np.exp(mean + std**2 / 2), low, high)
    columns = np.maximum(np.stack([value, low, high], axis=1), 0.0).tolist()
    return [Quantity(v, "modelled", a, b) for v, a, b in columns]


def _on_front(draws: Array, costs: Array) -> list[float]:
    """Return in what part of draws of errors ``(draws, n)`` no other candidate dominates each."""
    minimised = [False] * (1 + costs.shape[1])
    count = np.zeros(draws.shape[1])
    for errors in draws:
        count += non_dominated(np.column_stack([errors, costs]), minimised, keep_equal=True)
    shares: list[float] = (count / len(draws)).tolist()
    return shares


# Which candidates are worth finishing: those that may be on the front.
#
# What search reads of a candidate is noisy, and of another training than the one that is delivered.
# Once some candidates are finished, what search read of the others is translated into what
# finishing
# would make of them (``accuracy.fidelity``). ``belief`` then says how likely each is on the front.

_LEAST = 1e-9  # of what has a logarithm


@dataclass(frozen=True)
class CandidatePosteriors:
    """What is known of all candidates of a search on one target."""

    candidates: list[Candidate]  #: all, with what is believed of how well they answer
    on_front: Mapping[str, float]  #: probability, by id, of those that were scored

    def band(self, probability: float, n_least: int = 0) -> list[Candidate]:
        """Return the candidates that are at least so probable, or else the most probable ones.

        Returns:
            Each genotype once, the most probable first.
        """
        distinct = {c.id: c for c in reversed(self.candidates) if c.id in self.on_front}
        order = sorted(distinct.values(), key=lambda c: (-self.on_front[c.id], c.id))
        n = sum(self.on_front[c.id] >= probability for c in order)
        return order[: max(n, n_least)]


def known(
    space: Space,
    candidates: Sequence[Candidate],
    view: SearchView,
    finished: Mapping[str, Quantity],
    lower: Callable[[Genotype], Graph] | None = None,
) -> CandidatePosteriors:
    """Return what is believed of all candidates, given what some are after finishing.

    Args:
        space: Of the candidates.
        candidates: As search read them.
        view: Of the target.
        finished: The metric after finishing, on the validation split, by id.
        lower: Returns the operators of a network, which sum it up; none: nothing does.
    """
    seen = [view.seen(candidate) for candidate in candidates]
    of_use = scored(seen, view.objectives)
    metric = quality_in(view.objectives)
    pairs = [
        (c.figures[metric].value, finished[c.id].value)
        for c in {c.id: c for c in of_use}.values()
        if c.id in finished
    ]
    translated = columns.is_enough(len(pairs))

    def reading(candidate: Candidate) -> Candidate:
        figure = candidate.figures[metric]
        if translated:
            expected = fidelity.forecast(metric, figure.value, pairs)
            spread = 0.0 if candidate.state == "complete" else fidelity.log_std(metric, figure)
            figure = finished.get(candidate.id) or expected.widened(spread).figure
        return replace(candidate, figures={**candidate.figures, metric: figure})

    readings = [reading(candidate) for candidate in of_use]
    found = dict(
        zip((c.id for c in readings), beliefs(space, readings, view.objectives, lower), strict=True)
    )
    return CandidatePosteriors(
        [_believed(candidate, metric, found, finished) for candidate in seen],
        {name: belief.on_front for name, belief in found.items()},
    )


def spread(candidates: Sequence[Candidate], finished: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in an order of which any part fills the front.

    Each is the one that is farthest from all before it and from what is finished, in the logarithm
    of its cost, times the probability that it is on the front: steps of a front are felt as ratios,
    and networks that cost little are trained in little time.
    """
    places = [_log_cost(c) for c in finished]
    left = sorted(candidates, key=lambda c: (_log_cost(c), c.id))
    found: list[Candidate] = []

    def worth(candidate: Candidate) -> float:
        own = _log_cost(candidate)
        gap = min((abs(own - place) for place in places), default=1.0)
        return gap * float(candidate.details[columns.ON_FRONT])

    while left:
        best = max(left, key=worth)
        left.remove(best)
        found.append(best)
        places.append(_log_cost(best))
    return found


def _log_cost(candidate: Candidate) -> float:
    """Return the logarithm of a candidate's latency, on the target where it is lowest."""
    figures = candidate.figures.items()
    known = [f.value for name, f in figures if name.rpartition(".")[2] == "latency_ms"]
    return math.log(max(min(known, default=1.0), _LEAST))


def _believed(
    candidate: Candidate,
    metric: str,
    found: Mapping[str, CandidatePosterior],
    finished: Mapping[str, Quantity],
) -> Candidate:
    """Return a candidate with what is believed of its metric beside what was read."""
    if candidate.id not in found or metric not in candidate.figures:
        return candidate
    own = found[candidate.id]
    read = candidate.figures[metric].value
    details = {
        **candidate.details,
        columns.read_column(metric): read,
        columns.ON_FRONT: own.on_front,
    }
    if candidate.id in finished:
        details[columns.finished(metric)] = finished[candidate.id].value
    figures = {**candidate.figures, metric: own.figure}
    return replace(candidate, figures=figures, details=details)
