import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.core.errors import ConfigError, TrainingError
from hwnas.core.run_folder import RunFolder
from hwnas.models import families
from hwnas.models.spaces import SearchSpace
from hwnas.training import checkpoints, loop
from hwnas.training.batches import StepContext, TrainingBatch
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import ImageData
from hwnas.training.evaluation.interfaces import ScoringConfig
from hwnas.training.evaluation.shared_weights import SupernetEvaluator
from hwnas.training.loop import StepOutcome, TrainingJobSpec, device, n_steps
from hwnas.training.options import TrainingConfig
from hwnas.workflows.train import CsvLog
from tests.conftest import few_of
from tests.training.fakes import KillAfter, Killed, Learner, equal_tensors, material


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checkpoints, checkpoints):
        monkeypatch.setattr(module, "WINDOW", 20)


CONFIG = TrainingConfig(epochs=2, batch_size=128, lr=0.1)
EVERYTHING = TrainingConfig(
    epochs=2, batch_size=128, optimiser="adamw", lr=0.002, mixup=0.2, ema=0.9, progressive=0.5,
    dtype="bfloat16",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, EVERYTHING])
@pytest.mark.parametrize("killed_after", few_of([11, 4, 1], 1))
def test_interrupted_training_ends_with_equal_weights(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, config: TrainingConfig, killed_after: int
) -> None:
    uninterrupted = Learner(tiny, digits, config)
    uninterrupted.train(tmp_path / "whole.safetensors")
    interrupted = Learner(tiny, digits, config)
    with pytest.raises(Killed):
        interrupted.train(tmp_path / "cut.safetensors", KillAfter(killed_after))
    resumed = Learner(tiny, digits, config)
    resumed.train(tmp_path / "cut.safetensors")
    assert equal_tensors(uninterrupted.weights, resumed.weights)
    paths = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    assert equal_tensors(*(Checkpoint(path).weights() for path in paths))


