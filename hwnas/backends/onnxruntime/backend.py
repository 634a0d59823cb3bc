"""onnxruntime as a backend: what it runs are the ONNX files that every export holds."""

from collections.abc import Mapping

from hwnas.backends import portable
from hwnas.backends.base import Bench, Trained
from hwnas.backends.measured import MeasuredBackend
from hwnas.backends.onnxruntime import provider
from hwnas.cost.host import as_run, dtype_of
from hwnas.target import Target


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target.

    Raises:
        ConfigError: the installed onnxruntime does not have its provider, or its meter may be of
            another GPU.
    """
    provider.check_meter(target)
    provider.check_listed(provider.section(target))
    return MeasuredBackend(target, _write)


def _write(network: Trained, target: Target, bench: Bench) -> Mapping[str, bytes]:
    lowered = network.lowered
    return {".onnx": portable.write(network, as_run(lowered, target), dtype_of(lowered, target))}
