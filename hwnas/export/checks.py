"""What an export must show of its own files, with the limits that it is held against.

An artefact is compared with torch on images that the export holds, read over the whole test split,
and held against the budget. What was trained for int8 has weights of its own: int8 files are then
compared with that network, as torch simulates it. Nothing here needs torch: ``verify`` repeats it
without.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantities
from hwnas.hardware.costs.int8_speed import RATIO
from hwnas.tasks.base import PerImageResults, Task
from hwnas.tasks.metrics import metric_of

Row = dict[str, Any]
Floats = NDArray[np.float32]

N_IMAGES = 256
TRAINED = "simulated int8"  #: reference of what was trained for int8

#: Largest error of a float32 artefact, as a fraction of torch's largest output. Runtimes add up in
#: another order, which moves the last digits: by 6e-7 at most on 60 random networks of four spaces;
#: networks for larger images add up more.
FP32_ERROR = 1e-4
#: Largest mean error of an int8 artefact, likewise. Each layer rounds to 256 steps: 0.008 at most
#: on 45 random and 8 trained networks; one that answers for other images is off by more than 0.1.
INT8_ERROR = 0.05
#: Likewise of one that was trained for int8, against what it was trained as. Only ties are rounded
#: otherwise: 0.0004 at most on two networks, about 0.001 on random ones.
TRAINED_ERROR = 0.01
#: Largest error of an artefact of shorter floats, as a fraction of torch's largest output.
_SHORT_FLOATS = {"float16": 0.01, "bfloat16": 0.05}

TOLERANCES = {
    "float32": {
        "max_error": FP32_ERROR,
        "reason": "the order of summation moves the last digits of float32; a fraction of torch's "
        "largest output",
    },
    "int8": {
        "mean_error": INT8_ERROR,
        "reason": "each layer rounds to 256 steps; a fraction of torch's largest output. What it "
        "costs is judged by the metric on the whole test split",
    },
    TRAINED: {
        "mean_error": TRAINED_ERROR,
        "reason": "only ties are rounded otherwise; a fraction of the simulation's largest output",
    },
}


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    found: float
    allowed: float  #: at most
    words: str  #: what is compared, for people
    is_least: bool = False  #: ``allowed`` is at least, not at most

    @property
    def holds(self) -> bool:
        """Whether it does; not a number never holds."""
        return self.found >= self.allowed if self.is_least else self.found <= self.allowed

    def to_json(self) -> Row:
        """Return it with its outcome."""
        content = {**asdict(self), "holds": self.holds}
        return content if self.is_least else {k: v for k, v in content.items() if k != "is_least"}


@dataclass(frozen=True)
class Agreement:
    """How near the outputs of an artefact are to torch's."""

    reference: str  #: what torch computed: the network in float32, or int8 as it was trained
    n_images: int
    max_error: float  #: absolute
    mean_error: float
    largest_output: float  #: of torch, absolute
    same: float  #: fraction of images to which both give the same answer

    def check(self, name: str, dtype: str) -> Check:
        """Return what must hold of an artefact that computes in ``dtype``."""
        if dtype == "int8":
            error, kind = self.mean_error, "mean"
            allowed = TRAINED_ERROR if self.reference == TRAINED else INT8_ERROR
        else:
            error, kind = self.max_error, "largest"
            allowed = _SHORT_FLOATS.get(dtype, FP32_ERROR)
        words = f"{kind} error against torch, of its largest output"
        return Check(f"{name}.error", error / self.largest_output, allowed, words)


def agreement(task: Task, found: Floats, expected: Floats, reference: str = "float32") -> Agreement:
    """Return how near outputs ``(N, n_outputs)`` are to torch's."""
    errors = np.abs(found.astype(np.float64) - expected)
    return Agreement(
        reference=reference,
        n_images=len(expected),
        max_error=float(errors.max()),
        mean_error=float(errors.mean()),
        largest_output=float(np.abs(expected).max()),
        same=float(task.same_answers(found, expected).mean()),
    )


def drop(
    task: Task, name: str, found: PerImageResults, reference: PerImageResults, points: float
) -> Check:
    """Return the check of how much worse an artefact answers, image by image.

    What is held against the limit is the lower end of the 95 % interval of the paired difference:
    a loss that chance explains is none.
    """
    loss = task.degradation(found, reference)
    words = (
        f"{task.description.points} lost by int8 (test split: {loss.points:.2f}; lower end, 95 %)"
    )
    return Check(f"{name}.drop", loss.low, points, words)


def faster_than_float(beside: Mapping[str, float]) -> list[Check]:
    """Return the check that int8 is worth it, of what ``in_float.compared`` says; none of nothing.

    What is held against the limit is the upper end of the interval of the ratio of latencies.
    """
    if not beside:
        return []
    words = f"latency in int8 over float32, timed in turns ({beside[RATIO]:.2f}; upper end, 95 %)"
    return [Check("int8.latency", beside[f"{RATIO}_high"], 1.0, words)]


def within_budget(limits: Mapping[str, float], figures: Quantities) -> list[Check]:
    """Return a check for each limit: the worse end of a figure's interval must meet it."""
    found = []
    for name, limit in limits.items():
        if name in figures:
            metric, figure = metric_of(name), figures[name]
            words = f"{name}, {figure.source}"
            value = metric.binding(figure)
            found.append(Check(f"budget.{name}", value, limit, words, is_least=metric.maximise))
    return found
