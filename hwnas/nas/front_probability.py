"""Posterior estimates of candidates, for any sampler.

The best of many noisy measurements is biased upwards. The Gaussian process of ``ParetoSampler``,
given all measurements and their noise, estimates the true metric of each candidate and the
probability that it is non-dominated.
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
from hwnas.nas.pareto.expectation import CLIP, REFERENCE, CostedCandidates, Inputs
from hwnas.nas.pareto.features import Assignment, ChoiceFeatures, summary_features
from hwnas.nas.pareto.models import least
from hwnas.nas.search_progress import SearchView
from hwnas.tasks.metrics import costs_in, metric_of, perfect_value, quality_in
from hwnas.training.evaluation.trained import forecast, log_std

Array = NDArray[np.float64]

MIN_CANDIDATES = 8  #: distinct ones; with fewer, measurements are used as they are
# Maximum number of candidates for the process, and for its hyperparameters: time is cubic.
_MAX_GIVEN, _MAX_FITTED = 2_000, 400
_DRAWS = 512
_SEED = 0
_MODELLED = ("energy_mj", "expected_energy_mj", "co2_g")
_SAME_ORDER = 0.9  # rank correlation of costs above which modelled energy is left out


@dataclass(frozen=True)
class CandidatePosterior:
    """The posterior of a candidate, given noisy measurements."""

    figure: Quantity  #: estimate of the true metric, with its 95 % interval
    on_front: float  #: probability of being non-dominated, in [0, 1]


@dataclass(frozen=True)
class _Observations:
    """Measurements of distinct candidates, as errors: the distance to a perfect metric."""

    perfect: float  #: value of the metric: 1 for accuracies, 100 if they are per cent, else 0
    sign: float  #: -1 where the metric is maximised, else 1
    errors: Array  #: ``(n,)``
    stds: Array  #: standard deviations of the logarithms of errors, ``(n,)``
    costs: Array  #: ``(n, m)``, to be minimised
    compared: list[int]  #: columns of ``costs`` that decide whether a candidate is on the front


def posteriors(
    space: Space,
    candidates: Sequence[Candidate],
    objectives: Sequence[str],
    lower: Callable[[Genotype], Graph] | None = None,
) -> list[CandidatePosterior]:
    """Return the posteriors of scored candidates, in their order.

    The true metric is modelled by choices, costs and an independent residual. Measurement errors
    follow from the intervals and are assumed independent; as all candidates share the same images,
    differences are in fact more certain. A quantity without an interval is exact.

    Repeated measurements of a genotype are combined. A candidate that was stopped early has a wider
    interval. With fewer than ``MIN_CANDIDATES`` genotypes there is no model: the metric is the
    measurement, and probabilities follow from measurements alone.

    Args:
        space: Search space of the genotypes.
        candidates: Feasible candidates with the metric and all costs, as returned by ``scored``.
        objectives: The metric and one to three costs.
        lower: Maps a genotype to its graph for summary features; ``None``: no such features.

    Raises:
        ValueError: a candidate lacks an objective.
    """
    for candidate in candidates:
        if missing := [name for name in objectives if name not in candidate.figures]:
            raise ValueError(
                f"Candidate {candidate.id} has no value of {', '.join(missing)}. Pass only "
                "candidates with all objectives: scored(candidates, objectives)."
            )
    if not candidates:
        return []
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.id, []).append(candidate)
    readings = _readings(list(groups.values()), objectives)
    if len(groups) < MIN_CANDIDATES:
        rng = np.random.default_rng(_SEED)
        draws = _independent_samples(np.log(readings.errors), readings.stds, rng)
        figures = [repeated[0].figures[quality_in(objectives)] for repeated in groups.values()]
    else:
        assignments = [space.assignment(repeated[0].genotype) for repeated in groups.values()]
        summary = None if lower is None else summary_features(space, lower)
        features = ChoiceFeatures(space.choices, space.optional(), summary)
        mean, std, draws = _posterior(features, assignments, readings)
        figures = _figures(readings, mean, std)
    on_front = _on_front(np.exp(draws), readings.costs[:, readings.compared])
    estimates = {
        name: CandidatePosterior(figure, share)
        for name, figure, share in zip(groups, figures, on_front, strict=True)
    }
    return [estimates[candidate.id] for candidate in candidates]


def scored(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the feasible candidates that have a value of each objective."""
    return [
        c
        for c in candidates
        if c.state != "infeasible" and all(name in c.figures for name in objectives)
    ]


def _readings(groups: Sequence[Sequence[Candidate]], objectives: Sequence[str]) -> _Observations:
    metric = quality_in(objectives)
    figures = [[c.figures[metric] for c in group] for group in groups]
    best = perfect_value(
        metric, (figure.value for observations in figures for figure in observations)
    )
    sign = -1.0 if metric_of(metric).maximise else 1.0
    values, stds = np.array([_combined_measurement(observations) for observations in figures]).T
    errors = sign * (values - best)
    errors = np.maximum(errors, np.maximum(stds, least(errors, is_share=best != 0)))
    names = costs_in(objectives)
    signs = [-1.0 if metric_of(name).maximise else 1.0 for name in names]
    known = np.array([[group[0].figures[name].value for name in names] for group in groups])
    costs = known * signs
    modelled = [
        name in _MODELLED and groups[0][0].figures[name].source == "modelled" for name in names
    ]
    return _Observations(best, sign, errors, stds / errors, costs, _compared_costs(costs, modelled))


