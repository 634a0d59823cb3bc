"""What a recipe makes of gradients: the optimiser, and its learning rate over a training."""

import inspect
import math
from typing import TypeVar

import torch
from torch import nn

from hwnas.families.base import Recipe
from hwnas.training.muon import Muon

_O = TypeVar("_O", bound=torch.optim.Optimizer)


def schedule(progress: float, warmup: float) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def optimiser(
    module: nn.Module, recipe: Recipe, momentum: float, n_steps: int
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
