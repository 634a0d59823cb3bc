import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.core.errors import TableError
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.table_cost import TableCostModel
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    TableConfig,
    is_transferred,
    load_table,
    table_folder,
)
from hwnas.hardware.latency_tables.provenance import writable_table
from hwnas.hardware.profiling import initial_table, table_transfer
from hwnas.hardware.profiling.operator_measurement import network_digest
from hwnas.hardware.profiling.passes import MeasurementEffort, ProfiledSpace
from hwnas.hardware.profiling.table_transfer import SourceTable
from hwnas.hardware.target import Remote
from hwnas.hardware.timing import NetworksConfig, TuningConfig
from hwnas.models.graph import OpSpec, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.data import DatasetConfig
from hwnas.workflows import device as device_module
from hwnas.workflows import profile as profiling
from hwnas.workflows.config import ProfileConfig
from hwnas.workflows.reporter import RecordingReporter
from tests.conftest import few_of
from tests.hardware.profiling.fakes import CPU, Device, FakeWorker, drawn_once, pool, subject

REFERENCE = Device()
FLAGS = ("avx2", "avx512f", "sse2")


@pytest.fixture(scope="module")
def profiled(small: SearchSpace, task: Signature) -> ProfiledSpace:
    return drawn_once(small, task)


@pytest.fixture
def other(profiled: ProfiledSpace, tmp_path: Path) -> LatencyTable:
    """The table of another CPU."""
    result = REFERENCE.table(tmp_path / "shipped" / "cpu" / "s", profiled.operators(0))
    result.provenance = {"device": {"cpu": "theirs", "flags": [*FLAGS]}}
    return result


def _source(table: LatencyTable, flags: Sequence[str] = FLAGS) -> SourceTable:
    return SourceTable.of(table, {"device": {"flags": flags}})


def _errors(table: LatencyTable, profiled: ProfiledSpace, device: Device) -> Any:
    model = TableCostModel(table, CPU, profiled.lower, [profiled.space.name], "")
    quiet = Device(device.factors, operator_ms=device.operator_ms)
    nets = [profiled.lower(genotype) for genotype in profiled.sample(100, 77)]
    result = [model.latency(net, profiled.space.name).value for net in nets]
    return np.abs(np.array(result) / [quiet.network(net) for net in nets] - 1)


@pytest.mark.parametrize("factor", few_of([0.3, 1.0, 4.0], 1))
def test_few_networks_suffice_to_predict_others(
    other: LatencyTable, profiled: ProfiledSpace, tmp_path: Path, factor: float
) -> None:
    device = Device({"depthwise": 1.3 * factor, "pointwise": factor}, operator_ms=1e-4, noise=0.01)
    worker, table = FakeWorker(device), LatencyTable(tmp_path / "own")
    table_transfer.transfer_table(
        table, _source(other), [profiled], pool(worker), MeasurementEffort(16, 4), NullProgress()
    )
    assert worker.tuned == worker.timed == []
    assert len({id(net) for net, _ in worker.networks}) == 16
    errors = _errors(table, profiled, device)
    assert np.mean(errors <= 0.05) >= 0.9
    assert errors.max() < 0.1
    loaded = load_table(table.path)
    assert loaded.plans() == {}
    assert loaded.transferred_plans() == other.plans()
    assert all(is_transferred(entry.plan) for entry in loaded.entries.values())
    description = initial_table.describe_calibration(loaded, profiled.space.name)
    assert "shipped" not in description
    assert "cpu (theirs) and 16 networks measured here" in description
    assert initial_table.describe_calibration(other, profiled.space.name) == ""


def test_more_networks_are_measured_with_noise(
    other: LatencyTable, profiled: ProfiledSpace, tmp_path: Path
) -> None:
    worker = FakeWorker(Device(noise=0.2))
    table = LatencyTable(tmp_path / "own")
    table_transfer.transfer_table(
        table, _source(other), [profiled], pool(worker), MeasurementEffort(12, 4), NullProgress()
    )
    assert len(table.networks) == 48
    assert table.calibration[profiled.space.name]["coefficients"]["interval"] > 0.1


def test_plans_for_other_vector_extensions_are_tuned(
    other: LatencyTable, profiled: ProfiledSpace, tmp_path: Path
) -> None:
    worker, table = FakeWorker(Device()), LatencyTable(tmp_path / "own")
    source = _source(other, ["avx2"])
    table_transfer.transfer_table(
        table, source, [profiled], pool(worker), MeasurementEffort(12, 4), NullProgress()
    )
    networks = [net for net, _ in worker.networks]
    assert {node.op for net in networks for node in net} == set(worker.tuned)
    assert set(load_table(table.path).transferred_plans()) == set(worker.tuned) & set(table.entries)


