import copy
import subprocess
import sys
from typing import Any

import pytest
import torch

from hwnas.models.families.base import TrainingRecipe
from hwnas.training.optimisers import is_matrix, optimiser, orthogonal

_TRAINS = """
import sys, torch
from hwnas.models.families.base import TrainingRecipe as Recipe
from hwnas.training.optimisers import optimiser
for name in ("sgd", "adamw", "muon"):
    module = torch.nn.Linear(4, 2)
    of = optimiser(module, Recipe(name, 0.1, 1e-4), 0.9, 100)
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
    recipe = TrainingRecipe(name, 0.1, 1e-2)
    if name == "sgd":
        known: torch.optim.Optimizer = torch.optim.SGD(
            its.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True
        )
    else:
        groups: list[dict[str, Any]] = [
            {"params": [its.weight]}, {"params": [its.bias], "weight_decay": 0.0}
        ]  # fmt: skip
        known = torch.optim.AdamW(groups, lr=0.1, weight_decay=1e-2)
    for module, of in ((own, optimiser(own, recipe, 0.9, 100)), (its, known)):
        for _ in range(3):
            of.zero_grad()
            module(torch.ones(3, 4)).square().sum().backward()
            of.step()
    assert torch.equal(own.weight, its.weight)
    assert torch.equal(own.bias, its.bias)


@pytest.mark.parametrize("shape", [(8, 4, 1, 1), (16, 3, 3, 3), (4, 64, 1, 1), (24, 24, 3, 3)])
def test_headings_become_nearly_orthogonal(shape: tuple[int, ...]) -> None:
    """Their singular vectors stay, and the smallest of their values is raised to the others'."""
    torch.manual_seed(0)
    rows, columns = shape[0], shape[1] * shape[2] * shape[3]
    rank = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, rank))[0]
    right = torch.linalg.qr(torch.randn(columns, rank))[0]
    values = torch.logspace(0, -1.5, rank)
    heading = (left * values @ right.T).reshape(shape)

    found = left.T @ orthogonal(heading).reshape(rows, columns) @ right

    assert torch.allclose(found, torch.diag(found.diagonal()), atol=1e-4)
    assert found.diagonal().min() > 0.3
    assert found.diagonal().max() < 1.25


def test_muon_turns_convolutions_and_keeps_their_norms() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = [conv.weight.detach().clone() for conv in module if isinstance(conv, torch.nn.Conv2d)]
    own = optimiser(module, TrainingRecipe("muon", 0.5, 1e-2), 0.9, 10_000)
    module(torch.randn(4, 3, 8, 8)).square().mean().backward()
    own.step()
    for old, name in zip(before, ("0.weight", "1.weight"), strict=True):
        new = module.get_parameter(name).detach()
        torch.testing.assert_close(new.norm(), old.norm())
        assert 0.03 < float((new - old).norm() / old.norm()) < 0.051


def test_muon_turns_further_where_there_are_few_steps() -> None:
    def turned(n_steps: int) -> float:
        torch.manual_seed(0)
        module = torch.nn.Conv2d(3, 8, 3)
        before = module.weight.detach().clone()
        own = optimiser(module, TrainingRecipe("muon", 0.2, 0.0), 0.9, n_steps)
        module(torch.randn(4, 3, 8, 8)).square().mean().backward()
        own.step()
        return float((module.weight.detach() - before).norm() / before.norm())

    assert turned(1000) > 2 * turned(10_000)
    assert turned(1) == pytest.approx(turned(10)), "there is a limit"
    assert turned(0) == turned(1), "weights may be used as they are given"


def test_muon_descends_where_there_is_no_matrix() -> None:
    """Depthwise kernels, biases, the classifier and what is zero: as torch's."""
    torch.manual_seed(0)
    own = torch.nn.Sequential(
        torch.nn.Conv2d(4, 4, 3, groups=4), torch.nn.Conv2d(4, 2, 1), torch.nn.Flatten(),
        torch.nn.Linear(2, 2),
    )  # fmt: skip
    torch.nn.init.zeros_(own.get_parameter("1.weight"))
    assert not any(is_matrix(parameter) for parameter in own.parameters())
    its = copy.deepcopy(own)
    known = torch.optim.SGD(
        its.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True
    )
    images = torch.randn(2, 4, 3, 3)
    for module, of in (
        (own, optimiser(own, TrainingRecipe("muon", 0.1, 1e-2), 0.9, 100)),
        (its, known),
    ):
        for _ in range(3):
            of.zero_grad()
            (module(images) - 1).square().sum().backward()
            of.step()
    for mine, other in zip(own.parameters(), its.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_muon_leaves_alone_what_has_no_gradient() -> None:
    module = torch.nn.Conv2d(3, 8, 3, bias=False)
    before = module.weight.detach().clone()
    own = optimiser(module, TrainingRecipe("muon", 0.5, 1e-2), 0.9, 10_000)
    own.step()
    module.weight.grad = torch.zeros_like(module.weight)
    own.step()
    torch.testing.assert_close(module.weight.detach(), before)


def test_training_does_not_import_the_compiler_of_torch() -> None:
    """It takes each process that trains some seconds."""
    done = subprocess.run([sys.executable, "-c", _TRAINS], check=True, capture_output=True)
    assert done.stdout.split() == [b"False"]
