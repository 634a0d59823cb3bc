import inspect
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import optuna
import pytest

from hwnas.core.errors import BudgetError, CollapseError, CompileError
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.options import SAMPLERS, SamplerConfig
from hwnas.nas.study import LocalStudy
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.evaluation.interfaces import Evaluator
from tests.conftest import few_of
from tests.nas.fakes import BitAccuracy, SizeAccuracy, SizeCost, size

OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")


def _search(
    space: SearchSpace,
    path: Path,
    n_trials: int,
    *,
    budget: Budget | None = None,
    cost: SizeCost | None = None,
    name: str = "nsga2",
    seed: int = 0,
    evaluator: Evaluator | None = None,
) -> list[Candidate]:
    accuracy = evaluator or SizeAccuracy()
    problem = loop.SearchProblem(space, budget or Budget(), cost or SizeCost(), accuracy)
    config = SamplerConfig(name, population_size=10, n_startup_trials=14)
    study = LocalStudy(path, space, OBJECTIVES)
    try:
        return list(loop.run_trials(problem, study, config, seed, n_trials, NullProgress()))
    finally:
        study.close()


@pytest.mark.parametrize("name", few_of(["pareto", "nsga2", "gp", "tpe", "random"], 1))
def test_resumed_search_equals_uninterrupted_search(
    tiny: SearchSpace, tmp_path: Path, name: str
) -> None:
    n = 18 if name == "gp" else 36
    uninterrupted = _search(tiny, tmp_path / "whole.db", n, name=name)
    for part in (n // 6, n // 2 + 3):
        _search(tiny, tmp_path / "cut.db", part, name=name)
    resumed = _search(tiny, tmp_path / "cut.db", n, name=name)
    assert resumed == uninterrupted
    assert [candidate.trial for candidate in resumed] == list(range(n))


@pytest.mark.slow
def test_evolution_resumes_beyond_recursion_limit(tiny: SearchSpace, tmp_path: Path) -> None:
    """Optuna alone would select the parents of a resumed study recursively."""
    config = SamplerConfig("nsga2", population_size=2)

    def search_ids(path: Path, n_trials: int) -> list[str]:
        study = LocalStudy(path, tiny, OBJECTIVES)
        problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy())
        loop.run_trials(problem, study, config, 0, n_trials, NullProgress())
        study.close()
        return [candidate.id for candidate in study.candidates]

    limit = sys.getrecursionlimit()
    uninterrupted = search_ids(tmp_path / "whole.db", 304)
    assert search_ids(tmp_path / "cut.db", 300) == uninterrupted[:300]
    sys.setrecursionlimit(len(inspect.stack()) + 220)  # enough for the rest of a search
    try:
        assert search_ids(tmp_path / "cut.db", 304) == uninterrupted
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", few_of(["pareto", "nsga2"], 1))
def test_resumed_search_with_early_stopping_is_equal(
    tiny: SearchSpace, tmp_path: Path, name: str
) -> None:
    uninterrupted = _search(tiny, tmp_path / "whole.db", 40, name=name, evaluator=BitAccuracy())
    assert any(candidate.state == "stopped" for candidate in uninterrupted)
    for part in (7, 23, 40):
        resumed = _search(tiny, tmp_path / "cut.db", part, name=name, evaluator=BitAccuracy())
    assert resumed == uninterrupted


def test_stopped_candidates_are_dominated_and_cached(tiny: SearchSpace, tmp_path: Path) -> None:
    evaluator = BitAccuracy()
    candidates = _search(tiny, tmp_path / "s.db", 80, evaluator=evaluator)
    stopped = [c for c in candidates if c.state == "stopped"]
    front = pareto_front(candidates, OBJECTIVES)
    assert {c.id for c in stopped} == set(evaluator.stopped)
    assert len(stopped) > len(set(evaluator.stopped))  # some are repeated
    assert len(evaluator.requested) == len({c.id for c in candidates})
    first = {c.id: c for c in reversed(stopped)}
    for candidate in stopped:
        assert candidate.figures == first[candidate.id].figures
        assert candidate.details["n_images"] < evaluator.n
        assert any(
            member.figures["accuracy"].value > candidate.figures["accuracy"].value
            and member.figures["latency_ms"].value <= candidate.figures["latency_ms"].value
            for member in front
        )
    for member in front:
        assert member.state == "complete"
        assert member.figures["accuracy"].value == evaluator.right(member.genotype).mean()


