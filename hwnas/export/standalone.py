"""Writes the Python files of an export, ``model.py`` and runners; needs no torch."""

import keyword
import re
import textwrap
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.hardware import backends
from hwnas.hardware.backends.description import BackendSettings
from hwnas.hardware.target import Target
from hwnas.models.graph import INPUT, Graph, Node
from hwnas.models.int8.quantised_network import Weights
from hwnas.tasks.base import Task

RUNNER = "run.py"  #: the runner of the target's own artefact

_ACTIVATIONS = {
    "relu": "F.relu",
    "relu6": "F.relu6",
    "hardswish": "F.hardswish",
    "hardsigmoid": "F.hardsigmoid",
    "sigmoid": "torch.sigmoid",
    "silu": "F.silu",
    "gelu": "F.gelu",
}

_HEAD = '''"""{title}

Written by hwnas; needs torch alone. Batch norm is folded into the convolutions.

    python model.py images.npy      # or images.npz: prints {answer} of each image; needs numpy

    from model import load
    outputs = load()(x)             # x: normalised images (N, {shape})

``preprocessing.json`` has the normalisation of images.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent
SHAPE = ({shape})  # of a normalised image: channels, height, width


class Network(nn.Module):
    """{title}"""

    def __init__(self) -> None:
        super().__init__()
{layers}

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images ``(N, {shape})`` to outputs ``(N, {n_outputs})``."""
        if images.shape[1:] != SHAPE or images.dtype != self.{last}.weight.dtype:
            raise ValueError(f"Expected floats {{SHAPE}}, got {{images.dtype}} {{images.shape}}.")
{steps}

'''

_PER_PIXEL = '''
def per_pixel(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer to the channels of each pixel of ``(N, C, H, W)``."""
    out: Tensor = layer(x.permute(0, 2, 3, 1))
    return out.permute(0, 3, 1, 2)

'''

_ATTENTION = '''
def attention(x: Tensor, heads: int) -> Tensor:
    """Mix queries, keys and values ``(N, 3 C, H, W)`` of all pixels to ``(N, C, H, W)``."""
    n, _, h, w = x.shape
    parts = x.permute(0, 2, 3, 1).reshape(n, h * w, 3, heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    return mixed.transpose(1, 2).reshape(n, h, w, -1).permute(0, 3, 1, 2)

'''

_TAIL = '''
def load(path: Path = HERE / "model.safetensors") -> Network:
    """Return the network with its weights, in eval mode."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")  # https://github.com/huggingface/safetensors
    state = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in entry["data_offsets"])
            values = torch.frombuffer(bytearray(content[begin:end]), dtype=torch.float32)
            state[name] = values.reshape(entry["shape"])
    network = Network()
    network.load_state_dict(state)
    return network.eval()


def main() -> None:
    """Print {answer} of each uint8 image ``(N, H, W, C)`` of a ``.npy`` file."""
    import numpy as np

    here = HERE
    spec = json.loads((here / "preprocessing.json").read_text())
    photos: list[str] = []
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        pixels = np.load(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {getattr(error, 'strerror', None) or error}")
    pixels = pixels["pixels"] if isinstance(pixels, np.lib.npyio.NpzFile) else pixels
    if pixels.dtype != np.uint8 or list(pixels.shape[1:]) != spec["shape"]:
        sys.exit(f"Expected uint8 (N, *{spec['shape']}), got {pixels.dtype} {pixels.shape}.")
    mean, std = torch.tensor(spec["mean"]) * 255, torch.tensor(spec["std"]) * 255
    images = ((torch.from_numpy(pixels).float() - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        outputs = load()(images).numpy()
{printing}

if __name__ == "__main__":
    main()
'''


