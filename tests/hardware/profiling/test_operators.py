from pathlib import Path

import pytest

from hwnas.core.errors import DeviceError
from hwnas.core.progress import NullProgress
from hwnas.hardware.latency_tables.latency_table import (
    TRANSFERRED,
    LatencyTable,
    OperatorEntry,
    load_table,
)
from hwnas.hardware.profiling.operator_measurement import measure_operators
from hwnas.hardware.profiling.passes import MeasurementEffort, combine_passes
from hwnas.hardware.timing import Timing
from hwnas.models.graph import OpSpec, Signature
from hwnas.models.spaces import SearchSpace
from tests.hardware.profiling.fakes import Device, FakeWorker, pool, subject, timing

EFFORT = MeasurementEffort(16, n_plans=4)


@pytest.fixture
def ops(tiny: SearchSpace, task: Signature) -> tuple[OpSpec, ...]:
    return subject(tiny, task).operators(0)


@pytest.fixture
def table(tmp_path: Path) -> LatencyTable:
    return LatencyTable(tmp_path / "t")


def test_operators_have_latency_and_plan(table: LatencyTable, ops: tuple[OpSpec, ...]) -> None:
    worker = FakeWorker()
    assert measure_operators(table, ops, pool(worker), EFFORT, NullProgress()) == {}
    assert sorted(map(str, worker.tuned)) == sorted(map(str, ops))
    assert table.missing(ops) == []
    for saved in (table.entries, load_table(table.path).entries):
        for op in ops:
            assert saved[op].plan == f"plan of {op.out_shape[0]} out of 4"
            assert saved[op].timing.median_ms == pytest.approx(Device().operator(op), rel=1e-6)
            assert saved[op].timing.n_repeats == 10  # five in each of two passes
            assert saved[op].n_passes == 2


def test_second_profile_measures_nothing(table: LatencyTable, ops: tuple[OpSpec, ...]) -> None:
    measure_operators(table, ops, pool(FakeWorker()), EFFORT, NullProgress())
    before = (table.path / "operators.csv").read_bytes()
    reloaded, worker = load_table(table.path), FakeWorker()
    assert measure_operators(reloaded, ops, pool(worker), EFFORT, NullProgress()) == {}
    assert worker.tuned == worker.timed == []
    assert (table.path / "operators.csv").read_bytes() == before


def test_only_new_and_transferred_operators_are_measured(
    table: LatencyTable, ops: tuple[OpSpec, ...]
) -> None:
    known, transferred, new = ops[:30], ops[30:40], ops[40:]
    measure_operators(table, known, pool(FakeWorker()), EFFORT, NullProgress())
    table.entries |= {op: OperatorEntry(TRANSFERRED, timing(99.0)) for op in transferred}
    worker = FakeWorker()
    measure_operators(table, ops, pool(worker), EFFORT, NullProgress())
    assert set(worker.tuned) == set(worker.timed) == {*transferred, *new}
    assert table.missing(ops) == []


@pytest.mark.parametrize("after", [0, 1, 25, 60])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), DeviceError("unplugged"), RuntimeError("a mistake")]
)
def test_interrupted_profile_keeps_measured_operators(
    table: LatencyTable, ops: tuple[OpSpec, ...], error: BaseException, after: int
) -> None:
    with pytest.raises(type(error)):
        measure_operators(table, ops, pool(FakeWorker(), error, after), EFFORT, NullProgress())
    loaded = load_table(table.path) if after else table  # an empty table is not written
    assert table.path.exists() is bool(after)
    assert len(loaded.entries) == after
    known, worker = {*loaded.entries}, FakeWorker()
    measure_operators(loaded, ops, pool(worker), EFFORT, NullProgress())
    assert set(worker.tuned) == {*ops} - known
    assert {entry.n_passes for entry in loaded.entries.values()} == {2}  # none has fewer passes


