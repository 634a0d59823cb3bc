"""Writes the C files of an export: the network as an array, preprocessing, TFLite Micro example."""

import hashlib
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity
from hwnas.tasks.base import Task

if TYPE_CHECKING:
    from hwnas.hardware.backends.vela.compiler import TFLiteInterface

FOLDER = "c"
_TEMPLATES = Path(__file__).with_name("c_template")
_INTERPRETER_BYTES = 16 << 10  #: memory of TFLite Micro beside activations
_ETHOS_U = "ethos-u"
#: Methods of ``MicroMutableOpResolver`` that are not the name of the operator in camel case.
_METHODS = {_ETHOS_U: "EthosU", "BATCH_MATMUL": "BatchMatMul"}
_LABELS = "labels.txt"
#: Contents of the files, for the list of files of an export.
ABOUT = {
    "c/model.c": "the network for the device as a C array",
    "c/model.h": "declaration of the array",
    "c/network.c": "preprocessing in C, and the meaning of outputs",
    "c/network.h": "its declarations and sizes",
    "c/example.cc": "example for TensorFlow Lite Micro",
    "c/example.h": "its functions, for C and C++",
    "c/test.c": "test of the C files against the numbers of the export",
    "c/README.md": "how to test the C files",
}
#: Formats of ``export``, with the file of the network in C.
FORMATS = {"c": "model.vela.tflite", "c_cpu": "model.int8.tflite"}
#: Largest number of values of all test images in ``test.c``; one image is always included.
MAX_TEST_PIXELS = 1 << 13
_CHARACTERS = 96  # of a line of numbers


@dataclass(frozen=True)
class CTestImages:
    """Images of an export with the outputs of its int8 network."""

    pixels: NDArray[np.uint8]  #: ``(N, R, R, C)``
    outputs: NDArray[np.float32]  #: outputs in LiteRT, dequantised to float, ``(N, n_outputs)``


@dataclass(frozen=True)
class CNetwork:
    """A network for C files."""

    name: str  #: name of its TFLite file in the export
    content: bytes  #: content of that file
    title: str  #: one line about the network, for comments in the C files
    #: memory of its activations in KiB; ``None``: it is computed from the file
    sram_kib: Quantity | None


def c_files(
    network: CNetwork, task: Task, images: Mapping[str, Any], tested: CTestImages
) -> dict[str, str]:
    """Return the text of C files (and a README) that run a TFLite file, by path in the export.

    Needs the package of Vela, which reads the TFLite file.

    Args:
        network: The network.
        task: Its task.
        images: ``mean`` and ``std`` of each channel, as fractions of 255, and ``decoded_side``, the
            height and width of the images of the data set, as in ``preprocessing.json``.
        tested: Images for ``test.c``.

    Raises:
        CompileError: the TFLite file has several inputs or outputs, or they are not int8.
    """
    from hwnas.hardware.backends.vela.compiler import read_interface  # imports Vela

    interface = read_interface(network.content)
    sram = network.sram_kib or Quantity(interface.activation_bytes / 1024, "modelled")
    height, width, channels = interface.shape
    has_npu = _ETHOS_U in interface.operators
    methods = [_METHODS.get(op, _camel_case(op)) for op in dict.fromkeys(interface.operators)]
    checked = [f"  if (resolver.Add{method}() != kTfLiteOk) return false;" for method in methods]
    declarations, definitions = _meaning(task)
    values = {
        "title": _comment(network.title), "file": network.name,
        "model_bytes": _rows(network.content),
        "height": height, "width": width, "channels": channels, "decoded": images["decoded_side"],
        "outputs": interface.n_outputs,
        "input_scale": f"{interface.input_scale:.9g}", "input_zero": interface.input_zero,
        "output_scale": _float(interface.output_scale), "output_zero": interface.output_zero,
        "table": _row_initialisers(_table(interface, images)),
        "declarations": declarations, "definitions": definitions,
        "sram": f"{sram.value:.4g}", "sram_source": sram.source,
        "arena_bytes": int(sram.value * 1024) + _INTERPRETER_BYTES,
        "n_operators": len(methods), "operator_names": ", ".join(methods),
        "operators": "\n".join(checked),
        "driver": " and the Ethos-U driver" if has_npu else "",
        "setup": ", and ethosu_init()" if has_npu else "",
        **_test_values(network.content, interface, task, images, tested),
    }  # fmt: skip
    return {
        f"{FOLDER}/{path.name}": Template(path.read_text(encoding="utf-8")).substitute(values)
        for path in sorted(_TEMPLATES.iterdir())
    }


