import random
import threading

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.batches import TrainingBatch
from hwnas.training.data import ImageData
from hwnas.training.options import TrainingConfig
from hwnas.training.sandwich import sample_sandwich
from tests.training.fakes import Learner


def _batch(digits: ImageData) -> TrainingBatch:
    part = digits.train.take(torch.arange(16))
    return TrainingBatch(part.images, part.targets, part.targets, digits)


def test_sandwich_includes_largest_and_smallest(tiny: SearchSpace) -> None:
    drawn = sample_sandwich(tiny, 2, random.Random(0))
    assert len(drawn) == 4
    assert (drawn[0], drawn[-1]) == (tiny.largest(), tiny.smallest())


@pytest.mark.parametrize("distillation", [True, False])
def test_students_learn_from_largest_or_labels(
    tiny: SearchSpace, digits: ImageData, distillation: bool
) -> None:
    learner = Learner(tiny, digits, TrainingConfig(distillation=distillation, label_smoothing=0.0))
    supernet = learner.supernet
    supernet.module.eval()
    genotypes, batch = [tiny.largest(), tiny.smallest()], _batch(digits)
    losses, total = learner.sandwich.accumulate(genotypes, batch)
    gradients = {
        n: p.grad.clone() for n, p in supernet.module.named_parameters() if p.grad is not None
    }
    supernet.module.zero_grad()
    logits = supernet.forward(digits.prepare(batch.images, 12), genotypes[0])
    student = supernet.forward(digits.prepare(batch.images, 8), genotypes[1])
    targets = logits.detach().softmax(1) if distillation else batch.targets
    expected = F.cross_entropy(logits, batch.targets), F.cross_entropy(student, targets)
    torch.autograd.backward(expected)
    for name, parameter in supernet.module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    assert losses == pytest.approx([float(loss.detach()) for loss in expected])
    assert total == int((logits.argmax(1) == batch.targets).sum())


@pytest.mark.usefixtures("threads_restored")
def test_parallel_subnets_have_sequential_gradients(tiny: SearchSpace, digits: ImageData) -> None:
    gradients = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        learner = Learner(tiny, digits, TrainingConfig(n_random=3))
        learner.supernet.module.train()
        learner.sandwich.accumulate(sample_sandwich(tiny, 3, random.Random(0)), _batch(digits))
        gradients.append([p.grad for p in learner.supernet.module.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("kind", ["pure", "random", "buffer"])
def test_subnets_with_side_effects_are_sequential(
    tiny: SearchSpace, digits: ImageData, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    torch.set_num_threads(2)
    learner = Learner(tiny, digits, TrainingConfig())
    supernet, module = learner.supernet, learner.supernet.module
    module.register_buffer("count", torch.zeros(()))
    plain, threads = supernet.forward, set()

    def forward(images: Tensor, genotype: Genotype) -> Tensor:
        threads.add(threading.get_ident())
        if kind == "random":
            images = F.dropout(images, 0.5)
        elif kind == "buffer":
            module.get_buffer("count").add_(1)
        return plain(images, genotype)

    monkeypatch.setattr(supernet, "forward", forward)
    learner.sandwich.accumulate(sample_sandwich(tiny, 2, random.Random(0)), _batch(digits))
    assert (threads == {threading.get_ident()}) == (kind != "pure")
    assert module.get_buffer("count") == (
        4 if kind == "buffer" else 0
    )  # the parallel attempt does not count


def test_bfloat16_gradients_are_close_to_float32(tiny: SearchSpace, digits: ImageData) -> None:
    gradients = []
    for dtype in ("float32", "bfloat16"):
        learner = Learner(tiny, digits, TrainingConfig(dtype=dtype))
        learner.supernet.module.train()
        learner.sandwich.accumulate([tiny.largest()], _batch(digits))
        gradient = next(learner.supernet.module.parameters()).grad
        assert gradient is not None
        assert gradient.dtype == torch.float32
        gradients.append(gradient)
    assert not torch.equal(*gradients)
    a, b = (gradient.flatten() for gradient in gradients)
    assert F.cosine_similarity(a, b, dim=0) > 0.95
