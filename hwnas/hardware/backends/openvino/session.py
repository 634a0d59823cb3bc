"""Sessions and timers of OpenVINO on this CPU. The only module that imports OpenVINO.

IR is OpenVINO's file format: a graph (``.xml``) and its weights (``.bin``). It stores the precision
in which it runs, as OpenVINO would choose bfloat16 on CPUs that have it.

Source: https://docs.openvino.ai.
"""

import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import openvino
from numpy.typing import NDArray

from hwnas.core import machine
from hwnas.core.errors import CompileError, ConfigError, last_line
from hwnas.hardware.timing import Timer

# of operators that are not in int8
_HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "f32"}
_CAPABILITIES = {"float16": "FP16", "bfloat16": "BF16"}  #: required CPU capability
_PRECISION = "precision"  #: key of the precision in the IR
_CHUNK = 64  # images per inference


def check_cpu(dtype: str) -> None:
    """Check that this CPU supports a dtype.

    Without VNNI, OpenVINO adds two products of int8 in 16 bits, which saturate: outputs are wrong.
    Source: https://docs.openvino.ai, "Saturation (overflow) Issue Workaround".

    Raises:
        ConfigError: it does not; the message names the supported ones.
    """
    if dtype == "int8" and _saturates():
        raise ConfigError(
            "target.dtype=int8: this CPU has no VNNI, and without it OpenVINO's sums of int8 "
            "products saturate. Set target.dtype=float32, or another target.runtime."
        )
    has = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if (needed := _CAPABILITIES.get(dtype)) is not None and needed not in has:
        able = [name for name in _HINTS if _CAPABILITIES.get(name, "FP32") in has]
        raise ConfigError(
            f"target.dtype={dtype}: this CPU has no {needed} (it has {', '.join(sorted(has))}). "
            f"Allowed here: {', '.join(able)}."
        )


def _saturates() -> bool:
    """Return whether this is an x86 CPU without instructions that add int8 products in 32 bits."""
    facts = machine.describe()
    flags = {*facts["flags"]}
    return "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni", "amx_int8"}


def openvino_ir(onnx: bytes, dtype: str) -> dict[str, bytes]:
    """Return the IR of an ONNX file: the contents of ``.xml`` and ``.bin``, by suffix.

    Equal input gives equal bytes. The network will run in ``dtype``, which the IR stores.

    Raises:
        CompileError: OpenVINO cannot read it.
    """
    model = _read(onnx)
    for index, node in enumerate(model.get_ordered_ops()):
        kind = node.get_type_name()
        if re.fullmatch(rf"{kind}_\d+", node.get_friendly_name()):  # has a counter of this process
            node.set_friendly_name(f"{kind}_{index}")
    model.set_rt_info(_HINTS[dtype], _PRECISION)
    with tempfile.TemporaryDirectory(prefix="hwnas-openvino-") as folder:
        path = Path(folder, "network.xml")
        openvino.save_model(model, path, compress_to_fp16=dtype in _CAPABILITIES)
        return {".xml": path.read_bytes(), ".bin": path.with_suffix(".bin").read_bytes()}


@final
class OpenVinoSession:
    """A network with one input and one output, loaded from the contents of its IR, by suffix.

    Raises:
        CompileError: OpenVINO cannot read it.
    """

    def __init__(self, contents: Mapping[str, bytes], n_threads: int = 1):
        self._model, self._n_threads = _read(contents[".xml"], contents[".bin"]), n_threads
        self._networks: dict[int, Any] = {}  # by batch size

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``.

        Raises:
            CompileError: OpenVINO cannot compile the network, or the shape of the images differs
                from the network's.
        """
        batch = min(_CHUNK, len(images))
        if batch not in self._networks:
            self._networks[batch] = _compile(self._model, self._n_threads, batch)
        shape = [*self._networks[batch].input(0).shape][1:]
        if [*images.shape[1:]] != shape:
            raise CompileError(
                f"The network reads images (C, H, W) of {shape}, not {[*images.shape[1:]]}. "
                "Give images of this size."
            )
        outputs = []
        for start in range(0, len(images), batch):
            chunk = images[start : start + batch]
            full = np.zeros((batch, *chunk.shape[1:]), np.float32)
            full[: len(chunk)] = chunk
            outputs.append(self._networks[batch](full)[0][: len(chunk)].copy())
        result: NDArray[np.float32] = np.concatenate(outputs)
        return result


def open_ir(contents: Mapping[str, bytes]) -> OpenVinoSession:
    """Return the network of an exported IR, the contents of ``.xml`` and ``.bin``, on this CPU.

    Raises:
        CompileError: OpenVINO cannot read it.
    """
    return OpenVinoSession(contents)


def timer(contents: Mapping[str, bytes], n_threads: int, batch: int) -> Timer:
    """Return a function that runs ``n`` inferences of ``batch`` images and returns the seconds.

    ``contents`` are those of ``.xml`` and ``.bin``; the images are random.

    Raises:
        CompileError: OpenVINO cannot read or compile the network.
    """
    network = _compile(_read(contents[".xml"], contents[".bin"]), n_threads, batch)
    request = network.create_infer_request()
    pixels = np.random.default_rng(0).standard_normal(network.input(0).shape).astype(np.float32)
    request.set_input_tensor(openvino.Tensor(pixels))

    def run(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            request.infer()
        return time.perf_counter() - start

    return run


def _read(model: bytes, weights: bytes | None = None) -> Any:
    try:
        core = openvino.Core()
        return core.read_model(model) if weights is None else core.read_model(model, weights)
    except RuntimeError as error:
        raise _compile_error(error) from error


def _compile(model: Any, n_threads: int, batch: int) -> Any:
    """Return a network compiled for inferences with ``batch`` images.

    Raises:
        CompileError: OpenVINO refuses it.
    """
    fixed = model.clone()
    fixed.reshape([batch, *(size.get_length() for size in [*model.input(0).partial_shape][1:])])
    options = {
        "INFERENCE_PRECISION_HINT": model.get_rt_info(_PRECISION).astype(str),
        "INFERENCE_NUM_THREADS": n_threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the process is pinned
    }
    try:
        return openvino.Core().compile_model(fixed, "CPU", options)
    except RuntimeError as error:
        raise _compile_error(error) from error


def _compile_error(error: RuntimeError) -> CompileError:
    return CompileError(
        f"OpenVINO cannot run the network: {last_line(error).rstrip('.')}. Choose another search "
        "space or target.runtime; if the file is from an export, export the network again."
    )
