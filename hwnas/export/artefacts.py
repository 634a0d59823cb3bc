"""The files of an export: what a finished network is written as for a target."""

import json
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hwnas import backends
from hwnas.backends import portable
from hwnas.backends.base import Artefacts, Trained
from hwnas.backends.exits import file_names
from hwnas.export import standalone
from hwnas.export.runners import runners
from hwnas.families.blocks import weights_of
from hwnas.graph import Graph, fuse
from hwnas.int8.finished import Finished
from hwnas.runtimes.onnx_writer import write_fp32, write_int8
from hwnas.target import Target
from hwnas.training.data import ImageData

_DECODED = (
    "files by Pillow to {side} x {side}, grey or RGB as said: the largest square in the middle, "
    "bilinear, JPEG read at a fraction of its size where that is enough, transparency on white"
)
_RESIZED = (
    "from there bilinear with antialiasing, as "
    "torch.nn.functional.interpolate(mode='bilinear', antialias=True), then rounded to uint8"
)


def build(
    finished: Finished, target: Target, data: ImageData, title: str, artefacts: Artefacts
) -> dict[str, bytes]:
    """Return all files of an export but its images, proof and card.

    Args:
        finished: The network.
        target: What it is for.
        data: What it was trained on.
        title: One line about it.
        artefacts: What makes the files of the target.
    """
    whole, lowered = finished.whole, finished.whole.lowered
    weights = weights_of(finished.network, finished.lowered)
    files = {
        "model.py": standalone.source(lowered, title, data.task).encode(),
        "model.safetensors": standalone.weights_file(lowered, weights, {"network": title}),
        "preprocessing.json": _json(preprocessing(data, lowered)),
        **data.task.files(),
        portable.FLOAT32: write_fp32(fuse(lowered, "float32"), weights, any_batch=True),
    }
    if whole.int8 is not None:
        files[portable.INT8] = write_int8(whole.int8, any_batch=True)
    names = backends.file_names(target.runtime, target.dtype)
    names = file_names(names, len(finished.lowered.outputs))
    own = artefacts.delivered(Trained(finished.lowered, weights, finished.int8))
    files |= {names[suffix]: content for suffix, content in own.items()}
    texts = runners(set(files), data.task, target)
    return files | {name: text.encode() for name, text in texts.items()}


def own_artefact(target: Target) -> str:
    """Return which artefact the figures of a target are of."""
    return backends.get(target.runtime).dtypes[target.dtype]


def preprocessing(data: ImageData, lowered: Graph) -> dict[str, object]:
    """Return what must be done to an image before the network reads it."""
    c, h, w = lowered[0].op.in_shape
    return {
        "input": {"name": "images", "layout": "NCHW", "dtype": "float32", "shape": [c, h, w]},
        "channels": "grey" if c == 1 else "RGB" if c == 3 else str(c),
        "shape": [h, w, c],
        "mean": list(data.mean),
        "std": list(data.std),
        "normalise": "(pixel - 255 * mean) / (255 * std), pixels 0 to 255, in float32",
        "decode": _DECODED.format(side=data.test.take(torch.tensor([0])).images.shape[1]),
        "resize": _RESIZED,
        **data.task.preprocessing(),
    }


def pixels_of(images: Tensor, resolution: int) -> NDArray[np.uint8]:
    """Return images ``(N, H, W, C)`` in uint8 at a resolution, rounded where they are resized."""
    if images.shape[1] != resolution:
        x = images.permute(0, 3, 1, 2).float()
        x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
        images = x.round().clamp(0, 255).byte().permute(0, 2, 3, 1)
    found: NDArray[np.uint8] = images.contiguous().numpy()
    return found


def _json(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
