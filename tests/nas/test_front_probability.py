import itertools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hwnas.core.quantity import Quantity
from hwnas.models import families
from hwnas.models.graph import Graph, Signature, n_macs, n_params
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import front_probability
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.front_probability import CandidatePosterior, posteriors
from hwnas.tasks.intervals import proportion

OBJECTIVES = ("accuracy", "latency_ms")
SPACE = SearchSpace(
    "s", "f", {f"c{i}": ("a", "b", "c") for i in range(6)} | {"width": (1, 2, 3, 4)}, {}
)


def _truth(genotype: Genotype) -> float:
    """Return an accuracy that depends on choices and on a random effect."""
    options = genotype.to_dict()
    work = sum("abc".index(str(options[f"c{i}"])) * (1 + 0.3 * i) for i in range(6)) / 10
    effect = 0.05 * math.sin(int(genotype.id, 16))
    return 1 - 0.25 * math.exp(-0.4 * work * float(options["width"]) / 2 + effect)


def _costs(genotype: Genotype) -> dict[str, Quantity]:
    options = genotype.to_dict()
    work = sum(1 + "abc".index(str(options[f"c{i}"])) for i in range(6))
    latency = work * float(options["width"])
    figures = {"latency_ms": latency, "energy_mj": latency**0.5 + work, "flash_kib": 1.0 + work}
    return {name: Quantity(value, "modelled") for name, value in figures.items()}


def _candidates(n: int, n_images: int, seed: int = 0) -> list[Candidate]:
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    distinct: dict[str, Genotype] = {}
    while len(distinct) < n:
        genotype = SPACE.sample(rng)
        distinct[genotype.id] = genotype
    candidate_list = []
    for trial, genotype in enumerate(distinct.values()):
        accuracy = Quantity(_truth(genotype), "table")
        if n_images:
            accuracy = proportion(float(noise.binomial(n_images, _truth(genotype))), n_images)
        candidate_list.append(
            Candidate(trial, genotype, {"accuracy": accuracy, **_costs(genotype)})
        )
    return candidate_list


def _interval(posterior: CandidatePosterior) -> tuple[float, float]:
    assert posterior.figure.low is not None
    assert posterior.figure.high is not None
    return posterior.figure.low, posterior.figure.high


def _rmse(candidates: Sequence[Candidate], values: Sequence[float]) -> float:
    truth = np.array([_truth(c.genotype) for c in candidates])
    return float(np.sqrt(np.mean((np.array(values) - truth) ** 2)))


def test_posteriors_beat_observations_and_have_coverage() -> None:
    covered, posterior_errors, observed_errors = [], [], []
    for seed in range(4):
        candidates = _candidates(80, 500, seed)
        estimates = posteriors(SPACE, candidates, OBJECTIVES)
        ends = [_interval(b) for b in estimates]
        truths = [_truth(c.genotype) for c in candidates]
        covered += [low <= t <= high for (low, high), t in zip(ends, truths, strict=True)]
        posterior_errors.append(_rmse(candidates, [b.figure.value for b in estimates]))
        observed_errors.append(_rmse(candidates, [c.figures["accuracy"].value for c in candidates]))
        assert all(b.figure.source == "modelled" for b in estimates)
        assert all(low <= b.figure.value <= high for b, (low, high) in zip(estimates, ends))  # noqa: B905
    assert np.mean(posterior_errors) < 0.75 * np.mean(observed_errors)
    assert np.mean(covered) > 0.88


def test_posteriors_correct_selection_bias() -> None:
    observed_bias, posterior_bias = [], []
    for seed in range(4):
        candidates = _candidates(80, 500, seed)
        estimates = {c.id: b for c, b in zip(candidates, posteriors(SPACE, candidates, OBJECTIVES),
                                         strict=True)}  # fmt: skip
        for member in pareto_front(candidates, OBJECTIVES):
            truth = _truth(member.genotype)
            observed_bias.append(member.figures["accuracy"].value - truth)
            posterior_bias.append(estimates[member.id].figure.value - truth)
    assert np.mean(observed_bias) > 0.005  # selection bias
    assert abs(np.mean(posterior_bias)) < 0.5 * np.mean(observed_bias)


def test_front_probability_is_calibrated() -> None:
    predicted, observed = [], []
    for seed in range(6):
        candidates = _candidates(60, 500, seed)
        true = [
            replace(c, figures={**c.figures, "accuracy": Quantity(_truth(c.genotype), "table")})
            for c in candidates
        ]
        members = {c.id for c in pareto_front(true, OBJECTIVES)}
        predicted += [b.on_front for b in posteriors(SPACE, candidates, OBJECTIVES)]
        observed += [c.id in members for c in candidates]
    likely = np.array(predicted) > 0.5
    assert np.mean(predicted) == pytest.approx(np.mean(observed), abs=0.07)
    assert np.mean(np.array(observed)[likely]) > 0.65
    assert np.mean(np.array(observed)[~likely]) < 0.25