def test_interruption_in_later_pass_keeps_operators(
    table: LatencyTable, ops: tuple[OpSpec, ...]
) -> None:
    interrupted = pool(FakeWorker(), KeyboardInterrupt(), len(ops) + 3)
    with pytest.raises(KeyboardInterrupt):
        measure_operators(table, ops, interrupted, EFFORT, NullProgress())
    loaded = load_table(table.path)
    assert loaded.missing(ops) == []
    assert sorted({entry.n_passes for entry in loaded.entries.values()}) == [1, 2]
    worker = FakeWorker()
    measure_operators(loaded, ops, pool(worker), EFFORT, NullProgress())
    assert worker.tuned == []
    assert {entry.n_passes for entry in loaded.entries.values()} == {2}
    assert len(worker.timed) == len(ops) - 30


def test_refused_operators_are_reported_and_others_measured(
    table: LatencyTable, ops: tuple[OpSpec, ...]
) -> None:
    worker = FakeWorker(refuses=ops[3:5])
    refused = measure_operators(table, ops, pool(worker), EFFORT, NullProgress())
    assert refused == {op: f"no plan for {op}" for op in ops[3:5]}
    assert set(load_table(table.path).entries) == {*ops} - {*ops[3:5]}


@pytest.mark.parametrize(
    ("passes", "n", "median_ms"),
    [
        ([timing(1.0), timing(1.01)], 2, 1.0),  # they agree
        ([timing(1.2), timing(1.0), timing(1.01)], 3, 1.0),
        ([timing(1.0), timing(1.2), timing(1.01)], 3, 1.0),
        ([timing(1.0, drifted=True), timing(1.3), timing(1.29)], 3, 1.29),
        ([timing(1.0, drifted=True), timing(1.3), timing(1.2), timing(1.21)], 4, 1.2),
        ([timing(1.0, drifted=True)] * 3 + [timing(1.3)] * 2, 5, 1.3),
        ([timing(1.0 - 0.1 * i) for i in range(6)], 6, 0.5),  # never confirmed: all passes count
    ],
)
def test_passes_repeat_until_two_confirm_the_fastest(
    table: LatencyTable,
    ops: tuple[OpSpec, ...],
    passes: list[Timing],
    n: int,
    median_ms: float,
) -> None:
    worker = FakeWorker(script={ops[0]: list(passes)})
    measure_operators(table, ops[:20], pool(worker), EFFORT, NullProgress())
    assert worker.timed.count(ops[0]) == n
    assert table.entries[ops[0]].timing.median_ms == median_ms
    assert not table.entries[ops[0]].timing.drifted
    assert all(worker.timed.count(op) == 2 for op in ops[1:20])


def test_disturbed_operator_is_timed_again_in_next_profile(
    table: LatencyTable, ops: tuple[OpSpec, ...]
) -> None:
    disturbed, quiet = ops[:2]
    drifting = [timing(1.0, drifted=True) for _ in range(7)]
    worker = FakeWorker(script={disturbed: drifting})
    for n in (6, 7):  # the maximum first; then once per profile
        measure_operators(table, [disturbed, quiet], pool(worker), EFFORT, NullProgress())
        assert worker.timed.count(disturbed) == table.entries[disturbed].n_passes == n
        assert table.entries[disturbed].timing.drifted
    measure_operators(table, [disturbed, quiet], pool(worker), EFFORT, NullProgress())
    assert not table.entries[disturbed].timing.drifted
    assert worker.timed.count(quiet) == 2
    assert worker.tuned.count(disturbed) == 1


def test_combined_passes_ignore_drifted_ones() -> None:
    quiet, slow = Timing(1.0, 0.9, 1.1, 5), Timing(1.5, 1.4, 1.6, 7)
    drifted = Timing(0.8, 0.5, 3.0, 9, True)
    assert combine_passes([slow, drifted, quiet]) == Timing(1.0, 0.9, 1.6, 12)
    assert combine_passes([drifted]) == drifted
    assert combine_passes([drifted, drifted]) == Timing(0.8, 0.5, 3.0, 18, True)