def test_front_excludes_stopped_candidates(tiny: SearchSpace, tmp_path: Path) -> None:
    candidates = _search(tiny, tmp_path / "s.db", 20)
    member = pareto_front(candidates, OBJECTIVES)[-1]
    others = [replace(c, stopped=c.id == member.id) for c in candidates]
    assert member.id not in {c.id for c in pareto_front(others, OBJECTIVES)}


@pytest.mark.parametrize("name", few_of(["random", *(s for s in SAMPLERS if s != "random")], 1))
def test_other_seeds_propose_other_candidates(tiny: SearchSpace, tmp_path: Path, name: str) -> None:
    n = 20  # more than the initial ladder
    a = _search(tiny, tmp_path / "a.db", n, name=name, seed=0)
    b = _search(tiny, tmp_path / "b.db", n, name=name, seed=1)
    assert [c.id for c in a] != [c.id for c in b]


def test_search_starts_with_ladder_of_sizes(tiny: SearchSpace, tmp_path: Path) -> None:
    candidates = _search(tiny, tmp_path / "s.db", 9)
    assert [c.genotype for c in candidates[:2]] == [tiny.smallest(), tiny.largest()]
    sizes = sorted({size(c.genotype) for c in candidates})
    assert len(sizes) >= 4


def test_candidates_over_budget_are_not_scored(tiny: SearchSpace, tmp_path: Path) -> None:
    limit = size(tiny.largest()) - 8
    problem_accuracy = SizeAccuracy()
    problem = loop.SearchProblem(tiny, Budget({"latency_ms": limit}), SizeCost(), problem_accuracy)
    study = LocalStudy(tmp_path / "s.db", tiny, OBJECTIVES)
    random = SamplerConfig("random")
    loop.run_trials(problem, study, random, 0, 40, NullProgress())
    over = [c for c in study.candidates if size(c.genotype) > limit]
    study.close()
    assert over
    assert all(c.state == "infeasible" and "latency_ms" in c.reason for c in over)
    assert not {c.id for c in over} & set(problem_accuracy.requested)
    stored = optuna.load_study(study_name="hwnas", storage=f"sqlite:///{tmp_path / 's.db'}")
    for trial in stored.get_trials():
        infeasible = any(value > 0 for value in trial.constraints.values())
        assert infeasible == (trial.user_attrs["state"] == "infeasible")
    feasible = {c.trial for c in study.candidates if c.state == "complete"}
    assert {trial.number for trial in stored.best_trials} <= feasible


@pytest.fixture(scope="module")
def evolved(
    tiny: SearchSpace, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Candidate], SizeCost, SizeAccuracy]:
    """Return the candidates of an evolution, with its cost model and evaluator."""
    cost, accuracy = SizeCost(), SizeAccuracy()
    path = tmp_path_factory.mktemp("evolved") / "s.db"
    return _search(tiny, path, 80, cost=cost, evaluator=accuracy), cost, accuracy


def test_repeated_genotype_is_compiled_and_scored_once(
    evolved: tuple[list[Candidate], SizeCost, SizeAccuracy],
) -> None:
    candidates, cost, accuracy = evolved
    assert len({c.id for c in candidates}) < len(candidates)  # some are repeated
    assert len(cost.requested) == len(set(cost.requested)) == len({c.id for c in candidates})
    assert sorted(accuracy.requested) == sorted(cost.requested)


