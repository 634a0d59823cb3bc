import dataclasses
import inspect
import random
import re
import sys
import threading
import time
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends import base
from hwnas.hardware.backends.vela import VelaSettings, check_system, check_tools, compiler
from hwnas.hardware.backends.vela.compiler import VelaCostModel, check_target, compile_tflite
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.target import Target
from hwnas.models import families
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import SearchSpace
from hwnas.testing import CostModelContract
from tests.conftest import target, with_settings


@pytest.fixture(autouse=True)
def _without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "estimate", inspect.unwrap(compiler.estimate))


TARGETS = ("npu", "ethos_u55_256", "ethos_u65_256", "ethos_u85_256")


class TestVela(CostModelContract):
    @pytest.fixture(params=TARGETS)
    def cost_model(
        self, request: pytest.FixtureRequest, cost_space: SearchSpace, task: Signature
    ) -> CostModel:
        family = families.get(cost_space.family)
        return VelaCostModel(
            target(request.param), lambda genotype: family.lower(cost_space, genotype, task)
        )

    @pytest.fixture
    def cost_space(self, small: SearchSpace) -> SearchSpace:
        return small


def test_cycles_of_layers_sum_up_to_latency(
    small: SearchSpace, task: Signature, npu: Target
) -> None:
    lowered = families.get("mbconv").lower(small, small.sample(random.Random(0)), task)
    cost = compile_tflite(write_tflite(random_int8_network(lowered)), lowered, npu).cost
    cycles = sum(layer.cycles for layer in cost.layers)
    assert cycles == cost.details["cycles"]
    assert npu.clock_mhz is not None
    milliseconds = cycles / (npu.clock_mhz * 1e3)
    assert cost.figures["latency_ms"].value == pytest.approx(milliseconds, rel=1e-6)
    assert 0 < cost.details["mac_utilisation"] <= 1


def test_energy_is_sum_of_components(small: SearchSpace, task: Signature, npu: Target) -> None:
    lowered = families.get("mbconv").lower(small, small.largest(), task)
    cost = compile_tflite(write_tflite(random_int8_network(lowered)), lowered, npu).cost
    components = [v for name, v in cost.details.items() if name.startswith("energy_")]
    energy = cost.figures["energy_mj"]
    assert len(components) == 3
    assert sum(components) == pytest.approx(energy.value)
    assert energy.source == "modelled"


def test_cycles_follow_blocks_of_npu(task: Signature, npu: Target) -> None:
    """Channels are computed in blocks of 8: 20 cost as much as 24, 17 far more than 16."""
    cycles = {}
    for width in (16, 17, 20, 24):
        spec = OpSpec("conv2d+bn+relu6", (16, 16, 16), (width, 16, 16), kernel=3)
        node = Node("conv", spec, (INPUT,))
        cost = compile_tflite(
            write_tflite(random_int8_network(Graph.of((node,)))), Graph.of((node,)), npu
        ).cost
        cycles[width] = cost.details["cycles"]
    assert cycles[20] > 0.95 * cycles[24]
    assert cycles[17] > 1.1 * cycles[16]


def test_fallback_to_cpu_is_the_reason(npu: Target, capfd: pytest.CaptureFixture[str]) -> None:
    conv = OpSpec("conv2d+bn+relu6", (16, 8, 8), (16, 8, 8), kernel=3)
    add = OpSpec("add", (16, 8, 8), (16, 8, 8))
    lowered = (Node("conv", conv, (INPUT,)), Node("sum", add, ("conv", "conv")))
    tflite = _with_floor_division_for_addition(write_tflite(random_int8_network(Graph.of(lowered))))
    cost = compile_tflite(tflite, Graph.of(lowered), npu).cost
    assert cost.reason == "1 operators fall back to the CPU: FloorDiv (sum)"
    capfd.readouterr()


