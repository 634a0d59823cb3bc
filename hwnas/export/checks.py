"""Checks of the artefacts of an export, with their tolerances.

Outputs are compared with torch on the images of the export, the metric is computed on the whole
test split, and costs are compared with the budget. After int8 training, int8 files are compared
with torch's simulation of the int8 network. Nothing here needs torch, so that ``verify`` can repeat
the checks without it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantities
from hwnas.hardware.derived_metrics import RATIO
from hwnas.tasks.base import PerImageResults, Task
from hwnas.tasks.metrics import metric_of

Row = dict[str, Any]
Floats = NDArray[np.float32]

N_IMAGES = 256
TRAINED = "simulated int8"  #: reference after int8 training

#: Largest error of a float32 artefact, as a fraction of torch's largest output. Runtimes sum in
#: another order, which changes the last digits: by at most 6e-7 on 60 random networks of four
#: spaces; networks for larger images have longer sums.
FP32_ERROR = 1e-4
#: Largest mean error of an int8 artefact, as a fraction of torch's largest output. Each layer
#: rounds to 256 steps: at
#: most 0.008 on 45 random and 8 trained networks; outputs of other images differ by more than 0.1.
INT8_ERROR = 0.05
#: The same after int8 training, against the simulation. Only ties are rounded differently: at most
#: 0.0004 on two networks, about 0.001 on random ones.
TRAINED_ERROR = 0.01
#: Largest error of an artefact of shorter floats, as a fraction of torch's largest output.
_SHORT_FLOATS = {"float16": 0.01, "bfloat16": 0.05}

TOLERANCES = {
    "float32": {
        "max_error": FP32_ERROR,
        "reason": "the order of summation changes the last digits of float32; a fraction of "
        "torch's largest output",
    },
    "int8": {
        "mean_error": INT8_ERROR,
        "reason": "each layer rounds to 256 steps; a fraction of torch's largest output. The loss "
        "of int8 is checked by the metric on the whole test split",
    },
    TRAINED: {
        "mean_error": TRAINED_ERROR,
        "reason": "only ties are rounded differently; a fraction of the largest output of the "
        "simulation",
    },
}


@dataclass(frozen=True)
class Check:
    """A value of an export and its limit."""

    name: str  #: as ``model.onnx.error`` or ``budget.latency_ms``
    found: float  #: the value
    allowed: float  #: the limit: the maximum, or the minimum if ``is_least``
    words: str  #: a description of the value
    is_least: bool = False  #: whether ``allowed`` is the minimum

    @property
    def holds(self) -> bool:
        """Whether the value is within the limit; False if it is NaN."""
        return self.found >= self.allowed if self.is_least else self.found <= self.allowed

    def to_json(self) -> Row:
        """Return the check as in ``proof.json``: its fields, and ``holds``.

        ``is_least`` is left out if False.
        """
        content = {**asdict(self), "holds": self.holds}
        return content if self.is_least else {k: v for k, v in content.items() if k != "is_least"}


@dataclass(frozen=True)
class Agreement:
    """Difference between the outputs of an artefact and those of torch for the same images."""

    reference: str  #: torch's network: ``float32``, or ``simulated int8`` after int8 training
    n_images: int  #: number of images
    max_error: float  #: largest absolute difference of an output
    mean_error: float  #: mean absolute difference of all outputs of all images
    largest_output: float  #: largest absolute output of torch
    same: float  #: fraction of images with the same answer, in [0, 1]

    def check(self, name: str, dtype: str) -> Check:
        """Return the check of the error, as a fraction of the largest output of torch.

        If all outputs of torch are 0, the fraction is 1, and the check fails.

        Args:
            name: Name of the artefact.
            dtype: Type in which it computes; for int8 the mean error is checked, else the largest.
        """
        if dtype == "int8":
            error, kind = self.mean_error, "mean"
            allowed = TRAINED_ERROR if self.reference == TRAINED else INT8_ERROR
        else:
            error, kind = self.max_error, "largest"
            allowed = _SHORT_FLOATS.get(dtype, FP32_ERROR)
        description = f"{kind} error against torch, as a fraction of its largest output"
        if not self.largest_output:  # equal zeros prove nothing
            return Check(f"{name}.error", 1.0, allowed, f"{description}: all its outputs are 0")
        return Check(f"{name}.error", error / self.largest_output, allowed, description)


def agreement(
    task: Task, outputs: Floats, expected: Floats, reference: str = "float32"
) -> Agreement:
    """Return the difference between outputs ``(N, n_outputs)`` and those of torch (``expected``).

    ``reference`` is ``float32``, or ``TRAINED`` if ``expected`` is from torch's simulation of int8.
    """
    errors = np.abs(outputs.astype(np.float64) - expected)
    return Agreement(
        reference=reference,
        n_images=len(expected),
        max_error=float(errors.max()),
        mean_error=float(errors.mean()),
        largest_output=float(np.abs(expected).max()),
        same=float(task.same_answers(outputs, expected).mean()),
    )


def drop(
    task: Task, name: str, results: PerImageResults, reference: PerImageResults, points: float
) -> Check:
    """Return the check that an artefact loses at most ``points`` of the metric against torch.

    The lower end of the 95 % interval of the paired difference is compared with the limit, so that
    a loss within chance passes.

    Args:
        task: The task.
        name: Name of the artefact.
        results: Results of the artefact for each image of the test split.
        reference: Results of torch for the same images.
        points: Allowed loss, in the points of ``MetricLoss``.
    """
    loss = task.degradation(results, reference)
    description = (
        f"{task.description.points} lost by int8 (test split: {loss.points:.2f}; lower end, 95 %)"
    )
    return Check(f"{name}.drop", loss.low, points, description)


def faster_than_float(beside: Mapping[str, float]) -> list[Check]:
    """Return one check that int8 is faster than float32; none if the two were not compared.

    The upper end of the 95 % interval of the latency ratio (int8 over float32) must be at most 1.

    Args:
        beside: The result of ``artefact_wrappers.compare_with_float32``.
    """
    if not beside:
        return []
    description = (
        f"latency in int8 over float32, interleaved timing ({beside[RATIO]:.2f}; upper end, 95 %)"
    )
    return [Check("int8.latency", beside[f"{RATIO}_high"], 1.0, description)]


def within_budget(limits: Mapping[str, float], figures: Quantities) -> list[Check]:
    """Return a check per limit of the budget, named ``budget.COST``.

    The worse end of the cost's 95 % interval is compared: the upper one with a maximum, the lower
    one with a minimum. Limits of costs that are not in ``figures`` are left out.
    """
    checks = []
    for name, limit in limits.items():
        if name in figures:
            metric, figure = metric_of(name), figures[name]
            description = f"{name}, {figure.source}"
            value = metric.binding(figure)
            checks.append(
                Check(f"budget.{name}", value, limit, description, is_least=metric.maximise)
            )
    return checks
