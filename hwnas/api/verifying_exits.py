"""Repeats what the proof of an export says of its early exits; needs no torch."""

from pathlib import Path
from typing import final

import numpy as np

from hwnas import backends
from hwnas.export import exits
from hwnas.export.exits import Segments
from hwnas.export.proof import Floats
from hwnas.export.recorded import Leaving, Proof, target_of
from hwnas.tasks.base import Found, Targets, Task


@final
class RepeatedExits:
    """The segments of an export, in a row on this machine, and what they do not repeat."""

    def __init__(self, folder: Path, recorded: Proof, leaving: Leaving, task: Task):
        self._folder, self._leaving, self._task = folder, leaving, task
        self._target = target_of(recorded)
        self._segments: Segments | None = None
        self._found: list[Found] = []
        self._at: list[Found] = []
        self.failed: list[str] = []

    def bits(self, images: Floats) -> list[str]:
        """Load the segments and compare them with the whole network; return what was found."""
        needs = backends.get(self._target.runtime).needs
        if why := backends.lacking(needs):
            return [f"Segments: not run, {why}."]
        n = len(self._leaving["segments"])
        self._segments = exits.opened(self._folder, self._target, self._task, n)
        expected = exits.read_answers(self._folder)
        checks = self._segments.checks(images, expected, self._leaving["trained"])
        self.failed += [check.name for check in checks if not check.holds]
        told = ", ".join(f"{check.name} {check.found:.2g}" for check in checks)
        return [f"{n} segments in a row on {len(images)} images: {told}."]

    def read(self, images: Floats, targets: Targets) -> None:
        """Read test images, which leave as soon as an exit is sure."""
        if self._segments is not None:
            left = self._segments.left(images, self._leaving["thresholds"])
            self._found.append(self._task.per_sample(left.outputs, targets))
            self._at.append(left.at)

    def ended(self) -> list[str]:
        """Compare what was read with the proof; return what was found."""
        if not self._found:
            return []
        figure, at = self._task.score(np.concatenate(self._found)), np.concatenate(self._at)
        said = self._leaving["found"]
        shares = [float((at == i).mean()) for i in range(len(said["left"]))]
        # Rounding differs from machine to machine, and turns an image in a thousand at most.
        allowed = max(0.001, 1.5 / len(at))
        off = [abs(share - row[0]) for share, row in zip(shares, said["left"], strict=True)]
        if max(*off, abs(figure.value - said["accuracy"][0])) > allowed:
            self.failed.append("exits.left")
        told = ", ".join(f"{share:.1%}" for share in shares)
        before = ", ".join(f"{row[0]:.1%}" for row in said["left"])
        return [
            f"Leaving early: {told} leave at the exits, accuracy {figure.value:.4f} on {len(at):,} "
            f"test images; the proof says {before} and {said['accuracy'][0]:.4f}."
        ]
