"""Runs TFLite files on this host. The only file that imports the LiteRT interpreter."""

from typing import final

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray


@final
class LiteRTSession:
    """One loaded int8 TFLite network of one input and one output.

    Source: https://ai.google.dev/edge/litert.
    """

    def __init__(self, tflite: bytes, n_threads: int = 1):
        self._interpreter = Interpreter(model_content=tflite, num_threads=n_threads)
        self._interpreter.allocate_tensors()
        self._input = self._interpreter.get_input_details()[0]
        self._output = self._interpreter.get_output_details()[0]

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs for normalised images ``(N, C, H, W)``, one inference an image."""
        scale, zero_point = self._input["quantization"]
        quantised = np.clip(np.round(images / scale) + zero_point, -128, 127).astype(np.int8)
        nhwc = np.ascontiguousarray(quantised.transpose(0, 2, 3, 1))
        outputs = np.empty((len(images), *self._output["shape"][1:]), np.int8)
        for i, image in enumerate(nhwc):
            self._interpreter.set_tensor(self._input["index"], image[None])
            self._interpreter.invoke()
            outputs[i] = self._interpreter.get_tensor(self._output["index"])[0]
        scale, zero_point = self._output["quantization"]
        return (outputs.astype(np.float32) - zero_point) * np.float32(scale)
