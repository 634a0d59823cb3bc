"""The files of an export: what a finished network is written as for a target."""

import json
import re
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
from hwnas.hardware.backends.description import BackendDescription, BackendSettings
from hwnas.hardware.target import Target
from hwnas.models.families.layers import weights_of
from hwnas.models.graph import Graph, fuse
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.onnx.writer import write_fp32, write_int8
from hwnas.tasks.base import Task
from hwnas.training.data import ImageData

# The runners of an export: ten lines each, which need one runtime and numpy.

_HEAD = '''"""Print {answer} of each uint8 image (N, H, W, C) of a .npy file. Needs {needs}, numpy.

    python {name} images.npy{more}
"""

import json
import sys
from pathlib import Path

import numpy as np
{imports}

here = Path(__file__).parent
said = json.loads((here / "preprocessing.json").read_text())
images = np.load(sys.argv[1])
if images.dtype != np.uint8 or list(images.shape[1:]) != said["shape"]:
    sys.exit(f"Expected uint8 (N, *{{said['shape']}}), got {{images.dtype}} {{images.shape}}.")
mean, std = (np.array(said[key], np.float32) * 255 for key in ("mean", "std"))
x = (images.astype(np.float32) - mean) / std  # N, H, W, C
'''


def runners(names: set[str], task: Task, target: Target) -> dict[str, str]:
    """Return the text of each runner by its file name.

    Args:
        names: The artefacts that there are.
        task: What the networks are for.
        target: On which they run: its sections say how.
    """
    found, own = {}, backends.get(target.runtime).dtypes[target.dtype]
    every = [(backend, runner) for backend in backends.known() for runner in backend.runners]
    for backend, runner in every:
        there = [name for name in runner.artefacts if name in names]
        if there:
            chooses = "DEFAULT" in runner.code
            head = _HEAD.format(
                name=runner.name,
                answer=task.description.answer,
                needs=runner.distribution,
                imports=runner.imports,
                more=f" [{there[-1]}]" if chooses else "",
            )
            default = own if own in there and backend.name == target.runtime else there[0]
            words = {**_words(backend, target), "DEFAULT": default}
            found[runner.name] = head + _filled(runner.code, words) + task.print_code()
    return found


def _words(backend: BackendDescription, target: Target) -> Mapping[str, str]:
    """Return what the section of a backend says in runners."""
    section = getattr(target, backend.name, None)
    return section.substitutions if isinstance(section, BackendSettings) else {}


def _filled(code: str, words: Mapping[str, str]) -> str:
    """Return a runner's code with texts for words; what a text says itself stays."""
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], code)


_DECODED = (
    "files by Pillow to {side} x {side}, grey or RGB as said: the largest square in the middle, "
    "bilinear, JPEG read at a fraction of its size where that is enough, transparency on white"
)
_RESIZED = (
    "from there bilinear with antialiasing, as "
    "torch.nn.functional.interpolate(mode='bilinear', antialias=True), then rounded to uint8"
)


def build(
    finished: DeployableNetwork, target: Target, data: ImageData, title: str, artefacts: Artefacts
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
        onnx_files.FLOAT32: write_fp32(fuse(lowered, "float32"), weights, any_batch=True),
    }
    if whole.int8 is not None:
        files[onnx_files.INT8] = write_int8(whole.int8, any_batch=True)
    names = backends.file_names(target.runtime, target.dtype)
    names = file_names(names, len(finished.lowered.outputs))
    own = artefacts.delivered(TrainedNetwork(finished.lowered, weights, finished.int8))
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
