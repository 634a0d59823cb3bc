"""Reads a torch module as a lowered network, by way of ONNX."""

import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.onnx.errors import OnnxExporterError

from hwnas.errors import CompileError
from hwnas.graph import Graph
from hwnas.runtimes import onnx_reader
from hwnas.runtimes.base import Weights

_OPSET = 17  # the first with LayerNormalization


def read_torch(module: nn.Module, example: Tensor) -> tuple[Graph, Weights]:
    """Return the operators of a module, unfused, and their weights, as ``onnx_reader.read`` does.

    Args:
        module: Any module; it is traced in eval mode, by torch's exporter that needs no package
            beside torch. Torch calls that exporter deprecated, which is not shown.
        example: Images ``(N, C, H, W)`` that it reads.

    Raises:
        CompileError: torch cannot export the module, or the reader refuses a node.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        path = Path(folder, "model.onnx")
        try:
            torch.onnx.export(module, (example,), path, opset_version=_OPSET, dynamo=False)
        except OnnxExporterError as error:
            reason = str(error).strip().splitlines()[0]
            raise CompileError(f"Torch cannot export the module as ONNX: {reason}") from None
        return onnx_reader.read(path.read_bytes())
