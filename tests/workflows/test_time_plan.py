"""The division of ``minutes`` among the phases of a search."""

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hwnas.__main__ import run
from hwnas.core import machine, processes
from hwnas.core.errors import BudgetError, ConfigError, RunError
from hwnas.core.progress import NullProgress, TimeLimitReached, must_stop, stop_trainings
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.targets import check_limits
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.training.finetuning import time_budget
from hwnas.training.finetuning.time_budget import TimeWindow, TrainingTimes
from hwnas.training.supernet import TrainingSetup
from hwnas.workflows import components
from hwnas.workflows.components import SearchComponents
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.config.compose import compose
from hwnas.workflows.search import ending, start
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.schedule import FinetuneSchedule
from hwnas.workflows.search.time_plan import START_S, Planner, TimeLimit, TimePlan

TINY = ("+target=npu", "search_space=tiny", "study.workers=2")


@pytest.fixture(autouse=True)
def _fixed_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "elapsed_s", lambda: 6.0)


@pytest.fixture(scope="module")
def digits() -> SearchComponents:
    config = compose("search", [*TINY, "accuracy=trained"])
    return components.parts(config, NullProgress())


def _make_plan(
    digits: SearchComponents,
    monkeypatch: pytest.MonkeyPatch,
    *options: str,
    epoch_s: float = 1.0,
    supernet_epoch_s: float = 4.0,
) -> tuple[SearchConfig, TimePlan, list[str]]:
    """Return the settled options, the plan and its messages for some durations of an epoch."""
    monkeypatch.setattr(TrainedEvaluator, "epoch_s", lambda *_: epoch_s)
    monkeypatch.setattr(TrainingSetup, "epoch_s", lambda _: supernet_epoch_s)
    config = compose("search", [*TINY, *options])
    planner = Planner([config], {})
    (settled,) = planner(components.retargeted(digits, config))
    plan = TimePlan.of(planner.facts()["time_plan"], 60 * config.minutes)
    return settled, plan, planner.messages


def _total_s(plan: TimePlan) -> float:
    before_finetuning_s = plan.preparation_s + plan.supernet_s + plan.search_s
    return before_finetuning_s + plan.finetuning_s + plan.verification_s


def test_phases_add_up_to_limit(digits: SearchComponents, monkeypatch: pytest.MonkeyPatch) -> None:
    settled, plan, (line,) = _make_plan(digits, monkeypatch, "minutes=10")
    assert settled.accuracy == "trained"
    assert settled.n_trials == 1_000_000
    assert _total_s(plan) == pytest.approx(600)
    assert plan.preparation_s == 6
    assert 0.25 * 600 < plan.finetuning_s < plan.search_s
    assert line.startswith("10 min: preparation 0.1, search ")
    custom, plan, _ = _make_plan(
        digits, monkeypatch, "minutes=10", "finish.minutes=7", "n_trials=5"
    )
    assert custom.n_trials == 5
    assert plan.finetuning_s == 420
    assert _total_s(plan) == pytest.approx(600)


@pytest.mark.parametrize(
    ("minutes", "epoch_s", "accuracy"),
    [(10, 1.0, "trained"), (10, 60.0, "trained"), (60, 60.0, "supernet"), (60, 1.0, "trained")],
)
def test_supernet_is_chosen_for_long_epochs(
    digits: SearchComponents,
    monkeypatch: pytest.MonkeyPatch,
    minutes: int,
    epoch_s: float,
    accuracy: str,
) -> None:
    options = (f"minutes={minutes}", "train.epochs=25")  # 30 minutes for the supernet
    settled, plan, _ = _make_plan(
        digits, monkeypatch, *options, epoch_s=epoch_s, supernet_epoch_s=72.0
    )
    assert settled.accuracy == accuracy
    assert plan.supernet_s == 1800 * (accuracy == "supernet")