def test_refused_candidates_are_infeasible_with_reason(tiny: SearchSpace, tmp_path: Path) -> None:
    middle = size(tiny.smallest()) + 8
    cost = SizeCost(refuses=middle, unrunnable=middle + 2)
    candidates = _search(tiny, tmp_path / "s.db", 60, cost=cost, name="random")
    reasons = {size(c.genotype): c.reason for c in candidates}
    assert reasons[middle] == "refused"
    assert reasons[middle + 2] == "falls back"
    assert all(c.state == "complete" for c in candidates if not c.reason)
    resumed = _search(tiny, tmp_path / "s.db", 60, cost=cost, name="random")
    assert resumed == candidates


class _Narrow(SizeCost):
    """Refuses wide networks, only when their cost is requested."""

    def cost(self, genotype: Genotype) -> Cost:
        if genotype.to_dict()["stages.0.width"] == 16:
            raise CompileError("too wide")
        return super().cost(genotype)


@pytest.mark.slow
def test_uncompilable_candidate_is_not_repeated(tiny: SearchSpace, tmp_path: Path) -> None:
    """Wide networks have the highest expected gain, and their costs are unknown."""
    cost = _Narrow(max_cost_queries=0)
    candidates = _search(tiny, tmp_path / "s.db", 40, cost=cost, name="pareto")
    refused = [c.id for c in candidates if c.reason]
    assert refused
    assert len(refused) == len({*refused})
    half = _search(tiny, tmp_path / "t.db", 20, cost=_Narrow(max_cost_queries=0), name="pareto")
    assert half == candidates[:20]
    assert _search(tiny, tmp_path / "t.db", 40, cost=cost, name="pareto") == candidates


def test_error_for_collapsed_training_names_training(
    tiny: SearchSpace,
) -> None:
    costs = SizeCost().cost(tiny.smallest()).figures
    collapsed = Candidate(0, tiny.smallest(), costs, {}, "the loss is not a number.")
    message = str(loop.no_feasible_candidate([collapsed], Budget(), "folder"))
    assert message.startswith("None could be scored of 1 candidates, for example: the loss is not")
    limited = str(loop.no_feasible_candidate([collapsed], Budget({"latency_ms": 1e9}), "folder"))
    assert "meets the limits but: the loss is not a number. Relax" in limited


def test_error_without_candidates_names_time_limit() -> None:
    message = str(loop.no_feasible_candidate([], Budget({"latency_ms": 1.0}), "runs/a"))
    assert message.startswith("The time limit ended before a candidate was scored.")
    assert "hwnas resume runs/a minutes=" in message


@pytest.mark.parametrize("name", few_of(["pareto", "random"], 1))
def test_collapsed_training_is_infeasible_with_reason(
    tiny: SearchSpace, tmp_path: Path, name: str
) -> None:
    evaluator = Collapsing(above=size(tiny.smallest()) + 8)
    candidates = _search(tiny, tmp_path / "s.db", 36, evaluator=evaluator, name=name)
    for c in candidates:
        collapsed = size(c.genotype) > evaluator.above
        assert c.state == ("infeasible" if collapsed else "complete")
        assert c.reason == "collapsed at step 7" * collapsed
    assert 0 < sum(c.state == "complete" for c in candidates) < 36
    assert _search(tiny, tmp_path / "s.db", 36, evaluator=evaluator, name=name) == candidates
    with pytest.raises(CollapseError, match="step 7"):  # all collapse: the recipe is wrong
        _search(tiny, tmp_path / "none.db", 36, evaluator=Collapsing(above=0), name=name)


class Collapsing(SizeAccuracy):
    """Cannot train networks larger than ``above``."""

    def __init__(self, above: int):
        super().__init__()
        self.above = above

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        if size(genotype) > self.above:
            raise CollapseError("collapsed at step 7")
        return super().score(genotype, incumbent)


