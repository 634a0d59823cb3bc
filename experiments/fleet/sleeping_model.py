"""Triton's Python backend runs this instead of a model: a batch of n images takes 40 + 10 n ms."""

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

_FIXED_S, _EACH_S = 0.040, 0.010


class TritonPythonModel:
    """A device that is as fast as it says, whatever else the machine does."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Read what goes in and comes out."""
        said = json.loads(arguments["model_config"])
        self.image = said["input"][0]["name"]
        self.outputs = {out["name"]: int(out["dims"][0]) for out in said["output"]}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Sleep as long as the batch takes, and answer."""
        sizes = [len(pb.get_input_tensor_by_name(r, self.image).as_numpy()) for r in requests]
        time.sleep(_FIXED_S + _EACH_S * sum(sizes))
        return [
            pb.InferenceResponse(
                [
                    pb.Tensor(k, np.zeros((n, width), np.float32))
                    for k, width in self.outputs.items()
                ]
            )
            for n in sizes
        ]
