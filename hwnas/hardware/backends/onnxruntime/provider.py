"""Execution providers of onnxruntime, without its silent fallback to the CPU.

A provider that is missing or does not work is a ``ConfigError``; one that leaves operators of a
network to the CPU is a ``CompileError``, because the latency would be that of a mixture.

Source: https://onnxruntime.ai/docs/execution-providers/.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import onnxruntime

from hwnas.core.errors import CompileError, ConfigError, unknown_name
from hwnas.hardware.backends.onnxruntime import OnnxRuntimeSettings
from hwnas.hardware.meters.builtin import gpus
from hwnas.hardware.target import Target

_NO_FALLBACK = "session.disable_cpu_ep_fallback"
_RECORD = "session.record_ep_graph_assignment_info"
_MAX_SHOWN = 3  # maximum number of operators in messages
#: Suffixes of packages that are not called onnxruntime-PROVIDER.
_WHEELS = {"cuda": "gpu", "tensorrt": "gpu", "dml": "directml"}
#: Patterns in onnxruntime's log for a missing library or device.
_REASONS = (r"with error: (.+?)\s*$", r"Failed to create \w+[.:]\s*(.+?)\s*$")


def provider_settings(target: Target) -> OnnxRuntimeSettings:
    """Return the section ``onnxruntime`` of a target: its execution provider and options."""
    return target.onnxruntime  # type: ignore[attr-defined, no-any-return]


def check_listed(chosen: OnnxRuntimeSettings) -> None:
    """Check that the installed onnxruntime has a provider; whether it works is not checked.

    Raises:
        ConfigError: it has not; the message names the available ones, and the package to install
            if onnxruntime knows the provider.
    """
    listed = onnxruntime.get_available_providers()
    if chosen.name in listed:
        return
    names = sorted(OnnxRuntimeSettings(name).provider for name in listed)
    option = f"target.onnxruntime.provider={chosen.provider}"
    if chosen.name not in onnxruntime.get_all_providers():
        raise ConfigError(f"{option}: {unknown_name('provider', chosen.provider, names)}")
    wheel = f"onnxruntime-{_WHEELS.get(chosen.provider, chosen.provider)}"
    raise ConfigError(  # both are removed: they have the same files
        f"{option}: the installed onnxruntime {onnxruntime.__version__} has only "
        f"{', '.join(names)}. Replace the package by one that has it: "
        f"pip uninstall -y onnxruntime {wheel} && pip install {wheel}"
    )


def check_meter(target: Target) -> None:
    """Check that ``target.meter=nvml`` reads the GPU on which networks run.

    Other meters, and targets with ``meter_channel``, are not checked.

    Raises:
        ConfigError: it may read another one; the message names the option that selects the GPU.
    """
    chosen = provider_settings(target)
    if target.meter != "nvml" or target.meter_channel or not chosen.is_nvidia:
        return
    device = chosen.options.get("device_id", "0")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    if device.strip() != "0" or visible.partition(",")[0].strip() != "0":
        raise ConfigError(
            f"target.meter=nvml reads GPU 0 of 'nvidia-smi -L', but networks run on CUDA's device "
            f"{device} with CUDA_VISIBLE_DEVICES={visible}: set that GPU's index as "
            "target.meter_channel=INDEX, or target.meter=none."
        )


def check_usable(chosen: OnnxRuntimeSettings, model: bytes) -> None:
    """Check that a provider runs all operators of the ONNX file ``model`` here; the CPU does.

    Raises:
        ConfigError: it does not; the message has onnxruntime's reason, such as a missing library.
    """
    check_listed(chosen)
    if chosen.is_cpu:
        return
    with _captured_log() as log:
        if chosen.is_nvidia:
            onnxruntime.preload_dlls()
        try:
            providers = _create(model, onnxruntime.SessionOptions(), chosen).get_providers()
            problem = ""
        except Exception as error:  # ten types of pybind, and RuntimeError
            providers, problem = [], first_line(error)
    if chosen.name in providers:
        try:
            create_session(model, onnxruntime.SessionOptions(), chosen)
        except CompileError as error:  # all networks would fail alike
            raise ConfigError(str(error)) from None
    else:
        reason = _reason("".join(log)) or problem or "onnxruntime gives no reason"
        raise ConfigError(
            f"target.onnxruntime.provider={chosen.provider} does not work here, and onnxruntime "
            f"would use the CPU instead: {reason.rstrip('.')}. Install what it needs, or "
            "use +target=cpu target.runtime=onnxruntime."
        )


def devices(target: Target) -> dict[str, str]:
    """Return ``gpu`` and ``driver``, see ``meters.builtin.gpus``, for latency tables.

    On a machine with different GPUs, ``gpu`` also says which one networks run on. Empty if the
    target's provider does not run on NVIDIA GPUs.

    Raises:
        ConfigError: it does, but nvidia-ml-py is not installed, or no GPU is found.
    """
    settings = provider_settings(target)
    facts = gpus() if settings.is_nvidia else {}
    if len({*facts.get("gpu", "").split(" + ")}) > 1:
        device = settings.options.get("device_id", "0")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        facts["gpu"] += f", device {device} of CUDA_VISIBLE_DEVICES={visible}"
    return facts


def create_session(model: bytes, options: Any, chosen: OnnxRuntimeSettings) -> Any:
    """Return onnxruntime's ``InferenceSession`` of an ONNX file, which runs only on one provider.

    The fallback to the CPU is disabled in ``options``.

    Raises:
        CompileError: the provider leaves operators to the CPU.
        Exception: onnxruntime cannot load the model; the exception is onnxruntime's own.
    """
    if chosen.is_cpu:
        return onnxruntime.InferenceSession(model, options, providers=[chosen.name])
    options.add_session_config_entry(_NO_FALLBACK, "1")
    try:
        session = _create(model, options, chosen)
    except Exception as error:
        if "assigned to the default CPU EP" not in str(error):
            raise
        raise CompileError(_unsupported_operators(model, chosen)) from None
    if session.get_providers()[0] != chosen.name:
        raise CompileError(_unsupported_operators(model, chosen))
    return session


def _create(model: bytes, options: Any, chosen: OnnxRuntimeSettings) -> Any:
    return onnxruntime.InferenceSession(
        model, options, [chosen.name], [dict(chosen.options)], enable_fallback=0
    )


def _unsupported_operators(model: bytes, chosen: OnnxRuntimeSettings) -> str:
    """Return the message about operators that a provider leaves to the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(_RECORD, "1")
    parts = _create(model, options, chosen).get_provider_graph_assignment_info()
    nodes = [(part.ep_name, node) for part in parts for node in part.get_nodes()]
    unsupported = [f"{n.op_type} '{n.name}'" for name, n in nodes if name != chosen.name]
    shown = ", ".join(unsupported[:_MAX_SHOWN]) + ", ..." * (len(unsupported) > _MAX_SHOWN)
    return (
        f"target.onnxruntime.provider={chosen.provider} leaves {len(unsupported)} of {len(nodes)} "
        f"operators to the CPU ({shown}): the latency would be that of a mixture. "
        "Choose a search space without such operators, or +target=cpu target.runtime=onnxruntime."
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error of onnxruntime, without the place in its source code.

    It is the name of the exception's class if the error has no text.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("[ONNXRuntimeError] : ")
    return re.sub(r"^/\S+:\d+ .*?\)\s+", "", line)


def _reason(log: str) -> str:
    """Return the reason in onnxruntime's log why a provider failed; empty if there is none."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log)
    for pattern in _REASONS:
        if matches := re.findall(pattern, plain, re.MULTILINE):
            return str(matches[-1])
    return ""


@contextlib.contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Capture the output of native code: only there onnxruntime gives the reason of a fallback."""
    log: list[str] = []
    originals = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield log
        finally:
            for number, before in enumerate(originals, 1):
                os.dup2(before, number)
                os.close(before)
            file.seek(0)
            log.append(file.read())
