import random
from pathlib import Path

import pytest

from hwnas.core.agreement import agreement
from hwnas.hardware.costs.table_cost import TableCostModel
from hwnas.hardware.latency_tables.latency_table import TRANSFERRED, LatencyTable, load_table
from hwnas.hardware.profiling import table_transfer
from hwnas.hardware.profiling.passes import ProfiledSpace
from hwnas.models.graph import Graph, OpSpec, Signature, distinct_ops
from hwnas.models.spaces import SearchSpace
from tests.hardware.profiling.fakes import CPU, Device, subject

SLOW_DEPTHWISE = {"depthwise": 3.0}
REFERENCE = Device()


@pytest.fixture(scope="module")
def profiled(small: SearchSpace, task: Signature) -> ProfiledSpace:
    return subject(small, task)


@pytest.fixture(scope="module")
def new(profiled: ProfiledSpace) -> list[Graph]:
    """Networks that are not used for fits."""
    return [profiled.lower(genotype) for genotype in profiled.sample(150, 1000)]


@pytest.fixture(scope="module")
def ops(profiled: ProfiledSpace) -> tuple[OpSpec, ...]:
    return profiled.operators(0)


@pytest.fixture(scope="module")
def reference(ops: tuple[OpSpec, ...], new: list[Graph]) -> dict[OpSpec, float]:
    return {op: REFERENCE.operator(op) for op in (*ops, *distinct_ops(new))}


@pytest.mark.parametrize(
    ("kind", "kernel", "groups", "expected"),
    [
        ("conv2d+bn+relu6", 1, 1, "pointwise"),
        ("linear", 1, 1, "pointwise"),
        ("conv2d+bn+relu6", 3, 1, "dense"),
        ("conv2d+bn+relu6", 5, 8, "depthwise"),
        ("mean", 1, 1, "other"),
        ("add", 1, 1, "other"),
    ],
)
def test_groups(kind: str, kernel: int, groups: int, expected: str) -> None:
    shape = (8, 1, 1)
    assert table_transfer.group(OpSpec(kind, shape, shape, kernel, groups=groups)) == expected


@pytest.mark.parametrize("n", [10, 20, 30, 50])
@pytest.mark.parametrize(
    "device",
    [
        Device(SLOW_DEPTHWISE, operator_ms=0.003, noise=0.02),
        Device({"pointwise": 8.0, "depthwise": 5.0, "dense": 6.0, "other": 4.0}, noise=0.02),
        Device({"depthwise": 0.3}, operator_ms=0.01, noise=0.02),
        Device(noise=0.05),
    ],
    ids=["depthwise is slow", "all is slow", "depthwise is fast", "the same, noisy"],
)
def test_transfer_from_few_networks_ranks_others(
    profiled: ProfiledSpace,
    new: list[Graph],
    reference: dict[OpSpec, float],
    device: Device,
    n: int,
) -> None:
    sampled = [profiled.lower(genotype) for genotype in profiled.sample(n, n)]
    result = table_transfer.fit_transfer(
        sampled, [device.network(net) for net in sampled], reference
    )
    quiet = Device(device.factors, operator_ms=device.operator_ms)
    predicted = [result.network_ms(net, reference) for net in new]
    agreed = agreement(predicted, [quiet.network(net) for net in new])
    assert agreed["spearman"] > 0.98
    assert agreed["mape"] < device.noise


@pytest.mark.parametrize("n", [10, 50])
def test_factors_match_device(
    profiled: ProfiledSpace, reference: dict[OpSpec, float], n: int
) -> None:
    device = Device(SLOW_DEPTHWISE, operator_ms=0.003)
    sampled = [profiled.lower(genotype) for genotype in profiled.sample(n, 3)]
    result = table_transfer.fit_transfer(
        sampled, [device.network(net) for net in sampled], reference
    )
    assert result.factors["depthwise"] == pytest.approx(3.0, rel=0.05)
    assert result.factors["pointwise"] == pytest.approx(1.0, rel=0.1)
    assert result.operator_ms == pytest.approx(0.003, rel=0.1)
    assert set(result.factors) == set(table_transfer.GROUPS)


@pytest.mark.parametrize("n", [10, 30, 50])
def test_factors_of_rare_groups_stay_near_others(
    profiled: ProfiledSpace, reference: dict[OpSpec, float], n: int
) -> None:
    """The stem, pooling and sums take a thousandth of the time."""
    for seed in range(6):
        device = Device({**dict.fromkeys(table_transfer.GROUPS, 4.0)}, 1.0, 0.001, 0.03)
        device.rng = random.Random(seed)
        sampled = [profiled.lower(genotype) for genotype in profiled.sample(n, seed)]
        result = table_transfer.fit_transfer(
            sampled, [device.network(net) for net in sampled], reference
        )
        assert all(0.5 < factor < 9 for factor in result.factors.values()), result.factors


