"""Finds the engine of a target: its runtime on this machine or on a device."""

from hwnas.errors import ConfigError
from hwnas.runtimes.base import Engine
from hwnas.target import Remote, Target


def open_engine(target: Target, remote: Remote) -> Engine:
    """Return the engine of a target; what it needs is imported only here.

    Raises:
        ConfigError: the target's runtime does not run networks, or not there.
        DeviceError: the device does not answer.
    """
    if target.runtime == "tvm":
        from hwnas.runtimes.relax.engine import TvmEngine, open_device

        return TvmEngine(target, open_device(target, remote))
    if target.runtime == "onnxruntime":
        if remote.tracker:
            raise ConfigError("rpc.tracker: only target.runtime=tvm runs on remote devices.")
        from hwnas.runtimes.ort_engine import OrtEngine

        return OrtEngine(target)
    raise ConfigError(
        f"Target '{target.name}' is not measured: target.runtime={target.runtime} estimates."
    )
