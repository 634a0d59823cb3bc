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
from tests.training.fakes import Learner, same

OF = {"family": "mbconv", "search space": "tiny (1234)", "train.lr": 0.1}


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


def test_state_comes_back(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> None:
    saved, path = _state(tiny, digits), tmp_path / "c.safetensors"
    saved.watch.restore([3, 64, 0])
    Checkpoint(path, OF).save(saved, 7)
    found = _state(tiny, digits)
    with torch.no_grad():
        for parameter in found.module.parameters():
            parameter.zero_()
    assert Checkpoint(path, OF).load(found) == 7
    assert same(dict(found.module.state_dict()), dict(saved.module.state_dict()))
    assert saved.averages is not None
    assert found.averages is not None
    assert same(found.averages.tensors(), saved.averages.tensors())
    assert found.watch.to_json() == [3, 64, 0]
    for a, b in zip(saved.module.parameters(), found.module.parameters(), strict=True):
        assert same(dict(saved.optimiser.state[a]), dict(found.optimiser.state[b]))
        assert a.stride() == b.stride() == found.optimiser.state[b]["exp_avg"].stride()


@pytest.mark.parametrize("kept", [0, 10, 1000])
def test_damaged_file_says_how_to_go_on(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, kept: int
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", OF)
    checkpoint.save(state, 7)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:kept])
    for use in (checkpoint.n_steps, checkpoint.weights, lambda: checkpoint.load(state)):
        with pytest.raises(RunError, match=r"cannot be read.*train again: rm .*c.safetensors"):
            use()
    checkpoint.previous.touch()
    with pytest.raises(RunError, match=r"Resume from the previous one: mv .*previous"):
        checkpoint.n_steps()


@pytest.mark.parametrize("at", [-1, -5000, -20000])
def test_changed_bit_is_noticed(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, at: int
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", OF)
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
def test_file_of_something_else_is_refused_by_name(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, name: str, other: object, message: str
) -> None:
    state, path = _state(tiny, digits), tmp_path / "c.safetensors"
    Checkpoint(path, OF).save(state, 7)
    foreign = Checkpoint(path, OF | {name: other})
    for use in (foreign.n_steps, foreign.weights, lambda: foreign.load(state)):
        with pytest.raises(RunError, match=message):
            use()


@pytest.mark.parametrize("place", ["weights", "averages", "optimiser"])
def test_what_is_no_number_is_never_written(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, place: str
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", OF)
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


def test_one_earlier_checkpoint_is_kept_until_the_end(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    state, checkpoint = _state(tiny, digits), Checkpoint(tmp_path / "c.safetensors", OF)
    kept = []
    for n_steps in (WINDOW - 50, WINDOW - 10, WINDOW + 10, WINDOW + 50, 2 * WINDOW):
        checkpoint.save(state, n_steps)
        kept.append(Checkpoint(checkpoint.previous).n_steps())
    assert kept == [0, 0, WINDOW - 10, WINDOW - 10, WINDOW + 50]
    assert checkpoint.describe(WINDOW + 60).endswith(f"are in {checkpoint.previous}.")
    checkpoint.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_checkpoint_is_kept_in_the_run_and_read_from_there(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    state = _state(tiny, digits)
    path, in_run = tmp_path / "shared" / "c.safetensors", tmp_path / "run" / "c.safetensors"
    checkpoint = Checkpoint(path, OF, in_run)
    checkpoint.save(state, 7)
    assert in_run.samefile(path)
    checkpoint.save(state, 8)
    path.unlink()
    assert checkpoint.n_steps() == checkpoint.load(_state(tiny, digits)) == 8
    checkpoint.finish()
    assert not path.exists()  # a complete network of the run is not copied back
    checkpoint.save(state, 300)
    assert in_run.samefile(path)
    in_run.unlink()
    checkpoint.finish()  # of another run
    assert in_run.samefile(path)