def weights_file(lowered: Graph, weights: Weights, metadata: Mapping[str, str]) -> bytes:
    """Return the content of ``model.safetensors``: float32 weights, named as in ``model.py``."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for node in lowered:
        if node.op.n_params:
            weight, bias = weights[node.name]
            # safetensors writes memory in its order: channels-last weights would be misread.
            weight, bias = np.ascontiguousarray(weight), np.ascontiguousarray(bias)
            tensors |= {f"{_name(node)}.weight": weight, f"{_name(node)}.bias": bias}
    import safetensors.numpy  # ``verify`` runs where it is not installed

    return bytes(safetensors.numpy.save(tensors, dict(metadata)))


def source(lowered: Graph, title: str, task: Task) -> str:
    """Return the text of ``model.py``, the network as Python code that needs torch alone.

    Args:
        lowered: The graph, not fused.
        title: First line of the docstring of the file.
        task: The task of the network.

    Raises:
        CompileError: an operator is not supported, or its name is not a Python identifier.
    """
    forward = _Forward(lowered)
    steps = forward.lines()
    layers = [f"self.{_name(node)} = {layer}" for node in lowered if (layer := _layer(node))]
    c, h, w = lowered[0].op.in_shape
    text = _HEAD.format(
        title=_as_text(title),
        shape=f"{c}, {h}, {w}",
        answer=task.description.answer,
        n_outputs=lowered.output.op.out_shape[0],
        last=next(_name(node) for node in reversed(lowered) if node.op.n_params),
        layers="\n".join(f"        {line}" for line in layers),
        steps="\n".join(f"        {line}" for line in steps),
    )
    helpers = _PER_PIXEL * forward.per_pixel + _ATTENTION * forward.attention
    printing = textwrap.indent(task.print_code(), "    ")
    tail = _TAIL.replace("{answer}", task.description.answer).replace("{printing}", printing)
    return f"{text}{helpers}{tail}"


def _as_text(title: str) -> str:
    """Return a title that is safe in a docstring: one printable line without quotes."""
    line = "".join(c if c.isprintable() else " " for c in title)
    return line.replace("\\", "/").replace('"', "'")


def _name(node: Node) -> str:
    """Return the name of a module in ``model.py``.

    Raises:
        CompileError: the name of the operator is no Python identifier.
    """
    name = node.name.replace(".", "_")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CompileError(
            f"model.py cannot be written: the operator name '{node.name}' is not a Python "
            "identifier; rename the module in the network's family."
        )
    return name


def _layer(node: Node) -> str:
    """Return the code of the module with the weights of an operator; empty without weights."""
    op, c_in, c_out = node.op, node.op.in_shape[0], node.op.out_shape[0]
    if op.base == "conv2d":
        rest = [f"stride={op.stride}"] * (op.stride > 1) + [f"padding={op.padding}"] * bool(
            op.padding
        )
        rest += [f"groups={op.groups}"] * (op.groups > 1)
        return f"nn.Conv2d({', '.join([str(c_in), str(c_out), str(op.kernel), *rest])})"
    if op.base == "linear":
        return f"nn.Linear({c_in}, {c_out})"
    return f"nn.LayerNorm({c_in})" if op.base == "layernorm" else ""


class _Forward:
    """Writes the body of ``forward``.

    An output that only the next operator reads is ``x``; others have names. Tensors are images
    ``(N, C, H, W)`` or, after a mean, vectors ``(N, C)``.
    """

    def __init__(self, lowered: Graph):
        self._lowered = lowered
        self._variables = {INPUT: "images"}
        self._vectors: set[str] = set()
        self.per_pixel = self.attention = False

    def lines(self) -> list[str]:
        reads = Counter(source for node in self._lowered for source in node.inputs)
        lines = []
        for i, node in enumerate(self._lowered):
            value = self._value(node)
            following = self._lowered[i + 1].inputs if i + 1 < len(self._lowered) else ()
            next_only = node.name in following and reads[node.name] == following.count(node.name)
            last = i + 1 == len(self._lowered)
            variable = "x" if next_only or last else _name(node)
            self._variables[node.name] = variable
            lines.append(f"{variable} = {value}")
        flat = "" if self._lowered.output.name in self._vectors else ".flatten(1)"
        return [*lines, f"return x{flat}"]

    def _value(self, node: Node) -> str:
        value, vector = self._base(node)
        for part in node.op.fused:
            if part == "add":
                value = f"{value} + {self._like(node.inputs[-1], vector)}"
            elif part != "bn":
                value = f"{_ACTIVATIONS[part]}({value})"
        if vector:
            self._vectors.add(node.name)
        return value

    def _base(self, node: Node) -> tuple[str, bool]:
        """Return the code of an operator without fused parts, and whether it returns a vector."""
        op, layer, x = node.op, f"self.{_name(node)}", self._variables[node.inputs[0]]
        vector = node.inputs[0] in self._vectors
        match op.base:
            case "conv2d":
                return f"{layer}({self._like(node.inputs[0], False)})", False
            case "linear" | "layernorm":
                self.per_pixel |= not vector
                return (f"{layer}({x})" if vector else f"per_pixel({layer}, {x})"), vector
            case "add" | "mul":
                sign = "+" if op.base == "add" else "*"
                return f"{x} {sign} {self._like(node.inputs[1], vector)}", vector
            case "mean":
                return f"{x}.mean((2, 3))", True
            case "max_pool2d":
                return f"F.max_pool2d({x}, {op.kernel}, {op.stride}, {op.padding})", False
            case "attention":
                self.attention = True
                return f"attention({x}, {op.groups})", False
        raise CompileError(
            f"model.py cannot be written: operator '{node.name}' ({op}) is not supported; the "
            "network's family must use the operators of hwnas.models.graph."
        )

    def _like(self, name: str, vector: bool) -> str:
        """Return the code of a variable as a vector or as an image."""
        variable = self._variables[name]
        if vector == (name in self._vectors):
            return variable
        return f"{variable}.flatten(1)" if vector else f"{variable}[:, :, None, None]"


# Runners: scripts that need numpy, one runtime and, for photos, Pillow.

_RUNNER = '''"""Print {answer} of photos, or of the uint8 images (N, H, W, C) of a .npy file.

