from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hwnas.core.progress import NullProgress
from hwnas.models import families
from hwnas.models.spaces import SearchSpace
from hwnas.training import soft_targets
from hwnas.training.batches import StepContext, draw
from hwnas.training.data import ImageData
from hwnas.training.inference import forward
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ProcessGroup
from hwnas.training.soft_targets import AugmentedViews, record
from tests.training.fakes import material

CONFIG = TrainingConfig(epochs=4, batch_size=128, plain_fraction=0.4)


@pytest.fixture(scope="module")
def teacher(tiny: SearchSpace, digits: ImageData) -> nn.Module:
    torch.manual_seed(0)
    network = families.get(tiny.family).build(tiny, tiny.largest(), digits.signature)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network.eval()


@pytest.mark.parametrize("first_epoch", [0, 5])
@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, mixup=0.2, plain_fraction=0.0)])
def test_recorded_outputs_match_images_of_each_step(
    teacher: nn.Module, digits: ImageData, tmp_path: Path, config: TrainingConfig, first_epoch: int
) -> None:
    views = AugmentedViews(material(digits), config, 3, 12, first_epoch)
    recorded = record(teacher, tmp_path, views, NullProgress())
    assert recorded is not None
    total = config.epochs * views.n_steps
    for step in range(total):
        step_context = StepContext(3, first_epoch * views.n_steps + step, step / total)
        batch = draw(material(digits), config, step_context, ProcessGroup())
        with torch.no_grad():
            expected = teacher(batch.at(12)).softmax(1)
        assert torch.allclose(recorded.loss_targets(batch, step_context), expected, atol=2e-3)


def test_interrupted_recording_is_resumed(
    teacher: nn.Module, digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = AugmentedViews(material(digits), CONFIG, 3, 12)
    assert record(teacher, tmp_path, views, NullProgress())
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(written) == {
        "whole",
        "as_they_are.safetensors",
        *(f"{e}.safetensors" for e in range(3)),
    }
    for name in ("whole", "1.safetensors"):  # as after an interruption
        (tmp_path / name).unlink()
    calls = []

    def counting_forward(
        network: Callable[[], torch.Tensor], images: torch.Tensor, dtype: str
    ) -> torch.Tensor:
        calls.append(dtype)
        return forward(network, images, dtype)

    monkeypatch.setattr(soft_targets, "forward", counting_forward)
    assert record(teacher, tmp_path, views, NullProgress())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
    assert len(calls) == views.n_steps


def test_outputs_beyond_size_limit_are_not_recorded(
    teacher: nn.Module, digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soft_targets, "_MAX_BYTES", 1000)
    views = AugmentedViews(material(digits), CONFIG, 3, 12)
    assert views.n_recorded == 0, "no time for the teacher"
    assert record(teacher, tmp_path, views, NullProgress()) is None
    assert not list(tmp_path.iterdir())
