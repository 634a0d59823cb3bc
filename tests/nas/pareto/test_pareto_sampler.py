"""The sampler alone, in plain Optuna studies."""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from hwnas.core.errors import ConfigError
from hwnas.core.pareto import hypervolume
from hwnas.nas.pareto import expectation
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.trial_attributes import ATTRIBUTE, STD, Proposal, read_proposal
from tests.conftest import few_of

optuna.logging.set_verbosity(optuna.logging.WARNING)
MAXIMISE, MINIMISE = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
Assignment = Mapping[str, Any]

OPS = ("none", "skip", "pool", "conv1", "conv3")
SMALL: dict[str, BaseDistribution] = {
    **{f"op{i}": CategoricalDistribution(OPS) for i in range(4)},
    "width": IntDistribution(8, 32, step=8),
}
#: More than 10^15 assignments.
LARGE: dict[str, BaseDistribution] = {
    f"stage{i}.{name}": distribution
    for i in range(12)
    for name, distribution in (
        ("op", CategoricalDistribution(OPS)),
        ("width", IntDistribution(1, 6)),
    )
}
_WORK = {"none": 0.0, "skip": 0.02, "pool": 0.1, "conv1": 0.4, "conv3": 1.0}


def _ops(a: Assignment) -> list[str]:
    return [str(value) for name, value in a.items() if "op" in name]


def _width(a: Assignment) -> float:
    widths = [value for name, value in a.items() if "width" in name]
    return float(np.mean(widths)) / max(SMALL_WIDTH if len(widths) == 1 else 6, 1)


SMALL_WIDTH = 32


def accuracy(a: Assignment) -> float:
    ops = _ops(a)
    work = sum(_WORK[op] * (1 + 0.3 * math.sin(i)) for i, op in enumerate(ops)) / len(ops)
    dead = ops.count("none") / len(ops)
    return float(0.95 - 0.5 * math.exp(-2.5 * work * (0.3 + _width(a))) - 0.3 * dead**2)


def latency(a: Assignment) -> float:
    return 0.2 + sum(_WORK[op] * (1 + 0.2 * i % 3) for i, op in enumerate(_ops(a))) * _width(a)


def memory(a: Assignment) -> float:
    return 1.0 + 10 * _width(a) ** 2 + _ops(a).count("conv1")


def _costs(*functions: Callable[[Assignment], float]) -> Callable[..., NDArray[np.float64]]:
    return lambda assignments: np.array([[f(a) for f in functions] for a in assignments])


def _run(
    sampler: optuna.samplers.BaseSampler,
    n: int,
    space: Mapping[str, BaseDistribution] = SMALL,
    functions: Sequence[Callable[[Assignment], float]] = (accuracy, latency),
    study: optuna.Study | None = None,
) -> optuna.Study:
    if study is None:
        directions = [MAXIMISE if f is accuracy else MINIMISE for f in functions]
        study = optuna.create_study(directions=directions)
    study.sampler = sampler
    while len(study.trials) < n:
        trial = study.ask(dict(space))
        study.tell(trial, [f(trial.params) for f in functions])
    return study


def _volume(study: optuna.Study, reference: Sequence[float]) -> float:
    values = np.array([trial.values for trial in study.trials])
    maximise = [direction == MAXIMISE for direction in study.directions]
    sign = np.where(maximise, -1, 1)
    inside = (values * sign < np.array(reference) * sign).all(axis=1)
    return hypervolume(values[inside], reference, maximise) if inside.any() else 0.0


@pytest.mark.parametrize("seed", few_of(range(2), 1))
def test_hypervolume_in_small_space_is_nearly_optimal(seed: int) -> None:
    assignments = [
        dict(zip(SMALL, row, strict=True)) for row in itertools.product(*[OPS] * 4, range(8, 33, 8))
    ]
    exact = np.array([[accuracy(a), latency(a)] for a in assignments])
    reference = [0.5, 4.0]
    useful = exact[(exact[:, 0] > 0.5) & (exact[:, 1] < 4)]
    best = hypervolume(useful, reference, [True, False])
    sampler = ParetoSampler(_costs(latency), seed=seed, search_space=SMALL)
    pareto = _volume(_run(sampler, 60), reference) / best
    random_search = _volume(_run(optuna.samplers.RandomSampler(seed=seed), 60), reference) / best
    assert pareto > 0.985
    assert pareto > random_search + 0.02


