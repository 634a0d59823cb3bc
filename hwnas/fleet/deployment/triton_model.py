"""Model of Triton's Python backend, for a Triton without ONNX backend: onnxruntime as planned.

The rest of ``config.pbtxt`` is the plan's: Triton's batcher forms the batches.
"""

import json
import os
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


class TritonPythonModel:
    """A model of Triton's model repository; Triton calls its methods."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Load ``model.onnx`` next to this file, and run each batch size once.

        ``arguments`` are Triton's: the configuration of the model, its folder and its version.
        """
        options = onnxruntime.SessionOptions()
        text = json.loads(arguments["model_config"])
        threads = text["parameters"]["threads"]["string_value"]
        options.intra_op_num_threads, options.inter_op_num_threads = int(threads), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.x64quantprecision", "1")  # int8 without VNNI
        folder = os.path.join(arguments["model_repository"], arguments["model_version"])
        self.session: Any = onnxruntime.InferenceSession(
            os.path.join(folder, "model.onnx"), options, ["CPUExecutionProvider"]
        )
        image = self.session.get_inputs()[0]
        self.image, self.outputs = image.name, [out.name for out in self.session.get_outputs()]
        dtype = np.uint8 if image.type == "tensor(uint8)" else np.float32
        for n in range(1, text["max_batch_size"] + 1):
            self.session.run(None, {self.image: np.zeros((n, *image.shape[1:]), dtype)})

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return an ``InferenceResponse`` per request; each request has one or more images."""
        images = [pb.get_input_tensor_by_name(r, self.image).as_numpy() for r in requests]
        result = self.session.run(None, {self.image: np.concatenate(images)})
        ends = np.cumsum([len(part) for part in images])[:-1]
        parts = zip(*(np.split(output, ends) for output in result), strict=True)
        return [
            pb.InferenceResponse([pb.Tensor(n, a) for n, a in zip(self.outputs, part, strict=True)])
            for part in parts
        ]
