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
from tests.training.fakes import KillAfter, Killed, Learner, material, same


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
def test_training_that_was_killed_ends_with_the_same_weights(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, config: TrainingConfig, killed_after: int
) -> None:
    whole = Learner(tiny, digits, config)
    whole.train(tmp_path / "whole.safetensors")
    cut = Learner(tiny, digits, config)
    with pytest.raises(Killed):
        cut.train(tmp_path / "cut.safetensors", KillAfter(killed_after))
    resumed = Learner(tiny, digits, config)
    resumed.train(tmp_path / "cut.safetensors")
    assert same(whole.weights, resumed.weights)
    paths = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    assert same(*(Checkpoint(path).weights() for path in paths))


def test_finished_training_is_not_repeated(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    config = replace(CONFIG, ema=0.9)
    first = Learner(tiny, digits, config)
    done = first.train(tmp_path / "c.safetensors")
    again = Learner(tiny, digits, config)
    summary = again.train(tmp_path / "c.safetensors", KillAfter(1))  # no step, no kill
    assert (done.n_steps, summary.n_steps, summary.n_images) == (16, 0, 0)
    assert Checkpoint(tmp_path / "c.safetensors").n_steps() == 16
    assert n_steps(CONFIG, len(digits.train)) == 16
    assert same(first.weights, again.weights)


def test_weights_to_be_used_are_the_averages(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    plain, averaged = (Learner(tiny, digits, replace(CONFIG, ema=ema)) for ema in (0.0, 0.9))
    plain.train(tmp_path / "plain.safetensors")
    averaged.train(tmp_path / "averaged.safetensors")
    used, last = averaged.weights["classifier.weight"], plain.weights["classifier.weight"]
    assert not torch.equal(used, last)
    assert torch.allclose(used, last, atol=0.1)  # they are of the same training
    assert torch.equal(
        used, Checkpoint(tmp_path / "averaged.safetensors").weights()["classifier.weight"]
    )


def test_log_says_what_steps_found(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> None:
    learner = Learner(tiny, digits, CONFIG)
    summary = learner.train(tmp_path / "c.safetensors")
    assert [row["step"] for row in learner.rows] == list(range(1, 17))
    names = {"step", "lr", "loss_largest", "loss_random", "loss_smallest", "gradient_norm"}
    assert all(set(row) == names for row in learner.rows)
    assert max(row["lr"] for row in learner.rows) == pytest.approx(0.1, rel=0.02)
    assert summary.n_images == 16 * 128 * 4


def test_log_of_a_training_that_was_killed_has_each_step_once(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    """A checkpoint after nine steps, two more, and nothing that is written at the end."""
    path, folder = tmp_path / "c.safetensors", RunFolder(tmp_path)
    with pytest.raises(Killed):
        Learner(tiny, digits, CONFIG).train(path, KillAfter(11), log=CsvLog(folder))
    assert 0 < Checkpoint(path).n_steps() < 11
    Learner(tiny, digits, CONFIG).train(path, log=CsvLog(folder))
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 17))


@pytest.mark.parametrize("poisoned_at", [0, 9])
def test_loss_that_is_no_number_stops_training_with_the_last_good_weights(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, poisoned_at: int
) -> None:
    learner, path = Learner(tiny, digits, CONFIG), tmp_path / "c.safetensors"
    sandwich = learner.sandwich

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        if step_context.step == poisoned_at:
            with torch.no_grad():
                learner.weights["classifier.weight"].fill_(float("nan"))
        return sandwich(batch, step_context)

    with pytest.raises(TrainingError, match="the loss of the largest is nan") as caught:
        learner.train(path, step=step)
    assert f"collapsed at step {poisoned_at}: " in str(caught.value)
    assert "train.lr=0.025" in str(caught.value)
    if poisoned_at:
        assert f"after 9 steps, are in {path}" in str(caught.value)
        assert all(value.isfinite().all() for value in Checkpoint(path).weights().values())
    else:
        assert "There is no earlier checkpoint" in str(caught.value)
        assert not path.exists()


def test_gradient_that_is_no_number_stops_training_before_it_is_used(
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


def test_training_that_learns_nothing_is_stopped(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, short_windows: None
) -> None:
    config = TrainingConfig(epochs=5, batch_size=64, lr=1e-9)
    learner = Learner(tiny, digits, config)
    total = n_steps(config, len(digits.train))
    with pytest.raises(TrainingError, match="which is chance level") as caught:
        learner.train(tmp_path / "c.safetensors", every_s=1e9)
    assert "There is no earlier checkpoint" in str(caught.value)
    assert total / 4 - 1 <= learner.rows[-1]["step"] < total / 2


def test_what_a_step_takes_is_found_though_nothing_is_learned(
    tiny: SearchSpace, digits: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within as many steps as a collapse is judged by, and later than where it is."""
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
def test_training_that_collapses_late_names_weights_of_before(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, short_windows: None
) -> None:
    config, path = TrainingConfig(epochs=12, batch_size=64, lr=0.2), tmp_path / "c.safetensors"
    learner = Learner(tiny, digits, config)
    sandwich = learner.sandwich

    def step(batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        if step_context.step >= 160:  # answers are guesses from here on
            with torch.no_grad():
                learner.weights["classifier.weight"].zero_()
        return sandwich(batch, step_context)

    with pytest.raises(TrainingError, match=r"collapsed at step 179.*chance level") as caught:
        learner.train(path, step=step, every_s=6)
    previous = Checkpoint(path).previous
    n = Checkpoint(previous).n_steps()
    assert 0 < n <= 160
    assert f"after {n} steps, are in {previous}" in str(caught.value)


def test_batch_that_fits_into_memory_is_found(
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


def test_batch_larger_than_the_training_split_is_refused(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    learner = Learner(tiny, digits, TrainingConfig(batch_size=5000))
    with pytest.raises(ConfigError, match=r"batch_size=5000 is larger .* of 1077 images"):
        learner.train(tmp_path / "c.safetensors")


@pytest.mark.parametrize("name", ["cudda", "meta:x", "cuda:77"])
def test_device_that_is_not_there_is_refused(name: str) -> None:
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
def test_training_makes_the_largest_subnet_better_than_chance(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, config: TrainingConfig
) -> None:
    learner = Learner(tiny, digits, config)
    learner.train(tmp_path / "c.safetensors")
    learner.supernet.module.eval()
    family = families.get("mbconv")
    evaluator = SupernetEvaluator(learner.supernet, family, tiny, digits, ScoringConfig())
    assert evaluator.score(tiny.largest()).figure.value > 0.3
