"""The backend of TVM: libraries with the plans of the latency table."""

from collections.abc import Mapping

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TimingBench, TrainedNetwork
from hwnas.hardware.backends.measured_backend import MeasuredBackend
from hwnas.hardware.backends.tvm import TvmSettings, find_compiler
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.target import Remote, Target

_VERIFIED = (".so", ".safetensors")


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target, which measures the library (``.so``) from TVM.

    An export also has the library's object files (``.tar``).
    """
    return MeasuredBackend(
        target, _write, delivered=_library_files, unavailable=_unavailable_reason
    )


def _write(network: TrainedNetwork, target: Target, bench: TimingBench) -> Mapping[str, bytes]:
    """Return an ONNX file, the library and its weights."""
    onnx = onnx_files.write_onnx(network, fused_graph(network.graph, target), target.dtype)
    parts = _library_files(network, target, bench)
    return {".onnx": onnx, **{suffix: parts[suffix] for suffix in _VERIFIED}}


def _library_files(
    network: TrainedNetwork, target: Target, bench: TimingBench
) -> Mapping[str, bytes]:
    """Return the library, its object files and its weights."""
    fused = fused_graph(network.graph, target)
    plans = {node.op: bench.plan(node.op) for node in fused}
    weights = network.int8 if target.dtype == "int8" else network.weights
    assert weights is not None
    return bench.worker.export(fused, plans, weights)


def _unavailable_reason(target: Target, artefact: str, remote: Remote) -> str:
    """Return why an artefact cannot run from this machine; empty if it can."""
    settings = target.section(TvmSettings)
    if artefact.endswith(".tar"):
        if settings.mtriple and not settings.cc:
            return (
                f"linking it for {settings.mtriple} needs a compiler: add +target={target.name} "
                "target.tvm.cc=COMPILER"
            )
        try:
            find_compiler(settings.cc)
        except ConfigError as error:
            return f"it cannot be linked: {str(error).rstrip('.')}"
    if settings.mtriple and not remote.tracker:
        return f"it is for '{target.name}': set rpc.tracker=HOST:PORT and rpc.key=KEY"
    return ""
