"""Finds trainings that learn nothing: answers stay, or become, no better than guesses."""

from typing import final

from hwnas.tasks.base import Task

WINDOW = 200  #: steps over which answers are averaged
_PATIENCE = 0.25  # fraction of the steps before which nothing is judged


@final
class Watch:
    """Averages the metric in windows of 200 steps, each of which must beat guessing."""

    def __init__(self, task: Task, n_steps: int):
        self._task = task
        self._from = _PATIENCE * n_steps
        self.total, self.seen = 0.0, 0  #: of the window that is open
        self.good = 0  #: steps after which the last window closed that beat guessing

    def count(self, done: int, total: float, n_seen: int) -> float | None:
        """Take in a step; return the mean of a window that is no better than guessing.

        Args:
            done: Finished steps, this one included.
            total: Sum of what was found of the images before the network learned from them.
            n_seen: All images of the step.
        """
        self.total += total
        self.seen += n_seen
        if done % WINDOW:
            return None
        mean, learned = self.total / self.seen, self._task.has_learned(self.total, self.seen)
        self.total, self.seen = 0.0, 0
        if learned:
            self.good = done
            return None
        return mean if done >= self._from else None

    def to_json(self) -> list[float]:
        """Return what ``restore`` needs."""
        return [self.total, self.seen, self.good]

    def restore(self, raw: list[float]) -> None:
        """Go on from what ``to_json`` returned."""
        self.total, self.seen, self.good = raw[0], int(raw[1]), int(raw[2])
