from pathlib import Path

import pytest
import torch

from hwnas.core.errors import RunError, TrainingError
from hwnas.models.spaces import SearchSpace
from hwnas.tasks.classification import ClassificationTask
from hwnas.training.checkpoints import (
    WINDOW,
    Checkpoint,
    CollapseDetector,
    ParameterAverages,
    TrainingState,
)
from hwnas.training.data import ImageData
from hwnas.training.options import TrainingConfig
from tests.training.fakes import Learner, equal_tensors

IDENTITY = {"family": "mbconv", "search space": "tiny (1234)", "train.lr": 0.1}


def _state(tiny: SearchSpace, digits: ImageData, ema: float = 0.9) -> TrainingState:
    module = Learner(tiny, digits, TrainingConfig()).supernet.module
    optimiser = torch.optim.AdamW(module.parameters())
    averages = ParameterAverages(module, ema)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    averages.update(0)
    return TrainingState(
        module, optimiser, averages, CollapseDetector(ClassificationTask(tuple("0123456789")), 100)
    )


def test_training_state_round_trips(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> None:
    saved, path = _state(tiny, digits), tmp_path / "c.safetensors"
    saved.watch.restore([3, 64, 0])
    Checkpoint(path, IDENTITY).save(saved, 7)
    restored = _state(tiny, digits)
    with torch.no_grad():
        for parameter in restored.module.parameters():
            parameter.zero_()
    assert Checkpoint(path, IDENTITY).load(restored) == 7
    assert equal_tensors(dict(restored.module.state_dict()), dict(saved.module.state_dict()))
    assert saved.averages is not None
    assert restored.averages is not None
    assert equal_tensors(restored.averages.tensors(), saved.averages.tensors())
    assert restored.watch.to_json() == [3, 64, 0]
    for a, b in zip(saved.module.parameters(), restored.module.parameters(), strict=True):
        assert equal_tensors(dict(saved.optimiser.state[a]), dict(restored.optimiser.state[b]))
        assert a.stride() == b.stride() == restored.optimiser.state[b]["exp_avg"].stride()


@pytest.mark.parametrize("n_bytes", [0, 10, 1000])
def test_error_for_damaged_file_gives_remedy(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, n_bytes: int
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", IDENTITY)
    checkpoint.save(state, 7)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:n_bytes])
    for use in (checkpoint.n_steps, checkpoint.weights, lambda: checkpoint.load(state)):
        with pytest.raises(RunError, match=r"cannot be read.*train again: rm .*c.safetensors"):
            use()
    checkpoint.previous.touch()
    with pytest.raises(RunError, match=r"Resume from the previous one: mv .*previous"):
        checkpoint.n_steps()


@pytest.mark.parametrize("at", [-1, -5000, -20000])
def test_changed_bit_is_detected(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, at: int
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", IDENTITY)
    checkpoint.save(state, 7)
    content = bytearray(checkpoint.path.read_bytes())
    content[at] ^= 1
    checkpoint.path.write_bytes(content)
    with pytest.raises(RunError, match=r"their checksum differs.*train again: rm .*c.safetensors"):
        checkpoint.load(state)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("family", "resnet", "has another family: mbconv instead of resnet"),
        ("search space", "small (99)", r"has another search space: tiny \(1234\) instead of small"),
        ("train.lr", 0.2, "has another train.lr: 0.1 instead of 0.2"),
        ("train.new", 1, "has another train.new: None instead of 1"),
    ],
)
def test_error_for_other_checkpoint_names_difference(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, name: str, other: object, message: str
) -> None:
    state, path = _state(tiny, digits), tmp_path / "c.safetensors"
    Checkpoint(path, IDENTITY).save(state, 7)
    foreign = Checkpoint(path, IDENTITY | {name: other})
    for use in (foreign.n_steps, foreign.weights, lambda: foreign.load(state)):
        with pytest.raises(RunError, match=message):
            use()


@pytest.mark.parametrize("place", ["weights", "averages", "optimiser"])
def test_nonfinite_state_is_not_saved(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, place: str
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", IDENTITY)
    checkpoint.save(state, 5)
    before = checkpoint.path.read_bytes()
    parameter = next(state.module.parameters())
    assert state.averages is not None
    tensors = {
        "weights": parameter,
        "averages": next(iter(state.averages.tensors().values())),
        "optimiser": state.optimiser.state[parameter]["exp_avg"],
    }
    with torch.no_grad():
        tensors[place].view(-1)[0] = float("nan")
    with pytest.raises(TrainingError, match=r"not finite.*after 5 steps, are in"):
        checkpoint.save(state, 6)
    assert checkpoint.path.read_bytes() == before


def test_previous_checkpoint_is_kept_until_the_end(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", IDENTITY)
    n_previous = []
    for n_steps in (WINDOW - 50, WINDOW - 10, WINDOW + 10, WINDOW + 50, 2 * WINDOW):
        checkpoint.save(state, n_steps)
        n_previous.append(Checkpoint(checkpoint.previous).n_steps())
    assert n_previous == [0, 0, WINDOW - 10, WINDOW - 10, WINDOW + 50]
    assert checkpoint.describe(WINDOW + 60).endswith(f"are in {checkpoint.previous}.")
    checkpoint.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_checkpoint_is_linked_into_run(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    state = _state(tiny, digits)
    path, in_run = tmp_path / "shared" / "c.safetensors", tmp_path / "run" / "c.safetensors"
    checkpoint = Checkpoint(path, IDENTITY, in_run)
    checkpoint.save(state, 7)
    assert in_run.samefile(path)
    checkpoint.save(state, 8)
    path.unlink()
    assert checkpoint.n_steps() == checkpoint.load(_state(tiny, digits)) == 8
    checkpoint.finish()
    assert not path.exists()  # a complete network of the run is not restored
    checkpoint.save(state, 300)
    assert in_run.samefile(path)
    in_run.unlink()
    checkpoint.finish()  # a checkpoint of another run
    assert in_run.samefile(path)