Needs {needs} and numpy; for photos also Pillow.

    python {name} photo.png [MORE.jpg ...]
    python {name} images.npy{more}   # or images.npz of this folder
"""

import contextlib
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

try:
    {imports}
except ImportError:
    sys.exit("{name} needs {needs}: pip install {needs}. Other run_*.py need other packages.")

here = Path(__file__).parent
spec = json.loads((here / "preprocessing.json").read_text())


def read_photo(path):
    """Return a photo as uint8 (H, W, C), read and resized as the images of the data set."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        sys.exit("Photos need Pillow: pip install pillow")
    try:
        photo = Image.open(path)
        if photo.mode.startswith(("I", "F")):
            sys.exit(f"{{path}}: mode {{photo.mode}} is not supported; convert it to 8 bits.")
        (width, height), square, side = photo.size, min(photo.size), spec["decoded_side"]
        photo.draft(photo.mode, [math.ceil(n * side / square) for n in (width, height)])
        with contextlib.suppress(ArithmeticError, SyntaxError, TypeError, ValueError, struct.error):
            photo = ImageOps.exif_transpose(photo)  # not if EXIF data are damaged
        if "A" in photo.getbands() or "transparency" in photo.info:
            photo = photo.convert("RGBA")
            photo = Image.alpha_composite(Image.new("RGBA", photo.size, "white"), photo)
        photo = photo.convert("L" if spec["channels"] == "grey" else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        sys.exit(f"{{path}}: {{getattr(error, 'strerror', None) or error}}")
    if (width > height) != (photo.width > photo.height):  # rotated
        width, height = height, width
    x, y = photo.width / width, photo.height / height  # of draft
    left, top, bilinear = (width - square) / 2, (height - square) / 2, Image.Resampling.BILINEAR
    if photo.size != (side, side):
        box = (left * x, top * y, (left + square) * x, (top + square) * y)
        photo = photo.resize((side, side), bilinear, box)
    planes = np.asarray(photo).reshape(side, side, -1).transpose(2, 0, 1).astype(np.float32)
    size = spec["shape"][1], spec["shape"][0]
    if size != (side, side):
        planes = [np.asarray(Image.fromarray(plane).resize(size, bilinear)) for plane in planes]
    return np.round(np.stack(planes, -1)).clip(0, 255).astype(np.uint8)


if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
    sys.exit(__doc__)
photos = [] if sys.argv[1].endswith((".npy", ".npz")) else sys.argv[1:]
if photos:
    images = np.stack([read_photo(path) for path in photos])
    del sys.argv[2:]
else:
    try:
        images = np.load(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"{{sys.argv[1]}}: {{getattr(error, 'strerror', None) or error}}")
    images = images["pixels"] if isinstance(images, np.lib.npyio.NpzFile) else images
if images.dtype != np.uint8 or list(images.shape[1:]) != spec["shape"]:
    sys.exit(f"Expected uint8 (N, *{{spec['shape']}}), got {{images.dtype}} {{images.shape}}.")
mean, std = (np.array(spec[key], np.float32) * 255 for key in ("mean", "std"))
x = (images.astype(np.float32) - mean) / std  # N, H, W, C
'''


def runners(names: set[str], task: Task, target: Target) -> dict[str, str]:
    """Return the text of scripts that run the artefacts, by file name.

    ``run.py`` runs the artefact of the target, or else the first that has a script.

    Args:
        names: Names of the artefacts.
        task: The task of the networks.
        target: The target, whose sections hold the options of runtimes.
    """
    result = dict[str, str]()
    native = target.artefact
    every = [(backend, runner) for backend in backends.known() for runner in backend.runners]
    every.sort(key=lambda pair: (native not in pair[1].artefacts, pair[0].name != target.runtime))
    for backend, runner in every:
        runnable = [name for name in runner.artefacts if name in names]
        if not runnable:
            continue
        default = native if native in runnable else runnable[0]
        section = getattr(target, backend.name, None)
        settings = section if isinstance(section, BackendSettings) else BackendSettings()
        values = {**settings.substitutions, "DEFAULT": default}
        code = _fill_placeholders(runner.code, values) + task.print_code()
        for name in dict.fromkeys([*([] if result else [RUNNER]), runner.name]):
            head = _RUNNER.format(
                name=name,
                answer=task.description.answer,
                needs=settings.distribution or runner.distribution,
                imports=runner.imports.replace("\n", "\n    "),
                more=f" [{runnable[-1]}]" if "DEFAULT" in runner.code else "",
            )
            result[name] = head + code
    return dict(sorted(result.items()))


def _fill_placeholders(code: str, values: Mapping[str, str]) -> str:
    """Replace all placeholders at once, so that values are not searched for placeholders."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], code)
