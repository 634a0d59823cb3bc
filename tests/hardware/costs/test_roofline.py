import dataclasses
import math
import random
from typing import Any

import pytest

from hwnas.core.agreement import agreement
from hwnas.core.errors import ConfigError
from hwnas.hardware.backends.vela.compiler import VelaCostModel
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.roofline_cost import (
    OperatorTime,
    RooflineCostModel,
    network_cost,
    operator_bound,
)
from hwnas.hardware.target import PowerModel, Roofline, Target
from hwnas.models import families
from hwnas.models.graph import Graph, OpSpec, Signature, fuse
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.testing import CostModelContract
from tests.conftest import TVM, target

ETHOS = ("npu", "ethos_u55_256", "ethos_u65_256", "ethos_u85_256")

ROOFLINE = Roofline(
    peak_gmacs={"int8": 100, "float32": 25},
    on_chip_gbps=10,
    off_chip_gbps=1,
    on_chip_kib=64,
    tile=[4, 8, 16],
    depthwise=0.25,
    launch_us=0.5,
)

CPU = Target(
    name="cpu",
    description="A CPU that does not exist",
    caveat="modelled",
    source="made up",
    runtime="tvm",
    dtype="float32",
    threads=2,
    **TVM,
    roofline=dataclasses.replace(ROOFLINE, weights_stay=True, on_chip_kib=2048),
    power=PowerModel(1.0, 3.0, "made up"),
)


def _model(device: Target, space: SearchSpace, task: Signature) -> RooflineCostModel:
    def lower(genotype: Genotype) -> Graph:
        lowered = families.get(space.family).lower(space, genotype, task)
        return fuse(lowered, device.dtype, device.batch) if device.runtime == "tvm" else lowered

    return RooflineCostModel(device, lower)


class TestRoofline(CostModelContract):
    @pytest.fixture(params=(*ETHOS, "sketch", "cpu"))
    def cost_model(
        self, request: pytest.FixtureRequest, cost_space: SearchSpace, task: Signature
    ) -> CostModel:
        device = CPU if request.param == "cpu" else target(request.param)
        return _model(device, cost_space, task)

    @pytest.fixture
    def cost_space(self, small: SearchSpace) -> SearchSpace:
        return small


def test_pointwise_convolution_is_compute_bound() -> None:
    bound = operator_bound(OpSpec("conv2d+bn", (64, 16, 16), (128, 16, 16)), ROOFLINE)
    assert bound.compute_ms == pytest.approx(64 * 128 * 256 / 100e9 * 1e3)
    assert bound.on_chip_ms == pytest.approx((64 + 128) * 256 / 10e9 * 1e3)
    assert bound.off_chip_ms == pytest.approx((64 * 128 + 8 * 128) / 1e9 * 1e3)  # weights, biases
    assert bound.launch_ms == pytest.approx(0.5e-3)
    assert bound.limit == "compute"
    assert bound.latency_ms == pytest.approx(bound.compute_ms + 0.5e-3)


def test_large_depthwise_convolution_is_memory_bound() -> None:
    spec = OpSpec("conv2d+bn+relu6", (64, 32, 32), (64, 32, 32), kernel=3, groups=64)
    bound = operator_bound(spec, ROOFLINE)
    activations, weights = 2 * 64 * 1024, 64 * 9 + 64 * 8
    assert bound.compute_ms == pytest.approx(64 * 9 * 1024 / 25e9 * 1e3)  # a quarter of the peak
    assert bound.on_chip_ms == pytest.approx(activations / 10e9 * 1e3)
    assert bound.off_chip_ms == pytest.approx((activations + weights) / 1e9 * 1e3)
    assert bound.limit == "memory"
    roomy = dataclasses.replace(ROOFLINE, on_chip_kib=128)
    assert operator_bound(spec, roomy).off_chip_ms == pytest.approx(weights / 1e9 * 1e3)
    assert operator_bound(spec, roomy).limit == "compute"


