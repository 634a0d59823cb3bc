"""A Triton Python backend that replaces a model: a batch of n images takes 40 + 10 n ms."""

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

_FIXED_S, _PER_IMAGE_S = 0.040, 0.010


class TritonPythonModel:
    """A model whose speed is independent of the load of the machine."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Read the names of the inputs and outputs."""
        config = json.loads(arguments["model_config"])
        self.image = config["input"][0]["name"]
        self.outputs = {output["name"]: int(output["dims"][0]) for output in config["output"]}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Sleep for the duration of the batch, and return outputs."""
        sizes = [len(pb.get_input_tensor_by_name(r, self.image).as_numpy()) for r in requests]
        time.sleep(_FIXED_S + _PER_IMAGE_S * sum(sizes))
        return [
            pb.InferenceResponse(
                [
                    pb.Tensor(name, np.zeros((n, width), np.float32))
                    for name, width in self.outputs.items()
                ]
            )
            for n in sizes
        ]
