"""Muon: steps of a convolution's weights turn all their directions alike.

A gradient of such a matrix is mostly one or a few directions; plain descent learns these and hardly
any other. Here the momentum is made orthogonal before it is followed. ``torch.optim.Muon`` takes
weights of two dimensions alone, and lets norms grow.

Sources: Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon; that a weight keeps
its norm, Liu et al., "Learning by Turning", ICML 2021, https://arxiv.org/abs/2102.07227.
"""

import inspect
import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hwnas.models.families.base import TrainingRecipe

_TURN = 10.0  # for each unit of lr, over the root of the steps: rates of plain descent suit it then
_MOST = 0.3  # that a step changes of a convolution
_ITERATIONS = 3  # singular values are between 0.3 and 1.2 then, which is enough
_NONE, _LEAST = 1e-12, 1e-3  # norms that only no gradient at all has, before and afterwards
_QUINTIC = 3.4445, -4.7750, 2.0315  # the polynomial of Jordan et al. that raises small ones fastest


class Muon(torch.optim.Optimizer):
    """Turns weights of convolutions; all else learns by descent with Nesterov's momentum.

    Depthwise convolutions are no matrices over channels, and belong to the rest. The norm of what
    is turned stays: batch norm, which follows a convolution, takes no notice of it. Steps that
    know nothing of each other turn it as far as the root of their number: in a short training each
    is larger, so that all get it as far as those of a long one.

    Args:
        module: What is trained.
        lr: Of the rest; a step of 10,000 turns a convolution by a tenth of it.
        momentum: Of both.
        weight_decay: Of the rest.
        n_steps: How many the training has.
    """

    def __init__(
        self, module: nn.Module, lr: float, momentum: float, weight_decay: float, n_steps: int
    ):
        self._turn_rate = min(_TURN / math.sqrt(max(1, n_steps)), _MOST / lr)
        turned, rest = list[nn.Parameter](), list[nn.Parameter]()
        for parameter in module.parameters():
            (turned if is_turned(parameter) else rest).append(parameter)
        groups = [{"params": turned, "is_turned": True}, {"params": rest, "is_turned": False}]
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([group for group in groups if group["params"]], options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step along the gradients."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                (self._turn if group["is_turned"] else self._descend)(weights, group)

    def _turn(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        for weight, heading in zip(weights, self._headings(weights, group), strict=True):
            norm, heading = weight.norm(), orthogonal(heading)
            far = self._turn_rate * group["lr"] * norm / heading.norm().clamp(min=_LEAST)
            weight.sub_(heading.mul_(far))
            weight.mul_(norm / weight.norm())

    def _descend(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        headings = self._headings(weights, group, group["weight_decay"])
        torch._foreach_add_(weights, headings, alpha=-group["lr"])

    def _headings(
        self, weights: list[Tensor], group: dict[str, Any], decay: float = 0.0
    ) -> tuple[Tensor, ...]:
        """Return gradients with Nesterov's momentum, which they are added to."""
        found = [weight.grad for weight in weights if weight.grad is not None]
        gradients = torch._foreach_add(found, weights, alpha=decay) if decay else found
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        return torch._foreach_add(gradients, momenta, alpha=group["momentum"])


def is_turned(weight: Tensor) -> bool:
    """Return whether a weight is a matrix over channels, and not zero, which cannot be turned."""
    return weight.dim() == 4 and weight.shape[1] > 1 and bool(weight.any())


def orthogonal(heading: Tensor) -> Tensor:
    """Return what is nearly an orthogonal matrix, with the singular vectors of ``(C_out, ...)``.

    Args:
        heading: Of any further dimensions, which are one.
    """
    by_pixel = heading.movedim(1, -1)  # in channels-last order, as it lies in memory
    matrix = by_pixel.reshape(len(heading), -1)
    is_tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix.T if is_tall else matrix
    matrix = matrix / matrix.norm().clamp(min=_NONE)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        squared = matrix @ matrix.T
        factor = torch.addmm(squared, squared, squared, beta=b, alpha=c)
        matrix = torch.addmm(matrix, factor, matrix, beta=a)
    found = matrix.T if is_tall else matrix
    return found.reshape(by_pixel.shape).movedim(-1, 1)


# What a recipe makes of gradients: the optimiser, and its learning rate over a training.

_O = TypeVar("_O", bound=torch.optim.Optimizer)


def schedule(progress: float, warmup: float) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def optimiser(
    module: nn.Module, recipe: TrainingRecipe, momentum: float, n_steps: int
) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe, for a training of so many steps.

    AdamW decays no biases and no scales, as is usual.
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


def _lean(kind: type[_O]) -> type[_O]:
    """Return an optimiser of torch's that does not import torch's compiler.

    The methods of torch's do, only to be left alone by it; that takes seconds of each process that
    trains.
    """
    methods = "add_param_group", "zero_grad", "state_dict", "load_state_dict"
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in methods}
    plain["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), plain)


_SGD, _AdamW, _Muon = _lean(torch.optim.SGD), _lean(torch.optim.AdamW), _lean(Muon)
