"""Execution providers of onnxruntime, compared with the CPU provider."""

import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from hwnas.core.errors import CompileError, ConfigError, TableError
from hwnas.export.standalone import runners
from hwnas.hardware import backends
from hwnas.hardware.backends import base
from hwnas.hardware.backends.measured_backend import (
    empty_network,
    isolated_operator,
    subtract_timing,
    with_and_without_operator,
)
from hwnas.hardware.backends.onnx_files import random_model
from hwnas.hardware.backends.onnxruntime import OnnxRuntimeSettings, provider
from hwnas.hardware.backends.onnxruntime.engine import OrtEngine, open_engine
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.latency_tables.latency_table import LatencyTable, OperatorEntry, table_name
from hwnas.hardware.latency_tables.provenance import differences, open_table
from hwnas.hardware.latency_tables.provenance import provenance_facts as provenance
from hwnas.hardware.target import Remote, Target, facts, from_facts
from hwnas.hardware.timing import Timing, TimingConfig
from hwnas.models.graph import Graph, OpSpec
from hwnas.tasks.classification import ClassificationTask
from tests.conftest import target, with_settings
from tests.hardware.backends.test_openvino import OPS

CPU = replace(target("cpu"), runtime="onnxruntime")
AZURE = with_settings(
    CPU, OnnxRuntimeSettings("azure")
)  # calls web services: it runs no operator of hwnas
LISTED = onnxruntime.get_available_providers()
QUICK = TimingConfig(repeats=3, min_repeat_ms=0.1)
CONV = Graph.of(isolated_operator(OPS[0]))

needs_azure = pytest.mark.skipif(
    "AzureExecutionProvider" not in LISTED, reason="this onnxruntime lists no azure"
)


def _needs(name: str) -> Any:
    """Return the settings of a provider, skipped if onnxruntime does not have it."""
    chosen = OnnxRuntimeSettings(name)
    reason = f"not run: the installed onnxruntime lists no {chosen.name}"
    return pytest.param(chosen, marks=pytest.mark.skipif(chosen.name not in LISTED, reason=reason))


@pytest.mark.parametrize(
    ("given", "short", "name"),
    [
        ("cpu", "cpu", "CPUExecutionProvider"),
        ("CUDAExecutionProvider", "cuda", "CUDAExecutionProvider"),
        ("TensorRT", "tensorrt", "TensorrtExecutionProvider"),
        ("OtherExecutionProvider", "OtherExecutionProvider", "OtherExecutionProvider"),
    ],
)
def test_providers_have_short_and_full_names(given: str, short: str, name: str) -> None:
    assert (OnnxRuntimeSettings(given).provider, OnnxRuntimeSettings(given).name) == (short, name)


@pytest.mark.parametrize("given", ["", "a/b", "../x", "c" * 100])
def test_invalid_provider_name_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"target.onnxruntime.provider must be the name"):
        OnnxRuntimeSettings(given)


def test_options_of_cpu_provider_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the provider cpu has no options, got arena"):
        OnnxRuntimeSettings(options={"arena": "1"})


def test_table_names_depend_on_provider_and_options() -> None:
    assert table_name(CPU) == "onnxruntime-float32-1t-b1"
    assert "onnxruntime" not in facts(CPU)
    names = {
        table_name(with_settings(CPU, OnnxRuntimeSettings("cuda", options)))
        for options in ({}, {"device_id": "0"}, {"device_id": "1"})
    }
    assert len(names) == 3
    assert all(name.startswith("onnxruntime-cuda") for name in names)
    assert facts(from_facts(facts(AZURE))) == facts(AZURE)


def test_error_for_missing_provider_names_package() -> None:
    other = next(n for n in ("migraphx", "qnn") if OnnxRuntimeSettings(n).name not in LISTED)
    wheel = f"onnxruntime-{other}"
    remedy = rf"pip uninstall -y onnxruntime {wheel} && pip install {wheel}$"
    with pytest.raises(ConfigError, match=rf"provider={other}: .* {remedy}"):
        base.backend_of(with_settings(CPU, OnnxRuntimeSettings(other)))


def test_error_for_unknown_provider_lists_available() -> None:
    with pytest.raises(ConfigError, match=r"Unknown provider 'cudda'.* cpu"):
        base.backend_of(with_settings(CPU, OnnxRuntimeSettings("cudda")))


