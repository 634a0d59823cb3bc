import functools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.core.errors import CompileError, TableError
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.operator_prediction import OperatorPredictions
from hwnas.hardware.costs.table_cost import TableCostModel
from hwnas.hardware.latency_tables.latency_table import (
    PREDICTED,
    LatencyTable,
    OperatorEntry,
    load_table,
)
from hwnas.hardware.profiling import initial_table
from hwnas.hardware.profiling.passes import MeasurementEffort, ProfiledSpace, candidate_networks
from hwnas.models.graph import Graph, OpSpec, Signature, n_macs_of_batch
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.workflows.device import _missing_operators
from tests.conftest import few_of
from tests.hardware.profiling.fakes import (
    CPU,
    Device,
    FakeWorker,
    drawn_once,
    pool,
    subject,
    timing,
)

#: How far the intervals of 16 networks may be off: their coverage is 16 of 17.
EFFORT = MeasurementEffort(16, 4)


@pytest.fixture(scope="module")
def profiled(small: SearchSpace, task: Signature) -> ProfiledSpace:
    return drawn_once(small, task)


@pytest.fixture
def table(tmp_path: Path) -> LatencyTable:
    return LatencyTable(tmp_path / "own")


def _begin(
    table: LatencyTable,
    device: Device,
    subjects: Sequence[ProfiledSpace],
    effort: MeasurementEffort = EFFORT,
) -> tuple[FakeWorker, initial_table.InitialMeasurements | None]:
    worker = FakeWorker(device)
    return worker, initial_table.create_initial_table(
        table, subjects, pool(worker), effort, NullProgress()
    )


def _errors(table: LatencyTable, profiled: ProfiledSpace, device: Device) -> tuple[Any, float]:
    """Return the errors on new networks, and the coverage of their intervals."""
    model = TableCostModel(table, CPU, profiled.lower, [profiled.space.name], "")
    nets = [profiled.lower(genotype) for genotype in profiled.sample(200, 77)]
    results = [model.latency(net, profiled.space.name) for net in nets]
    true = [device.network(net) for net in nets]
    inside = [f.lower <= ms <= f.upper for f, ms in zip(results, true, strict=True)]
    return np.abs(np.array([f.value for f in results]) / true - 1), float(np.mean(inside))


@pytest.mark.parametrize("factor", few_of([0.3, 1.0, 4.0], 1))
def test_space_is_predicted_from_operators_of_few_networks(
    table: LatencyTable, profiled: ProfiledSpace, factor: float
) -> None:
    factors = {"depthwise": 1.7 * factor, "pointwise": factor}
    device = Device(factors, scale=1.2, operator_ms=1e-4)
    worker, initial = _begin(table, device, [profiled])
    space = profiled.space.name
    assert initial is not None
    assert len(initial.wholes) == 16
    n_timed, ops = len(set(worker.tuned)), profiled.operators(0)
    assert len(worker.tuned) == n_timed < 0.5 * len(ops)
    errors, inside = _errors(table, profiled, device)
    assert np.mean(errors <= 0.05) >= 0.9
    assert inside >= 0.9
    loaded = load_table(table.path)
    assert set(loaded.entries) >= set(ops)
    assert set(loaded.plans()) == set(worker.tuned)
    assert {e.plan for op, e in loaded.entries.items() if op not in loaded.plans()} == {PREDICTED}
    assert loaded.transferred_plans() == {}
    description = initial_table.describe_calibration(loaded, space)
    assert f"from {n_timed} operators and 16 networks measured here" in description


