"""Loads the artefacts of an export, each with its runtime, which is imported on demand."""

import importlib.machinery
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.hardware import backends
from hwnas.hardware.backends.base import open_artefact
from hwnas.hardware.backends.description import ArtefactType
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.runtimes.pool import RetryingPool

#: The artefact of every export that needs no backend.
_TORCH = ArtefactType(
    "model.py",
    "torch",
    "float32",
    {".safetensors": "model.safetensors"},
    {
        "model.py": "the network as Python that needs torch alone",
        "model.safetensors": "its weights",
    },
    needs={"torch": "torch"},
    command="python model.py images.npy",
)


TORCH = _TORCH.name


def kinds() -> dict[str, ArtefactType]:
    """Return all types of model files (artefacts), by the name of their first file."""
    return {_TORCH.name: _TORCH, **backends.artefacts()}


def paths(folder: Path, name: str) -> dict[str, Path]:
    """Return the paths of an artefact's files by suffix; ``name`` is a key of ``kinds``."""
    return {suffix: folder / file for suffix, file in kinds()[name].files.items()}


def unavailable_reason(name: str) -> str:
    """Return the reason why an artefact cannot run on this machine; empty if it can.

    ``name`` is a key of ``kinds``. The reason is a missing package or a device that is not here.
    """
    kind = kinds()[name]
    return kind.unavailable_reason or backends.lacking(kind.needs)


def needs_worker(name: str) -> bool:
    """Return True if an artefact (a key of ``kinds``) runs only in a worker process of its target.

    False: it can be loaded in this process.
    """
    return name != TORCH and not kinds()[name].opens


def session(folder: Path, name: str, worker: RetryingPool | None) -> Session:
    """Return an artefact of an export as a session.

    ``model.py`` is executed, and its errors are passed on. Artefacts for which ``needs_worker`` is
    True are loaded by their process, so that ``Session.run`` raises their errors.

    Args:
        folder: The export.
        name: A key of ``kinds``.
        worker: Process that runs artefacts for which ``needs_worker`` is True; may be ``None`` for
            others.

    Raises:
        CompileError: the runtime cannot load the file in this process.
        ConfigError: a package of the runtime is not installed.
    """
    if name == TORCH:
        return TorchSession(load_module(folder / "model.py").load())
    files = paths(folder, name)
    if not needs_worker(name):
        return open_artefact(name, {suffix: path.read_bytes() for suffix, path in files.items()})
    assert worker is not None
    return WorkerSession(files, worker)


@final
class WorkerSession:
    """An artefact compiled for a device, run in a worker process."""

    def __init__(self, files: Mapping[str, Path], worker: RetryingPool):
        self._files, self._worker = files, worker

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``."""
        return self._worker.run(self._files, images)


@final
class TorchSession:
    """The network of ``model.py``."""

    def __init__(self, network: Callable[[Any], Any]):
        self._network = network

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``.

        Raises:
            CompileError: the network does not return a tensor.
        """
        import torch

        with torch.inference_mode():
            parts = torch.split(torch.from_numpy(images), _BATCH)
            outputs = [self._network(x) for x in parts]
            if not all(isinstance(output, torch.Tensor) for output in outputs):
                raise CompileError(
                    "the network of model.py does not return a tensor: the file was changed; "
                    "restore it, or export the network again"
                )
            result: NDArray[np.float32] = torch.cat(outputs).numpy()
        return result


_BATCH = 256  # images


def load_module(path: Path) -> Any:
    """Execute a Python file, and return its module; bytecode is neither read nor written.

    Errors of the executed code are passed on.
    """
    loader = _Source(f"hwnas_export_{path.parent.name}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class _Source(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("bytecode is neither read nor written")
