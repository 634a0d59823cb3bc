"""Finds trainings that learn nothing: their accuracy stays at, or falls to, that of guessing."""

import math
from typing import final

WINDOW = 200  #: steps over which accuracy is averaged
_PATIENCE = 0.25  # fraction of the steps before which nothing is judged
_SIGMAS = 3.0  # above guessing that count as having learned


@final
class Watch:
    """Counts right answers in windows of 200 steps, each of which must beat guessing."""

    def __init__(self, n_classes: int, n_steps: int):
        self._chance = 1 / n_classes
        self._from = _PATIENCE * n_steps
        self.right = self.seen = 0  #: of the window that is open
        self.good = 0  #: steps after which the last window closed that beat guessing

    def count(self, done: int, n_right: int, n_seen: int) -> float | None:
        """Take in a step; return the accuracy of a window that is no better than guessing.

        Args:
            done: Finished steps, this one included.
            n_right: Images that the network classified rightly before it learned from them.
            n_seen: All images of the step.
        """
        self.right += n_right
        self.seen += n_seen
        if done % WINDOW:
            return None
        accuracy, p = self.right / self.seen, self._chance
        learned = accuracy > p + _SIGMAS * math.sqrt(p * (1 - p) / self.seen)
        self.right = self.seen = 0
        if learned:
            self.good = done
            return None
        return accuracy if done >= self._from else None

    def to_json(self) -> list[int]:
        """Return what ``restore`` needs."""
        return [self.right, self.seen, self.good]

    def restore(self, raw: list[int]) -> None:
        """Go on from what ``to_json`` returned."""
        self.right, self.seen, self.good = raw