def test_finished_training_is_not_repeated(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    config = replace(CONFIG, ema=0.9)
    first = Learner(tiny, digits, config)
    done = first.train(tmp_path / "c.safetensors")
    second = Learner(tiny, digits, config)
    summary = second.train(tmp_path / "c.safetensors", KillAfter(1))  # no step, no kill
    assert (done.n_steps, summary.n_steps, summary.n_images) == (16, 0, 0)
    assert Checkpoint(tmp_path / "c.safetensors").n_steps() == 16
    assert n_steps(CONFIG, len(digits.train)) == 16
    assert equal_tensors(first.weights, second.weights)


def test_final_weights_are_averages(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> None:
    plain, averaged = (Learner(tiny, digits, replace(CONFIG, ema=ema)) for ema in (0.0, 0.9))
    plain.train(tmp_path / "plain.safetensors")
    averaged.train(tmp_path / "averaged.safetensors")
    used, last = averaged.weights["classifier.weight"], plain.weights["classifier.weight"]
    assert not torch.equal(used, last)
    assert torch.allclose(used, last, atol=0.1)  # of the equal_tensors training
    assert torch.equal(
        used, Checkpoint(tmp_path / "averaged.safetensors").weights()["classifier.weight"]
    )


def test_log_has_row_per_step(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> None:
    learner = Learner(tiny, digits, CONFIG)
    summary = learner.train(tmp_path / "c.safetensors")
    assert [row["step"] for row in learner.rows] == list(range(1, 17))
    names = {"step", "lr", "loss_largest", "loss_random", "loss_smallest", "gradient_norm"}
    assert all(set(row) == names for row in learner.rows)
    assert max(row["lr"] for row in learner.rows) == pytest.approx(0.1, rel=0.02)
    assert summary.n_images == 16 * 128 * 4


def test_log_of_resumed_training_has_each_step_once(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    """Interrupted two steps after the checkpoint, without a final write."""
    path, folder = tmp_path / "c.safetensors", RunFolder(tmp_path)
    with pytest.raises(Killed):
        Learner(tiny, digits, CONFIG).train(path, KillAfter(11), log=CsvLog(folder))
    assert 0 < Checkpoint(path).n_steps() < 11
    Learner(tiny, digits, CONFIG).train(path, log=CsvLog(folder))
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 17))


@pytest.mark.parametrize("poisoned_at", [0, 9])
def test_nonfinite_loss_stops_training_and_keeps_checkpoint(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, poisoned_at: int
) -> None:
    learner, path = Learner(tiny, digits, CONFIG), tmp_path / "c.safetensors"
    sandwich = learner.sandwich

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        if step_context.step == poisoned_at:
            with torch.no_grad():
                learner.weights["classifier.weight"].fill_(float("nan"))
        return sandwich(batch, step_context)

    with pytest.raises(TrainingError, match="the loss of the largest subnet is nan") as error:
        learner.train(path, step=step)
    assert f"collapsed at step {poisoned_at}: " in str(error.value)
    assert "train.lr=0.025" in str(error.value)
    if poisoned_at:
        assert f"after 9 steps, are in {path}" in str(error.value)
        assert all(value.isfinite().all() for value in Checkpoint(path).weights().values())
    else:
        assert "There is no earlier checkpoint" in str(error.value)
        assert not path.exists()


def test_nonfinite_gradient_stops_training_before_update(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    learner = Learner(tiny, digits, CONFIG)
    sandwich = learner.sandwich

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        outcome = sandwich(batch, step_context)
        if step_context.step == 3:
            next(learner.supernet.module.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
        return outcome

    with pytest.raises(TrainingError, match="step 3: the gradient norm is inf"):
        learner.train(tmp_path / "c.safetensors", step=step)
    assert all(value.isfinite().all() for value in learner.weights.values())


def test_training_at_chance_level_is_stopped(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, short_windows: None
) -> None:
    config = TrainingConfig(epochs=5, batch_size=64, lr=1e-9)
    learner = Learner(tiny, digits, config)
    total = n_steps(config, len(digits.train))
    with pytest.raises(TrainingError, match="which is chance level") as error:
        learner.train(tmp_path / "c.safetensors", every_s=1e9)
    assert "There is no earlier checkpoint" in str(error.value)
    assert total / 4 - 1 <= learner.rows[-1]["step"] < total / 2


def test_step_is_timed_without_collapse_detection(
    tiny: SearchSpace, digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timing takes fewer steps than the window of the collapse detector."""
    monkeypatch.setattr(loop, "_MIN_TIMED_S", 1e9)
    config = TrainingConfig(epochs=1, batch_size=2, lr=1e-9)
    assert n_steps(config, len(digits.train)) > 2 * checkpoints.WINDOW
    learner, taken = Learner(tiny, digits, config), list[int]()

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        taken.append(step_context.step)
        return StepOutcome({"loss": 2.3}, 0.0, 1)

    trainee = TrainingJobSpec(learner.supernet.module, step, families.get("mbconv").recipe)
    assert loop.step_s(trainee, material(digits), config, 0) > 0
    assert len(taken) < checkpoints.WINDOW


@pytest.mark.slow
def test_late_collapse_names_previous_checkpoint(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, short_windows: None
) -> None:
    config, path = TrainingConfig(epochs=12, batch_size=64, lr=0.2), tmp_path / "c.safetensors"
    learner = Learner(tiny, digits, config)
    sandwich = learner.sandwich

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        if step_context.step >= 160:  # predictions are guesses from here on
            with torch.no_grad():
                learner.weights["classifier.weight"].zero_()
        return sandwich(batch, step_context)

    with pytest.raises(TrainingError, match=r"collapsed at step 179.*chance level") as error:
        learner.train(path, step=step, every_s=6)
    previous = Checkpoint(path).previous
    n = Checkpoint(previous).n_steps()
    assert 0 < n <= 160
    assert f"after {n} steps, are in {previous}" in str(error.value)


def test_error_for_memory_names_smaller_batch(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    learner = Learner(tiny, digits, TrainingConfig(batch_size=512))
    sandwich = learner.sandwich

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        if len(batch.targets) > 100:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")
        return sandwich(batch, step_context)

    with pytest.raises(TrainingError, match=r"size=512 does not fit.*train.batch_size=64\.$"):
        learner.train(tmp_path / "c.safetensors", step=step)

    def never(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        raise MemoryError

    with pytest.raises(
        TrainingError, match=r"Too little memory is left .* train.batch_size=256\.$"
    ):
        learner.train(tmp_path / "c.safetensors", step=never)

    def broken(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        learner.train(tmp_path / "c.safetensors", step=broken)


def test_batch_larger_than_training_split_is_refused(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    learner = Learner(tiny, digits, TrainingConfig(batch_size=5000))
    with pytest.raises(ConfigError, match=r"batch_size=5000 is larger .* of 1077 images"):
        learner.train(tmp_path / "c.safetensors")


@pytest.mark.parametrize("name", ["cudda", "meta:x", "cuda:77"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"train.device={name} cannot be used"):
        device(TrainingConfig(device=name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        TrainingConfig(epochs=12, batch_size=128),
        TrainingConfig(epochs=12, batch_size=128, optimiser="adamw", lr=0.01, ema=0.99, mixup=0.1),
    ],
)
def test_training_improves_largest_subnet_beyond_chance(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, config: TrainingConfig
) -> None:
    learner = Learner(tiny, digits, config)
    learner.train(tmp_path / "c.safetensors")
    learner.supernet.module.eval()
    family = families.get("mbconv")
    evaluator = SupernetEvaluator(learner.supernet, family, tiny, digits, ScoringConfig())
    assert evaluator.score(tiny.largest()).figure.value > 0.3
