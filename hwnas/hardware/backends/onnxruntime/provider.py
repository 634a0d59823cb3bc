"""Execution providers of onnxruntime. It falls back to the CPU without a word; here none does.

A provider that is not there, or cannot be made, is a ``ConfigError``; one that leaves operators of
a network to the CPU is a ``CompileError``. Figures of a mixture would be those of neither.

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
_SHOWN = 3  # operators that are named
#: What brings a provider, where it is not called onnxruntime-PROVIDER.
_WHEELS = {"cuda": "gpu", "tensorrt": "gpu", "dml": "directml"}
#: Of onnxruntime's log: why a library or a device is not there.
_REASONS = (r"with error: (.+?)\s*$", r"Failed to create \w+[.:]\s*(.+?)\s*$")


def section(target: Target) -> OnnxRuntimeSettings:
    """Return what a target says of onnxruntime."""
    return target.onnxruntime  # type: ignore[attr-defined, no-any-return]


def check_listed(chosen: OnnxRuntimeSettings) -> None:
    """Refuse a provider that the installed onnxruntime does not have.

    Raises:
        ConfigError: it names those that there are, and what to install.
    """
    listed = onnxruntime.get_available_providers()
    if chosen.name in listed:
        return
    names = sorted(OnnxRuntimeSettings(name).provider for name in listed)
    option = f"target.onnxruntime.provider={chosen.provider}"
    if chosen.name not in onnxruntime.get_all_providers():
        raise ConfigError(f"{option}: {unknown_name('provider', chosen.provider, names)}")
    wheel = f"onnxruntime-{_WHEELS.get(chosen.provider, chosen.provider)}"
    raise ConfigError(  # both, or pip takes files away and then finds the other one installed
        f"{option}: the installed onnxruntime {onnxruntime.__version__} has {', '.join(names)} "
        "alone. Another package, of the same files, brings it: "
        f"pip uninstall -y onnxruntime {wheel} && pip install {wheel}"
    )


def check_meter(target: Target) -> None:
    """Refuse to read the meter of GPU 0 where networks may run on another.

    Raises:
        ConfigError: it says what names their GPU.
    """
    chosen = section(target)
    if target.meter != "nvml" or target.meter_channel or not chosen.is_nvidia:
        return
    device, seen = chosen.options.get("device_id", "0"), os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    if device.strip() != "0" or seen.partition(",")[0].strip() != "0":
        raise ConfigError(
            f"target.meter=nvml reads GPU 0 of 'nvidia-smi -L', but networks run on CUDA's device "
            f"{device} with CUDA_VISIBLE_DEVICES={seen}: say that GPU's index there as "
            "target.meter_channel=INDEX, or target.meter=none."
        )


def check_made(chosen: OnnxRuntimeSettings, model: bytes) -> None:
    """Refuse a provider that does not run a small model here.

    Raises:
        ConfigError: it says what onnxruntime said, such as a library that is missing.
    """
    check_listed(chosen)
    if chosen.is_cpu:
        return
    with _log() as said:
        if chosen.is_nvidia:
            onnxruntime.preload_dlls()
        try:
            made = _created(model, onnxruntime.SessionOptions(), chosen).get_providers()
            problem = ""
        except Exception as error:  # pybind's own, of ten kinds, and RuntimeErrors
            made, problem = [], first_line(error)
    if chosen.name in made:
        try:
            created(model, onnxruntime.SessionOptions(), chosen)
        except CompileError as error:  # no network would do better
            raise ConfigError(str(error)) from None
    else:
        reason = _reason("".join(said)) or problem or "it gives no reason"
        raise ConfigError(
            f"target.onnxruntime.provider={chosen.provider} cannot be made here, and onnxruntime "
            f"would use the CPU instead: {reason.rstrip('.')}. Install what it needs, or say "
            "target.onnxruntime.provider=cpu."
        )


def devices(target: Target) -> dict[str, str]:
    """Return what a latency table by a target's provider is of, beside this machine's CPU.

    Raises:
        ConfigError: it runs on GPUs of NVIDIA, and none is found.
    """
    return gpus() if section(target).is_nvidia else {}


def created(model: bytes, options: Any, chosen: OnnxRuntimeSettings) -> Any:
    """Return a session that runs by one provider alone.

    Raises:
        CompileError: the provider does not take all operators.
    """
    if chosen.is_cpu:
        return onnxruntime.InferenceSession(model, options, providers=[chosen.name])
    options.add_session_config_entry(_NO_FALLBACK, "1")
    try:
        session = _created(model, options, chosen)
    except Exception as error:
        if "assigned to the default CPU EP" not in str(error):
            raise
        raise CompileError(_left_over(model, chosen)) from None
    if session.get_providers()[0] != chosen.name:
        raise CompileError(_left_over(model, chosen))
    return session


def _created(model: bytes, options: Any, chosen: OnnxRuntimeSettings) -> Any:
    return onnxruntime.InferenceSession(
        model, options, [chosen.name], [dict(chosen.options)], enable_fallback=0
    )


def _left_over(model: bytes, chosen: OnnxRuntimeSettings) -> str:
    """Return which operators a provider leaves to the CPU, in words."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(_RECORD, "1")
    parts = _created(model, options, chosen).get_provider_graph_assignment_info()
    every = [(part.ep_name, node) for part in parts for node in part.get_nodes()]
    left = [f"{n.op_type} '{n.name}'" for name, n in every if name != chosen.name]
    shown = ", ".join(left[:_SHOWN]) + ", ..." * (len(left) > _SHOWN)
    return (
        f"target.onnxruntime.provider={chosen.provider} leaves {len(left)} of {len(every)} "
        f"operators to the CPU ({shown}): the figures would be those of a mixture."
    )


def first_line(error: Exception) -> str:
    """Return what onnxruntime says of a failure, without where in its sources it was noticed."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("[ONNXRuntimeError] : ")
    return re.sub(r"^/\S+:\d+ .*?\)\s+", "", line)


def _reason(log: str) -> str:
    """Return why a provider could not be made, from onnxruntime's log; empty if it does not say."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log)
    for pattern in _REASONS:
        if found := re.findall(pattern, plain, re.MULTILINE):
            return str(found[-1])
    return ""


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """Give what native code prints meanwhile: onnxruntime says there alone why it falls back."""
    said: list[str] = []
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield said
        finally:
            for number, before in enumerate(kept, 1):
                os.dup2(before, number)
                os.close(before)
            file.seek(0)
            said.append(file.read())