def test_tiny_operator_is_launch_bound() -> None:
    bound = operator_bound(OpSpec("linear", (16, 1, 1), (10, 1, 1)), ROOFLINE)
    assert bound.compute_ms == pytest.approx(4 * 16 * 16 / 100e9 * 1e3)  # a tile is 4 x 8 x 16
    assert bound.off_chip_ms == pytest.approx((160 + 80) / 1e9 * 1e3)
    assert bound.limit == "launch"
    assert bound.latency_ms == pytest.approx(0.5e-3 + 240e-6)


def test_partial_tiles_take_time_of_full_tiles() -> None:
    def compute_ms(c_in: int, c_out: int, side: int, **more: Any) -> float:
        spec = OpSpec("conv2d+bn", (c_in, side, side), (c_out, side, side), kernel=3, **more)
        return operator_bound(spec, ROOFLINE).compute_ms

    assert compute_ms(20, 20, 4) == compute_ms(32, 24, 4) > compute_ms(16, 16, 4)
    assert compute_ms(16, 16, 3) == 3 * compute_ms(16, 16, 2)  # 9 pixels take 12
    assert compute_ms(16, 16, 3, batch=4) == 9 * compute_ms(16, 16, 2)  # 36 are 9 tiles
    assert compute_ms(20, 20, 4, groups=20) == compute_ms(24, 24, 4, groups=24)
    assert compute_ms(32, 32, 4, groups=2) == compute_ms(32, 32, 4) / 2
    assert compute_ms(16, 16, 4, dtype="float32") == 4 * compute_ms(16, 16, 4)


def test_elementwise_operators_are_limited_by_element_rate() -> None:
    scaling = dataclasses.replace(ROOFLINE, element_gops=2.0)

    def compute_ms(kind: str, out: tuple[int, int, int] = (8, 4, 4), **more: Any) -> float:
        return operator_bound(OpSpec(kind, (8, 4, 4), out, **more), scaling).compute_ms

    def elements(n: int) -> Any:
        return pytest.approx(n / 2e9 * 1e3)

    assert operator_bound(OpSpec("add", (8, 4, 4), (8, 4, 4)), ROOFLINE).compute_ms == 0
    assert compute_ms("add") == elements(3 * 128)
    assert compute_ms("add", batch=2) == elements(2 * 3 * 128)
    assert compute_ms("mul") == elements(2 * 128 + 8)
    assert compute_ms("mean", (8, 1, 1)) == elements(128 + 8)
    assert compute_ms("max_pool2d", (8, 2, 2), kernel=2, stride=2) == elements(4 * 32)
    assert compute_ms("conv2d+bn+relu6") == elements(128)
    assert compute_ms("conv2d+bn+add+relu6") == elements(2 * 128)


def test_attention_is_two_products_per_head() -> None:
    spec = OpSpec("attention", (3 * 32, 16, 1), (32, 16, 1), groups=2)
    tile = operator_bound(spec, dataclasses.replace(ROOFLINE, tile=[1, 1, 1])).compute_ms
    assert tile == pytest.approx(spec.n_macs / 100e9 * 1e3)
    assert operator_bound(spec, ROOFLINE).compute_ms == pytest.approx(tile)  # 16 fills all tiles
    scaling = dataclasses.replace(ROOFLINE, element_gops=0.1)
    softmax = operator_bound(spec, scaling).compute_ms
    assert softmax == pytest.approx((2 * 16 * 16 + 32 * 16) / 0.1e9 * 1e3)


def _random_op(rng: random.Random) -> OpSpec:
    side, c_in = rng.randint(1, 40), rng.randint(1, 200)
    depthwise = rng.random() < 0.4
    return OpSpec(
        "conv2d+bn+relu6",
        (c_in, side, side),
        (c_in if depthwise else rng.randint(1, 200), side, side),
        kernel=rng.choice((1, 3, 5, 7)),
        groups=c_in if depthwise else 1,
        batch=rng.randint(1, 4),
    )