def test_networks_cover_range_of_latencies(other: LatencyTable, profiled: ProfiledSpace) -> None:
    def ms(n: int) -> list[float]:
        nets = [profiled.lower(g) for g in table_transfer.covered_networks(other, profiled, n)]
        return [REFERENCE.network(net) for net in nets]

    result, rng = ms(16), random.Random(1)
    drawn = [REFERENCE.network(profiled.lower(profiled.space.sample(rng))) for _ in range(200)]
    assert min(result) < min(drawn) * 1.05
    assert max(result) > max(drawn) * 0.95
    gaps = np.diff(np.log(sorted(result)))
    assert gaps.max() < 4 * math.log(max(result) / min(result)) / 15
    assert ms(32)[:16] == result


def test_table_without_operators_does_not_cover_space(
    other: LatencyTable, profiled: ProfiledSpace
) -> None:
    assert _source(other).covers(profiled, 16)
    few = LatencyTable(other.path, dict([*other.entries.items()][:3]), provenance=other.provenance)
    assert not _source(few).covers(profiled, 16)


def test_spaces_transferred_together_are_predicted(
    other: LatencyTable, profiled: ProfiledSpace, tiny: SearchSpace, task: Signature, tmp_path: Path
) -> None:
    """Operators of both spaces have one latency, from a common fit."""
    second = subject(tiny, task)
    for op, entry in REFERENCE.table(tmp_path / "x", second.operators(0)).entries.items():
        other.entries.setdefault(op, entry)
    device = Device({"depthwise": 1.6, "pointwise": 0.8}, operator_ms=1e-4, noise=0.01)
    table = LatencyTable(tmp_path / "own")
    both = [profiled, second]
    table_transfer.transfer_table(
        table,
        _source(other),
        both,
        pool(FakeWorker(device)),
        MeasurementEffort(16, 4),
        NullProgress(),
    )
    for member in both:
        errors = _errors(table, member, device)
        assert np.mean(errors <= 0.05) >= 0.9
        assert errors.max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("is_covered", [True, False])
def test_transferred_space_stays_known_with_later_space(
    other: LatencyTable,
    profiled: ProfiledSpace,
    tiny: SearchSpace,
    task: Signature,
    tmp_path: Path,
    is_covered: bool,
) -> None:
    second = subject(tiny, task)
    if is_covered:
        other.entries |= REFERENCE.table(tmp_path / "x", second.operators(0)).entries
    table, both = LatencyTable(tmp_path / "own"), [profiled, second]

    def fill(subjects: Sequence[ProfiledSpace]) -> list[ProfiledSpace]:
        wanted = device_module._spaces_to_measure(table, subjects, seed=0)
        effort = MeasurementEffort(16, 4, rounds=1)
        device_module.fill(
            table, _source(other), wanted, pool(FakeWorker()), effort, NullProgress()
        )
        return wanted

    assert fill([profiled]) == [profiled]
    assert fill(both) == both
    TableCostModel(table, CPU, profiled.lower, [member.space.name for member in both], "")
    assert device_module._spaces_to_measure(table, both, seed=0) == []


def test_only_networks_with_transferred_operators_are_remeasured(
    other: LatencyTable, tiny: SearchSpace, task: Signature, tmp_path: Path
) -> None:
    second, table = subject(tiny, task), LatencyTable(tmp_path / "own")
    other.entries |= REFERENCE.table(tmp_path / "x", second.operators(0)).entries
    source, effort = _source(other), MeasurementEffort(16, 4, rounds=1)
    table_transfer.transfer_table(
        table, source, [second], pool(FakeWorker()), effort, NullProgress()
    )
    row = table.networks[0] | {"search_space": "measured here"}
    table.networks.insert(0, row)
    table.calibration["measured here"] = {}
    counts = NetworksConfig(6, 19, 10)
    config = ProfileConfig(
        target=CPU, dataset=DatasetConfig("digits"), networks=counts, tuning=TuningConfig(4)
    )

    def profile() -> list[str]:
        worker = FakeWorker()
        profiling._measure(config, table, second, pool(worker), RecordingReporter())
        assert table.networks[0] == row
        return [network_digest(net) for net, _ in worker.networks]

    assert len({*profile()}) == len(table.networks) - 1 == 35
    assert table.transferred_plans()  # operators of the other space only
    assert profile() == []


