"""OpenVINO as a backend: its IR, from the ONNX file that every export holds."""

from collections.abc import Mapping

from hwnas.backends import portable
from hwnas.backends.base import Bench, Trained
from hwnas.backends.measured import MeasuredBackend
from hwnas.backends.openvino import session
from hwnas.cost.host import dtype_of
from hwnas.graph import fuse
from hwnas.target import Target


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target.

    Raises:
        ConfigError: this CPU does not compute in the target's dtype.
    """
    session.check_cpu(target.dtype)
    return MeasuredBackend(target, _write, delivered=_write)  # what is verified is delivered


def _write(network: Trained, target: Target, bench: Bench) -> Mapping[str, bytes]:
    fused = fuse(network.lowered, "float32")
    dtype = dtype_of(network.lowered, target)
    return session.written(portable.write(network, fused, dtype, any_batch=True), dtype)
