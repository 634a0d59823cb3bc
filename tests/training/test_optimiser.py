import copy
import subprocess
import sys
from typing import Any

import pytest
import torch

from hwnas.families.base import Recipe
from hwnas.training.optimiser import optimiser

_TRAINS = """
import sys, torch
from hwnas.families.base import Recipe
from hwnas.training.optimiser import optimiser
for name in ("sgd", "adamw"):
    module = torch.nn.Linear(4, 2)
    of = optimiser(module, Recipe(name, 0.1, 1e-4), 0.9)
    module(torch.ones(3, 4)).sum().backward()
    of.step()
    of.zero_grad()
    of.load_state_dict(of.state_dict())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    own = torch.nn.Linear(4, 2)
    its = copy.deepcopy(own)
    recipe = Recipe(name, 0.1, 1e-2)
    if name == "sgd":
        known: torch.optim.Optimizer = torch.optim.SGD(
            its.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True
        )
    else:
        groups: list[dict[str, Any]] = [
            {"params": [its.weight]}, {"params": [its.bias], "weight_decay": 0.0}
        ]  # fmt: skip
        known = torch.optim.AdamW(groups, lr=0.1, weight_decay=1e-2)
    for module, of in ((own, optimiser(own, recipe, 0.9)), (its, known)):
        for _ in range(3):
            of.zero_grad()
            module(torch.ones(3, 4)).square().sum().backward()
            of.step()
    assert torch.equal(own.weight, its.weight)
    assert torch.equal(own.bias, its.bias)


def test_training_does_not_import_the_compiler_of_torch() -> None:
    """It takes each process that trains some seconds."""
    done = subprocess.run([sys.executable, "-c", _TRAINS], check=True, capture_output=True)
    assert done.stdout.split() == [b"False"]