def test_supernet_schedule_is_shortened_to_fit(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("minutes=10", "accuracy=supernet", "train.epochs=1000")
    settled, plan, lines = _make_plan(digits, monkeypatch, *options)
    assert settled.train.epochs == plan.epochs
    assert 200 <= plan.supernet_s <= 300
    assert plan.search_s > 60
    assert "of train.epochs=1000" in lines[1]


@pytest.mark.parametrize(
    ("epoch_s", "n_trials", "fidelities"),
    [(1.0, 100, [1, 4]), (3.0, 100, [1, 2]), (3.0, 20, [1, 4]), (20.0, 100, [1])],
)
def test_fidelities_depend_on_number_of_candidates(
    digits: SearchComponents,
    monkeypatch: pytest.MonkeyPatch,
    epoch_s: float,
    n_trials: int,
    fidelities: list[int],
) -> None:
    options = ("minutes=10", f"n_trials={n_trials}", "accuracy=trained")
    settled, _, lines = _make_plan(digits, monkeypatch, *options, epoch_s=epoch_s)
    assert settled.trained.fidelities == fidelities
    if fidelities != [1, 4]:
        assert f"trained.fidelities={fidelities} instead of [1, 4]" in lines[1]


@pytest.mark.parametrize("options", [(), ("accuracy=supernet",), ("finish.minutes=3",)])
def test_short_limit_names_shortest_feasible_limit(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"minutes=0\.2 is too short for a front") as error:
        _make_plan(digits, monkeypatch, *options, "minutes=0.2")
    shortest = str(error.value).rpartition("minutes=")[2].rstrip(".")
    _, plan, _ = _make_plan(digits, monkeypatch, *options, f"minutes={shortest}")
    assert plan.search_s > 0
    with pytest.raises(ConfigError):
        _make_plan(digits, monkeypatch, *options, f"minutes={0.6 * float(shortest):g}")


def test_resume_keeps_schedule_and_divides_remaining_time(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("minutes=10", "accuracy=supernet", "train.epochs=1000")
    _, before, _ = _make_plan(digits, monkeypatch, *options)
    monkeypatch.setattr(TrainingSetup, "epoch_s", lambda _: math.nan)
    kept = ("minutes=20", "accuracy=supernet", f"train.epochs={before.epochs}")
    config = compose("search", [*TINY, *kept])
    planner = Planner([config], {"time_plan": before.to_json(), "elapsed_s": 590.0})
    (settled,) = planner(digits)
    assert settled.train.epochs == before.epochs
    limit = planner.limit(300.0)
    assert limit is not None
    assert limit.elapsed_s == 596
    assert _total_s(limit.plan) == pytest.approx(1200)
    remaining_s = 1200 - 596 - before.verification_s
    assert limit.finetuning_left_s() == pytest.approx(remaining_s)
    search_s, finetuning_s = limit.plan.search_s - 300, limit.plan.finetuning_s
    share = search_s / (search_s + finetuning_s)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    assert limit.search_end() == pytest.approx(1000 + share * remaining_s)
    assert replace(limit, searched_s=1e4).search_end() == 1000, "all is left for fine-tuning"
    assert replace(limit, finetuned_s=1e4).search_end() == pytest.approx(1000 + remaining_s)
    exhausted = TimeLimit(replace(limit.plan, limit_s=60), 100.0)
    assert exhausted.search_end() == 1000
    assert exhausted.finetuning_left_s() == 0


def _supernet_search(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> tuple[SearchConfig, SearchComponents]:
    """Return a search of ten minutes with a supernet, whose epochs take 4 s each."""
    monkeypatch.setattr(TrainedEvaluator, "epoch_s", lambda *_: 0.5)
    monkeypatch.setattr(TrainingSetup, "epoch_s", lambda _: 4.0)
    options = ["minutes=10", "accuracy=supernet", f"train.epochs={epochs}"]
    config = compose("search", [*TINY, *options])
    return config, components.retargeted(digits, config)


def test_slow_supernet_gets_shorter_schedule(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, parts = _supernet_search(digits, monkeypatch, 1000)
    planner = Planner([config], {})
    epochs = planner(parts)[0].train.epochs
    plan = TimePlan.of(planner.facts()["time_plan"], 600)
    limit = TimeLimit(plan)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    end_s = limit.supernet_end() - 1000
    assert plan.supernet_s < end_s < plan.supernet_s + 0.6 * (plan.search_s + plan.finetuning_s)
    message = planner.shorter(TimeLimitReached(12, 3000), Path("run"))
    assert message.startswith("After 12 of 3,000 steps, the supernet's training would end too late")
    monkeypatch.setattr(processes, "elapsed_s", lambda: 60.0)  # including 54 s for the 12 steps
    monkeypatch.setattr(TrainingSetup, "epoch_s", lambda _: 40.0)
    (settled,) = planner(parts)
    shortened = TimePlan.of(planner.facts()["time_plan"], 600)
    assert not planner.is_first
    assert 1 <= settled.train.epochs == shortened.epochs < epochs
    assert shortened.supernet_s == 40 * shortened.epochs < 300
    assert _total_s(shortened) == pytest.approx(600)
    monkeypatch.setattr(processes, "elapsed_s", lambda: 500.0)
    with pytest.raises(ConfigError, match="minutes=10 is too short for a front"):
        planner(parts)
    resumed = Planner([config], {"time_plan": plan.to_json()})
    with pytest.raises(RunError, match=r"Nothing is lost\. .* hwnas resume run minutes=20"):
        resumed.shorter(TimeLimitReached(12, 3000), Path("run"))


def test_training_stops_if_it_cannot_end_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    with stop_trainings(1100.0):
        assert not must_stop(20.0, 10, 50)  # 100 s remaining
        assert must_stop(20.0, 10, 65)  # 130 s remaining
        assert not must_stop(2.0, 1, 650)  # too few steps for an estimate
    assert not must_stop(20.0, 10, 10**6)
    with stop_trainings(999.0):
        assert must_stop(0.1, 1, 1)


@pytest.mark.slow
def test_search_restarts_slow_supernet_within_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, original_epoch_s, n_timed = time.monotonic(), TrainingSetup.epoch_s, 0

    def epoch_s(setup: TrainingSetup) -> float:
        nonlocal n_timed
        n_timed += 1
        return original_epoch_s(setup) / (50 if n_timed == 1 else 1)

    monkeypatch.setattr(processes, "elapsed_s", lambda: time.monotonic() - begin)
    monkeypatch.setattr(TrainingSetup, "epoch_s", epoch_s)
    folder = tmp_path / "run"
    paths = [f"run.dir={folder}", f"run.supernets={tmp_path / 'networks'}", "train.epochs=100000"]
    options = ["accuracy=supernet", "minutes=4", "finish.epochs=0", "study.workers=1"]
    assert run(["search", *TINY[:2], *options, *paths]) == 0
    assert time.monotonic() - begin < 264
    output = " ".join(capsys.readouterr().out.split())
    assert "it starts again with a shorter schedule." in output
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["n_front"] >= 1
    assert f"for {manifest['time_plan']['epochs']:,} of train.epochs=100,000".replace(",", "") in (
        output.replace(",", "")
    )
    assert len([*(folder / "weights").iterdir()]) == 1
    assert run(["export", str(folder), f"dir={tmp_path / 'export'}", "force=true"]) == 0


def test_planner_without_limit_does_nothing(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainedEvaluator, "epoch_s", lambda *_: 1 / 0)
    planner = Planner([digits.config], {})
    assert planner(digits) == [digits.config]
    assert planner.facts() == {}
    assert planner.limit(0.0) is None
    assert digits.config.n_trials == 100


def _check(tiny: SearchSpace, limits: dict[str, float], queries: int | None = None) -> None:
    def cost(genotype: Genotype) -> Cost:
        ms = 2.0 + (genotype != tiny.smallest())
        figures = {"latency_ms": ms, "throughput_ips": 1000 / ms}
        return Cost({name: Quantity(value, "modelled") for name, value in figures.items()})

    check_limits(tiny, limits, SimpleNamespace(cost=cost, max_cost_queries=queries))


def test_impossible_budget_names_cost_of_cheapest_candidate(
    tiny: SearchSpace,
) -> None:
    smallest = tiny.smallest().id
    for name, limit, message in (
        (
            "latency_ms",
            0.5,
            f"budget.latency_ms=0.5: the cheapest candidate, {smallest}, needs 2 ms.",
        ),
        ("throughput_ips", 2e3, f"=2000: the cheapest candidate, {smallest}, reaches 500 "),
    ):
        with pytest.raises(BudgetError) as error:
            _check(tiny, {name: limit})
        assert message in str(error.value)
    _check(tiny, {"latency_ms": 1.5})  # other candidates may cost less
    _check(tiny, {"latency_ms": 0.5}, 0)  # the cost requires a measurement
    _check(tiny, {"flash_kib": 1e-9})  # unknown


# Remaining time on the screen.


@dataclass
class _FakeStudy:
    candidates: list[Candidate]
    durations: dict[int, float]


def _remaining(
    digits: SearchComponents, *options: str, limit: TimeLimit | None = None
) -> ending.RemainingTime:
    """Return the estimate for 100 trials of 1.5 s plus 0.4 s per epoch."""
    config = compose("search", [*TINY, *options])
    parts = components.retargeted(digits, config)
    columns = [config.trained.column("accuracy", i) for i in range(2)]
    epochs = [1 if i % 2 else 5 for i in range(100)]
    return ending.RemainingTime(
        [cast("TargetContext", SimpleNamespace(config=config, parts=parts))],
        _FakeStudy(
            [
                Candidate(
                    i,
                    cast("Genotype", SimpleNamespace(id=f"{i}")),
                    {},
                    dict.fromkeys(columns[: 1 + (n > 1)], 0.9),
                )
                for i, n in enumerate(epochs)
            ],
            {i: 1.5 + 0.4 * n for i, n in enumerate(epochs)},
        ),
        limit,
    )


def test_remaining_time_includes_all_later_phases(digits: SearchComponents) -> None:
    remaining = _remaining(digits, "accuracy=trained")
    network_s = 20 * 0.4 / 2  # 2 workers
    verified_s = (0.3 + 0.6 * (360 + 720) * 0.4 / 1077) / 2
    all_s = 20 * (network_s + verified_s) + 2  # 2 s for reports
    assert math.isinf(remaining.begin("Search", 100))
    assert remaining.left_s(7.0) == pytest.approx(7 + all_s + START_S)
    n_steps = 20 * (1077 // 64)
    assert remaining.begin("Train the teacher", n_steps) == pytest.approx(20 * 0.4)
    assert remaining.left_s(7.0) == pytest.approx(7 + all_s - network_s)
    assert remaining.begin("Finish members", 9 * n_steps) == pytest.approx(9 * network_s)
    assert remaining.left_s(7.0) == pytest.approx(7 + all_s - 10 * network_s)
    assert remaining.begin("Verify front", 12) == pytest.approx(12 * verified_s)
    assert remaining.left_s(7.0) == pytest.approx(7 + 2)


def test_remaining_time_without_finetuning_or_known_epochs(digits: SearchComponents) -> None:
    remaining = _remaining(digits, "accuracy=trained", "finish.epochs=0")
    remaining.begin("Search", 100)
    assert remaining.left_s(7.0) == pytest.approx(7 + 4 + 20 * 0.27 + 2, abs=0.1)
    unknown = _remaining(digits, "accuracy=supernet")
    unknown.begin("Search", 100)
    assert unknown.left_s(7.0) is None


def test_remaining_time_follows_time_limit(digits: SearchComponents) -> None:
    plan = TimePlan(300, 6, 0, 150, 120, 24, "trained", 20, (1, 4))
    remaining = _remaining(digits, "accuracy=trained", "minutes=5", limit=TimeLimit(plan, 10.0))
    remaining.begin("Search", 1_000_000)
    assert remaining.left_s(50.0) == pytest.approx(300 - 10 - 6)
    remaining.begin("Train the teacher", 20)
    assert remaining.left_s(50.0) == pytest.approx(300 - 10 - 6)
    remaining.begin("Finish members", 100)
    assert remaining.left_s(50.0) == pytest.approx(50 + 24)


def test_longer_limit_gives_time_to_a_search_that_had_none() -> None:
    row = TimePlan(300, 6, 0, 0, 120, 24, "trained", 20, (1, 4)).to_json()
    longer = TimePlan.of(row, 900)
    assert longer.search_s == pytest.approx(0.6 * 720)
    assert longer.finetuning_s == pytest.approx(0.4 * 720)
    row = TimePlan(300, 6, 0, 150, 50, 24, "trained", 20, (1, 4)).to_json()
    assert TimePlan.of(row, 500).search_s == pytest.approx(300)


def test_trained_supernet_takes_no_more_time(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, parts = _supernet_search(digits, monkeypatch, 100)
    monkeypatch.setattr(Checkpoint, "n_steps", lambda _: 10**6)
    manifests: list[dict[str, Any]] = [{}, {"arguments": []}]
    for earlier in manifests:
        planner = Planner([config], earlier)
        planner(parts)
        plan = planner.facts()["time_plan"]
        assert plan["supernet_s"] == 0
        assert plan["epochs"] == config.train.epochs
        assert plan["finetuning_s"] >= 0


def test_lost_pixels_are_reported(digits: SearchComponents) -> None:
    def lines(sizes: dict[tuple[int, int], int]) -> list[str]:
        data = replace(digits.data, file_sizes=sizes)
        return [
            *start._data(
                cast(
                    "SearchComponents",
                    SimpleNamespace(data=data, space=digits.space, networks=digits.networks),
                )
            )
        ]

    size, resized = lines({})
    assert resized.endswith(" pixels; values from 0 to 255")
    assert size.endswith("images of 8x8 pixels (grey)")
    size, resized, warning = lines({(640, 480): 9, (30, 20): 1})
    assert "images of 30x20 to 640x480 pixels" in size
    assert resized.startswith("resized to ")
    assert warning.startswith("! More than 99% of the pixels are lost")
    assert warning.endswith(" For larger images: search_space=mbconv_224")
    assert lines({(96, 64): 9, (640, 480): 1})[-1].endswith("search_space=mbconv_96")
    assert lines({(128, 6): 9})[-1].startswith("! 95% of the pixels are cut off")
    assert len(lines({(14, 12): 4})) == 2


def test_fine_tuning_within_limit_follows_durations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genotypes = [Genotype("tiny", (("n", i),)) for i in range(4)]
    candidates = [Candidate(i, genotype, {}) for i, genotype in enumerate(genotypes)]
    ids = [g.id for g in genotypes]
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.s)
    sizes = dict(zip(ids, (40, 10, 20, 5), strict=True))
    times = TrainingTimes(sizes, lambda name: sizes[name] / time_budget.INT8_TRAINING)
    schedule = FinetuneSchedule(times, TimeWindow(100.0, 100.0), 1, 1)

    def take(durations_s: dict[str, float | None]) -> list[str]:
        remaining = [c for c in candidates if c.id not in schedule.started]
        return [g.id for g in schedule.take(remaining, durations_s, lambda g: g.id == ids[3])]

    assert take({}) == [ids[3], ids[0]]  # what was begun before comes first
    now.s = 80.0  # twice the estimate: the next one would take 20 s, the other one 40 s
    assert take({ids[0]: 80.0, ids[3]: None}) == [ids[1]]
    now.s = 100.0
    assert take({ids[0]: 80.0, ids[1]: 20.0, ids[3]: None}) == []


def test_equal_fidelities_are_kept_if_they_fit(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("minutes=60", "accuracy=trained", "trained.fidelities=[4,4]")
    settled, _, lines = _make_plan(digits, monkeypatch, *options)
    assert settled.trained.fidelities == [4, 4]
    assert len(lines) == 1


@pytest.mark.parametrize("option", ["train.epochs=50", "trained.fidelities=[1,8]"])
def test_resume_with_another_schedule_is_refused(
    digits: SearchComponents, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    settled, before, _ = _make_plan(digits, monkeypatch, "minutes=10", "accuracy=trained")
    recorded = {
        "minutes": "20", "accuracy": "trained", "train.epochs": settled.train.epochs,
        "trained.fidelities": settled.trained.fidelities,
    }  # fmt: skip
    earlier = {"time_plan": before.to_json(), "elapsed_s": 590.0}
    options = [f"{name}={value}" for name, value in recorded.items()]
    assert Planner([compose("search", [*TINY, *options])], earlier)(digits)
    name, _, value = option.partition("=")
    options = [f"{n}={v}" for n, v in (recorded | {name: value}).items()]
    changed = compose("search", [*TINY, *options])
    with pytest.raises(RunError, match=rf"{name} differs from that of the run"):
        Planner([changed], earlier)(digits)


def test_search_with_a_measured_target_uses_one_process(digits: SearchComponents) -> None:
    config = compose("search", ["+target=npu", "search_space=tiny", "accuracy=trained"])
    settled = [components.settled(config, digits.data, False, m) for m in (False, True)]
    assert [c.study.workers for c in settled] == [machine.available_cores(), None]