def _random_roofline(rng: random.Random) -> Roofline:
    return Roofline(
        peak_gmacs={"int8": rng.uniform(1, 1000)},
        on_chip_gbps=rng.uniform(1, 100),
        off_chip_gbps=rng.uniform(0.1, 10),
        on_chip_kib=rng.uniform(8, 1024),
        tile=[rng.choice((1, 4, 16)), rng.choice((1, 8)), rng.choice((1, 32))],
        depthwise=rng.uniform(0.05, 1),
        element_gops=rng.choice((None, rng.uniform(0.5, 50))),
        launch_us=rng.uniform(0, 5),
    )


def _larger(op: OpSpec, rng: random.Random) -> OpSpec:
    (c_in, side, _), c_out = op.in_shape, op.out_shape[0]
    side += rng.randint(0, 5)
    more = rng.randint(0, 30)
    if op.groups > 1:
        shape = (c_in + more, side, side)
        return dataclasses.replace(op, in_shape=shape, out_shape=shape, groups=c_in + more)
    wide, out = (c_in + more, side, side), (c_out + more, side, side)
    return dataclasses.replace(op, in_shape=wide, out_shape=out, batch=op.batch + rng.randint(0, 2))


def test_more_work_never_takes_less_time() -> None:
    rng = random.Random(0)
    for _ in range(500):
        op, roofline = _random_op(rng), _random_roofline(rng)
        small, large = operator_bound(op, roofline), operator_bound(_larger(op, rng), roofline)
        for name in ("compute_ms", "on_chip_ms", "off_chip_ms", "latency_ms"):
            assert getattr(large, name) >= getattr(small, name), (op, roofline, name)


def test_faster_hardware_never_takes_more_time() -> None:
    rng = random.Random(1)
    for _ in range(500):
        op, slow = _random_op(rng), _random_roofline(rng)
        factor = rng.uniform(1, 3)
        faster: dict[str, Any] = {
            "peak_gmacs": {"int8": slow.peak_gmacs["int8"] * factor},
            "on_chip_gbps": slow.on_chip_gbps * factor,
            "off_chip_gbps": slow.off_chip_gbps * factor,
            "on_chip_kib": slow.on_chip_kib * factor,
            "depthwise": min(1.0, slow.depthwise * factor),
            "launch_us": slow.launch_us / factor,
            "element_gops": None,
        }
        before = operator_bound(op, slow).latency_ms
        for name, value in faster.items():
            fast = dataclasses.replace(slow, **{name: value})
            assert operator_bound(op, fast).latency_ms <= before, (op, slow, name)


def test_bound_is_the_longest_component() -> None:
    assert OperatorTime(2.0, 1.0, 1.5, 1.0).limit == "compute"
    assert OperatorTime(1.0, 2.0, 1.5, 1.0).limit == "memory"
    assert OperatorTime(1.0, 1.5, 2.0, 1.0).latency_ms == 3.0
    assert OperatorTime(1.0, 1.0, 1.0, 1.0).limit == "launch"


def test_layers_sum_up_and_have_bounds(small: SearchSpace, task: Signature, npu: Target) -> None:
    genotype = small.sample(random.Random(2))
    cost = _model(npu, small, task).cost(genotype)
    lowered = families.get(small.family).lower(small, genotype, task)
    assert [layer.name for layer in cost.layers] == [node.name for node in lowered]
    assert sum(layer.macs for layer in cost.layers) == cost.figures["macs_m"].value * 1e6
    latency = cost.figures["latency_ms"].value
    assert sum(layer.latency_ms or 0 for layer in cost.layers) == pytest.approx(latency)
    assert sum(layer.cycles for layer in cost.layers) == pytest.approx(latency * 500e3)
    assert {layer.bound for layer in cost.layers} == {"compute", "memory", "launch"}
    by_bound = [cost.details[f"{limit}_bound_ms"] for limit in ("compute", "memory", "launch")]
    assert sum(by_bound) == pytest.approx(latency)


