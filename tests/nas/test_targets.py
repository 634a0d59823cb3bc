"""One search for several targets."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front
from hwnas.nas.member import NEAR, Member
from hwnas.nas.options import SamplerConfig
from hwnas.nas.study import LocalStudy
from hwnas.nas.targets import Targets, join_members
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.metrics.budget import Budget
from tests.conftest import few_of
from tests.nas.fakes import SizeAccuracy, SizeCost, size

BUDGETS = {"a": Budget({"latency_ms": 30.0}), "b": Budget({"latency_ms": 20.0, "flash_kib": 50.0})}
TARGETS = Targets(BUDGETS)


def _candidate(genotype: Genotype, *, accuracy: float | None = 0.9, **costs: float) -> Candidate:
    figures = {name.replace("__", "."): Quantity(v, "modelled") for name, v in costs.items()}
    if accuracy is not None:
        figures["accuracy"] = Quantity(accuracy, "measured")
    return Candidate(3, genotype, figures, {"a.cycles": 7.0, "n_images": 5.0})


@pytest.fixture
def genotype(tiny: SearchSpace) -> Genotype:
    return tiny.smallest()


def test_target_view_has_figures_of_target(genotype: Genotype) -> None:
    both = _candidate(genotype, a__latency_ms=25.0, b__latency_ms=25.0, b__flash_kib=40.0)
    view_a = TARGETS.on_target(both, "a")
    assert set(view_a.figures) == {"accuracy", "latency_ms"}
    assert view_a.details == {"cycles": 7.0, "n_images": 5.0}
    assert (view_a.trial, view_a.state) == (3, "complete")
    view_b = TARGETS.on_target(both, "b")
    assert view_b.state == "infeasible"
    assert view_b.reason == "latency_ms 25 over budget 20"
    assert set(view_b.figures) == {"latency_ms", "flash_kib"}
    assert not TARGETS.fits_all(both)
    assert Targets({"a": BUDGETS["a"], "b": Budget()}).fits_all(both)


def test_unrunnable_network_is_infeasible_on_that_target(genotype: Genotype) -> None:
    only_a = _candidate(genotype, a__latency_ms=25.0)
    assert TARGETS.on_target(only_a, "a").state == "complete"
    assert TARGETS.on_target(only_a, "b").reason == "Target 'b' cannot run it."


def test_collapsed_training_is_infeasible_on_each_target(genotype: Genotype) -> None:
    reason = "Training collapsed."
    collapsed = replace(
        _candidate(genotype, accuracy=None, a__latency_ms=2.0, b__latency_ms=2.0), reason=reason
    )
    for target in "ab":
        view = TARGETS.on_target(collapsed, target)
        assert (view.state, view.reason) == ("infeasible", reason)


def test_candidate_may_meet_budget_of_one_target() -> None:
    def violations_of(**costs: float) -> Mapping[str, float]:
        figures = {n.replace("__", "."): Quantity(v, "modelled") for n, v in costs.items()}
        exceeded, violations = TARGETS.exceeded(figures), TARGETS.violations(figures)
        assert bool(exceeded) is (max(violations.values()) > 0)
        return violations

    fits = violations_of(a__latency_ms=24.0, b__latency_ms=40.0, b__flash_kib=10.0)
    assert fits == {"a.latency_ms": pytest.approx(-0.2)}
    near = violations_of(a__latency_ms=60.0, b__latency_ms=22.0, b__flash_kib=10.0)
    assert near == {"b.latency_ms": pytest.approx(0.1), "b.flash_kib": pytest.approx(-0.8)}
    assert violations_of(b__latency_ms=10.0, b__flash_kib=10.0)["b.latency_ms"] < 0


def test_cost_names_start_with_target(genotype: Genotype) -> None:
    refusing = SizeCost(refuses=size(genotype), max_cost_queries=5)
    model = TARGETS.cost_model({"a": SizeCost(), "b": refusing})
    assert model.max_cost_queries == 5
    cost = model.cost(genotype)
    assert set(cost.figures) == {f"a.{name}" for name in SizeCost().cost(genotype).figures}
    assert cost.details == {"a.detail": 1.0}
    all_refusing = TARGETS.cost_model({"a": refusing, "b": refusing})
    with pytest.raises(CompileError, match="b: refused"):
        all_refusing.cost(genotype)


def test_single_target_has_plain_names(genotype: Genotype) -> None:
    only = Targets({"b": BUDGETS["b"]})
    plain = _candidate(genotype, latency_ms=25.0, flash_kib=60.0)
    assert only.on_target(plain, "b") is plain
    assert only.limits == only.all_limits == {"latency_ms": 20.0, "flash_kib": 50.0}
    assert only.exceeded(plain.figures) == BUDGETS["b"].exceeded(plain.figures)
    assert only.violations(plain.figures) == BUDGETS["b"].violations(plain.figures)
    assert not only.met(plain.figures)
    model = SizeCost()
    assert only.cost_model({"b": model}) is model
    assert only.view("b", ("accuracy", "latency_ms")).name == ""


def test_title_of_target_metric_starts_with_target() -> None:
    assert metric_of("npu.latency_ms").title == "npu latency [ms]"
    assert metric_of("accuracy").maximise
    with pytest.raises(ConfigError, match="Unknown metric"):
        metric_of("npu.latency")


class _Other:
    """Costs that decrease where those of the other target increase."""

    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> Cost:
        return Cost({"latency_ms": Quantity(60.0 - size(genotype), "modelled")})


@pytest.mark.slow
@pytest.mark.parametrize("name", few_of(["pareto", "nsga2"], 1))
def test_search_scores_candidates_that_meet_any_budget(
    tiny: SearchSpace, tmp_path: Path, name: str
) -> None:
    objectives = ("accuracy", "a.latency_ms", "b.latency_ms")
    small, large = size(tiny.smallest()), size(tiny.largest())
    third = (large - small) / 3
    budgets = {
        "a": Budget({"latency_ms": small + third}),
        "b": Budget({"latency_ms": 60.0 - large + third}),
    }
    targets = Targets(budgets)
    models = targets.cost_model({"a": SizeCost(), "b": _Other()})
    problem = loop.SearchProblem(tiny, targets, models, SizeAccuracy())
    study = LocalStudy(tmp_path / "s.db", tiny, objectives)
    config = SamplerConfig(name, population_size=10, n_startup_trials=8)
    candidates = loop.run_trials(problem, study, config, 0, 60, NullProgress())
    study.close()
    scored = [c for c in candidates if "accuracy" in c.figures]
    for candidate in candidates:
        views = [targets.on_target(candidate, t) for t in budgets]
        assert (candidate.state == "complete") is any(v.state == "complete" for v in views)
        assert not targets.fits_all(candidate)  # no network is both small and large
    for target in budgets:
        assert any(targets.on_target(c, target).state == "complete" for c in scored)
    assert {"a.latency_ms", "b.latency_ms"} <= candidates[0].row(tiny, "accuracy").keys()


def test_joint_front_uses_figures_of_all_targets(genotype: Genotype) -> None:
    def member(accuracy: float, ms: tuple[float, float], over: tuple[str, ...] = ()) -> Member:
        parts = {}
        for target, latency in zip("ab", ms, strict=True):
            figures = {
                "accuracy_int8": Quantity(accuracy, "measured"),
                "latency_ms": Quantity(latency, "measured"),
            }
            parts[target] = Member(_candidate(genotype), figures, {}, {}, over)
        return join_members(_candidate(genotype), parts)

    objectives = ("accuracy", "a.latency_ms", "b.latency_ms")
    best = member(0.95, (1.0, 2.0), ("latency_ms",))
    others = [member(0.9, (1.0, 2.0)), member(0.9, (1.0, 3.0)), member(0.9, (2.0, 1.0))]
    results = Front(objectives, [*others, best]).with_on_front().members
    assert [m.on_front for m in results] == [True, False, True, False]
    assert [m.label for m in results] == [
        "", "left the front", "", "over a.latency_ms; over b.latency_ms",
    ]  # fmt: skip
    assert Front(objectives, [best]).with_on_front().remaining == []


def test_joint_front_has_near_members(genotype: Genotype) -> None:
    def member(accuracies: tuple[float, float], ms: float) -> Member:
        parts = {}
        for target, accuracy in zip("ab", accuracies, strict=True):
            interval = Quantity(accuracy, "measured", accuracy - 0.02, accuracy + 0.02)
            figures = {"accuracy_int8": interval, "latency_ms": Quantity(ms, "measured")}
            parts[target] = Member(_candidate(genotype), figures, {}, {})
        return join_members(_candidate(genotype), parts)

    objectives = ("accuracy", "a.latency_ms", "b.latency_ms")
    members = [member((0.9, 0.9), 1.0), member((0.89, 0.89), 1.5), member((0.89, 0.8), 1.5)]
    results = Front(objectives, members).with_on_front().members
    # The second is within the interval of the difference, 0.028, on both targets.
    assert [m.label for m in results] == ["", NEAR, NEAR]
    slower = member((0.8, 0.8), 1.5)
    assert (
        Front(objectives, [members[0], slower]).with_on_front().members[1].label == "left the front"
    )


def test_joint_member_has_worst_accuracy_of_targets(genotype: Genotype) -> None:
    def part(accuracy: float, name: str, ratio: float) -> Member:
        figures = {name: Quantity(accuracy, "measured"), "latency_ms": Quantity(2.0, "measured")}
        details = dict(zip(RATIOS, (ratio, ratio - 0.1, ratio + 0.1), strict=True))
        return Member(_candidate(genotype), figures, details, {"model": "sha"}, ("latency_ms",))

    parts = {"a": part(0.9, "accuracy_fp32", 0.5), "b": part(0.8, "accuracy_int8", 1.0)}
    member = join_members(_candidate(genotype), parts)
    assert member.is_for_all
    assert (member.metric, member.quality.value) == ("accuracy", 0.8)
    assert member.over_budget == ("a.latency_ms", "b.latency_ms")
    assert member.parts == parts
    values = {name: figure.value for name, figure in member.all_figures.items()}
    assert values == {
        "a.accuracy_fp32": 0.9, "a.latency_ms": 2.0, "b.accuracy_int8": 0.8, "b.latency_ms": 2.0,
        "a.accuracy": 0.9, "b.accuracy": 0.8, "accuracy": 0.8,
    }  # fmt: skip
    assert member.int8_is_slower
    assert (
        member.int8_slowdown
        == "1.00 times (0.90 to 1.10) as long as in float32, timed in turns on b"
    )
    both = join_members(_candidate(genotype), {"a": parts["b"], "b": parts["b"]})
    assert [f"timed in turns on {target}" in both.int8_slowdown for target in "ab"] == [True] * 2
    assert parts["b"].int8_slowdown.endswith("in turns")
    assert parts["a"].int8_slowdown == ""
