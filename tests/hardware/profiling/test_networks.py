import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwnas.core.errors import CompileError, ConfigError
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.table_cost import Calibration, LatencyFeatures, TableCostModel
from hwnas.hardware.latency_tables.latency_table import LatencyTable, load_table
from hwnas.hardware.profiling.operator_measurement import (
    MeasuredNetwork,
    calibrate_table,
    measure_networks,
    prediction_error,
    time_networks,
)
from hwnas.hardware.profiling.passes import ProfiledSpace, RepeatedMeasurement
from hwnas.hardware.timing import NetworksConfig, Timing
from hwnas.models.graph import Graph, Signature, distinct_ops
from hwnas.models.spaces import Genotype, SearchSpace
from tests.hardware.profiling.fakes import CPU, Device, FakeWorker, pool, subject, timing

COUNTS = NetworksConfig(fit=8, interval=19, held_out=10)


@pytest.fixture
def profiled(tiny: SearchSpace, task: Signature) -> ProfiledSpace:
    return subject(tiny, task)


@pytest.fixture
def table(profiled: ProfiledSpace, tmp_path: Path) -> LatencyTable:
    return Device().table(tmp_path / "t", profiled.operators(0))


def _wholes(n: int, seed: int = 0, noise: float = 0.02, space: str = "s") -> list[MeasuredNetwork]:
    """Return networks with twice the latency of the sum of their operators."""
    rng, results = random.Random(seed), []
    for i in range(n):
        known = LatencyFeatures(rng.uniform(1, 5), rng.randint(5, 20), rng.uniform(10, 90))
        ms = 2 * known.operators_ms * (1 + rng.gauss(0, noise))
        genotype = Genotype(space, (("i", i),))
        results.append(
            MeasuredNetwork(
                genotype, known, rng.uniform(1, 9), RepeatedMeasurement(timing(ms), 2), f"{i}"
            )
        )
    return results


def _with(
    wholes: list[MeasuredNetwork], index: int, ms: float, drifted: bool = False
) -> list[MeasuredNetwork]:
    new = replace(wholes[index], measured=RepeatedMeasurement(timing(ms, drifted), 2))
    return [*wholes[:index], new, *wholes[index + 1 :]]


def test_networks_have_latency_and_features(table: LatencyTable, profiled: ProfiledSpace) -> None:
    device = Device(scale=1.3, operator_ms=0.01)
    genotypes, worker = profiled.sample(30, 0), FakeWorker(device)
    results = measure_networks(table, profiled.graphs(genotypes), pool(worker), NullProgress())
    assert [whole.genotype for whole in results] == genotypes
    for whole in results:
        net = profiled.lower(whole.genotype)
        assert whole.timing.median_ms == pytest.approx(device.network(net))
        assert whole.timing.n_repeats == 10
        assert whole.features.operators_ms == pytest.approx(
            sum(Device().operator(node.op) for node in net)
        )
    assert all(plans == table.plans() for _, plans in worker.networks)


def test_work_counts_all_images_of_batch(
    tiny: SearchSpace, task: Signature, tmp_path: Path
) -> None:
    def macs_m(batch: int) -> list[float]:
        batched = subject(tiny, task, replace(CPU, batch=batch))
        lowered = batched.graphs(batched.sample(4, 0))
        table = Device().table(tmp_path / f"{batch}", distinct_ops(lowered.values()))
        results = measure_networks(table, lowered, pool(FakeWorker()), NullProgress())
        return [whole.macs_m for whole in results]

    assert macs_m(8) == pytest.approx([8 * macs for macs in macs_m(1)])


