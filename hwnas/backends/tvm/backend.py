"""TVM as a backend: libraries, compiled operator by operator as the latency table says."""

from collections.abc import Mapping

from hwnas.backends import portable
from hwnas.backends.base import Bench, Trained
from hwnas.backends.measured import MeasuredBackend
from hwnas.backends.tvm.settings import Tvm
from hwnas.cost.host import as_run
from hwnas.errors import ConfigError
from hwnas.target import Remote, Target

_VERIFIED = (".so", ".safetensors")


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target."""
    return MeasuredBackend(target, _write, delivered=_compiled, away=_elsewhere)


def _write(network: Trained, target: Target, bench: Bench) -> Mapping[str, bytes]:
    """Return an ONNX file, the library and its weights."""
    onnx = portable.write(network, as_run(network.lowered, target), target.dtype)
    parts = _compiled(network, target, bench)
    return {".onnx": onnx, **{suffix: parts[suffix] for suffix in _VERIFIED}}


def _compiled(network: Trained, target: Target, bench: Bench) -> Mapping[str, bytes]:
    """Return the library, its object files and its weights."""
    fused = as_run(network.lowered, target)
    plans = {node.op: bench.plan(node.op) for node in fused}
    weights = network.int8 if target.dtype == "int8" else network.weights
    assert weights is not None
    return bench.worker.export(fused, plans, weights)


def _elsewhere(target: Target, artefact: str, remote: Remote) -> str:
    """Return why what was compiled for a target does not run from here; empty if it does."""
    facts = target.section(Tvm)
    if artefact.endswith(".tar"):
        from hwnas.backends.tvm.linker import find_compiler

        try:
            find_compiler(facts.cc)
        except ConfigError as error:
            return f"nothing links it: {str(error).rstrip('.')}"
    if facts.mtriple and not remote.tracker:
        return f"it is for '{target.name}': give rpc.tracker=HOST:PORT and rpc.key=KEY"
    return ""
