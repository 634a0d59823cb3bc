"""A moving average of the weights, which answers better than the weights of the last step.

Source: Polyak & Juditsky, "Acceleration of stochastic approximation by averaging", 1992,
https://doi.org/10.1137/0330046. The decay grows with the steps, as TensorFlow's
``ExponentialMovingAverage`` has it, so that short trainings forget their first weights, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn


@final
class Averages:
    """Exponential moving averages of a module's parameters; its buffers are not averaged."""

    def __init__(self, module: nn.Module, decay: float):
        self._decay = decay
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters: list[Tensor] = list(module.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    def update(self, step: int) -> None:
        """Take in the weights after a step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by the parameters' names; writing into them sets them."""
        return dict(zip(self._names, self._averages, strict=True))

    def use(self) -> None:
        """Exchange the module's weights for the averages, and these for the weights."""
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            parameter.data, average.data = average.data, parameter.data


@contextmanager
def averaged(averages: Averages | None) -> Iterator[None]:
    """Have the module hold its averages for a while, if there are any."""
    if averages is not None:
        averages.use()
    try:
        yield
    finally:
        if averages is not None:
            averages.use()
