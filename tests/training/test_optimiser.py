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
def test_steps_match_torch(name: str) -> None:
    torch.manual_seed(0)
    module_of_ours = torch.nn.Linear(4, 2)
    reference = copy.deepcopy(module_of_ours)
    recipe = TrainingRecipe(name, 0.1, 1e-2)
    if name == "sgd":
        known: torch.optim.Optimizer = torch.optim.SGD(
            reference.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True
        )
    else:
        groups: list[dict[str, Any]] = [
            {"params": [reference.weight]}, {"params": [reference.bias], "weight_decay": 0.0}
        ]  # fmt: skip
        known = torch.optim.AdamW(groups, lr=0.1, weight_decay=1e-2)
    for module, step_optimiser in (
        (module_of_ours, optimiser(module_of_ours, recipe, 0.9, 100)),
        (reference, known),
    ):
        for _ in range(3):
            step_optimiser.zero_grad()
            module(torch.ones(3, 4)).square().sum().backward()
            step_optimiser.step()
    assert torch.equal(module_of_ours.weight, reference.weight)
    assert torch.equal(module_of_ours.bias, reference.bias)


@pytest.mark.parametrize("shape", [(8, 4, 1, 1), (16, 3, 3, 3), (4, 64, 1, 1), (24, 24, 3, 3)])
def test_orthogonalisation_keeps_singular_vectors(shape: tuple[int, ...]) -> None:
    """Singular vectors are unchanged, and singular values become nearly equal."""
    torch.manual_seed(0)
    rows, columns = shape[0], shape[1] * shape[2] * shape[3]
    rank = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, rank))[0]
    right = torch.linalg.qr(torch.randn(columns, rank))[0]
    values = torch.logspace(0, -1.5, rank)
    gradient = (left * values @ right.T).reshape(shape)

    result = left.T @ orthogonal(gradient).reshape(rows, columns) @ right

    assert torch.allclose(result, torch.diag(result.diagonal()), atol=1e-4)
    assert result.diagonal().min() > 0.3
    assert result.diagonal().max() < 1.25


def test_muon_rotates_convolutions_and_keeps_norms() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = [conv.weight.detach().clone() for conv in module if isinstance(conv, torch.nn.Conv2d)]
    muon = optimiser(module, TrainingRecipe("muon", 0.5, 1e-2), 0.9, 10_000)
    module(torch.randn(4, 3, 8, 8)).square().mean().backward()
    muon.step()
    for old, name in zip(before, ("0.weight", "1.weight"), strict=True):
        new = module.get_parameter(name).detach()
        torch.testing.assert_close(new.norm(), old.norm())
        assert 0.03 < float((new - old).norm() / old.norm()) < 0.051


def test_muon_rotation_is_larger_for_fewer_steps() -> None:
    def rotation(n_steps: int) -> float:
        torch.manual_seed(0)
        module = torch.nn.Conv2d(3, 8, 3)
        before = module.weight.detach().clone()
        muon = optimiser(module, TrainingRecipe("muon", 0.2, 0.0), 0.9, n_steps)
        module(torch.randn(4, 3, 8, 8)).square().mean().backward()
        muon.step()
        return float((module.weight.detach() - before).norm() / before.norm())

    assert rotation(1000) > 2 * rotation(10_000)
    assert rotation(1) == pytest.approx(rotation(10)), "there is a limit"
    assert rotation(0) == rotation(1), "a training without steps is allowed"


def test_muon_uses_sgd_for_other_parameters() -> None:
    """Depthwise kernels, biases, the classifier and zero weights: equal to torch's SGD."""
    torch.manual_seed(0)
    module_of_ours = torch.nn.Sequential(
        torch.nn.Conv2d(4, 4, 3, groups=4), torch.nn.Conv2d(4, 2, 1), torch.nn.Flatten(),
        torch.nn.Linear(2, 2),
    )  # fmt: skip
    torch.nn.init.zeros_(module_of_ours.get_parameter("1.weight"))
    assert not any(is_matrix(parameter) for parameter in module_of_ours.parameters())
    reference = copy.deepcopy(module_of_ours)
    known = torch.optim.SGD(
        reference.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True
    )
    images = torch.randn(2, 4, 3, 3)
    for module, step_optimiser in (
        (module_of_ours, optimiser(module_of_ours, TrainingRecipe("muon", 0.1, 1e-2), 0.9, 100)),
        (reference, known),
    ):
        for _ in range(3):
            step_optimiser.zero_grad()
            (module(images) - 1).square().sum().backward()
            step_optimiser.step()
    for ours, other in zip(module_of_ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, other)


def test_muon_ignores_parameters_without_gradient() -> None:
    module = torch.nn.Conv2d(3, 8, 3, bias=False)
    before = module.weight.detach().clone()
    muon = optimiser(module, TrainingRecipe("muon", 0.5, 1e-2), 0.9, 10_000)
    muon.step()
    module.weight.grad = torch.zeros_like(module.weight)
    muon.step()
    torch.testing.assert_close(module.weight.detach(), before)


def test_training_does_not_import_torch_compiler() -> None:
    """The import takes seconds in each training process."""
    done = subprocess.run([sys.executable, "-c", _TRAINS], check=True, capture_output=True)
    assert done.stdout.split() == [b"False"]
