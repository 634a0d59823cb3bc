"""Synthetic runs and fronts."""

from collections.abc import Sequence

import numpy as np

from hwnas.analysis.fronts import Array, ComparedRun, FrontPoint, Objective, ReferenceFrame
from hwnas.core.quantity import Quantity

ACCURACY = Objective("accuracy", maximise=True)
LATENCY = Objective("latency_ms", maximise=False)
PAIR = (ACCURACY, LATENCY)


def run_of(
    name: str,
    values: Sequence[Sequence[float]],
    *,
    group: str = "",
    block: str | None = None,
    half: Sequence[float] = (0.0, 0.0),
    names: Sequence[str] = ("accuracy", "latency_ms"),
) -> ComparedRun:
    """Return a run with points; ``half`` is half the interval width of each objective."""
    points = []
    for i, row in enumerate(values):
        figures = {
            n: Quantity(x, "measured", x - h if h else None, x + h if h else None)
            for n, x, h in zip(names, row, half, strict=True)
        }
        points.append(FrontPoint(f"line {i}", figures))
    return ComparedRun(name, {}, points, group=group or name, block=block)


def unit_frame(n: int, reference: float = 1.0) -> ReferenceFrame:
    """Return a frame of minimised objectives that scales nothing."""
    objectives = tuple(Objective(f"f{i}", maximise=False) for i in range(n))
    return ReferenceFrame(objectives, np.zeros(n), np.full(n, reference), "unscaled")


def random_front(seed: int, n: int = 30, m: int = 2) -> Array:
    return np.random.default_rng(seed).random((n, m))
