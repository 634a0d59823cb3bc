from dataclasses import replace

import pytest
import torch

from hwnas.core.errors import ConfigError
from hwnas.training.batches import StepContext, TrainingBatch, draw
from hwnas.training.data import ImageData, InMemorySplit
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ProcessGroup
from tests.conftest import images_of
from tests.training.fakes import material

CONFIG = TrainingConfig(batch_size=64)
ALONE = ProcessGroup()


def _draw(
    data: ImageData, config: TrainingConfig, step: int, processes: ProcessGroup = ALONE
) -> TrainingBatch:
    return draw(material(data), config, StepContext(3, step, 0.0), processes)


def test_epoch_has_each_image_at_most_once(digits: ImageData) -> None:
    plain = replace(
        digits, train=InMemorySplit(images_of(digits.train), torch.arange(len(digits.train)))
    )
    epochs = [[_draw(plain, CONFIG, s).targets for s in range(e * 16, e * 16 + 16)] for e in (0, 1)]
    first, second = (torch.cat(labels) for labels in epochs)
    assert len(set(first.tolist())) == len(set(second.tolist())) == 16 * 64
    assert not torch.equal(first, second)


def test_batch_of_step_is_deterministic(digits: ImageData) -> None:
    a, b, other = (_draw(digits, CONFIG, step) for step in (5, 5, 6))
    assert torch.equal(a.images, b.images)
    assert not torch.equal(a.images, other.images)


def test_seeding_of_layers_matches_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    context = StepContext(3, 5, 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.rng("layers").getrandbits(62) + 1)
        expected = torch.rand(8)
        monkeypatch.setattr(torch, "manual_seed", None)  # it is slow: it records the stack
        context.seed_layers("layers", torch.device("cpu"), rank=1)
        assert torch.equal(torch.rand(8), expected)


@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_batches_of_processes_equal_batch_of_one(digits: ImageData, mixup: float) -> None:
    config = replace(CONFIG, mixup=mixup)
    expected = _draw(digits, config, 7)
    shares = [_draw(digits, config, 7, ProcessGroup(rank, 4)) for rank in range(4)]
    for name in ("images", "targets", "loss_targets"):
        assert torch.equal(
            torch.cat([getattr(share, name) for share in shares]), getattr(expected, name)
        )


def test_batch_not_divisible_by_processes_is_refused(digits: ImageData) -> None:
    with pytest.raises(ConfigError, match=r"among 3 processes. Allowed: .* 63 or 66"):
        _draw(digits, CONFIG, 0, ProcessGroup(0, 3))
    with pytest.raises(ConfigError, match=r"multiples of 4, such as 4\.$"):
        ProcessGroup(0, 4).rows(2)


def test_mixed_images_have_mixed_targets(digits: ImageData) -> None:
    batch, plain = (_draw(digits, replace(CONFIG, mixup=m), 2) for m in (0.4, 0.0))
    assert torch.allclose(batch.loss_targets.sum(1), torch.ones(64))
    share = batch.loss_targets.max(1).values.min()
    assert 0.5 <= share < 1
    images = plain.images.float()
    mixed = [share * images + (1 - share) * images.flip(0)]
    mixed += [(1 - share) * images + share * images.flip(0)]
    assert any(torch.allclose(batch.images, mixture, atol=1e-3) for mixture in mixed)
    assert torch.equal(batch.loss_targets.argmax(1), batch.targets)


def test_last_steps_have_plain_images(digits: ImageData) -> None:
    config = replace(CONFIG, mixup=0.4, plain_fraction=0.25)
    before, after = (
        draw(material(digits), config, StepContext(3, 5, progress), ALONE)
        for progress in (0.74, 0.75)
    )
    originals = {image.numpy().tobytes() for image in images_of(digits.train)}
    assert not any(image.numpy().tobytes() in originals for image in before.images)
    assert all(image.numpy().tobytes() in originals for image in after.images)
    assert torch.equal(after.loss_targets, after.targets)