@pytest.mark.parametrize(
    "objectives",
    [
        OBJECTIVES,
        ("latency_ms", "accuracy", "energy_mj"),
        ("accuracy", "latency_ms", "energy_mj", "flash_kib"),
    ],
)
@pytest.mark.parametrize("n", [5, 60])
def test_exact_accuracies_are_kept_with_certain_front(n: int, objectives: tuple[str, ...]) -> None:
    candidates = _candidates(n, 0)
    estimates = posteriors(SPACE, candidates, objectives)
    members = {c.id for c in pareto_front(candidates, objectives)}
    assert [b.on_front for b in estimates] == [float(c.id in members) for c in candidates]
    values = [c.figures["accuracy"].value for c in candidates]
    assert [b.figure.value for b in estimates] == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "source", "power"),
    [
        ("energy_mj", "modelled", 1),
        ("energy_mj", "measured", 1),
        ("energy_mj", "modelled", -1),
        ("flash_kib", "modelled", 1),
    ],
)
def test_modelled_energy_in_the_order_of_latency_decides_nothing(
    name: str, source: Any, power: int
) -> None:
    candidates = []
    for c in _candidates(60, 0):
        latency = c.figures["latency_ms"].value
        other = latency**power * (1 + 1e-3 * (c.trial % 7))
        costs = {
            "latency_ms": Quantity(latency, "compiler-estimate"),
            name: Quantity(other, source),
        }
        candidates.append(replace(c, figures={**c.figures, **costs}))
    estimates = posteriors(SPACE, candidates, (*OBJECTIVES, name))
    is_left_out = name == "energy_mj" and source == "modelled" and power == 1
    objectives = OBJECTIVES if is_left_out else (*OBJECTIVES, name)
    members = {c.id for c in pareto_front(candidates, objectives)}
    assert [b.on_front for b in estimates] == [float(c.id in members) for c in candidates]
    if is_left_out:
        assert len(members) < len(pareto_front(candidates, (*OBJECTIVES, name)))


def test_precise_observation_is_kept_and_imprecise_shrunk() -> None:
    candidates = _candidates(60, 2000)
    index = 7
    truth = _truth(candidates[index].genotype)

    def posterior_with(std: float) -> Quantity:
        wrong = truth - 0.1
        figure = Quantity(wrong, "measured", wrong - 1.96 * std, wrong + 1.96 * std)
        other = {**candidates[index].figures, "accuracy": figure}
        changed = [*candidates]
        changed[index] = replace(candidates[index], figures=other)
        return posteriors(SPACE, changed, OBJECTIVES)[index].figure

    assert posterior_with(0.0005).value == pytest.approx(truth - 0.1, abs=0.002)
    assert abs(posterior_with(0.1).value - truth) < 0.04


def test_second_observation_counts_and_copy_does_not() -> None:
    candidates = _candidates(30, 500)
    first = candidates[0]
    plain = posteriors(SPACE, candidates, OBJECTIVES)
    assert posteriors(SPACE, [*candidates, replace(first, trial=99)], OBJECTIVES)[:30] == plain
    better = {**first.figures, "accuracy": Quantity(0.9, "measured", 0.899, 0.901)}
    *_, repeated = estimates = posteriors(
        SPACE, [*candidates, replace(first, figures=better)], OBJECTIVES
    )
    assert estimates[0] == repeated
    assert repeated.figure.value == pytest.approx(0.9, abs=0.002)


def test_imprecise_observation_does_not_widen_combination() -> None:
    precise, rough = (Quantity(0.9, "measured", 0.9 - e, 0.9 + e) for e in (0.01, 0.1))
    for readings in ([precise, rough], [rough, precise]):
        value, std = front_probability._combined_measurement(readings)
        assert value == pytest.approx(0.9)
        assert std < precise.std


def test_few_candidates_keep_observed_accuracies() -> None:
    candidates = _candidates(front_probability.MIN_CANDIDATES - 1, 500)
    estimates = posteriors(SPACE, candidates, OBJECTIVES)
    assert [b.figure for b in estimates] == [c.figures["accuracy"] for c in candidates]
    cheapest = min(range(len(estimates)), key=lambda i: candidates[i].figures["latency_ms"].value)
    assert estimates[cheapest].on_front == 1
    assert any(0 < b.on_front < 1 for b in estimates)
    assert posteriors(SPACE, [], OBJECTIVES) == []


def test_useless_network_keeps_low_accuracy() -> None:
    candidates = _candidates(40, 500)
    dead = {**candidates[3].figures, "accuracy": proportion(50, 500)}
    candidates[3] = replace(candidates[3], figures=dead)
    assert posteriors(SPACE, candidates, OBJECTIVES)[3].figure.value == pytest.approx(0.1, abs=0.08)


