"""The reference for the TFLite writer: an int8 network as ONNX, without optimisation."""

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.onnx.writer import IMAGES, write_int8


def oracle(network: QuantisedNetwork) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return a function that runs the network in onnxruntime, in float between int8 tensors."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = write_int8(network)
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([session.run(None, {IMAGES: image[None]})[0] for image in images])

    return run