def test_networks_with_different_passes_are_timed_again(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    chosen = {genotype: profiled.lower(genotype) for genotype in profiled.sample(6, 0)}
    lowered = list(chosen.values())
    script: dict[Any, list[Timing]] = {
        lowered[0]: [timing(1.0), timing(1.02)],
        lowered[1]: [timing(1.0), timing(1.2), timing(1.01)],
        lowered[2]: [timing(1.2), timing(1.0), timing(1.01)],
        lowered[3]: [timing(1.0, drifted=True), timing(1.1), timing(1.0), timing(1.01)],
    }
    worker = FakeWorker(script=script)
    timings = [known.timing for known in time_networks(table, chosen, pool(worker), NullProgress())]
    nets = [net for net, _ in worker.networks]
    assert [nets.count(net) for net in lowered] == [2, 3, 3, 4, 2, 2]
    assert [t.n_repeats for t in timings] == [10, 15, 15, 15, 10, 10]
    assert not any(t.drifted for t in timings)
    assert min(t.median_ms for t in timings[:4]) == 1.0
    assert timings[0].high_ms == pytest.approx(1.02 * 1.02)  # of both passes


def test_unmeasurable_network_is_an_error(table: LatencyTable, profiled: ProfiledSpace) -> None:
    chosen = {genotype: profiled.lower(genotype) for genotype in profiled.sample(3, 0)}
    with pytest.raises(CompileError, match="crashed"):
        time_networks(table, chosen, pool(FakeWorker(), CompileError("crashed"), 2), NullProgress())


@pytest.mark.parametrize("after", [1, 7, 12])
def test_resumed_profile_keeps_measured_networks(
    table: LatencyTable, profiled: ProfiledSpace, after: int
) -> None:
    genotypes, worker = profiled.sample(10, 0), FakeWorker()
    interrupted = pool(worker, KeyboardInterrupt(), after)
    with pytest.raises(KeyboardInterrupt):
        measure_networks(table, profiled.graphs(genotypes), interrupted, NullProgress())
    loaded = load_table(table.path)
    assert len(loaded.networks) == min(after, 10)
    wholes = measure_networks(loaded, profiled.graphs(genotypes), pool(worker), NullProgress())
    assert len(worker.networks) == 20  # two passes each in total
    assert [whole.measured.n_passes for whole in wholes] == [2] * 10
    resumed = measure_networks(
        load_table(table.path), profiled.graphs(genotypes), pool(worker), NullProgress()
    )
    assert len(worker.networks) == 20
    assert [w.timing.median_ms for w in resumed] == pytest.approx(
        [w.timing.median_ms for w in wholes], rel=1e-6
    )


def test_changed_network_is_measured_again(table: LatencyTable, profiled: ProfiledSpace) -> None:
    (genotype,), worker = profiled.sample(1, 0), FakeWorker()
    measure_networks(table, profiled.graphs([genotype]), pool(worker), NullProgress())
    changed = ProfiledSpace(
        profiled.space, lambda genotype: Graph.of(profiled.lower(genotype)[:-1])
    )
    measure_networks(table, changed.graphs([genotype]), pool(worker), NullProgress())
    assert [len(net) for net, _ in worker.networks][::2] == [
        len(profiled.lower(genotype)),
        len(profiled.lower(genotype)) - 1,
    ]


def test_profile_predicts_new_networks(table: LatencyTable, profiled: ProfiledSpace) -> None:
    device = Device(scale=1.25, operator_ms=0.0002, noise=0.01)
    worker = FakeWorker(device)
    wholes = measure_networks(
        table, profiled.graphs(profiled.sample(60, 0)), pool(worker), NullProgress()
    )
    calibrate_table(table, wholes, NetworksConfig(20, 25, 15), "tiny")
    model = TableCostModel(load_table(table.path), CPU, profiled.lower, ["tiny"], "")
    quiet = Device(scale=1.25, operator_ms=0.0002)
    for genotype in profiled.sample(40, 7):
        net = profiled.lower(genotype)
        assert model.latency(net, "tiny").value == pytest.approx(quiet.network(net), rel=0.02)
    result = table.calibration["tiny"]["error"]
    assert result["n"] == 15
    assert result["table"]["mape"] < 0.02 < result["macs"]["mape"]
    assert result["table"]["spearman"] > 0.98


def test_prediction_error_matches_hand_computation() -> None:
    calibration = Calibration(2.0, 0.0, 0.0, 0.1, 8, 19)
    features = [
        LatencyFeatures(ms, 5, 10.0) for ms in (1.0, 2.0, 3.0, 4.0)
    ]  # predicted: 2, 4, 6, 8
    measured = [timing(2.0), timing(4.16), timing(5.6), timing(10.0, drifted=True)]
    genotype = Genotype("s", ())
    wholes = [
        MeasuredNetwork(genotype, known, m, RepeatedMeasurement(t), "")
        for known, m, t in zip(features, (10.0, 20.0, 30.0, 40.0), measured, strict=True)
    ]
    result = prediction_error(
        calibration,
        wholes,
        [calibration.predict(network_features) for network_features in features],
    )
    ratios = [2 / 2, 4 / 4.16, 6 / 5.6, 8 / 10]
    errors = [ratio - 1 for ratio in ratios]
    assert result["n"] == 4
    assert result["drifted"] == 1
    assert result["table"]["mape"] == pytest.approx(sum(map(abs, errors)) / 4)
    assert result["table"]["bias"] == pytest.approx(sum(errors) / 4)
    assert result["table"]["within_5"] == 0.5
    assert result["table"]["within_10"] == 0.75
    assert result["table"]["spearman"] == result["table"]["kendall"] == pytest.approx(1.0)
    assert result["table"]["coverage"] == 0.75  # 8 +- 10 % does not hold 10
    assert result["table"]["interval"] == 0.1
    # MACs are 5 times the prediction; the fairest line makes the sum of squared errors smallest.
    factor = sum(ratios) / sum(ratio**2 for ratio in ratios)
    by_macs = [factor * ratio - 1 for ratio in ratios]
    assert result["macs"]["mape"] == pytest.approx(sum(map(abs, by_macs)) / 4)
    assert "coverage" not in result["macs"]


def test_held_out_networks_do_not_affect_calibration(table: LatencyTable) -> None:
    wholes = _wholes(37)
    first = calibrate_table(table, wholes, COUNTS, "s")
    spoilt = wholes
    for index in range(27, 37):
        spoilt = _with(spoilt, index, 1000.0, drifted=True)
    assert calibrate_table(table, spoilt, COUNTS, "s") == first
    assert table.calibration["s"]["error"]["table"]["coverage"] == 0
    assert table.calibration["s"]["error"]["drifted"] == 10


def test_interval_networks_affect_only_interval(table: LatencyTable) -> None:
    wholes = _wholes(37)
    first = calibrate_table(table, wholes, COUNTS, "s")
    spoilt = _with(wholes, 8, 3 * wholes[8].timing.median_ms)  # the first after those that fit
    second = calibrate_table(table, spoilt, COUNTS, "s")
    assert second.scale == first.scale
    assert second.interval > 1 > first.interval
    third = calibrate_table(table, _with(wholes, 7, wholes[7].timing.median_ms * 1.1), COUNTS, "s")
    assert third.scale != first.scale


def test_table_keeps_networks_with_roles(table: LatencyTable) -> None:
    calibrate_table(table, _wholes(37, 5, space="other"), COUNTS, "other")
    for seed in range(2):  # the second profile replaces the first one
        wholes = _wholes(37, seed)
        calibration = calibrate_table(table, wholes, COUNTS, "s")
    loaded = load_table(table.path)
    assert [row["search_space"] for row in loaded.networks] == ["other"] * 37 + ["s"] * 37
    rows = loaded.networks[37:]
    assert [row["role"] for row in rows] == ["fit"] * 8 + ["interval"] * 19 + ["held_out"] * 10
    for row, whole in zip(rows, wholes, strict=True):
        assert row["id"] == whole.genotype.id
        assert json.loads(row["genotype"]) == whole.genotype.to_dict()
        assert float(row["measured_ms"]) == pytest.approx(whole.timing.median_ms)
        value, low, high = calibration.predict(whole.features)
        result = [float(row[f"predicted_ms{end}"]) for end in ("", "_low", "_high")]
        assert result == pytest.approx([value, low, high], rel=1e-6)
    assert set(loaded.calibration) == {"other", "s"}
    assert Calibration(**loaded.calibration["s"]["coefficients"]) == calibration
    # A profile of fewer networks: the others stay, without a role.
    calibrate_table(loaded, wholes[:32], NetworksConfig(fit=8, interval=19, held_out=10), "s")
    roles = [row["role"] for row in load_table(table.path).networks]
    assert roles == [
        *["fit"] * 8, *["interval"] * 19, *["held_out"] * 10,
        *[""] * 5, *["fit"] * 8, *["interval"] * 19, *["held_out"] * 5,
    ]  # fmt: skip


@pytest.mark.parametrize("counts", [(5, 19, 10), (6, 18, 10), (6, 19, 9)])
def test_too_few_networks_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"networks\.\w+ must be a whole number in"):
        NetworksConfig(*counts)