def test_interval_for_all_correct_is_below_one() -> None:
    candidates = _candidates(40, 500)
    perfect = {**candidates[3].figures, "accuracy": proportion(500, 500)}
    candidates[3] = replace(candidates[3], figures=perfect)
    low, high = _interval(posteriors(SPACE, candidates, OBJECTIVES)[3])
    assert 0.8 < low < high < 1


def test_posteriors_keep_unit_of_accuracy() -> None:
    candidates = _candidates(30, 0)
    per_cent = [
        replace(c, figures={**c.figures, "accuracy": Quantity(100 * _truth(c.genotype), "table")})
        for c in candidates
    ]
    estimates = posteriors(SPACE, per_cent, OBJECTIVES)
    values = [100 * _truth(c.genotype) for c in candidates]
    assert [b.figure.value for b in estimates] == pytest.approx(values)


def test_posteriors_are_independent_of_unit_of_error() -> None:
    candidates = _candidates(20, 0)

    def estimates(unit: float) -> list[CandidatePosterior]:
        errors = [unit * (1 - _truth(c.genotype)) for c in candidates]
        scaled = [
            replace(c, figures={"mae": Quantity(error, "table"), **c.figures})
            for c, error in zip(candidates, errors, strict=True)
        ]
        return posteriors(SPACE, scaled, ("mae", "latency_ms"))

    usual, small = estimates(1.0), estimates(1e-12)
    assert [b.on_front for b in small] == [b.on_front for b in usual]
    values = [1e-12 * b.figure.value for b in usual]
    assert [b.figure.value for b in small] == pytest.approx(values, rel=1e-6, abs=0)


def test_unscored_candidates_are_refused_or_filtered() -> None:
    candidates = _candidates(10, 500)
    figures = {"latency_ms": candidates[0].figures["latency_ms"]}
    over = replace(candidates[0], figures=figures, reason="over budget")
    with pytest.raises(ValueError, match=f"Candidate {over.id} has no value of accuracy"):
        posteriors(SPACE, [over, *candidates[1:]], OBJECTIVES)
    assert front_probability.scored([over, *candidates[1:]], OBJECTIVES) == candidates[1:]


@pytest.mark.slow
def test_many_candidates_have_posteriors_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidates = _candidates(2000, 500)
    start = time.perf_counter()
    estimates = posteriors(SPACE, candidates, OBJECTIVES)
    assert time.perf_counter() - start < 30
    monkeypatch.setattr(front_probability, "_MAX_GIVEN", 1000)
    fewer = posteriors(SPACE, candidates, OBJECTIVES)
    values = np.array([[a.figure.value, b.figure.value]
                       for a, b in zip(estimates, fewer, strict=True)])  # fmt: skip
    assert np.abs(values[:, 0] - values[:, 1]).mean() < 0.01
    observed_error = _rmse(candidates, [c.figures["accuracy"].value for c in candidates])
    assert _rmse(candidates, values[:, 1].tolist()) < 0.6 * observed_error


def test_choice_with_single_option_is_supported() -> None:
    space = SearchSpace("s", "f", {"a": (1, 2, 3), "b": ("x", "y", "z"), "only": (4,)}, {})
    candidates = [
        Candidate(i, space.genotype({"a": a, "b": b, "only": 4}),
                  {"accuracy": proportion(100 * a, 500), "latency_ms": Quantity(1.0, "modelled")})
        for i, (a, b) in enumerate(itertools.product((1, 2, 3), "xyz"))
    ]  # fmt: skip
    estimates = posteriors(space, candidates, OBJECTIVES)
    assert sum(b.on_front for b in estimates) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_sizes_of_networks_improve_posteriors(small: SearchSpace) -> None:
    """The accuracy depends on MACs and parameters, which no single choice determines."""

    def lower(genotype: Genotype) -> Graph:
        return families.family_of(small).lower(small, genotype, Signature(1, 10))

    def truth(genotype: Genotype) -> float:
        graph = lower(genotype)
        return float(1 - 40 * n_macs(graph) ** -0.3 * n_params(graph) ** -0.2)

    errors = []
    for seed in range(3):
        rng, noise = random.Random(seed), np.random.default_rng(seed)
        genotypes = [*{g.id: g for g in (small.sample(rng) for _ in range(40))}.values()]
        observations = [proportion(float(noise.binomial(500, truth(g))), 500) for g in genotypes]
        latency = Quantity(1.0, "modelled")
        candidates = [
            Candidate(i, g, {"accuracy": observed, "latency_ms": latency})
            for i, (g, observed) in enumerate(zip(genotypes, observations, strict=True))
        ]
        for known in (None, lower):
            estimates = posteriors(small, candidates, OBJECTIVES, known)
            deviations = [b.figure.value - truth(c.genotype)
                    for b, c in zip(estimates, candidates, strict=True)]  # fmt: skip
            errors.append(math.hypot(*deviations))
    without, with_sizes = errors[::2], errors[1::2]
    assert sum(with_sizes) < 0.85 * sum(without)
