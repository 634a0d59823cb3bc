"""Segments of a network with exits, run one after the other to the end."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.runtimes.base import Segment


@final
class InARow:
    """Loaded segments, of which each reads what the one before answers."""

    def __init__(self, segments: Sequence[Segment]):
        self._segments = segments

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs of every exit and of the end, ``(N, n_exits + 1, n_outputs)``."""
        found, read = [], images
        for segment in self._segments:
            *further, outputs = segment.outputs(read)
            found.append(outputs)
            if further:
                (read,) = further
        return np.stack(found, axis=1)
