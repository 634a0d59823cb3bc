"""Optimisers and the learning rate schedule; Muon for convolutions.

Gradients of convolutions are dominated by a few directions. Muon orthogonalises the momentum, so
that all directions are learned at the same rate. ``torch.optim.Muon`` supports 2-D weights only
and lets norms grow.

Sources: Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon; constant norms:
Liu et al., "Learning by Turning", ICML 2021, https://arxiv.org/abs/2102.07227.
"""

import inspect
import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hwnas.models.families.base import TrainingRecipe

_ROTATION = 10.0  # per unit of lr, divided by sqrt(steps); learning rates of SGD suit this
_MAX_ROTATION = 0.3  # maximum relative change of a convolution per step
_ITERATIONS = 3  # singular values are in [0.3, 1.2] then, which suffices
_MIN_GRADIENT_NORM, _MIN_UPDATE_NORM = 1e-12, 1e-3  # only reached by zero gradients
_QUINTIC = 3.4445, -4.7750, 2.0315  # polynomial of Jordan et al.


class Muon(torch.optim.Optimizer):
    """Orthogonalised updates for convolutions, Nesterov momentum for all other parameters.

    Depthwise convolutions are no matrices over channels, so they belong to the others. The norm of
    a convolution stays constant; the batch norm that follows cancels it. The rotation per step is
    proportional to ``1 / sqrt(n_steps)``, but at most 0.3, because random steps rotate a weight as
    far as the root of their number.

    Args:
        module: Module to be trained.
        lr: Learning rate of the other parameters; a convolution is rotated by ``0.1 lr`` per step
            in a training of 10,000 steps.
        momentum: Momentum of all parameters.
        weight_decay: Weight decay of the other parameters.
        n_steps: Number of steps of the training.
    """

    def __init__(
        self, module: nn.Module, lr: float, momentum: float, weight_decay: float, n_steps: int
    ):
        self._rotation = min(_ROTATION / math.sqrt(max(1, n_steps)), _MAX_ROTATION / lr)
        matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
        for parameter in module.parameters():
            (matrices if is_matrix(parameter) else rest).append(parameter)
        groups = [{"params": matrices, "is_matrix": True}, {"params": rest, "is_matrix": False}]
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([group for group in groups if group["params"]], options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; closures are not supported."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                (self._rotate if group["is_matrix"] else self._descend)(weights, group)

    def _rotate(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        for weight, direction in zip(weights, self._directions(weights, group), strict=True):
            norm, update = weight.norm(), orthogonal(direction)
            scale = self._rotation * group["lr"] * norm / update.norm().clamp(min=_MIN_UPDATE_NORM)
            weight.sub_(update.mul_(scale))
            weight.mul_(norm / weight.norm())

    def _descend(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        directions = self._directions(weights, group, group["weight_decay"])
        torch._foreach_add_(weights, directions, alpha=-group["lr"])

    def _directions(
        self, weights: list[Tensor], group: dict[str, Any], decay: float = 0.0
    ) -> tuple[Tensor, ...]:
        """Return gradients with weight decay and Nesterov momentum."""
        plain = [weight.grad for weight in weights if weight.grad is not None]
        gradients = torch._foreach_add(plain, weights, alpha=decay) if decay else plain
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        return torch._foreach_add(gradients, momenta, alpha=group["momentum"])


def is_matrix(weight: Tensor) -> bool:
    """Return whether Muon can rotate a weight: 4-D, several input channels, not all zeros."""
    return weight.dim() == 4 and weight.shape[1] > 1 and bool(weight.any())


def orthogonal(direction: Tensor) -> Tensor:
    """Return a nearly orthogonal matrix with the singular vectors of ``direction``.

    Args:
        direction: ``(C_out, C_in, ...)``; all dimensions but the first are flattened.
    """
    channels_last = direction.movedim(1, -1)  # the memory order
    matrix = channels_last.reshape(len(direction), -1)
    is_tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix.T if is_tall else matrix
    matrix = matrix / matrix.norm().clamp(min=_MIN_GRADIENT_NORM)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        squared = matrix @ matrix.T
        factor = torch.addmm(squared, squared, squared, beta=b, alpha=c)
        matrix = torch.addmm(matrix, factor, matrix, beta=a)
    result = matrix.T if is_tall else matrix
    return result.reshape(channels_last.shape).movedim(-1, 1)


_O = TypeVar("_O", bound=torch.optim.Optimizer)


def schedule(progress: float, warmup: float) -> float:
    """Return the factor of the learning rate, in [0, 1]: linear warm-up, then cosine decay to 0.

    Args:
        progress: Completed fraction of the training, in [0, 1).
        warmup: Fraction of the training with a rising rate, in [0, 1).
    """
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def optimiser(
    module: nn.Module, recipe: TrainingRecipe, momentum: float, n_steps: int
) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe for a training of ``n_steps`` steps.

    AdamW does not decay biases and scales.
    """
    if recipe.optimiser == "muon":
        return _Muon(module, recipe.lr, momentum, recipe.weight_decay, n_steps)
    if recipe.optimiser == "sgd":
        return _SGD(
            module.parameters(),
            lr=recipe.lr,
            momentum=momentum,
            weight_decay=recipe.weight_decay,
            nesterov=momentum > 0,
            foreach=True,  # the same numbers by fewer calls
        )
    matrices = [p for p in module.parameters() if p.dim() > 1]
    vectors = [p for p in module.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return _AdamW([group for group in groups if group["params"]], lr=recipe.lr)


def _without_compiler(kind: type[_O]) -> type[_O]:
    """Return a torch optimiser that does not import torch's compiler.

    torch wraps the methods only to exclude them from compilation; the import costs each training
    process seconds.
    """
    methods = "add_param_group", "zero_grad", "state_dict", "load_state_dict"
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in methods}
    plain["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), plain)


_SGD = _without_compiler(torch.optim.SGD)
_AdamW = _without_compiler(torch.optim.AdamW)
_Muon = _without_compiler(Muon)
