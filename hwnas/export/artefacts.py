"""Writes the files of an export: artefacts, preprocessing and runners."""

import json
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hwnas.export import standalone
from hwnas.hardware import backends
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.artefact_wrappers import file_names
from hwnas.hardware.backends.base import Artefacts, TrainedNetwork
from hwnas.hardware.target import Target
from hwnas.models.families.layers import weights_of
from hwnas.models.graph import Graph, fuse
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.onnx.writer import write_fp32, write_int8
from hwnas.training.data import ImageData

_DECODED = (
    "by Pillow to {side} x {side}, grey or RGB as given: upright by EXIF, the largest square in "
    "the middle, bilinear, JPEG decoded at a reduced size where that is enough, transparency on "
    "white"
)
_RESIZED = (
    "from there bilinear with antialiasing, as "
    "torch.nn.functional.interpolate(mode='bilinear', antialias=True), then rounded to uint8"
)


def build(
    finished: DeployableNetwork, target: Target, data: ImageData, title: str, artefacts: Artefacts
) -> dict[str, bytes]:
    """Return the content of all files of an export except images, proof and card, by name.

    Args:
        finished: The network.
        target: The target.
        data: The data set that the network was trained on.
        title: One line about the network.
        artefacts: Compiles the files of the target.

    Raises:
        CompileError: ``model.py`` or a file of the target cannot be written for the network.
    """
    network, lowered = finished.without_exits, finished.without_exits.graph
    weights = weights_of(finished.network, finished.graph)
    files = {
        "model.py": standalone.source(lowered, title, data.task).encode(),
        "model.safetensors": standalone.weights_file(lowered, weights, {"network": title}),
        "preprocessing.json": _json(preprocessing(data, lowered)),
        **data.task.files(),
        onnx_files.FLOAT32: write_fp32(fuse(lowered, "float32"), weights, any_batch=True),
    }
    if network.int8 is not None:
        files[onnx_files.INT8] = write_int8(network.int8, any_batch=True)
    names = backends.file_names(target.runtime, target.dtype)
    names = file_names(names, len(finished.graph.outputs))
    compiled = artefacts.delivered(TrainedNetwork(finished.graph, weights, finished.int8))
    files |= {names[suffix]: content for suffix, content in compiled.items()}
    texts = standalone.runners(set(files), data.task, target)
    return files | {name: text.encode() for name, text in texts.items()}


def decoded_side(data: ImageData) -> int:
    """Return the side in pixels of the square images of a data set, as they are stored."""
    return int(data.test.take(torch.tensor([0])).images.shape[1])


def preprocessing(data: ImageData, lowered: Graph) -> dict[str, object]:
    """Return the content of ``preprocessing.json``: shape, normalisation and resizing of images.

    The task adds keys of its own, such as ``targets``. ``lowered`` is the graph of the network.
    """
    c, h, w = lowered[0].op.in_shape
    side = decoded_side(data)
    return {
        "input": {"name": "images", "layout": "NCHW", "dtype": "float32", "shape": [c, h, w]},
        "channels": "grey" if c == 1 else "RGB" if c == 3 else str(c),
        "shape": [h, w, c],
        "mean": list(data.mean),
        "std": list(data.std),
        "normalise": "(pixel - 255 * mean) / (255 * std), pixels 0 to 255, in float32",
        "decode": _DECODED.format(side=side),
        "decoded_side": side,
        "resize": _RESIZED,
        **data.task.preprocessing(),
    }


def pixels_of(images: Tensor, resolution: int) -> NDArray[np.uint8]:
    """Return uint8 images ``(N, H, W, C)`` resized to ``(N, resolution, resolution, C)``.

    Resizing is bilinear with antialiasing. Images of this height are returned as they are.
    """
    if images.shape[1] != resolution:
        x = images.permute(0, 3, 1, 2).float()
        x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
        images = x.round().clamp(0, 255).byte().permute(0, 2, 3, 1)
    pixels: NDArray[np.uint8] = images.contiguous().numpy()
    return pixels


def _json(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