def _int8_input(
    interface: "TFLiteInterface", images: Mapping[str, Any], pixels: NDArray[Any]
) -> NDArray[np.int8]:
    """Return the input for pixels ``(..., C)``, as ``run_tflite.py`` computes it."""
    shift, scale = (np.array(images[name], np.float32) * 255 for name in ("mean", "std"))
    x = (pixels.astype(np.float32) - shift) / scale
    rounded = np.round(x / interface.input_scale) + interface.input_zero
    quantised: NDArray[np.int8] = np.clip(rounded, -128, 127).astype(np.int8)
    return quantised


def _table(interface: "TFLiteInterface", images: Mapping[str, Any]) -> NDArray[np.int8]:
    """Return the input for each pixel value, ``(C, 256)``."""
    return _int8_input(interface, images, np.arange(256)[:, None]).T


def _test_values(
    content: bytes,
    interface: "TFLiteInterface",
    task: Task,
    images: Mapping[str, Any],
    tested: CTestImages,
) -> dict[str, object]:
    """Return the numbers of ``test.c``."""
    _, width, channels = interface.shape
    steps = np.round(tested.outputs / interface.output_scale) + interface.output_zero
    values, meaning, labels = tested.outputs, "", ""
    if text := task.files().get(_LABELS):
        labels = Template(_TEST_LABELS).substitute(digest=hashlib.sha256(text).hexdigest())
        meaning = _TEST_CLASSES
    elif targets := task.preprocessing().get("targets"):
        scale, shift = (np.array(targets[name], np.float32) for name in ("std", "mean"))
        units = ", ".join(_float_initialiser(row) for row in tested.outputs * scale + shift)
        meaning = Template(_TEST_TARGETS).substitute(units=units)
    table = np.ascontiguousarray(_table(interface, images))
    return {
        "n_images": len(tested.pixels),
        "model_digest": hashlib.sha256(content).hexdigest(),
        "table_digest": hashlib.sha256(table.tobytes()).hexdigest(),
        "pixels": _row_initialisers(tested.pixels),
        "inputs": _row_initialisers(_int8_input(interface, images, tested.pixels)),
        "int8_outputs": _row_initialisers(steps.astype(np.int8)),
        "values": ",\n".join(_float_initialiser(row) for row in values),
        "resized": _number_lines(_resized_frame(width, channels, images["decoded_side"]).ravel()),
        "test_labels": labels,
        "test_meaning": meaning,
    }