@pytest.mark.slow
def test_sampler_beats_nsga2_with_three_objectives() -> None:
    functions, reference = (accuracy, latency, memory), [0.5, 8.0, 20.0]
    ours, theirs = [], []
    for seed in range(2):
        sampler = ParetoSampler(_costs(latency, memory), seed=seed, search_space=LARGE)
        ours.append(_volume(_run(sampler, 60, LARGE, functions), reference))
        nsga2 = optuna.samplers.NSGAIISampler(seed=seed, population_size=15)
        theirs.append(_volume(_run(nsga2, 60, LARGE, functions), reference))
    assert np.mean(ours) > 1.05 * np.mean(theirs)


def test_proposals_are_independent_of_unit_of_error() -> None:
    def proposed(unit: float) -> list[dict[str, Any]]:
        functions = (lambda a: unit * (1 - accuracy(a)), latency)
        sampler = ParetoSampler(_costs(latency), search_space=SMALL)
        return [trial.params for trial in _run(sampler, 14, functions=functions).trials]

    assert proposed(2.0**-40) == proposed(1.0)


def test_proposals_are_unique() -> None:
    study = _run(ParetoSampler(_costs(latency), search_space=SMALL), 50)
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 50


def test_exhausted_space_repeats_candidates() -> None:
    space = {"a": CategoricalDistribution(OPS), "width": IntDistribution(1, 2)}
    functions = (lambda a: float(OPS.index(a["a"])), lambda a: float(a["width"]))
    study = optuna.create_study(directions=[MAXIMISE, MINIMISE])
    sampler = ParetoSampler(_costs(functions[1]), search_space=space, n_startup=4)
    _run(sampler, 15, space, functions, study)
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 10


@pytest.mark.slow
@pytest.mark.parametrize("space", few_of([LARGE, SMALL], 1))
def test_resumed_study_has_same_proposals(space: dict[str, BaseDistribution]) -> None:
    def sampler() -> ParetoSampler:
        return ParetoSampler(_costs(latency), seed=3, search_space=space)

    uninterrupted = _run(sampler(), 30, space)
    resumed = optuna.create_study(directions=["maximize", "minimize"])
    for n in (7, 17, 24, 30):
        _run(sampler(), n, space, study=resumed)
    assert [t.params for t in resumed.trials] == [t.params for t in uninterrupted.trials]
    other = _run(ParetoSampler(_costs(latency), seed=4, search_space=space), 30, space)
    assert [t.params for t in other.trials] != [t.params for t in uninterrupted.trials]


@pytest.mark.slow
def test_resumed_study_of_unbounded_objective_has_same_proposals() -> None:
    def score(a: Assignment) -> float:
        return 300 * accuracy(a) - 200  # of either sign, without a known optimum

    def sampler() -> ParetoSampler:
        return ParetoSampler(_costs(latency), search_space=SMALL)

    functions, directions = (score, latency), [MAXIMISE, MINIMISE]
    uninterrupted = optuna.create_study(directions=directions)
    _run(sampler(), 40, SMALL, functions, uninterrupted)
    resumed = optuna.create_study(directions=directions)
    for n in (19, 27, 33, 40):
        _run(sampler(), n, SMALL, functions, resumed)
    assert [t.params for t in resumed.trials] == [t.params for t in uninterrupted.trials]


@pytest.mark.parametrize("n", [3, 24])  # before and after the first model
@pytest.mark.parametrize("n_costs", [None, 10])
def test_concurrent_workers_choose_different_candidates(n: int, n_costs: int | None) -> None:
    def sampler() -> ParetoSampler:
        return ParetoSampler(_costs(latency), search_space=SMALL, n_costs=n_costs)

    study = _run(sampler(), n)
    ids = [study._storage.create_new_trial(study._study_id) for _ in range(3)]  # without a choice
    proposed = []
    for trial_id in ids:
        trial = study._storage.get_trial(trial_id)
        proposed.append(sampler().sample_relative(study, trial, SMALL))
    different = len({tuple(params.items()) for params in proposed})
    # With few costs, each worker has other candidates, so that two may choose the same one.
    assert different == 3 if n_costs is None else different >= 2


