import pytest
import torch
from torch.nn import functional as F

from hwnas.models.families.layers import ReLU6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_relu6_matches_torch_in_values_and_gradients(dtype: torch.dtype) -> None:
    values = 6 * torch.randn(500, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[:4] = torch.tensor([0.0, 6.0, -1.0, 7.0])
    ours, theirs = (values.clone().requires_grad_() for _ in range(2))
    result, expected = ReLU6()(ours * 1), F.relu6(theirs * 1)
    assert torch.equal(result, expected)
    weight = torch.randn(500, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.autograd.backward([(result * weight).sum(), (expected * weight).sum()])
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)