def test_held_out_error_matches_error_on_new_networks(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    """Irregular operators: the error is not hidden by networks with timed operators."""

    class Odd(Device):
        def operator(self, op: OpSpec) -> float:
            return super().operator(op) * math.exp(0.5 * random.Random(str(op)).gauss(0, 1))

    device = Odd(operator_ms=1e-4)
    _, initial = _begin(table, device, [profiled], MeasurementEffort(32, 4, share=0.01))
    errors, inside = _errors(table, profiled, device)
    reported = table.calibration[profiled.space.name]["error"]["table"]
    assert reported["mape"] > 0.5 * errors.mean() > 0.02
    assert inside >= 0.85
    assert initial is not None
    assert initial.share == pytest.approx(reported["within_5"])


@pytest.mark.slow
def test_networks_are_added_until_coverage_suffices(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    _, initial = _begin(table, Device(noise=0.2), [profiled], MeasurementEffort(12, 4, long_s=1e6))
    assert initial is not None
    assert len(initial.wholes) == 48
    assert len(table.networks) == 48


def test_second_run_measures_nothing(table: LatencyTable, profiled: ProfiledSpace) -> None:
    _begin(table, Device(), [profiled])
    before = table.calibration[profiled.space.name]["coefficients"]
    worker, _ = _begin(load_table(table.path), Device(), [profiled])
    assert not worker.tuned + worker.timed
    assert not worker.networks
    # Latencies are stored with seven digits.
    coefficients = load_table(table.path).calibration[profiled.space.name]["coefficients"]
    assert coefficients == pytest.approx(before, rel=1e-3, abs=1e-5)


def test_other_spaces_are_unchanged(
    table: LatencyTable, profiled: ProfiledSpace, tiny: SearchSpace, task: Signature
) -> None:
    second = subject(tiny, task)
    _begin(table, Device(), [second])
    before, timed = table.calibration[tiny.name], table.plans()
    worker, _ = _begin(table, Device(), [profiled])
    assert table.calibration[tiny.name] == before
    assert not set(worker.tuned) & set(timed)
    errors, _ = _errors(table, second, Device())
    assert np.mean(errors <= 0.05) >= 0.9


def test_several_spaces_share_measurements(
    table: LatencyTable, profiled: ProfiledSpace, tiny: SearchSpace, task: Signature
) -> None:
    both, device = [profiled, subject(tiny, task)], Device({"depthwise": 1.6}, operator_ms=1e-4)
    _, initial = _begin(table, device, both)
    assert initial is not None
    assert len(initial.wholes) == 16
    known = [table.calibration[member.space.name] for member in both]
    assert known[0] == known[1]
    for member in both:
        errors, _ = _errors(table, member, device)
        assert np.mean(errors <= 0.05) >= 0.85
        assert sum(row["search_space"] == member.space.name for row in table.networks) == 8


def test_reused_plans_are_not_tuned(table: LatencyTable, profiled: ProfiledSpace) -> None:
    plans = {op: f"plan of {op.out_shape[0]} out of 4" for op in profiled.operators(0)}
    worker, _ = _begin(table, Device(), [profiled], MeasurementEffort(16, 4, plans))
    assert worker.tuned == []
    assert {op: plans[op] for op in worker.timed} == dict(table.plans())


def test_space_lacking_few_operators_keeps_calibration(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    ops = profiled.operators(0)
    table.entries = {op: OperatorEntry("p", timing(Device().operator(op))) for op in ops[7:]}
    known = {"coefficients": {}, "unit": "ms"}
    table.calibration[profiled.space.name] = known
    worker, initial = _begin(table, Device(), [profiled])
    assert initial is None
    assert set(worker.tuned) == {*ops[:7]}
    assert worker.networks == []
    assert table.calibration[profiled.space.name] is known


def test_calibration_from_another_device_is_removed(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    table.calibration["other"] = {"transfer": {"from": "x"}}
    _begin(table, Device(), [profiled])
    assert "other" not in table.calibration


def test_uncompilable_operator_is_reported(table: LatencyTable, profiled: ProfiledSpace) -> None:
    refused = profiled.lower(profiled.space.smallest())[0].op
    worker = FakeWorker(refuses=[refused])
    with pytest.raises(CompileError, match="no plan for"):
        initial_table.create_initial_table(table, [profiled], pool(worker), EFFORT, NullProgress())
    assert len(load_table(table.path).entries) > 0  # the others are saved


def test_too_few_networks_are_refused(
    table: LatencyTable, task: Signature, tiny: SearchSpace
) -> None:
    space = SearchSpace("one", tiny.family, {}, {**tiny.values(tiny.smallest())})
    with pytest.raises(TableError, match=r"1 of search space 'one'; 10 or more .* cost=measured"):
        _begin(table, Device(), [subject(space, task)])


def test_intervals_of_operators_have_nominal_coverage(profiled: ProfiledSpace) -> None:
    ops, device, rng = list(profiled.operators(0)), Device(), random.Random(3)
    rng.shuffle(ops)
    latencies = {op: device.operator(op) * math.exp(rng.gauss(0, 0.1)) for op in ops}
    known = dict([*latencies.items()][: len(ops) // 3])
    predicted = OperatorPredictions.of(known).predict(op for op in ops if op not in known)
    assert set(predicted) == set(ops) - set(known)
    covered = [low <= latencies[op] <= high for op, (_, low, high) in predicted.items()]
    assert np.mean(covered) > 0.9
    errors = [abs(ms / latencies[op] - 1) for op, (ms, _, _) in predicted.items()]
    assert np.median(errors) < 0.12


def test_predictions_know_number_formats(profiled: ProfiledSpace) -> None:
    ops = list(profiled.operators(0))
    floats = {replace(op, dtype="float32"): Device().operator(op) for op in ops}
    known = floats | {
        replace(op, dtype="int8"): ms / 3 for op, ms in zip(ops, floats.values(), strict=True)
    }
    first = replace(ops[0], dtype="float32"), replace(ops[0], dtype="int8")
    predicted = OperatorPredictions.of(known).predict(first, without=first)
    assert predicted[first[0]][0] / predicted[first[1]][0] == pytest.approx(3, rel=0.3)


def test_unsampled_operator_is_predicted(table: LatencyTable, profiled: ProfiledSpace) -> None:
    _begin(table, Device(), [profiled])
    rare = next(op for op, entry in table.entries.items() if entry.plan == PREDICTED)
    predicted_ms = table.entries.pop(rare).timing.median_ms
    model = TableCostModel(table, CPU, profiled.lower, [profiled.space.name], "")
    nets = (profiled.lower(genotype) for genotype in profiled.sample(2000, 5))
    net = next(net for net in nets if rare in {node.op for node in net})
    result = model.latency(net, profiled.space.name).value
    table.entries[rare] = OperatorEntry(PREDICTED, timing(predicted_ms))
    cost_model = TableCostModel(table, CPU, profiled.lower, [profiled.space.name], "")
    assert result == pytest.approx(cost_model.latency(net, profiled.space.name).value, rel=1e-3)


def test_prediction_depends_only_on_operators_in_digest(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    _begin(table, Device(), [profiled])
    space, (rare, *ops) = profiled.space.name, profiled.operators(0)
    nets = (profiled.lower(genotype) for genotype in profiled.sample(999, 5))
    net = next(net for net in nets if rare in {node.op for node in net})
    network_ops = {node.op for node in net}
    others = [op for op in ops if op not in network_ops]
    known = [*(network_ops - {rare}), *others[::2]]
    digest = table.digest([space], known)

    def latency() -> float:
        model = TableCostModel(table.only(known), CPU, profiled.lower, [space], "")
        return model.latency(net, space).value

    before = latency()
    table.entries |= {op: OperatorEntry("timed since", timing(100.0)) for op in others[1::2]}
    assert table.digest([space], known) == digest
    assert latency() == before


def test_changed_space_is_not_predicted(table: LatencyTable, profiled: ProfiledSpace) -> None:
    _begin(table, Device(), [profiled])
    ops = profiled.operators(0)
    rare = ops[:2]
    for op in rare:
        table.entries.pop(op)
    assert len(ops) > 40
    assert _missing_operators(table, ops, predicted=True) == []
    assert _missing_operators(table, ops, predicted=False) == [*rare]
    changed = [replace(op, batch=3) for op in ops]
    assert _missing_operators(table, changed, predicted=True) == changed


def test_excluded_operators_do_not_affect_predictions(profiled: ProfiledSpace) -> None:
    ops = list(profiled.operators(0))
    known = {op: Device().operator(op) for op in ops}
    known[ops[0]] *= 50
    model = OperatorPredictions.of(known)
    assert model.predict(ops[:1])[ops[0]][0] > 5 * Device().operator(ops[0])
    assert model.predict(ops[:1], ops[:1])[ops[0]][0] < 3 * Device().operator(ops[0])
    assert model.predict([]) == {}


def test_operator_of_unknown_kind_is_predicted(profiled: ProfiledSpace) -> None:
    known = {op: Device().operator(op) for op in profiled.operators(0)}
    odd = OpSpec("attention", (96, 7, 7), (32, 7, 7), groups=4, dtype="float32")
    ms, low, high = OperatorPredictions.of(known).predict([odd])[odd]
    assert 0 < low < ms < high < math.inf


def test_predicted_entries_are_not_plans(table: LatencyTable, profiled: ProfiledSpace) -> None:
    op, other = profiled.operators(0)[:2]
    table.entries = {
        op: OperatorEntry(PREDICTED, timing(1.0)),
        other: OperatorEntry("p", timing(1.0)),
    }
    assert table.plans() == {other: "p"}
    assert table.missing([op, other]) == [op]


def test_networks_cover_range_of_work_of_batch(
    profiled: ProfiledSpace, small: SearchSpace, task: Signature
) -> None:
    eight = subject(small, task, replace(CPU, batch=8))

    @functools.cache
    def lower(genotype: Genotype) -> Graph:
        return (eight if sum(genotype.id.encode()) % 2 else profiled).lower(genotype)

    mixed = ProfiledSpace(small, lower)
    every = [n_macs_of_batch(lower(genotype)) for genotype in candidate_networks(mixed)]
    result = [n_macs_of_batch(net) for net in initial_table._spread_networks([mixed], 12).values()]
    assert (min(result), max(result)) == (min(every), max(every))