@pytest.mark.parametrize("n", [0, 24])
def test_partly_stored_choice_is_not_repeated(n: int) -> None:
    """Optuna stores one option at a time, which is slow in a database."""

    def sampler() -> ParetoSampler:
        return ParetoSampler(_costs(latency), search_space=SMALL)

    study = _run(sampler(), n)
    storage = study._storage
    writing, choosing = (storage.create_new_trial(study._study_id) for _ in range(2))
    chosen = sampler().sample_relative(study, storage.get_trial(writing), SMALL)
    distribution = SMALL["op0"]
    storage.set_trial_param(
        writing, "op0", distribution.to_internal_repr(chosen["op0"]), distribution
    )
    assert sampler().sample_relative(study, storage.get_trial(choosing), SMALL) != chosen


@pytest.mark.slow
@pytest.mark.parametrize("state", [None, optuna.trial.TrialState.COMPLETE])
def test_choice_of_concurrent_process_is_not_repeated(
    state: optuna.trial.TrialState | None,
) -> None:
    """A proposal takes seconds; another process may finish its own meanwhile."""
    study = _run(ParetoSampler(_costs(latency), search_space=LARGE), 24, LARGE)
    storage = study._storage
    rival, choosing = (storage.create_new_trial(study._study_id) for _ in range(2))
    chosen: dict[str, Any] = {}

    def costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        if chosen and not storage.get_trial(rival).params:
            for name, distribution in LARGE.items():
                internal = distribution.to_internal_repr(chosen[name])
                storage.set_trial_param(rival, name, internal, distribution)
            if state is not None:
                storage.set_trial_state_values(rival, state, [0.9, 1.0])
        return _costs(latency)(assignments)

    def propose() -> dict[str, Any]:
        sampler = ParetoSampler(costs, search_space=LARGE, n_costs=12)
        return sampler.sample_relative(study, storage.get_trial(choosing), LARGE)

    chosen |= propose()  # while the other process has no choice yet
    assert propose() != chosen
    assert storage.get_trial(rival).params == chosen


@pytest.mark.slow
@pytest.mark.parametrize("limit", few_of([0.6, 1.0], 1))
@pytest.mark.parametrize("space", [SMALL, LARGE], ids=["small", "large"])
def test_infeasible_candidates_are_not_proposed(
    space: dict[str, BaseDistribution], limit: float
) -> None:
    def costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        values = _costs(latency)(assignments)
        values[values > limit] = np.inf
        return values

    study = _run(ParetoSampler(costs, search_space=space), 30, space)
    assert max(trial.values[1] for trial in study.trials) <= limit


@pytest.mark.parametrize("space", [SMALL, LARGE], ids=["small", "large"])
def test_smallest_candidate_is_tried_if_none_is_feasible(
    space: dict[str, BaseDistribution],
) -> None:
    sampler = ParetoSampler(lambda all: np.full((len(all), 1), np.inf), search_space=space)
    study = _run(sampler, 20, space)
    assert set(study.trials[0].params.values()) <= {"none", 8, 1}
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 20


@pytest.mark.slow
def test_number_of_computed_costs_is_limited() -> None:
    batch_sizes: list[int] = []

    def costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        batch_sizes.append(len(assignments))
        return _costs(latency)(assignments)

    sampler = ParetoSampler(costs, search_space=LARGE, n_costs=10)
    study = _run(sampler, 40, LARGE)
    assert max(batch_sizes) <= 10
    assert sum(batch_sizes) <= 10 * 40
    latencies = [trial.values[1] for trial in study.trials[:10]]
    assert max(latencies) > 3 * sorted(latencies)[1]  # startup trials cover the range
    random_search = _run(optuna.samplers.RandomSampler(seed=0), 40, LARGE)
    assert _volume(study, [0.5, 8.0]) > 1.05 * _volume(random_search, [0.5, 8.0])


def test_running_trials_are_different_candidates() -> None:
    sampler = ParetoSampler(_costs(latency), search_space=SMALL)
    study = _run(sampler, 20)
    running = [study.ask(SMALL) for _ in range(6)]
    assert len({tuple(trial.params.items()) for trial in running}) == 6


def test_proposals_are_independent_of_order_of_completion() -> None:
    """The history of the sampler does not depend on when trials were read."""

    def tell(study: optuna.Study, trial: optuna.Trial) -> None:
        study.tell(trial, [accuracy(trial.params), latency(trial.params)])

    sampler = ParetoSampler(_costs(latency), search_space=SMALL)
    study = _run(sampler, 20)
    slow, fast = study.ask(SMALL), study.ask(SMALL)
    tell(study, fast)
    tell(study, study.ask(SMALL))  # the sampler has read the fast trial, but not the slow one
    tell(study, slow)
    proposed = study.ask(SMALL).params
    copy = optuna.create_study(directions=study.directions)
    copy.add_trials([trial for trial in study.trials if trial.state.is_finished()])
    copy.sampler = ParetoSampler(_costs(latency), search_space=SMALL)
    assert copy.ask(SMALL).params == proposed


