"""Sessions of TFLite files on this host. The only module that imports LiteRT."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, short_reason


@final
class LiteRTSession:
    """An int8 TFLite network with one input, loaded on this machine.

    Raises:
        CompileError: LiteRT cannot load it.

    Source: https://ai.google.dev/edge/litert.
    """

    def __init__(self, tflite: bytes, n_threads: int = 1):
        # The default delegate, XNNPACK, is closer to the reference kernels, which Ethos-U follows
        # bit by bit, than LiteRT's optimised kernels.
        try:
            with _quiet_stderr():
                self._interpreter = Interpreter(model_content=tflite, num_threads=n_threads)
                self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise CompileError(
                f"LiteRT cannot load the network: {short_reason(error)}. If the file is from an "
                "export, export the network again."
            ) from None
        self._input = self._interpreter.get_input_details()[0]
        self._outputs = self._interpreter.get_output_details()

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the last output, float32 ``(N, n_outputs)``, for normalised ``(N, C, H, W)``."""
        return self.outputs(images)[-1]

    def outputs(self, images: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Return all outputs for images ``(N, C, H, W)`` as float32, in the order of the file.

        Each is ``(N, n_outputs)``, or ``(N, C, H, W)`` for features that the next segment reads.
        """
        scale, zero_point = self._input["quantization"]
        quantised = np.clip(np.round(images / scale) + zero_point, -128, 127).astype(np.int8)
        nhwc = np.ascontiguousarray(quantised.transpose(0, 2, 3, 1))
        rows = [np.empty((len(images), *out["shape"][1:]), np.int8) for out in self._outputs]
        for i, image in enumerate(nhwc):
            self._interpreter.set_tensor(self._input["index"], image[None])
            self._interpreter.invoke()
            for output, answers in zip(self._outputs, rows, strict=True):
                answers[i] = self._interpreter.get_tensor(output["index"])[0]
        return tuple(map(_to_float32, self._outputs, rows))


def _to_float32(output: Mapping[str, Any], integers: NDArray[np.int8]) -> NDArray[np.float32]:
    scale, zero_point = output["quantization"]
    real: NDArray[np.float32] = (integers.astype(np.float32) - zero_point) * np.float32(scale)
    return real.transpose(0, 3, 1, 2) if real.ndim == 4 else real


def open_tflite(contents: Mapping[str, bytes]) -> LiteRTSession:
    """Return the network of an exported TFLite file, ``contents[".tflite"]``, on this machine.

    Raises:
        CompileError: LiteRT cannot load it.
    """
    return LiteRTSession(contents[".tflite"])


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop output of native code to stderr: LiteRT announces its delegate at each start."""
    original = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(null)
