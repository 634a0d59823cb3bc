"""What a runtime offers: networks that it has loaded and can run."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Session(Protocol):
    """A network loaded into a runtime."""

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_classes)`` for normalised images ``(N, C, H, W)``."""
        ...