@pytest.mark.slow
def test_observed_costs_are_modelled() -> None:
    """Define-by-run, as in Optuna."""

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        a: dict[str, Any] = {f"op{i}": trial.suggest_categorical(f"op{i}", OPS) for i in range(4)}
        a["width"] = trial.suggest_int("width", 8, 32, step=8)
        return latency(a), accuracy(a)

    volumes = []
    for sampler in (ParetoSampler(expensive=1), optuna.samplers.RandomSampler(seed=0)):
        study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
        study.optimize(objective, 60)
        volumes.append(_volume(study, [4.0, 0.5]))
    assert volumes[0] > 1.02 * volumes[1]


def test_inactive_choices_do_not_make_new_candidate() -> None:
    space = {"depth": IntDistribution(0, 1), "op": CategoricalDistribution(OPS)}

    def active(a: Assignment) -> Assignment:
        return a if a["depth"] else {"depth": 0}

    sampler = ParetoSampler(
        _costs(lambda a: float(a["depth"])),
        search_space=space, active=active, optional=["op"], n_startup=3,
    )  # fmt: skip
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(6):
        trial = study.ask(space)
        study.tell(trial, [random.Random(str(trial.params)).random(), trial.params["depth"]])
    assert len({tuple(active(trial.params).items()) for trial in study.trials}) == 6


def _proposals(study: optuna.Study) -> list[Proposal]:
    return [read_proposal(trial.system_attrs) for trial in study.trials]


def test_proposals_have_phase_gain_and_expected_value() -> None:
    study = _run(ParetoSampler(_costs(latency), search_space=SMALL), 40)
    startup, gain = _proposals(study)[:10], _proposals(study)[10:]
    assert {p.phase for p in startup} == {"startup"}
    assert [p.n_candidates for p in startup] == [2500 - i for i in range(10)]
    assert all(p.phase == "gain" and p.n_costed == p.n_candidates > 2400 for p in gain)
    assert all(p.gain is not None and 0 <= p.gain < 1 for p in gain)
    assert gain[0].gain is not None
    assert gain[-1].gain is not None
    assert gain[0].gain > 3 * gain[-1].gain  # gains decrease
    n_covered = 0
    for trial, proposal in zip(study.trials[10:], gain, strict=True):
        assert proposal.expected is not None
        value, low, high = proposal.expected
        assert low < value < high < 1  # accuracies, not errors
        n_covered += low <= trial.values[0] <= high
    assert n_covered > 25


@pytest.mark.slow
def test_wide_range_of_costs_favours_cheap_candidates() -> None:
    """The hypervolume over logarithmic costs is larger."""
    volumes_by_threshold = []
    for wide in (expectation._WIDE, math.inf):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(expectation, "_WIDE", wide)
            volumes = []
            for seed in range(2):
                sampler = ParetoSampler(_costs(_steep), seed=seed, search_space=LARGE)
                study = _run(sampler, 40, LARGE, (accuracy, _steep))
                points = np.array([t.values for t in study.trials]) * [-1, 1]
                points[:, 1] = np.log(points[:, 1])
                volumes.append(hypervolume(points, [-0.5, math.log(1e4)], [False, False]))
            volumes_by_threshold.append(volumes)
    assert np.mean(volumes_by_threshold[0]) > np.mean(volumes_by_threshold[1])


def test_cheap_useless_networks_are_not_proposed() -> None:
    """For example, 4 % of the candidates have no path from input to output."""

    def is_dead(a: Assignment) -> bool:
        return [a["op0"], a["op1"]] == ["none", "none"]

    def right(a: Assignment) -> float:
        return 0.1 if is_dead(a) else accuracy(a)

    def cost(a: Assignment) -> float:
        return 1e-4 * (2 + 0.1 * OPS.index(a["op2"])) if is_dead(a) else latency(a)

    study = optuna.create_study(directions=[MAXIMISE, MINIMISE])
    _run(ParetoSampler(_costs(cost), search_space=SMALL), 40, SMALL, (right, cost), study)
    assert sum(is_dead(trial.params) for trial in study.trials[10:]) <= 5


