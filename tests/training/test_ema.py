import torch
from torch import nn

from hwnas.training.checkpoints import ParameterAverages, averaged


def test_averages_have_growing_decay() -> None:
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(0.0)
    averages = ParameterAverages(module, 0.5)
    expected = 0.0
    for step in range(20):
        with torch.no_grad():
            module.weight.fill_(float(step))
        averages.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        torch.testing.assert_close(averages.tensors()["weight"], torch.full((1, 2), expected))


def test_module_has_averages_inside_context() -> None:
    module = nn.Linear(2, 1)
    averages = ParameterAverages(module, 0.9)
    with torch.no_grad():
        module.weight.fill_(7.0)
    before = averages.tensors()["weight"].clone()
    with averaged(averages):
        assert torch.equal(module.weight, before)
    assert torch.equal(module.weight, torch.full((1, 2), 7.0))
    assert torch.equal(averages.tensors()["weight"], before)
    with averaged(None):
        assert torch.equal(module.weight, torch.full((1, 2), 7.0))
