from types import SimpleNamespace

import pytest

from hwnas.core.progress import NullProgress
from hwnas.training.finetuning.time_budget import TimeBudget, TrainingTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a settable clock: ``now`` in seconds."""
    fake = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("time.monotonic", lambda: fake.now)
    return fake


def test_time_of_earlier_runs_counts(clock: SimpleNamespace) -> None:
    """An interrupted run used 25 minutes of half an hour."""
    budget = TimeBudget(1800.0, 1500.0, list[float]().append)
    assert budget.left_s() == 300.0
    clock.now += 100.0
    assert budget.left_s() == 200.0
    assert budget.left_s(0.5) == -700.0
    assert budget.slot(1.0).left_s() == 200.0
    assert budget.slot(0.5).open_s() == -700.0
    assert budget.slot(0.5).left_s() == 200.0


def test_elapsed_time_is_saved_during_phases(clock: SimpleNamespace) -> None:
    saved = list[float]()
    budget = TimeBudget(1800.0, 10.0, saved.append)
    with budget.tracked(NullProgress()).phase("Finish members", 60) as advance:
        for _ in range(60):
            clock.now += 1.0
            advance(1)
    assert saved == [25.0, 40.0, 55.0, 70.0]


def test_paused_time_belongs_to_search_and_shortens_finetuning(clock: SimpleNamespace) -> None:
    saved = list[float]()
    budget = TimeBudget(1800.0, 0.0, saved.append)
    clock.now += 10.0
    end_by = budget.slot(1.0).end_by
    with budget.paused():
        clock.now += 300.0
        assert budget.spent_s == 10.0
    clock.now += 5.0
    assert budget.spent_s == 15.0
    assert budget.left_s() == 1485.0
    assert budget.slot(1.0).end_by == end_by, "the end of the command does not move"
    budget.end(was_short=True)
    assert saved == [1500.0]


@pytest.mark.parametrize(("was_short", "used_s"), [(False, 60.0), (True, 1800.0)])
def test_insufficient_remaining_time_counts_as_used(
    clock: SimpleNamespace, was_short: bool, used_s: float
) -> None:
    saved = list[float]()
    budget = TimeBudget(1800.0, 0.0, saved.append)
    clock.now += 60.0
    budget.end(was_short=was_short)
    assert saved == [used_s]


TIMES = TrainingTimes({f"n{i}": 10 * i for i in range(1, 101)}, lambda name: float(name[1:]) / 10)


def test_times_are_interpolated_by_size() -> None:
    timed = list[str]()

    def epoch_s(name: str) -> float:
        timed.append(name)
        return float(name[1:]) / 10

    times = TrainingTimes({f"n{i}": 10 * i for i in range(1, 101)}, epoch_s)
    assert timed == ["n1", "n51", "n100"]
    assert times.training_s("n80", 3) == pytest.approx(24.0)
    assert times.member_s("n80", 3) == pytest.approx(36.0)
    assert TrainingTimes({"only": 7}, lambda _: 2.0).training_s("only", 2) == 4.0


@pytest.mark.parametrize(
    ("left_s", "epochs", "n"),
    [
        (5_000.0, 30, 25),  # the full schedule; 20 s per epoch for the teacher of two processes
        (1_000.0, 12, 25),  # 25 members with 12 epochs
        (300.0, 8, 12),  # 12 members with a third of the schedule
        (30.0, 1, 1),
        (0.0, 1, 1),
    ],
)
def test_schedule_is_shortened_to_at_least_a_third(left_s: float, epochs: int, n: int) -> None:
    names = ["n100", *(f"n{i}" for i in range(11, 60, 2))]
    assert TIMES.epochs(names, 30, left_s, 2) == epochs
    remaining_s = 2 * left_s - 2 * TIMES.training_s("n100", epochs)
    assert len(TIMES.within(names[1:], epochs, remaining_s, left_s)) >= min(n - 1, 10)


def test_schedule_fits_teacher_and_longest_member_with_many_processes() -> None:
    names = ["n100", "n59", "n57"]
    epochs = TIMES.epochs(names, 30, 500.0, 16)
    assert 1 < epochs < 30
    assert TIMES.training_s("n100", epochs) + TIMES.member_s("n59", epochs) <= 500.0


def test_networks_within_budget_keep_their_order() -> None:
    names = ["n50", "n100", "n20", "n30"]
    assert TIMES.within(names, 1, 100.0, 100.0) == names
    assert TIMES.within(names, 1, 100.0, 6.0) == ["n50", "n20", "n30"]
    assert TIMES.within(names, 1, 7.0, 100.0) == ["n50", "n20"]


def test_completed_trainings_correct_estimates() -> None:
    times = TrainingTimes({"small": 1, "large": 3}, {"small": 1.0, "large": 3.0}.__getitem__)
    assert times.member_s("large", 10) == pytest.approx(45.0)
    times.correct({"small": 30.0}, 10)  # twice the estimate
    assert times.member_s("large", 10) == pytest.approx(90.0)
    assert times.training_s("large", 10) == pytest.approx(60.0)
    times.correct({"small": 30.0, "large": 30.0}, 10)
    assert times.member_s("large", 10) == pytest.approx(45.0)
    times.correct({}, 10)
    assert times.member_s("large", 10) == pytest.approx(45.0)