def _steep(a: Assignment) -> float:
    return latency(a) ** 3


def test_expected_values_have_scale_of_objective() -> None:
    """The objective is minimised, of either sign, and the second one."""

    def loss(a: Assignment) -> float:
        return 50 - 300 * accuracy(a)

    study = optuna.create_study(directions=[MINIMISE, MINIMISE])
    sampler = ParetoSampler(_costs(latency), search_space=SMALL, expensive=1)
    _run(sampler, 30, SMALL, (latency, loss), study)
    errors = [
        abs(p.expected[0] - trial.values[1])
        for trial, p in zip(study.trials, _proposals(study), strict=True)
        if p.expected is not None
    ]
    assert len(errors) == 20
    assert np.median(errors) < 30  # values range over 250


@pytest.mark.slow
def test_proposals_record_parent_trials() -> None:
    study = _run(ParetoSampler(_costs(latency), search_space=LARGE, n_costs=10), 40, LARGE)
    children = [
        (t.number, p) for t, p in zip(study.trials, _proposals(study), strict=True) if p.parents
    ]
    assert len(children) > 10
    for number, proposal in children:
        assert 0 < proposal.n_costed <= 40 < proposal.n_candidates <= 700
        assert all(parent < number for parent in proposal.parents)
        nearest = max(
            sum(study.trials[p].params[name] == study.trials[number].params[name] for name in LARGE)
            for p in proposal.parents
        )
        assert nearest >= len(LARGE) // 3


@pytest.mark.slow
def test_modelled_costs_have_direction_of_objective() -> None:
    """Throughput is maximised, but modelled as a minimised cost."""
    functions = (accuracy, lambda a: 10 / latency(a))
    study = optuna.create_study(directions=[MAXIMISE, MAXIMISE])
    _run(ParetoSampler(search_space=SMALL), 40, SMALL, functions, study)
    cost_pairs = [
        (p.costs[0], t.values[1])
        for t, p in zip(study.trials, _proposals(study), strict=True)
        if p.phase == "gain"
    ]
    assert len(cost_pairs) == 30
    assert all(p.n_costed == 0 for p in _proposals(study))
    assert np.corrcoef(np.log(np.maximum(cost_pairs, 1e-3)).T)[0, 1] > 0.5


def test_phases_if_no_candidate_is_feasible() -> None:
    sampler = ParetoSampler(lambda all: np.full((len(all), 1), np.inf), search_space=SMALL)
    phases = [p.phase for p in _proposals(_run(sampler, 5))]
    assert phases == ["smallest", *["random"] * 4]


def test_enqueued_trials_are_not_proposals() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.enqueue_trial({name: "conv1" if "op" in name else 8 for name in SMALL})
    _run(ParetoSampler(_costs(latency), search_space=SMALL), 2, study=study)
    assert ATTRIBUTE not in study.trials[0].system_attrs
    assert [p.phase for p in _proposals(study)] == ["ladder", "startup"]


def _run_noisy(sampler: ParetoSampler, n: int, study: optuna.Study, with_std: bool) -> None:
    """Run trials of which every third has little noise."""
    study.sampler = sampler
    while len(study.trials) < n:
        trial = study.ask(SMALL)
        std = 0.002 if trial.number % 3 == 0 else 0.03
        if with_std:
            study._storage.set_trial_system_attr(trial._trial_id, STD, std)
        noise = random.Random(str(trial.params)).gauss(0, std)
        study.tell(trial, [accuracy(trial.params) + noise, _with_overhead(trial.params)])


def _with_overhead(a: Assignment) -> float:
    """Return a latency of a narrow range, so that gains are not per ratio of costs."""
    return 1.0 + latency(a)


@pytest.mark.slow
def test_known_noise_improves_search_result() -> None:
    volumes: list[list[float]] = [[], []]
    for seed in range(4):
        for with_std in (False, True):
            study = optuna.create_study(directions=[MAXIMISE, MINIMISE])
            sampler = ParetoSampler(_costs(_with_overhead), seed=seed, search_space=SMALL)
            _run_noisy(sampler, 50, study, with_std)
            true = optuna.create_study(directions=[MAXIMISE, MINIMISE])
            true.add_trials([optuna.trial.create_trial(values=[accuracy(t.params), t.values[1]])
                             for t in study.trials])  # fmt: skip
            volumes[with_std].append(_volume(true, [0.5, 5.0]))
    assert np.mean(volumes[1]) > np.mean(volumes[0])


