from types import SimpleNamespace

import pytest

from hwnas.core.progress import NullProgress
from hwnas.training.finetuning.time_budget import TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that a test sets: ``now`` in seconds."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    return found


def test_what_was_spent_before_counts(clock: SimpleNamespace) -> None:
    """Of half an hour, 25 minutes were spent by a run that was killed."""
    left = TimeBudget(1800.0, 1500.0, list[float]().append)
    assert left.left_s() == 300.0
    clock.now += 100.0
    assert left.left_s() == 200.0
    assert left.left_s(0.5) == -700.0
    assert left.slot(1.0).left_s() == 200.0
    assert left.slot(0.5).open_s() == -700.0
    assert left.slot(0.5).left_s() == 200.0


def test_what_is_spent_is_kept_while_phases_advance(clock: SimpleNamespace) -> None:
    kept = list[float]()
    found = TimeBudget(1800.0, 10.0, kept.append)
    with found.tracked(NullProgress()).phase("Finish members", 60) as advance:
        for _ in range(60):
            clock.now += 1.0
            advance(1)
    assert kept == [25.0, 40.0, 55.0, 70.0]


@pytest.mark.parametrize(("was_short", "spent_s"), [(False, 60.0), (True, 1800.0)])
def test_time_that_does_not_suffice_for_more_counts_as_spent(
    clock: SimpleNamespace, was_short: bool, spent_s: float
) -> None:
    kept = list[float]()
    found = TimeBudget(1800.0, 0.0, kept.append)
    clock.now += 60.0
    found.end(was_short=was_short)
    assert kept == [spent_s]
