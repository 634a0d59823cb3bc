"""Triton's Python backend runs this where a Triton has no ONNX backend: onnxruntime, as planned.

``config.pbtxt`` is otherwise that of the plan: batches are made by Triton's own batcher.
"""

import json
import os
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


class TritonPythonModel:
    """A model by its folder."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Load ``model.onnx`` beside this file, and run it once."""
        options = onnxruntime.SessionOptions()
        said = json.loads(arguments["model_config"])
        threads = said["parameters"]["threads"]["string_value"]
        options.intra_op_num_threads, options.inter_op_num_threads = int(threads), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        folder = os.path.join(arguments["model_repository"], arguments["model_version"])
        self.session: Any = onnxruntime.InferenceSession(
            os.path.join(folder, "model.onnx"), options, ["CPUExecutionProvider"]
        )
        image = self.session.get_inputs()[0]
        self.image, self.outputs = image.name, [out.name for out in self.session.get_outputs()]
        dtype = np.uint8 if image.type == "tensor(uint8)" else np.float32
        for n in range(1, said["max_batch_size"] + 1):
            self.session.run(None, {self.image: np.zeros((n, *image.shape[1:]), dtype)})

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch of requests, of an image or more each."""
        images = [pb.get_input_tensor_by_name(r, self.image).as_numpy() for r in requests]
        found = self.session.run(None, {self.image: np.concatenate(images)})
        ends = np.cumsum([len(each) for each in images])[:-1]
        parts = zip(*(np.split(output, ends) for output in found), strict=True)
        return [
            pb.InferenceResponse([pb.Tensor(n, a) for n, a in zip(self.outputs, each, strict=True)])
            for each in parts
        ]