def test_cached_weights_are_not_read_again(small: SearchSpace, task: Signature) -> None:
    assert CPU.roofline is not None
    stays = _model(CPU, small, task).cost(small.largest())
    uncached = dataclasses.replace(CPU.roofline, weights_stay=False)
    tight = dataclasses.replace(CPU.roofline, on_chip_kib=512)
    for roofline in (uncached, tight):
        device = dataclasses.replace(CPU, roofline=roofline)
        cost = _model(device, small, task).cost(small.largest())
        assert cost.figures["latency_ms"].value > stays.figures["latency_ms"].value


def test_energy_without_model_is_power_times_latency(small: SearchSpace, task: Signature) -> None:
    figures = _model(CPU, small, task).cost(small.largest()).figures
    latency, energy = figures["latency_ms"].value, figures["energy_mj"]
    assert energy.value == pytest.approx(2 * math.sqrt(3.0) * latency)  # 2 threads of 1 to 3 W
    assert energy.low == pytest.approx(2 * 1.0 * latency)
    assert energy.high == pytest.approx(2 * 3.0 * latency)


def test_throughput_uses_batch_of_network(small: SearchSpace, task: Signature) -> None:
    family, assumed = families.get(small.family), CPU.roofline
    assert assumed is not None
    plain = family.lower(small, small.smallest(), task)
    graph = fused_graph(dataclasses.replace(plain, batch=8), CPU)
    figures = network_cost(graph, CPU, assumed).figures
    assert figures["throughput_ips"].value == pytest.approx(8e3 / figures["latency_ms"].value)
    assert "throughput_ips" not in network_cost(fused_graph(plain, CPU), CPU, assumed).figures


def test_incomplete_target_is_refused(small: SearchSpace, task: Signature, npu: Target) -> None:
    with pytest.raises(ConfigError, match=r"'npu' has no target\.roofline"):
        _model(dataclasses.replace(npu, roofline=None), small, task)
    powerless = dataclasses.replace(CPU)
    powerless.power = None
    with pytest.raises(ConfigError, match=r"neither target\.energy .* nor target\.power"):
        _model(powerless, small, task).cost(small.smallest())
    with pytest.raises(ConfigError, match="no rate of float16, only of float32, int8"):
        operator_bound(OpSpec("add", (8, 4, 4), (8, 4, 4), dtype="float16"), ROOFLINE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak_gmacs": {}}, "peak_gmacs is empty"),
        ({"off_chip_gbps": 0}, "off_chip_gbps must be a number in"),
        ({"element_gops": 0.0}, "element_gops must be a number in"),
        ({"depthwise": 1.5}, r"depthwise must be a number in \(0, 1\]"),
        ({"tile": [4, 8]}, "three numbers"),
        ({"tile": [4, 8, 0]}, "tile must be whole numbers, each in"),
    ],
)
def test_invalid_rooflines_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(ROOFLINE, **change)


@pytest.mark.slow
@pytest.mark.parametrize("name", ETHOS)
def test_latencies_are_close_to_vela(name: str, small: SearchSpace, task: Signature) -> None:
    device, rng = target(name), random.Random(7)
    genotypes = [small.sample(rng) for _ in range(10)]
    roofline = _model(device, small, task)
    vela = VelaCostModel(
        device, lambda genotype: families.get(small.family).lower(small, genotype, task)
    )
    latencies = [
        [model.cost(genotype).figures["latency_ms"].value for genotype in genotypes]
        for model in (roofline, vela)
    ]
    result = agreement(*latencies)
    assert result["spearman"] > 0.9
    assert result["mape"] < 0.08


def test_roofline_of_another_clock_is_refused(small: SearchSpace, task: Signature) -> None:
    npu, sketch = target("npu"), target("sketch")
    for device in (npu, sketch, CPU):
        assert _model(device, small, task)
    with pytest.raises(ConfigError, match=r"clock_mhz=250 are 32 billion .*peak_gmacs is 64"):
        _model(dataclasses.replace(npu, clock_mhz=250), small, task)
    with pytest.raises(ConfigError, match=r"peak_macs_per_cycle=512 at target\.clock_mhz=1000"):
        _model(dataclasses.replace(sketch, peak_macs_per_cycle=512), small, task)
