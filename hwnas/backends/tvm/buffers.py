"""Tensors in memory."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Buffer:
    """Shape and dtype of a tensor in memory."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize
