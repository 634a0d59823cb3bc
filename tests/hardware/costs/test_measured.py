import math
from collections.abc import Mapping
from typing import cast

import pytest

from hwnas.core.errors import CompileError, DeviceError
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.costs.measured_cost import MeasuredCostModel
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.hardware.timing import Timing
from hwnas.models.graph import Graph, OpSpec, Signature
from hwnas.models.spaces import SearchSpace
from hwnas.testing import CostModelContract
from tests.hardware.profiling.fakes import CPU, Device, FakeWorker, subject, timing


def _plan(op: OpSpec) -> str:
    return f"for {op.kind}"


def _model(worker: object, space: SearchSpace, task: Signature) -> MeasuredCostModel:
    return MeasuredCostModel(cast(RetryingPool, worker), CPU, subject(space, task).lower, _plan)


class TestMeasured(CostModelContract):
    @pytest.fixture
    def cost_model(self, tiny: SearchSpace, task: Signature) -> CostModel:
        return _model(FakeWorker(Device(operator_ms=0.1)), tiny, task)

    @pytest.fixture
    def cost_space(self, tiny: SearchSpace) -> SearchSpace:
        return tiny


def test_whole_network_is_timed_with_plans_of_operators(tiny: SearchSpace, task: Signature) -> None:
    worker, genotype = FakeWorker(), tiny.largest()
    net = subject(tiny, task).lower(genotype)
    worker.script[net] = [Timing(3.0, 2.9, 3.2, 5, True)]
    cost = _model(worker, tiny, task).cost(genotype)
    latency = cost.figures["latency_ms"]
    assert (latency.value, latency.low, latency.high) == (3.0, 2.9, 3.2)
    assert latency.source == "measured"
    assert cost.details["latency_drifted"] == 1.0
    assert cost.figures["energy_mj"].source == "modelled"
    assert cost.figures["energy_mj"].value == pytest.approx(3.0 * math.sqrt(2.0 * 6.0))
    assert worker.networks == [(net, {node.op: f"for {node.op.kind}" for node in net})]
    worker.script[net] = [timing(3.0)]
    assert _model(worker, tiny, task).cost(genotype).details["latency_drifted"] == 0.0


@pytest.mark.parametrize("error", [CompileError("it died of SIGSEGV"), DeviceError("gone")])
def test_errors_of_device_are_raised(tiny: SearchSpace, task: Signature, error: Exception) -> None:
    class Failing:
        def time_network(self, lowered: Graph, plans: Mapping[OpSpec, str]) -> Timing:
            raise error

    with pytest.raises(type(error), match=str(error)):
        _model(Failing(), tiny, task).cost(tiny.smallest())


def test_operator_without_plan_refuses_candidate(tiny: SearchSpace, task: Signature) -> None:
    def refuse(op: OpSpec) -> str:
        raise CompileError(f"no plan for {op}")

    worker = FakeWorker()
    lower = subject(tiny, task).lower
    model = MeasuredCostModel(cast(RetryingPool, worker), CPU, lower, refuse)
    with pytest.raises(CompileError, match="no plan for conv2d"):
        model.cost(tiny.smallest())
    assert worker.networks == []