def test_front_has_non_dominated_genotypes_once(tiny: SearchSpace, tmp_path: Path) -> None:
    candidates = _search(tiny, tmp_path / "s.db", 50, budget=Budget({"latency_ms": 60}))
    front = pareto_front(candidates, OBJECTIVES)
    assert len({c.id for c in front}) == len(front) > 2
    assert all(c.state == "complete" for c in front)
    values = np.array(
        [[-c.figures["accuracy"].value, c.figures["latency_ms"].value] for c in front]
    )
    feasible = [c for c in candidates if c.state == "complete"]
    for candidate in feasible:
        point = (-candidate.figures["accuracy"].value, candidate.figures["latency_ms"].value)
        assert not any(np.all(point <= v) and np.any(point < v) for v in values)
    latencies = [c.figures["latency_ms"].value for c in front]
    assert latencies == sorted(latencies)


def test_error_for_unmet_budget_names_limit_and_nearest(tiny: SearchSpace, tmp_path: Path) -> None:
    budget = Budget({"latency_ms": 1000, "sram_kib": 2})
    candidates = _search(tiny, tmp_path / "s.db", 30, budget=budget)
    assert pareto_front(candidates, OBJECTIVES) == []
    error = loop.no_feasible_candidate(candidates, budget, "folder")
    nearest = tiny.smallest()
    assert isinstance(error, BudgetError)
    assert f"budget.sram_kib=2: the nearest candidate, {nearest.id}, needs" in str(error)
    assert f"needs {size(nearest)} KiB." in str(error)


@dataclass
class _Fast:
    """Costs of ``SizeCost``, and a throughput that falls as they grow."""

    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> Cost:
        speed = Quantity(1e4 / size(genotype), "modelled")
        return Cost({**SizeCost().cost(genotype).figures, "throughput_ips": speed})


@pytest.mark.parametrize("name", few_of(["pareto", "random", "nsga2"], 2))
def test_throughput_is_maximised_with_lower_limit(
    tiny: SearchSpace, tmp_path: Path, name: str
) -> None:
    small, large = size(tiny.smallest()), size(tiny.largest())
    limit = 1e4 / ((small + large) / 2)
    budget, objectives = Budget({"throughput_ips": limit}), ("accuracy", "throughput_ips")
    problem = loop.SearchProblem(tiny, budget, _Fast(), SizeAccuracy())
    study = LocalStudy(tmp_path / "s.db", tiny, objectives)
    try:
        config = SamplerConfig(name, n_startup_trials=8)
        candidates = loop.run_trials(problem, study, config, 0, 40, NullProgress())
    finally:
        study.close()
    fits = {c.id: c.figures["throughput_ips"].value >= limit for c in candidates}
    assert {*fits.values()} == ({True, False} if name != "pareto" else {True})
    assert all(fits[c.id] is (c.state != "infeasible") for c in candidates)
    front = pareto_front(candidates, objectives)
    accuracies = [c.figures["accuracy"].value for c in front]
    assert len(front) > 1
    assert [c.figures["throughput_ips"].value for c in front] == sorted(
        (c.figures["throughput_ips"].value for c in front), reverse=True
    )
    assert accuracies == sorted(accuracies)
    if name == "pareto":  # both ends of the feasible range are tried
        speeds = [c.figures["throughput_ips"].value for c in candidates]
        assert max(speeds) == 1e4 / small
        assert min(speeds) < 1.3 * limit
    unreachable = 1e4 / small + 1
    error = loop.no_feasible_candidate(
        candidates, Budget({"throughput_ips": unreachable}), "folder"
    )
    assert f"budget.throughput_ips={unreachable:g}" in str(error)
    assert f"reaches {1e4 / small:.4g}" in str(error)


def test_search_improves_on_first_generation(
    evolved: tuple[list[Candidate], SizeCost, SizeAccuracy],
) -> None:
    from hwnas.core.pareto import hypervolume

    candidates, _, _ = evolved

    def volume(part: list[Candidate]) -> float:
        points = np.array([[c.figures[n].value for n in OBJECTIVES[:2]] for c in part])
        return hypervolume(points, (0.0, 200.0), (True, False))

    assert volume(candidates) > volume(candidates[:10])
