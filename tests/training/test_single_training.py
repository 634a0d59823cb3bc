import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hwnas.core import machine
from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress, Progress
from hwnas.models import families
from hwnas.models.families.base import TrainingRecipe
from hwnas.models.int8.weight_grids import WeightGrid
from hwnas.models.spaces import SearchSpace
from hwnas.training import parallel
from hwnas.training.batches import StepContext, draw
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import ImageData
from hwnas.training.inference import per_sample
from hwnas.training.loop import CheckpointPolicy
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ProcessGroup
from hwnas.training.single_network import (
    StudentNetwork,
    TeacherNetwork,
    estimate_seconds,
    train_network,
)
from tests.conftest import images_of
from tests.training.fakes import KillAfter, Killed, Rows, equal_tensors, material

CONFIG = TrainingConfig(epochs=3, batch_size=128, ema=0.9, mixup=0.1)


class Learner:
    """The largest network of a space, always with the equal_tensors initial weights."""

    def __init__(self, space: SearchSpace, data: ImageData, teacher: TeacherNetwork | None = None):
        self._data, family = data, families.get(space.family)
        torch.manual_seed(0)
        self.network = family.build(space, space.largest(), data.signature)
        self.rows = Rows()
        self.student = StudentNetwork(self.network, 12, TrainingRecipe("sgd", 0.1, 5e-5), teacher)

    def train(
        self, path: Path, progress: Progress | None = None, config: TrainingConfig = CONFIG
    ) -> None:
        ticks = iter(range(10**6))
        saving = CheckpointPolicy(Checkpoint(path), 2.5, lambda: float(next(ticks)), self.rows)
        inputs = material(self._data)
        train_network(self.student, inputs, config, 0, saving, progress or NullProgress())

    @property
    def accuracy(self) -> float:
        validation = self._data.validation
        images = self._data.prepare(images_of(validation), 12)
        return float(per_sample(self._data.task, self.network, images, validation.targets).mean())


@pytest.mark.slow
def test_network_learns(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> None:
    student = Learner(tiny, digits)
    student.train(tmp_path / "c.safetensors", config=replace(CONFIG, epochs=10, batch_size=64))
    assert not student.network.training
    assert student.accuracy > 0.4
    assert set(student.rows[-1]) == {"step", "lr", "loss", "gradient_norm"}


@pytest.mark.slow
@pytest.mark.parametrize("first_epoch", [0, 7])
@pytest.mark.parametrize("killed_after", [4, 20])
def test_interrupted_training_ends_with_equal_network(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, killed_after: int, first_epoch: int
) -> None:
    uninterrupted, interrupted, resumed = (Learner(tiny, digits) for _ in range(3))
    for learner in (uninterrupted, interrupted, resumed):
        learner.student = replace(learner.student, first_epoch=first_epoch)
    uninterrupted.train(tmp_path / "whole.safetensors")
    with pytest.raises(Killed):
        interrupted.train(tmp_path / "cut.safetensors", KillAfter(killed_after))
    resumed.train(tmp_path / "cut.safetensors")
    assert equal_tensors(uninterrupted.network.state_dict(), resumed.network.state_dict())


def test_several_processes_are_refused(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "current", lambda: ProcessGroup(0, 2))
    with pytest.raises(ConfigError, match="trained by one process: start without torchrun"):
        Learner(tiny, digits).train(tmp_path / "c.safetensors")


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_loss_combines_labels_and_teacher_outputs(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, alpha: float
) -> None:
    teacher = Learner(tiny, digits).network.eval()
    for parameter in teacher.parameters():
        nn.init.normal_(parameter, std=0.3)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    config = TrainingConfig(epochs=1, batch_size=64, label_smoothing=0.0)
    student = Learner(tiny, digits, TeacherNetwork(teacher, 8, alpha))
    batch = draw(material(digits), config, StepContext(0, 0, 0.0), ProcessGroup())
    with torch.no_grad():
        answers = teacher(batch.at(8)).softmax(1)
        student.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        logits = student.network.train()(batch.at(12))
    label_loss = float(nn.functional.cross_entropy(logits, batch.targets))
    teacher_loss = float(nn.functional.cross_entropy(logits, answers))
    student.train(tmp_path / "c.safetensors", config=config)
    assert student.rows[0]["loss"] == pytest.approx(
        (1 - alpha) * label_loss + alpha * teacher_loss, rel=1e-5
    )
    assert equal_tensors(before, teacher.state_dict())


@pytest.mark.usefixtures("threads_restored")
def test_single_network_is_trained_by_one_thread(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    learner, thread_counts = Learner(tiny, digits), set[int]()
    learner.network.register_forward_pre_hook(lambda *_: thread_counts.add(torch.get_num_threads()))
    torch.set_num_threads(2)
    estimate_seconds(learner.student, material(digits), CONFIG, 0, 50)
    learner.train(tmp_path / "c.safetensors", config=replace(CONFIG, epochs=1))
    assert thread_counts == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.slow
@pytest.mark.alone
def test_training_time_doubles_on_busy_machine(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    """With as many other processes as cores, a training takes about twice as long."""

    def shortest_s(folder: Path) -> float:
        times = []
        for i in range(3):
            start = time.monotonic()
            Learner(tiny, digits).train(folder / f"{i}", config=replace(CONFIG, epochs=10))
            times.append(time.monotonic() - start)
        return min(times)

    alone_s = shortest_s(tmp_path / "alone")
    n = machine.available_cores()
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        busy_s = shortest_s(tmp_path / "busy")
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert busy_s < 3 * alone_s


@pytest.mark.slow
def test_low_bit_network_learns_and_ends_on_grid(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    learner = Learner(tiny, digits)
    names = ["stem.conv.weight", "head.conv.weight", "classifier.weight"]
    grids = {name: WeightGrid(3, by_channel=True) for name in names}
    learner.student = replace(learner.student, grids=grids)
    longer = replace(CONFIG, epochs=10, batch_size=64)
    learner.train(tmp_path / "c.safetensors", config=longer)
    assert learner.accuracy > 0.4
    for name, grid in grids.items():
        weight = learner.network.get_parameter(name)
        assert max(len(channel.unique()) for channel in weight) <= 7
        torch.testing.assert_close(grid.rounded(weight), weight)
    rounded = Learner(tiny, digits)  # the checkpoint has the unrounded weights
    rounded.student = replace(rounded.student, grids=grids)
    rounded.train(tmp_path / "c.safetensors", config=longer)
    assert equal_tensors(rounded.network.state_dict(), learner.network.state_dict())
    unrounded = Checkpoint(tmp_path / "c.safetensors").weights()["head.conv.weight"]
    assert max(len(channel.unique()) for channel in unrounded) > 7


def test_estimated_time_includes_optimiser_and_scoring(
    tiny: SearchSpace, digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimiser takes 2 s, all else 0 s; the first step takes 100 s."""
    now, took = 0.0, iter([100.0])

    def step(*_: object) -> None:
        nonlocal now
        now += next(took, 2.0)

    monkeypatch.setattr("hwnas.training.optimisers._SGD.step", step)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    inputs = material(digits)
    n_read = 2 * len(inputs.data.validation) + len(inputs.data.train) + 128
    result = estimate_seconds(Learner(tiny, digits).student, inputs, CONFIG, 0, 50, n_read=128)
    assert result == pytest.approx(2.0 * (50 + n_read / 3 / 128))