#: A profile that ends as soon as a transferred table is accurate enough.
WITHIN = ProfileConfig(
    target=CPU, dataset=DatasetConfig("digits"), networks=NetworksConfig(6, 19, 10),
    tuning=TuningConfig(4), search_space="mbconv_small", tolerance=0.2,
)  # fmt: skip


def test_held_out_networks_are_compiled_without_reused_plans(
    other: LatencyTable, profiled: ProfiledSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example on a CPU with other vector extensions: few operators were tuned."""
    table, worker = LatencyTable(tmp_path / "own"), FakeWorker(Device(operator_ms=1e-4))
    monkeypatch.setattr(profiling, "source", lambda config: _source(other, ["avx2"]))

    def held_out() -> list[str]:
        results = profiling._networks_if_accurate(
            WITHIN, table, profiled, pool(worker), RecordingReporter()
        )
        assert results is not None
        return [whole.network for whole in results]

    first = held_out()
    assert len(first) == 10
    assert len({*worker.tuned}) == len(worker.tuned) < len(table.entries)
    assert set(load_table(table.path).transferred_plans()) == set(worker.tuned)
    n_tuned, n_measured = len(worker.tuned), len(worker.networks)
    assert held_out() == first
    assert (len(worker.tuned), len(worker.networks)) == (n_tuned, n_measured)


def test_table_without_all_operators_does_not_suffice(
    other: LatencyTable, profiled: ProfiledSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = [{node.op for node in profiled.lower(g)} for g in profiled.sample(35, 1)]
    rare = min(
        set[OpSpec]().union(*nets[25:]), key=lambda op: (sum(op in net for net in nets), str(op))
    )
    other.entries.pop(rare)
    monkeypatch.setattr(profiling, "source", lambda config: _source(other))
    table = LatencyTable(tmp_path / "own")
    assert (
        profiling._networks_if_accurate(
            WITHIN, table, profiled, pool(FakeWorker()), RecordingReporter()
        )
        is None
    )


def test_error_for_low_coverage_gives_working_n_samples(
    other: LatencyTable, profiled: ProfiledSpace
) -> None:
    config = ProfileConfig(
        target=replace(CPU, name="lab"), dataset=DatasetConfig("digits"), transfer_from="cpu",
        search_space="small.yaml", n_samples=20,
    )  # fmt: skip
    drawn = profiled.sample(20 * config.n_samples, config.seed + 1)

    def message(known: Sequence[Genotype]) -> str:
        ops = {node.op for genotype in known for node in profiled.lower(genotype)}
        table = replace(other, entries={op: e for op, e in other.entries.items() if op in ops})
        with pytest.raises(TableError) as error:
            profiling._covering_table([table], config, profiled)
        if (number := re.search(r"set n_samples=(\d+)", str(error.value))) is not None:
            fewer = replace(config, n_samples=int(number[1]))
            assert len(profiling._covering_table([table], fewer, profiled)[1]) == fewer.n_samples
        return str(error.value)

    assert "Measure without transfer_from, set n_samples=" in message(drawn[:12])
    assert "Measure without transfer_from, or profile the other device" in message(drawn[-1:])


def test_user_table_is_preferred_to_shipped_table(
    tiny: SearchSpace, task: Signature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "SHIPPED", tmp_path)
    config = ProfileConfig(
        target=replace(CPU, name="lab"), dataset=DatasetConfig("digits"), transfer_from="cpu",
        search_space="tiny", table=TableConfig(str(tmp_path)), n_samples=10,
    )  # fmt: skip
    with pytest.raises(TableError, match=r"no latency table .* for tvm-float32-1t-b1 in"):
        profiling.references(config)
    target, second = replace(CPU, name="cpu"), subject(tiny, task)
    shipped = REFERENCE.table(table_folder(target, tmp_path), second.operators(0))
    shipped.provenance = {"device": {"cpu": "theirs"}}
    shipped.save()
    user_table = writable_table(target, Remote(), tmp_path, tmp_path)
    user_table.save()

    def source_path() -> Path:
        return profiling._covering_table(profiling.references(config), config, second)[0].path

    assert source_path() == shipped.path  # the user's table covers no network
    user_table.entries = dict(shipped.entries)
    user_table.save()
    assert source_path() == user_table.path != shipped.path
    with pytest.raises(TableError, match=r"Targets with one: cpu\. Measure"):
        profiling.references(replace(config, transfer_from="nobody"))
