import dataclasses
import math
from pathlib import Path

import pytest

from hwnas.core.errors import TableError
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs import table_cost
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.costs.table_cost import Calibration, TableCostModel, latency_features
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.hardware.profiling.passes import ProfiledSpace
from hwnas.models.graph import Signature
from hwnas.models.spaces import SearchSpace
from hwnas.nas import loop
from hwnas.nas.options import SamplerConfig
from hwnas.nas.study import LocalStudy
from hwnas.tasks.metrics.budget import Budget
from hwnas.testing import CostModelContract
from tests.hardware.profiling.fakes import CPU, Device, subject
from tests.nas.fakes import SizeAccuracy

COMMAND = "hwnas profile +target=fake search_space=tiny"
CALIBRATION = Calibration(1.1, 0.002, 0.0001, 0.2, 24, 59)


@pytest.fixture
def profiled(tiny: SearchSpace, task: Signature) -> ProfiledSpace:
    return subject(tiny, task)


@pytest.fixture
def table(profiled: ProfiledSpace) -> LatencyTable:
    result = Device().table(Path("t"), profiled.operators(0))
    result.calibration["tiny"] = {"coefficients": CALIBRATION.to_json()}
    return result


def _model(table: LatencyTable, profiled: ProfiledSpace, space: str = "tiny") -> TableCostModel:
    return TableCostModel(table, CPU, profiled.lower, [space], COMMAND)


class TestTable(CostModelContract):
    @pytest.fixture
    def cost_model(self, table: LatencyTable, profiled: ProfiledSpace) -> CostModel:
        return _model(table, profiled)

    @pytest.fixture
    def cost_space(self, tiny: SearchSpace) -> SearchSpace:
        return tiny


def test_latency_is_calibrated_sum_with_interval(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    genotype = profiled.space.largest()
    net = profiled.lower(genotype)
    known = latency_features(
        net, {op: entry.timing.median_ms for op, entry in table.entries.items()}
    )
    value = 1.1 * known.operators_ms + 0.002 * len(net) + 0.0001 * known.weights_kib
    figure = _model(table, profiled).cost(genotype).figures["latency_ms"]
    assert figure.source == "table"
    assert figure.value == pytest.approx(value)
    assert (figure.low, figure.high) == pytest.approx((0.8 * value, 1.2 * value))
    energy = _model(table, profiled).cost(genotype).figures["energy_mj"]
    assert energy.source == "modelled"
    above = math.hypot(math.log(6.0 / 2.0) / 2, math.log(1.2))  # 2 to 6 W
    assert energy.high == pytest.approx(value * math.sqrt(2.0 * 6.0) * math.exp(above))


def test_error_for_missing_operators_gives_command(
    table: LatencyTable, profiled: ProfiledSpace
) -> None:
    genotype = profiled.space.largest()
    net = profiled.lower(genotype)
    missing = [net[0].op, net[-1].op]
    for op in missing:
        del table.entries[op]
    with pytest.raises(TableError) as error:
        _model(table, profiled).cost(genotype)
    text = str(error.value)
    assert "The latency table of target 'fake' lacks 2 operators" in text
    assert all(str(op) in text for op in missing)
    assert f"Measure them with: {COMMAND}" in text


def test_rare_missing_operator_is_predicted(
    table: LatencyTable, profiled: ProfiledSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = profiled.lower(profiled.space.largest())
    before = _model(table, profiled).cost(profiled.space.largest()).figures["latency_ms"]
    del table.entries[net[-1].op]
    monkeypatch.setattr(table_cost, "_MAX_MISSING", 1 / len(net))
    figure = _model(table, profiled).cost(profiled.space.largest()).figures["latency_ms"]
    assert figure.source == "table"
    assert 0.3 < figure.value / before.value < 3


def test_all_spaces_must_be_calibrated(table: LatencyTable, profiled: ProfiledSpace) -> None:
    with pytest.raises(TableError, match="not calibrated for search space 'other'"):
        TableCostModel(table, CPU, profiled.lower, ["tiny", "other"], COMMAND)


def test_operator_of_another_batch_is_missing(
    table: LatencyTable, profiled: ProfiledSpace, task: Signature
) -> None:
    (space,) = profiled.space.members
    batched = subject(space, task, dataclasses.replace(CPU, batch=2))
    with pytest.raises(TableError, match="b2"):
        _model(table, batched).cost(profiled.space.smallest())


def test_uncalibrated_space_is_refused(table: LatencyTable, profiled: ProfiledSpace) -> None:
    with pytest.raises(TableError, match="not calibrated for search space 'mbconv_small'") as error:
        _model(table, profiled, "mbconv_small")
    assert COMMAND in str(error.value)


@pytest.mark.slow
def test_upper_end_of_interval_must_meet_budget(
    table: LatencyTable, profiled: ProfiledSpace, tmp_path: Path
) -> None:
    model, space = _model(table, profiled), profiled.space
    ends = [
        model.cost(genotype).figures["latency_ms"]
        for genotype in (space.smallest(), space.largest())
    ]
    limit = (ends[0].upper + ends[1].upper) / 2
    accuracy = SizeAccuracy()
    problem = loop.SearchProblem(space, Budget({"latency_ms": limit}), model, accuracy)
    study = LocalStudy(tmp_path / "s.db", space, ("accuracy", "latency_ms"))
    config = SamplerConfig("random")
    results = loop.run_trials(problem, study, config, 0, 120, NullProgress())
    study.close()
    latencies = {c.id: c.figures["latency_ms"] for c in results}
    between = {c for c, figure in latencies.items() if figure.value <= limit < figure.upper}
    assert between  # they meet the budget without their interval
    for candidate in results:
        fits = latencies[candidate.id].upper <= limit
        assert (candidate.state == "complete") is fits
        assert fits or "latency_ms" in candidate.reason
    assert not between & set(accuracy.requested)