def _combined_measurement(readings: Sequence[Quantity]) -> tuple[float, float]:
    """Return mean and standard deviation of a candidate's measurements; equal ones count once."""
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
    """Return mean, standard deviation and samples of log errors: ``(n,)``, ``(samples, n)``.

    Candidates beyond ``_MAX_GIVEN`` combine the prediction with their own measurement, and are
    sampled independently.
    """
    n = len(assignments)
    known = CostedCandidates(assignments, features(assignments), readings.costs)
    inputs = Inputs(known, None, features.n_shares)
    logs = np.log(readings.errors)
    # As in the sampler: networks at chance level would dominate the fit.
    limit = math.log(float(np.quantile(readings.errors, REFERENCE))) + CLIP
    clipped = np.minimum(logs, limit)
    chosen = _spread(n, _MAX_FITTED)
    x, stds = inputs(known), readings.stds
    parameters = fit_hyperparameters(x[chosen], clipped[chosen], stds[chosen], inputs.n_summary)
    given = _spread(n, _MAX_GIVEN)
    model = Surrogate(x[given], clipped[given], parameters, stds[given])
    rng = np.random.default_rng(_SEED)
    mean, std, draws = np.zeros(n), np.zeros(n), np.zeros((_DRAWS, n))
    mean[given], std[given] = model.observed()
    draws[:, given] = model.sample(_DRAWS, rng)
    exact = stds == 0
    draws[:, exact] = clipped[exact]  # without rounding errors
    rest = np.setdiff1d(np.arange(n), given)
    if len(rest):
        expected, spread = model.predict(x[rest])
        variance = spread**2 + model.noise**2
        gain = variance / (variance + stds[rest] ** 2)
        mean[rest] = expected + gain * (clipped[rest] - expected)
        std[rest] = np.sqrt(gain) * stds[rest]
        draws[:, rest] = _independent_samples(mean[rest], std[rest], rng)
    beyond = logs - clipped  # kept as measured
    return mean + beyond, std, draws + beyond


def _spread(n: int, n_max: int) -> NDArray[np.intp]:
    """Return evenly spaced indices of at most ``n_max`` candidates: unbiased, unlike the best."""
    return np.linspace(0, n - 1, min(n, n_max)).round().astype(np.intp)


def _independent_samples(mean: Array, std: Array, rng: np.random.Generator) -> Array:
    return np.asarray(mean + std * rng.standard_normal((_DRAWS, len(mean))))


def _figures(readings: _Observations, mean: Array, std: Array) -> list[Quantity]:
    """Return the metric of log errors: mean and 95 % interval."""
    best, sign = readings.perfect, readings.sign
    low = best + sign * np.exp(mean - sign * NORMAL_95 * std)
    high = best + sign * np.exp(mean + sign * NORMAL_95 * std)
    value = np.clip(best + sign * np.exp(mean + std**2 / 2), low, high)
    columns = np.maximum(np.stack([value, low, high], axis=1), 0.0).tolist()
    return [Quantity(v, "modelled", a, b) for v, a, b in columns]


def _on_front(draws: Array, costs: Array) -> list[float]:
    """Return the fraction of samples ``(samples, n)`` in which each candidate is non-dominated."""
    minimised = [False] * (1 + costs.shape[1])
    count = np.zeros(draws.shape[1])
    for errors in draws:
        count += non_dominated(np.column_stack([errors, costs]), minimised, keep_equal=True)
    shares: list[float] = (count / len(draws)).tolist()
    return shares


def _compared_costs(costs: Array, modelled: Sequence[bool]) -> list[int]:
    """Return the columns of ``(n, m)`` that decide whether a candidate is on the front.

    Modelled energy that orders the candidates almost as an earlier cost does is left out: its
    differences at equal latency are smaller than its uncertainty, and candidates that they keep on
    the front take the place of others.
    """
    n, m = costs.shape
    if n < MIN_CANDIDATES:
        return [*range(m)]
    ranks = costs.argsort(axis=0, kind="stable").argsort(axis=0) - (n - 1) / 2
    norms = np.linalg.norm(ranks, axis=0)
    is_same = ranks.T @ ranks > _SAME_ORDER * np.outer(norms, norms)
    return [i for i in range(m) if not (modelled[i] and is_same[i, :i].any())]


# Candidates to fine-tune: those that are likely on the front.
#
# The search measures with noise and before fine-tuning. Once some candidates are fine-tuned,
# ``training.evaluation.trained`` translates the measurements of the others.

_MIN_COST = 1e-9  # for logarithms