def _resized_frame(side: int, channels: int, decoded: int) -> NDArray[np.uint8]:
    """Return the frame of ``test.c``, cropped and resized as the training images."""
    height, width = side + 7, 2 * side + 4
    i = np.arange(height * width * channels, dtype=np.int64)
    frame = (i * i // 7 % 251).astype(np.uint8).reshape(height, width, channels)
    from PIL import Image  # ``verify`` runs where Pillow is not installed

    first, bilinear = (width - height) / 2, Image.Resampling.BILINEAR
    box = first, 0, first + height, height
    square = Image.fromarray(frame.squeeze()).resize((decoded, decoded), bilinear, box)
    if decoded == side:
        return np.asarray(square)
    planes = np.asarray(square, np.float32).reshape(decoded, decoded, channels)
    resized = [
        np.asarray(Image.fromarray(planes[..., c]).resize((side, side), bilinear))
        for c in range(channels)
    ]
    return np.round(np.stack(resized, axis=-1)).clip(0, 255).astype(np.uint8)


def _row_initialisers(rows: NDArray[Any]) -> str:
    return ",\n".join("{" + _number_lines(row.ravel()) + "}" for row in rows)


def _number_lines(values: Iterable[object]) -> str:
    return "\n".join(textwrap.wrap(", ".join(map(str, values)), _CHARACTERS))


def _float_initialiser(row: NDArray[np.float32]) -> str:
    return "{" + ", ".join(f"{_float(value)}f" for value in row.tolist()) + "}"


def _meaning(task: Task) -> tuple[str, str]:
    """Return declarations and definitions of what the outputs of a task mean."""
    if _LABELS in (files := task.files()):
        labels = files[_LABELS].decode().splitlines()
        strings = ",\n".join(f"  {_string(label)}" for label in labels)
        return _CLASSES, Template(_CLASSIFY).substitute(labels=strings)
    targets = task.preprocessing().get("targets")
    if isinstance(targets, Mapping) and {"mean", "std"} <= targets.keys():
        numbers = {n: ", ".join(f"{_float(v)}f" for v in targets[n]) for n in ("mean", "std")}
        return _TARGETS, Template(_DENORMALISE).substitute(numbers)
    return "", ""


_CLASSES = """
/* Return the class of HWNAS_OUTPUTS values, and its softmax. */
size_t hwnas_classify(const float *values, float *confidence);

extern const char *const hwnas_labels[HWNAS_OUTPUTS]; /* names of classes, UTF-8 */
"""
_CLASSIFY = """
size_t hwnas_classify(const float *values, float *confidence) {
  size_t best = 0;
  float sum = 0;
  for (size_t i = 1; i < HWNAS_OUTPUTS; i++) best = values[i] > values[best] ? i : best;
  for (size_t i = 0; i < HWNAS_OUTPUTS; i++) sum += expf(values[i] - values[best]);
  *confidence = 1 / sum;
  return best;
}

const char *const hwnas_labels[HWNAS_OUTPUTS] = {
$labels
};
"""
_TEST_LABELS = """\
  hash_begin();
  for (int i = 0; i < HWNAS_OUTPUTS; i++) {
    hash_add(hwnas_labels[i], strlen(hwnas_labels[i]));
    hash_add("\\n", 1);
  }
  report(hash_is("$digest"),
         "hwnas_labels are those of ../labels.txt");
"""
_TEST_CLASSES = """\
    float confidence;
    size_t largest = 0;
    for (size_t j = 1; j < HWNAS_OUTPUTS; j++) largest = values[j] > values[largest] ? j : largest;
    same = same && hwnas_classify(values, &confidence) == largest;
"""
_TEST_TARGETS = """\
    static const float units[IMAGES][HWNAS_OUTPUTS] = {$units};
    hwnas_denormalise(values);
    for (int j = 0; j < HWNAS_OUTPUTS; j++) {
      same = same && fabsf(values[j] - units[i][j]) <= 1e-5f * (1 + fabsf(units[i][j]));
    }
"""
_TARGETS = """
/* Convert HWNAS_OUTPUTS values to the unit of the targets. */
void hwnas_denormalise(float *values);
"""
_DENORMALISE = """
void hwnas_denormalise(float *values) {
  static const float mean[HWNAS_OUTPUTS] = {$mean}, std[HWNAS_OUTPUTS] = {$std};
  for (size_t i = 0; i < HWNAS_OUTPUTS; i++) values[i] = values[i] * std[i] + mean[i];
}
"""


def _float(value: float) -> str:
    """Return a decimal number with a point, as C's floats need."""
    text = f"{value:.9g}"
    return text if {*text} & {".", "e"} else f"{text}.0"


def _camel_case(operator: str) -> str:
    """Return the method of an operator: ``CONV_2D`` is ``Conv2D``."""
    return "".join(p if p[0].isdigit() else p.capitalize() for p in operator.split("_"))


def _rows(content: bytes) -> str:
    """Return the bytes of an array, 20 a line."""
    return "\n".join(
        "  " + " ".join(f"{byte}," for byte in content[i : i + 20])
        for i in range(0, len(content), 20)
    )


def _string(text: str) -> str:
    """Return a C string in which only plain characters are not escaped."""
    plain = {*range(32, 127)} - {*b'"\\?'}
    return '"' + "".join(chr(b) if b in plain else rf"\{b:03o}" for b in text.encode()) + '"'


def _comment(text: str) -> str:
    """Return a text that cannot end a comment."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line.replace("*/", "* /").replace("\\", "/").replace("$", "")
