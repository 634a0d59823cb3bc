"""Writes the C files of an export: the network as an array, preprocessing, TFLite Micro example."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

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
    "c/README.md": "how the C files were tested",
}


def c_files(
    name: str,
    content: bytes,
    task: Task,
    images: Mapping[str, Any],
    title: str,
    sram_kib: float,
) -> dict[str, str]:
    """Return the text of C files that run a TFLite file, by path in the export.

    Args:
        name: Name of the TFLite file in the export.
        content: Content of the TFLite file.
        task: The task of the network.
        images: ``mean`` and ``std`` of each channel, as fractions of 255, and ``decoded_side``, the
            height and width of the images of the data set, as in ``preprocessing.json``.
        title: One line about the network.
        sram_kib: Memory of its activations.
    """
    from hwnas.hardware.backends.vela.compiler import read_interface  # imports Vela

    interface = read_interface(content)
    height, width, channels = interface.shape
    has_npu = _ETHOS_U in interface.operators
    methods = [_METHODS.get(op, _camel_case(op)) for op in dict.fromkeys(interface.operators)]
    checked = [f"  if (resolver.Add{method}() != kTfLiteOk) return false;" for method in methods]
    declarations, definitions = _meaning(task)
    values = {
        "title": _comment(title), "file": name, "model_bytes": _rows(content),
        "height": height, "width": width, "channels": channels, "decoded": images["decoded_side"],
        "outputs": interface.n_outputs,
        "input_scale": f"{interface.input_scale:.9g}", "input_zero": interface.input_zero,
        "output_scale": _float(interface.output_scale), "output_zero": interface.output_zero,
        "table": _table(interface, images["mean"], images["std"]),
        "declarations": declarations, "definitions": definitions,
        "sram": f"{sram_kib:g}", "arena_bytes": int(sram_kib * 1024) + _INTERPRETER_BYTES,
        "n_operators": len(methods), "operator_names": ", ".join(methods),
        "operators": "\n".join(checked),
        "driver": " and the Ethos-U driver" if has_npu else "",
        "setup": ", and ethosu_init()" if has_npu else "",
    }  # fmt: skip
    return {
        f"{FOLDER}/{path.name}": Template(path.read_text(encoding="utf-8")).substitute(values)
        for path in sorted(_TEMPLATES.iterdir())
    }


def _table(interface: "TFLiteInterface", mean: Sequence[float], std: Sequence[float]) -> str:
    """Return the quantised input for each pixel value, by channel, as ``run_tflite.py`` does."""
    pixels = np.arange(256, dtype=np.float32)[:, None]
    shift, scale = (np.array(values, np.float32) * 255 for values in (mean, std))
    x = (pixels - shift) / scale
    quantised = np.clip(np.round(x / interface.input_scale) + interface.input_zero, -128, 127)
    return ",\n".join(f"  {{{', '.join(f'{q:.0f}' for q in row)}}}" for row in quantised.T)


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