@pytest.mark.parametrize(
    ("options", "visible", "words"),
    [
        ({"device_id": "1"}, None, "device 1 with CUDA_VISIBLE_DEVICES=0"),
        ({}, "3,0", "device 0 with CUDA_VISIBLE_DEVICES=3,0"),
        ({"device_id": "0"}, "0,1", ""),
        ({}, None, ""),
    ],
)
def test_meter_of_another_gpu_is_refused(
    options: dict[str, str], visible: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    cuda = with_settings(replace(CPU, meter="nvml"), OnnxRuntimeSettings("cuda", options))
    if words:
        with pytest.raises(ConfigError, match=f"reads GPU 0 .* {words}: .*meter_channel=INDEX"):
            base.backend_of(cuda)
    else:
        base.backend_of(cuda)
    base.backend_of(replace(cuda, meter_channel="1"))
    base.backend_of(replace(cuda, meter="none"))


@needs_azure
def test_error_names_operators_left_to_cpu() -> None:
    message = r"provider=azure leaves 2 of 2 operators to the CPU \(Conv .*: the latency would be"
    with pytest.raises(CompileError, match=message):
        OrtSession(random_model(CONV), 1, OnnxRuntimeSettings("azure"))
    with pytest.raises(ConfigError, match="provider=azure leaves"):
        open_engine(AZURE, Remote())


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_silent_fallback_to_cpu_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example without CUDA libraries: the provider is listed, but the CPU is used."""
    missing = OnnxRuntimeSettings(
        next(n for n in ("cuda", "qnn") if OnnxRuntimeSettings(n).name not in LISTED)
    )
    listed = [missing.name, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    with pytest.raises(ConfigError, match=r"does not work here, and onnxruntime would use the CPU"):
        provider.check_usable(missing, random_model(CONV))
    with pytest.raises(CompileError):
        OrtSession(random_model(CONV), 1, missing)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "\x1b[1;31m2026 [E:onnxruntime:Default, x.cc:1 operator()] Failed to load library "
            "/a/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open "
            "shared object file: No such file or directory\n\x1b[m\n\x1b[0;93m [W] Failed to "
            "create CUDAExecutionProvider. Require cuDNN 9.*\x1b[m\n",
            "libcublasLt.so.13: cannot open shared object file: No such file or directory",
        ),
        ("[W] Failed to create QNNExecutionProvider. No device.\n", "No device."),
        ("unrelated", ""),
    ],
)
def test_reason_is_read_from_log(log: str, reason: str) -> None:
    assert provider._reason(log) == reason


def test_output_of_native_code_is_captured(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with provider._captured_log() as captured:
        subprocess.run(["sh", "-c", "echo to out; echo to err >&2"], check=True)
    assert captured == ["to out\nto err\n"]
    assert capfd.readouterr() == ("", "")


def test_table_of_another_provider_is_not_used(tmp_path: Path) -> None:
    result = provenance(AZURE, Remote())
    entries = {OPS[0]: OperatorEntry("", Timing(1.0, 0.9, 1.1, 5))}
    LatencyTable(tmp_path / "cpu" / table_name(AZURE), entries, provenance=result).save()
    assert open_table(AZURE, Remote(), [tmp_path], False, "profile").entries
    for other in (
        CPU,
        with_settings(CPU, OnnxRuntimeSettings("azure", {"endpoint_type": "openai"})),
    ):
        with pytest.raises(TableError, match="no latency table for onnxruntime-"):
            open_table(other, Remote(), [tmp_path], False, "profile")
        assert "different target.onnxruntime" in differences(result, provenance(other, Remote()))


def test_table_of_another_gpu_or_driver_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"gpu": "NVIDIA T4", "driver": "570.1"}
    monkeypatch.setattr(provider, "gpus", lambda: gpu)
    cuda = target("cuda")
    result = provenance(cuda, Remote())
    assert result["device"].items() >= gpu.items()
    for name in gpu:
        monkeypatch.setattr(provider, "gpus", lambda name=name: {**gpu, name: "another"})
        (difference,) = differences(result, provenance(cuda, Remote()))
        assert difference.startswith(f"{name}: {gpu[name]} in the table, another here")


@pytest.mark.parametrize("packages", [{"onnxruntime-gpu"}, {"onnxruntime", "onnxruntime-gpu"}])
def test_versions_list_all_packages_of_module(
    packages: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_providers", lambda: {"onnxruntime": packages})
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2")
    versions = ", ".join(f"{name} 1.2" for name in sorted(packages))
    assert backends.version("onnxruntime") == versions
    assert provenance(CPU, Remote())["versions"] == {"onnxruntime": versions}


def _runner(device: Target) -> str:
    return runners({"model.fp32.onnx", "model.int8.onnx"}, ClassificationTask(("a", "b")), device)[
        "run_onnx.py"
    ]


def test_runner_of_cpu_has_one_session() -> None:
    text = _runner(CPU)
    assert "\nsession = onnxruntime.InferenceSession(here / file, options)\n(outputs,) = " in text
    assert _runner(target("npu")).count("InferenceSession") == 1


def test_runner_of_exits_sets_int8_option_first() -> None:
    text = runners({"segment0.int8.onnx"}, ClassificationTask(("a", "b")), CPU)["run_exits.py"]
    (begin,) = (line for line in _runner(CPU).splitlines() if "x64quantprecision" in line)
    assert text.index(begin) < text.index("InferenceSession(here / name, options)")
    compile(text, "run_exits.py", "exec")


def test_runner_uses_provider_and_file_of_target() -> None:
    text = _runner(target("cuda"))
    assert '["CUDAExecutionProvider"], [{"device_id": "0", "use_tf32": "0"}]' in text
    assert 'else "model.fp32.onnx"\n' in text
    assert "preload_dlls" in text
    compile(text, "run_onnx.py", "exec")


def test_runner_keeps_provider_options() -> None:
    options = {"arena_extend_strategy": "DEFAULT", "of": "SESSION"}
    text = _runner(with_settings(CPU, OnnxRuntimeSettings("cuda", options)))
    assert '{"arena_extend_strategy": "DEFAULT", "of": "SESSION"}' in text
    assert text.count("DEFAULT") == 1


@needs_azure
def test_runner_refuses_fallback_to_cpu(tmp_path: Path) -> None:
    (tmp_path / "run_onnx.py").write_text(_runner(AZURE))
    (tmp_path / "model.fp32.onnx").write_bytes(random_model(CONV))
    preprocessing = '{"shape": [8, 8, 3], "mean": [0, 0, 0], "std": [1, 1, 1]}'
    (tmp_path / "preprocessing.json").write_text(preprocessing)
    np.save(tmp_path / "images.npy", np.zeros((1, 8, 8, 3), np.uint8))
    ran = subprocess.run(
        [sys.executable, "run_onnx.py", "images.npy"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert "AzureExecutionProvider alone does not run model.fp32.onnx here: " in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kind)
def test_networks_with_and_without_operator_run(op: OpSpec, dtype: str) -> None:
    if dtype == "int8" and "add" in op.fused:
        pytest.skip("sums are not fused in int8")
    whole, without = with_and_without_operator(replace(op, dtype=dtype))
    n_macs = [sum(node.op.n_macs for node in net) for net in (whole, without)]
    assert n_macs[0] - n_macs[1] >= op.n_macs
    for net in (whole, without):
        image = np.zeros((1, *net[0].op.in_shape), np.float32)
        assert OrtSession(random_model(net)).run(image).shape[0] == 1


def test_empty_network_runs() -> None:
    image = np.ones((2, 1, 1, 1), np.float32)
    assert OrtSession(random_model(empty_network(2))).run(image).ravel().tolist() == [2, 2]


def test_difference_of_timings_is_positive_with_interval() -> None:
    result = subtract_timing(Timing(5, 4, 7, 9), Timing(2, 1, 3, 9))
    assert (result.median_ms, result.low_ms, result.high_ms) == (3, 1, 6)
    none = subtract_timing(Timing(2, 1, 3, 9), Timing(5, 4, 7, 9))
    assert 0 < none.low_ms <= none.median_ms <= none.high_ms


@pytest.mark.parametrize("chosen", [*map(_needs, ("cuda", "tensorrt", "openvino"))])
def test_provider_times_operators_and_matches_cpu(
    chosen: OnnxRuntimeSettings,
) -> None:
    """Runs where the provider is installed; the pinned onnxruntime has none of them."""
    engine = open_engine(with_settings(CPU, chosen), Remote())
    assert isinstance(engine, OrtEngine)
    for op in OPS:
        timing = engine.time_operator(op, "", QUICK)
        assert 0 < timing.low_ms <= timing.median_ms <= timing.high_ms
    model = random_model(CONV)
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    result = OrtSession(model, 1, chosen).run(images)
    assert np.allclose(result, OrtSession(model).run(images), atol=1e-2)


def test_facts_of_different_gpus_name_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = with_settings(CPU, OnnxRuntimeSettings("cuda", {"device_id": "1"}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    for names, which in (("T4 + T4", ""), ("T4 + A100", ", device 1 of CUDA_VISIBLE_DEVICES=2,0")):
        facts_of_gpus = {"gpu": names, "driver": "1"}
        monkeypatch.setattr(provider, "gpus", lambda known=facts_of_gpus: {**known})
        assert provider.devices(cuda) == {"gpu": names + which, "driver": "1"}