def _with_floor_division_for_addition(tflite: bytes) -> bytes:
    """Return the network with an operator that no Ethos-U supports."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    for code in model.operatorCodes:
        if code.builtinCode == schema.BuiltinOperator.ADD:
            code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FLOOR_DIV
    for operator in model.subgraphs[0].operators:
        if operator.builtinOptionsType == schema.BuiltinOptions.AddOptions:
            operator.builtinOptionsType, operator.builtinOptions = 0, None
    return _packed(model)


def _packed(model: schema.ModelT) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def test_crash_of_vela_in_process_is_a_compile_error(npu: Target) -> None:
    conv = OpSpec("conv2d+bn+relu6", (16, 8, 8), (16, 8, 8), kernel=3)
    lowered = Graph.of((Node("conv", conv, (INPUT,)),))
    model = schema.ModelT.InitFromObj(
        schema.Model.GetRootAs(write_tflite(random_int8_network(lowered)), 0)
    )
    (weights,) = (t for t in model.subgraphs[0].tensors if list(t.shape) == [16, 3, 3, 16])
    weights.type = schema.TensorType.INT4
    with pytest.raises(CompileError, match=r"ended by the signal SIG[A-Z]+"):
        compile_tflite(_packed(model), lowered, npu, limit_s=60)


def test_compilation_in_separate_process_is_equal(
    small: SearchSpace, task: Signature, npu: Target
) -> None:
    lowered = families.get("mbconv").lower(small, small.smallest(), task)
    tflite = write_tflite(random_int8_network(lowered))
    here, apart = (compile_tflite(tflite, lowered, npu, limit_s) for limit_s in (None, 60))
    assert here == apart
    with pytest.raises(CompileError, match=r"not finished after 0\.01 s"):
        compile_tflite(tflite, lowered, npu, 0.01)
    with pytest.raises(CompileError, match="Vela cannot compile the network: "):
        compile_tflite(b"not a flatbuffer", lowered, npu, 60)


def test_unsupported_operator_is_a_compile_error(npu: Target) -> None:
    spec = OpSpec("conv2d+bn+relu6", (8, 40, 40), (8, 10, 10), kernel=3, stride=4)  # stride > 3
    lowered = (Node("wide", spec, (INPUT,)),)
    with pytest.raises(CompileError, match=r"Vela cannot compile the network: .*Conv2D"):
        compile_tflite(write_tflite(random_int8_network(Graph.of(lowered))), Graph.of(lowered), npu)


def test_invalid_file_is_a_compile_error(npu: Target, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError, match="Vela cannot compile the network"):
        compile_tflite(b"not a flatbuffer", Graph((), ()), npu)
    assert capfd.readouterr().out == ""


def test_unknown_accelerator_is_a_compile_error(
    small: SearchSpace, task: Signature, npu: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    lowered = families.get("mbconv").lower(small, small.smallest(), task)
    settings = dataclasses.replace(npu.section(VelaSettings), accelerator="ethos-u1")
    broken = with_settings(npu, settings)
    with pytest.raises(CompileError, match="ethos-u1"):
        compile_tflite(write_tflite(random_int8_network(lowered)), lowered, broken)
    capfd.readouterr()


@pytest.mark.parametrize("series", ["ethos-u55", "ethos-u65", "ethos-u85"])
def test_error_for_weights_outside_flash_gives_remedy(npu: Target, series: str) -> None:
    npu = dataclasses.replace(npu, peak_macs_per_cycle=256)
    usual = dataclasses.replace(
        npu.section(VelaSettings),
        accelerator=f"{series}-256",
        system_config=compiler._WITH_FLASH[series],
    )
    settings = dataclasses.replace(usual, memory_mode="Sram_Only")
    message = "'Sram_Only', Vela keeps weights in On-chip Flash; .*_config={} .*_mode=Shared_Sram"
    with pytest.raises(ConfigError, match=message.format(usual.system_config)):
        check_target(with_settings(npu, settings))
    check_target(with_settings(npu, dataclasses.replace(settings, memory_mode="Shared_Sram")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator": "ethos-u1"}, "target.vela: .*invalid choice: 'ethos-u1'"),
        (
            {"accelerator": "ethos-u55-256"},
            "256 MACs a cycle, but .* is 128. Set target.peak_macs_per_cycle=256",
        ),
        ({"system_config": "Fast"}, "target.vela: .*--system-config=Fast"),
        ({"memory_mode": "Shared"}, "target.vela: .*--memory-mode=Shared"),
        ({"config": "none.ini"}, "target.vela: .*'none.ini'"),
    ],
)
def test_invalid_vela_settings_are_refused(
    npu: Target, options: dict[str, str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = dataclasses.replace(npu.section(VelaSettings), **options)
    with pytest.raises(ConfigError, match=message):
        base.backend_of(with_settings(npu, settings))
    assert capfd.readouterr().out == ""


def _with_own_system(base: Target, file: Path, text: str, name: str) -> Target:
    file.write_text(text)
    settings = base.section(VelaSettings)
    vela_settings = dataclasses.replace(settings, config=str(file), system_config=name)
    return with_settings(dataclasses.replace(base, clock_mhz=400), vela_settings)


def test_own_system_inherits_from_a_shipped_one(
    small: SearchSpace, task: Signature, npu: Target, tmp_path: Path
) -> None:
    lowered = families.get("mbconv").lower(small, small.largest(), task)
    with pytest.raises(ConfigError, match=r"own-board\.md") as error:
        check_target(dataclasses.replace(npu, clock_mhz=400))
    text = "\n".join(re.findall("'([^']+)'", str(error.value).partition("three lines")[2]))
    name = str(error.value).partition("vela.system_config=")[2].partition(". ")[0]
    custom = _with_own_system(npu, tmp_path / "my.ini", text, name)
    check_tools(custom, None)
    check_target(custom)
    cycles, slower = (compiler.estimate(lowered, t).details["cycles"] for t in (npu, custom))
    assert slower == cycles  # bandwidths are fractions of the clock


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [("ethos-u55-128", "My_Board"), ("ethos-u65-256", "Ethos_U55_High_End_Embedded")],
)
def test_system_with_the_bus_of_another_series_is_refused(
    npu: Target, accelerator: str, name: str
) -> None:
    settings = npu.section(VelaSettings)
    settings = dataclasses.replace(settings, system_config=name, accelerator=accelerator)
    with pytest.raises(ConfigError, match=f"system_config={name} does not suit .*={accelerator}"):
        check_system(with_settings(npu, settings), 500)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# my board\n[System_Config.Ethos_U55_M]\n", "# my board"),
        ("[System_Config.Ethos_U55_M]\ncore_clock=4e8\n; x\n\ninherit = Y\n", "inherit = Y"),
    ],
)
def test_lines_that_vela_misreads_are_refused(
    npu: Target, tmp_path: Path, text: str, line: str
) -> None:
    custom = _with_own_system(npu, tmp_path / "my.ini", text, "Ethos_U55_M")
    with pytest.raises(ConfigError, match=f"misreads the line '{line}'"):
        check_tools(custom, None)


@pytest.mark.parametrize("name", TARGETS)
def test_facts_of_shipped_targets_match_accelerator(name: str) -> None:
    base.backend_of(target(name))


def test_random_weights_compress_like_real_weights(
    small: SearchSpace, task: Signature, npu: Target
) -> None:
    lowered = families.get("mbconv").lower(small, small.largest(), task)
    network = random_int8_network(lowered)
    flash = compile_tflite(write_tflite(network), lowered, npu).cost.figures["flash_kib"].value
    n_weights = sum(op.weights.weight.size for op in network.ops if op.weights is not None)
    assert 0.8 < flash * 1024 / n_weights < 1.3
    assert np.unique(network.ops[0].weights.weight).size > 20  # type: ignore[union-attr]


def test_vela_runs_are_serialised_and_output_separated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], npu: Target
) -> None:
    def process(arch: None, network: str, *others: None) -> None:
        if not alone.acquire(blocking=False):
            return
        print("Error:", network)
        beside = threading.Thread(target=print, args=("beside",))
        beside.start()
        beside.join()
        time.sleep(0.05)
        alone.release()
        raise ValueError

    def refused(name: str) -> None:
        with pytest.raises(CompileError, match=rf"Error: {name}\. Choose"):
            compiler._run_vela(Path(name), npu.section(VelaSettings))

    alone, stdout = threading.Lock(), sys.stdout
    monkeypatch.setattr(compiler, "_compiler_arguments", lambda *_: (None,) * 12)
    monkeypatch.setattr("ethosu.vela.vela.process_regor", process)
    threads = [threading.Thread(target=refused, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is stdout
    assert capsys.readouterr().out == "beside\nbeside\n"
