import dataclasses
import math

import pytest

from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.measured_cost import fused_graph, host_cost
from hwnas.hardware.meters.meter import MeasuredEnergy
from hwnas.hardware.target import PowerModel
from hwnas.models import families
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature, n_macs, n_params
from hwnas.models.spaces import SearchSpace
from hwnas.tasks import metrics
from tests.conftest import target
from tests.hardware.profiling.fakes import CPU

CONV = OpSpec("conv2d+bn", (8, 4, 4), (8, 4, 4), 3)
ADD = OpSpec("add", (8, 4, 4), (8, 4, 4))
RESIDUAL = (
    Node("a", CONV, (INPUT,)),
    Node("b", CONV, ("a",)),
    Node("sum", ADD, ("a", "b")),
)


@pytest.fixture
def largest(small: SearchSpace, task: Signature) -> Graph:
    return families.get(small.family).lower(small, small.largest(), task)


def test_float_graph_is_fused_with_dtype_and_batch() -> None:
    device = dataclasses.replace(CPU, batch=4)
    assert fused_graph(Graph.of(RESIDUAL), device).nodes == (
        Node("a", dataclasses.replace(CONV, dtype="float32", batch=4), (INPUT,)),
        Node(
            "b",
            dataclasses.replace(CONV, kind="conv2d+bn+add", dtype="float32", batch=4),
            ("a", "a"),
        ),
    )


def test_int8_sums_are_not_fused() -> None:
    device = dataclasses.replace(CPU, runtime="onnxruntime", dtype="int8", batch=2)
    results = fused_graph(Graph.of(RESIDUAL), device)
    assert [node.op.kind for node in results] == ["conv2d+bn", "conv2d+bn", "add"]
    assert {(node.op.dtype, node.op.batch) for node in results} == {("int8", 2)}
    assert [node.inputs for node in results] == [node.inputs for node in RESIDUAL]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_modelled_dtypes_are_fused(dtype: str) -> None:
    results = fused_graph(Graph.of(RESIDUAL), dataclasses.replace(target("sketch"), dtype=dtype))
    assert [(node.op.kind, node.op.dtype) for node in results] == [
        ("conv2d+bn", dtype),
        ("conv2d+bn+add", dtype),
    ]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_work_is_independent_of_dtype(largest: Graph, dtype: str) -> None:
    device = dataclasses.replace(CPU, runtime="onnxruntime", dtype=dtype)
    result = fused_graph(largest, device)
    assert n_macs(result) == n_macs(largest)
    assert n_params(result) == n_params(largest)
    cost = host_cost(result, device, Quantity(1.0, "table"))
    assert cost.figures["macs_m"].value == pytest.approx(n_macs(largest) / 1e6)


def test_energy_interval_combines_power_and_latency() -> None:
    device = dataclasses.replace(CPU, threads=3)
    net = fused_graph(Graph.of(RESIDUAL), device)
    cost = host_cost(net, device, Quantity(10.0, "measured", 9.0, 12.0))
    assert set(cost.figures) == set(metrics.BASE_COSTS)
    energy = cost.figures["energy_mj"]
    power_w = math.sqrt(6.0 * 18.0)  # 2 to 6 W a thread
    below, above = (math.hypot(math.log(3) / 2, math.log(ratio)) for ratio in (10 / 9, 12 / 10))
    assert energy.source == "modelled"
    assert energy.value == pytest.approx(10 * power_w)
    assert energy.low == pytest.approx(10 * power_w * math.exp(-below))
    assert energy.high == pytest.approx(10 * power_w * math.exp(above))
    assert cost.details == {"power_active_w": pytest.approx(power_w)}
    assert cost.figures["latency_ms"] == Quantity(10.0, "measured", 9.0, 12.0)
    plain = host_cost(net, device, Quantity(10.0, "measured")).figures["energy_mj"]
    assert (plain.low, plain.high) == pytest.approx((60.0, 180.0))


def test_power_per_device_is_independent_of_threads() -> None:
    power = PowerModel(2.0, 6.0, "made up", per_device=True)
    device = dataclasses.replace(CPU, threads=3, power=power)
    cost = host_cost(fused_graph(Graph.of(RESIDUAL), device), device, Quantity(10.0, "measured"))
    assert cost.details == {"power_active_w": pytest.approx(math.sqrt(2.0 * 6.0))}


def test_measured_energy_replaces_modelled() -> None:
    metered = MeasuredEnergy(Quantity(7.0, "measured", 6.5, 7.5), 20.0, 0.1, 27.0, 6, "RAPL")
    cost = host_cost(Graph.of(RESIDUAL), CPU, Quantity(1.0, "measured"), metered)
    assert cost.figures["energy_mj"] == Quantity(7.0, "measured", 6.5, 7.5)
    assert cost.details == {"power_active_w": 7.0, "power_idle_w": 20.0}


def test_memory_depends_on_dtype(largest: Graph) -> None:
    kib = {}
    for dtype in ("float32", "int8"):
        device = dataclasses.replace(CPU, runtime="onnxruntime", dtype=dtype)
        figures = host_cost(fused_graph(largest, device), device, Quantity(1.0, "table")).figures
        kib[dtype] = {name: figures[name] for name in ("sram_kib", "flash_kib")}
        assert {figure.source for figure in kib[dtype].values()} == {"modelled"}
    assert kib["float32"]["sram_kib"].value == 4 * kib["int8"]["sram_kib"].value
    assert 3 < kib["float32"]["flash_kib"].value / kib["int8"]["flash_kib"].value < 4  # scales