def test_leave_one_out_excludes_network_from_fit(
    profiled: ProfiledSpace, reference: dict[OpSpec, float]
) -> None:
    device = Device(SLOW_DEPTHWISE, operator_ms=0.003)
    sampled = [profiled.lower(genotype) for genotype in profiled.sample(12, 0)]
    measured = [device.network(net) for net in sampled]
    honest = table_transfer.leave_one_out(sampled, measured, reference)
    assert honest == pytest.approx(measured, rel=0.02)
    spoilt = [*measured[:4], 5 * measured[4], *measured[5:]]
    assert table_transfer.leave_one_out(sampled, spoilt, reference)[4] == honest[4]


def _transfer(
    device: Device, profiled: ProfiledSpace, ops: tuple[OpSpec, ...], path: Path, n: int
) -> tuple[LatencyTable, dict[str, float]]:
    """Transfer to a device with measurements of some networks and their operators."""
    sampled = [profiled.lower(genotype) for genotype in profiled.sample(n, 1)]
    table = device.table(path / "new", distinct_ops(sampled))
    source = REFERENCE.table(path / "reference" / "tvm", ops)
    times = [device.network(net) for net in sampled]
    report = table_transfer.fill_from_source(table, source, sampled, times, [profiled.space.name])
    return table, report


@pytest.mark.parametrize("scale", [1.0, 1.4])
@pytest.mark.parametrize("n", [30, 50])
def test_transferred_table_has_reported_accuracy(
    profiled: ProfiledSpace,
    new: list[Graph],
    ops: tuple[OpSpec, ...],
    tmp_path: Path,
    n: int,
    scale: float,
) -> None:
    device = Device(SLOW_DEPTHWISE, scale=scale, operator_ms=0.003, noise=0.02)
    table, report = _transfer(device, profiled, ops, tmp_path, n)
    table.save()
    model = TableCostModel(load_table(table.path), CPU, profiled.lower, [profiled.space.name], "")
    known = [net for net in new if not set(distinct_ops([net])) - set(table.entries)]
    figures = [model.latency(net, profiled.space.name) for net in known]
    measured = [device.network(net) for net in known]
    agreed = agreement([figure.value for figure in figures], measured)
    assert len(known) > 100
    assert agreed["spearman"] > 0.98
    assert agreed["mape"] < 1.5 * report["mape"]
    assert abs(agreed["bias"]) < 0.02
    inside = [
        figure.low is not None and figure.low <= ms <= figure.upper
        for figure, ms in zip(figures, measured, strict=True)
    ]
    assert report["coverage"] > 0.95
    assert sum(inside) / len(inside) > 0.9


def test_only_unmeasured_operators_are_transferred(
    profiled: ProfiledSpace, ops: tuple[OpSpec, ...], tmp_path: Path
) -> None:
    device = Device(SLOW_DEPTHWISE, operator_ms=0.003)
    table, _ = _transfer(device, profiled, ops, tmp_path, 10)
    assert set(ops) <= set(table.entries)
    measured = table.plans()
    assert 0 < len(measured) < len(ops)
    for op, entry in table.entries.items():
        assert (entry.plan == TRANSFERRED) is (op not in measured)
        rel = 1e-9 if op in measured else 0.15
        if op in measured or table_transfer.group(op) in ("pointwise", "depthwise"):
            assert entry.timing.median_ms == pytest.approx(device.operator(op), rel=rel)
        assert entry.timing.low_ms <= entry.timing.median_ms <= entry.timing.high_ms
    assert table.calibration[profiled.space.name]["transfer"]["from"] == "reference"


def test_second_transfer_replaces_the_first(
    profiled: ProfiledSpace, ops: tuple[OpSpec, ...], tmp_path: Path
) -> None:
    twice, _ = _transfer(Device(operator_ms=0.003), profiled, ops, tmp_path, 10)
    slower = Device({name: 2.0 for name in table_transfer.GROUPS}, operator_ms=0.003)
    sampled = [profiled.lower(genotype) for genotype in profiled.sample(10, 1)]
    twice.entries |= slower.table(tmp_path, distinct_ops(sampled)).entries
    source = REFERENCE.table(tmp_path / "reference" / "tvm", ops)
    times = [slower.network(net) for net in sampled]
    table_transfer.fill_from_source(twice, source, sampled, times, [profiled.space.name])
    once, _ = _transfer(slower, profiled, ops, tmp_path, 10)
    assert twice.entries == once.entries
    assert twice.calibration == once.calibration


def test_scale_is_estimated_without_complete_networks(
    profiled: ProfiledSpace, ops: tuple[OpSpec, ...], tmp_path: Path
) -> None:
    """For example if another space was profiled before."""
    device = Device(SLOW_DEPTHWISE, scale=1.4, operator_ms=0.003)
    sampled = [profiled.lower(genotype) for genotype in profiled.sample(10, 1)]
    known = distinct_ops(sampled)[::2]
    assert not any(set(distinct_ops([net])) <= set(known) for net in sampled)
    table = device.table(tmp_path / "new", known)
    source = REFERENCE.table(tmp_path / "reference" / "tvm", ops)
    times = [device.network(net) for net in sampled]
    table_transfer.fill_from_source(table, source, sampled, times, [profiled.space.name])
    for op in set(ops) - set(known):
        if table_transfer.group(op) in ("pointwise", "depthwise"):
            alone = table.entries[op].timing.median_ms
            assert alone == pytest.approx(device.operator(op), rel=0.15)
