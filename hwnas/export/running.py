"""Loads the artefacts of an export, each by its own runtime, which is imported only then."""

import importlib.machinery
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.runtimes.base import Session
from hwnas.runtimes.pool import Retrying


@dataclass(frozen=True)
class Kind:
    """An artefact: what runs it, in which dtype it computes, and its files by suffix."""

    runtime: str
    dtype: str
    files: Mapping[str, str]


_TVM_WEIGHTS = {".safetensors": "model.tvm.safetensors"}

#: The artefacts that an export may hold, by the name of their first file.
KINDS: Mapping[str, Kind] = {
    "model.py": Kind("torch", "float32", {".safetensors": "model.safetensors"}),
    "model.fp32.onnx": Kind("onnxruntime", "float32", {".onnx": "model.fp32.onnx"}),
    "model.int8.onnx": Kind("onnxruntime", "int8", {".onnx": "model.int8.onnx"}),
    "model.int8.tflite": Kind("litert", "int8", {".tflite": "model.int8.tflite"}),
    "model.vela.tflite": Kind("ethos-u", "int8", {"_vela.tflite": "model.vela.tflite"}),
    "model.so": Kind("tvm", "float32", {".so": "model.so", **_TVM_WEIGHTS}),
    "model.tar": Kind("tvm", "float32", {".tar": "model.tar", **_TVM_WEIGHTS}),
}
#: What each runtime needs beside numpy: distributions by the package that they bring.
NEEDS: Mapping[str, Mapping[str, str]] = {
    "torch": {"torch": "torch"},
    "onnxruntime": {"onnxruntime": "onnxruntime"},
    "litert": {"ai_edge_litert": "ai-edge-litert"},
    "tvm": {"tvm": "apache-tvm", "safetensors": "safetensors"},
}


def paths(folder: Path, name: str) -> dict[str, Path]:
    """Return the files of an artefact by suffix."""
    return {suffix: folder / file for suffix, file in KINDS[name].files.items()}


def hindrance(name: str) -> str:
    """Return why an artefact cannot run on this machine; empty if it can."""
    if KINDS[name].runtime not in NEEDS:
        return "it runs on an Arm Ethos-U alone"
    return lacking(NEEDS[KINDS[name].runtime])


def lacking(needed: Mapping[str, str]) -> str:
    """Return which packages are not installed, and what brings them; empty if all are.

    Args:
        needed: Distributions by the package that they bring.
    """
    missing = [needed[name] for name in needed if importlib.util.find_spec(name) is None]
    verb = "is" if len(missing) == 1 else "are"
    names = " ".join(missing)
    return f"{names} {verb} not installed: pip install {names}" if missing else ""


def session(folder: Path, name: str, worker: Retrying | None) -> Session:
    """Return an artefact as something that runs.

    Args:
        folder: Of the export.
        name: One of ``KINDS``.
        worker: What runs libraries of TVM.

    Raises:
        CompileError: the runtime refuses the file.
    """
    runtime = KINDS[name].runtime
    if runtime == "torch":
        return TorchSession(folder)
    if runtime == "onnxruntime":
        from hwnas.runtimes.ort import OrtSession

        return OrtSession((folder / name).read_bytes())
    if runtime == "litert":
        from hwnas.runtimes.litert import LiteRTSession

        return LiteRTSession((folder / name).read_bytes())
    assert runtime == "tvm"
    assert worker is not None
    return TvmNetwork(paths(folder, name), worker)


@final
class TvmNetwork:
    """What TVM compiled, which runs in a process of its own."""

    def __init__(self, files: Mapping[str, Path], worker: Retrying):
        self._files, self._worker = files, worker

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``."""
        return self._worker.run(self._files, images)


@final
class TorchSession:
    """The network of ``model.py``, loaded as a user would."""

    def __init__(self, folder: Path):
        self._network = load_module(folder / "model.py").load()

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``."""
        import torch

        with torch.inference_mode():
            parts = torch.split(torch.from_numpy(images), _BATCH)
            found: NDArray[np.float32] = torch.cat([self._network(x) for x in parts]).numpy()
        return found


_BATCH = 256  # images at once


def load_module(path: Path) -> Any:
    """Return a file as a module: its source, never bytecode that lies beside it."""
    loader = _Source(f"hwnas_export_{path.parent.name}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class _Source(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("bytecode is neither read nor written")