def test_resumed_noisy_study_has_same_proposals() -> None:
    def sampler() -> ParetoSampler:
        return ParetoSampler(_costs(_with_overhead), search_space=SMALL)

    uninterrupted = optuna.create_study(directions=[MAXIMISE, MINIMISE])
    _run_noisy(sampler(), 35, uninterrupted, with_std=True)
    resumed = optuna.create_study(directions=[MAXIMISE, MINIMISE])
    for n in (19, 27, 35):
        _run_noisy(sampler(), n, resumed, with_std=True)
    assert [t.params for t in resumed.trials] == [t.params for t in uninterrupted.trials]
    assert [t.system_attrs for t in resumed.trials] == [
        t.system_attrs for t in uninterrupted.trials
    ]


@pytest.mark.parametrize("value", [math.inf, -1e308])
@pytest.mark.parametrize("at", [0, 1])  # the error, the cost
@pytest.mark.parametrize("costs", [None, _costs(latency)])
def test_infinite_objectives_are_infeasible(
    value: float, at: int, costs: Callable[..., NDArray[np.float64]] | None
) -> None:
    sampler = ParetoSampler(costs, search_space=SMALL, n_startup=5)
    study = optuna.create_study(directions=[MAXIMISE, MINIMISE], sampler=sampler)
    for number in range(12):
        trial = study.ask(SMALL)
        objectives = [accuracy(trial.params), latency(trial.params)]
        if number % 3 == 1:
            objectives[at] = value
        study.tell(trial, objectives)
    proposals = [read_proposal(trial.system_attrs) for trial in study.trials]
    # The model waits for five feasible trials: those without an infinite value.
    assert [p.phase for p in proposals] == ["startup"] * 7 + ["gain"] * 5
    assert all(p.expected is not None and 0 <= p.expected[0] <= 1 for p in proposals[7:])
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 12


def test_failed_candidates_are_not_proposed_again() -> None:
    """A failed trial does not change the model, which would propose it again."""
    sampler = ParetoSampler(_costs(latency), search_space=SMALL, n_startup=5)
    study = _run(sampler, 5)
    for _ in range(10):
        study.tell(study.ask(SMALL), state=optuna.trial.TrialState.FAIL)
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 15


@pytest.mark.parametrize(
    ("arguments", "n_objectives", "message"),
    [
        ({}, 1, "the study has 1 objective. Allowed: 2 or 3"),
        ({}, 4, "the study has 4 objectives. Allowed: 2 or 3"),
        ({"expensive": 2}, 2, "expensive is 2, and the study has 2 objectives"),
        ({"expensive": -1}, 2, "expensive is -1. Allowed: 0 or more"),
        ({"n_startup": 0}, 2, "n_startup is 0. Allowed: 1 or more"),
        ({"n_costs": 0}, 2, "n_costs is 0. Allowed: 1 or more"),
        ({"bound": math.nan}, 2, "bound is nan. Allowed: a finite number"),
        ({"root": "stage"}, 2, "root is 'stage', which is not in search_space. Allowed: "),
        ({"optional": ["stage"]}, 2, "optional is 'stage', which is not in search_space."),
        (
            {"search_space": {"lr": FloatDistribution(0, 1)}},
            2,
            r"search_space\['lr'\] is a FloatDistribution. Allowed: Categorical",
        ),
        ({"costs": _costs(latency)}, 3, r"shape \(2500, 1\) .* Expected: \(2500, 2\)"),
        (
            {"costs": lambda rows: np.ones(len(rows))},
            2,
            r"shape \(2500,\) .* Expected: \(2500, 1\)",
        ),
    ],
)
def test_invalid_arguments_are_refused_before_first_trial(
    arguments: dict[str, Any], n_objectives: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"ParetoSampler: .*{message}"):
        _run(
            ParetoSampler(**{"search_space": SMALL} | arguments),
            1,
            functions=[latency] * n_objectives,
        )


def test_unknown_root_is_refused_in_second_trial() -> None:
    study = optuna.create_study(
        directions=["maximize", "minimize"], sampler=ParetoSampler(root="stage")
    )
    study.tell(study.ask({"width": IntDistribution(1, 4)}), [1.0, 2.0])
    message = "root is 'stage', which is no parameter of all trials. Allowed: width"
    with pytest.raises(ConfigError, match=message):
        study.ask({"width": IntDistribution(1, 4)})