@dataclass(frozen=True)
class CandidatePosteriors:
    """The posteriors of all candidates of a search on one target."""

    #: all candidates; those with all objectives have posterior estimates of the metric
    candidates: list[Candidate]
    #: probability of being on the front, in [0, 1], of scored candidates by id
    on_front: Mapping[str, float]

    def most_probable(self, probability: float, n_min: int = 0) -> list[Candidate]:
        """Return the candidates that are on the front with at least the given probability.

        If these are fewer than ``n_min``, the next most probable ones are added. Each genotype
        occurs once, most probable first.
        """
        distinct = {c.id: c for c in reversed(self.candidates) if c.id in self.on_front}
        order = sorted(distinct.values(), key=lambda c: (-self.on_front[c.id], c.id))
        n = sum(self.on_front[c.id] >= probability for c in order)
        return order[: max(n, n_min)]


def candidate_posteriors(
    space: Space,
    candidates: Sequence[Candidate],
    view: SearchView,
    finished: Mapping[str, Quantity],
    lower: Callable[[Genotype], Graph] | None = None,
) -> CandidatePosteriors:
    """Return the posteriors of all candidates, given the metric of fine-tuned ones.

    If enough are fine-tuned (``is_enough``), the estimates are of the metric after fine-tuning:
    for other networks, it is predicted from the metric before (``forecast``). Otherwise, they are
    of the metric before fine-tuning.

    Args:
        space: Search space of the candidates.
        candidates: The candidates with the metric as measured in the search.
        view: Objectives of one target; ``view.view_of`` selects its quantities.
        finished: Metric of fine-tuned candidates on the validation split, by id.
        lower: Maps a genotype to its graph for summary features; ``None``: no such features.
    """
    views = [view.view_of(candidate) for candidate in candidates]
    of_use = scored(views, view.objectives)
    metric = quality_in(view.objectives)
    pairs = [
        (_shown(metric, c.figures[metric]), _shown(metric, finished[c.id]))
        for c in {c.id: c for c in of_use}.values()
        if c.id in finished
    ]
    translated = columns.is_enough(len(pairs)) or all(c.id in finished for c in of_use)

    def reading(candidate: Candidate) -> Candidate:
        figure = candidate.figures[metric]
        if translated:
            expected = forecast(metric, _shown(metric, figure), pairs)
            spread = 0.0 if candidate.state == "complete" else log_std(metric, figure)
            figure = finished.get(candidate.id) or expected.widened(spread).figure
        return replace(candidate, figures={**candidate.figures, metric: figure})

    readings = [reading(candidate) for candidate in of_use]
    estimates = dict(
        zip(
            (c.id for c in readings),
            posteriors(space, readings, view.objectives, lower),
            strict=True,
        )
    )
    return CandidatePosteriors(
        [_with_posterior(candidate, metric, estimates, finished) for candidate in views],
        {name: belief.on_front for name, belief in estimates.items()},
    )


def _shown(metric: str, figure: Quantity) -> float:
    """Return a value, at most as good as its images can show: 24 of 24 are no error of 0."""
    definition = metric_of(metric)
    assert definition.perfect is not None
    if definition.maximise:
        return min(figure.value, definition.perfect - figure.std)
    return max(figure.value, definition.perfect + figure.std)


def space_filling_order(
    candidates: Sequence[Candidate], finished: Sequence[Candidate]
) -> list[Candidate]:
    """Return candidates in a space-filling order: the first ones cover the whole front.

    The next candidate maximises the distance to the nearest earlier or fine-tuned one in log
    latency (the lowest of all targets), times its probability of being on the front.

    Args:
        candidates: Candidates of ``CandidatePosteriors``, which have that probability.
        finished: Candidates that are fine-tuned already.
    """
    places = [_log_cost(c) for c in finished]
    pending = sorted(candidates, key=lambda c: (_log_cost(c), c.id))
    ordered: list[Candidate] = []

    def worth(candidate: Candidate) -> float:
        log_cost = _log_cost(candidate)
        gap = min((abs(log_cost - place) for place in places), default=1.0)
        return gap * float(candidate.details[columns.ON_FRONT])

    while pending:
        best = max(pending, key=worth)
        pending.remove(best)
        ordered.append(best)
        places.append(_log_cost(best))
    return ordered


def _log_cost(candidate: Candidate) -> float:
    """Return the logarithm of a candidate's lowest latency on any target."""
    figures = candidate.figures.items()
    known = [f.value for name, f in figures if name.rpartition(".")[2] == "latency_ms"]
    return math.log(max(min(known, default=1.0), _MIN_COST))


def _with_posterior(
    candidate: Candidate,
    metric: str,
    estimates: Mapping[str, CandidatePosterior],
    finished: Mapping[str, Quantity],
) -> Candidate:
    """Return a candidate with its posterior estimate, and the observed metric in details."""
    if candidate.id not in estimates or metric not in candidate.figures:
        return candidate
    posterior = estimates[candidate.id]
    observed = candidate.figures[metric].value
    details = {
        **candidate.details,
        columns.read_column(metric): observed,
        columns.ON_FRONT: posterior.on_front,
    }
    if candidate.id in finished:
        details[columns.finished(metric)] = finished[candidate.id].value
    figures = {**candidate.figures, metric: posterior.figure}
    return replace(candidate, figures=figures, details=details)
