import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hwnas import families
from hwnas.errors import ConfigError, RunError, TrainingError
from hwnas.families.base import Supernet
from hwnas.progress import Silent
from hwnas.space import SearchSpace
from hwnas.training import sandwich
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.data import DatasetConfig, ImageData
from hwnas.training.loop import Material, Saving, Trainee, TrainingConfig, n_steps, train

CONFIG = TrainingConfig(epochs=2, batch_size=128)


class Killed(Exception):
    """Stands for the end of the process."""


class KillAfter:
    """A progress that ends the process after some steps."""

    def __init__(self, n: int):
        self._left = n

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
        def advance(n: int) -> None:
            self._left -= n
            if self._left == 0:
                raise Killed

        yield advance


def _trainee(space: SearchSpace, data: ImageData) -> Trainee:
    family = families.get(space.family)
    torch.manual_seed(0)
    supernet = family.supernet(space, data.task)
    return Trainee(supernet, space, lambda genotype: family.resolution(space, genotype))


def _train(
    trainee: Trainee,
    data: ImageData,
    path: Path,
    progress: object = None,
    config: TrainingConfig = CONFIG,
) -> None:
    ticks = iter(range(10**6))
    saving = Saving(Checkpoint(path), every_s=2.5, clock=lambda: float(next(ticks)))
    material = Material(data, DatasetConfig("digits", shift=0.125))
    train(trainee, material, config, 0, saving, progress or Silent())  # type: ignore[arg-type]


def _weights(supernet: Supernet) -> dict[str, torch.Tensor]:
    return supernet.module.state_dict()


@pytest.mark.parametrize("killed_after", [1, 4, 11])
def test_training_that_was_killed_ends_with_the_same_weights(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path, killed_after: int
) -> None:
    whole = _trainee(tiny, digits)
    _train(whole, digits, tmp_path / "whole.safetensors")
    cut = _trainee(tiny, digits)
    with pytest.raises(Killed):
        _train(cut, digits, tmp_path / "cut.safetensors", KillAfter(killed_after))
    resumed = _trainee(tiny, digits)
    _train(resumed, digits, tmp_path / "cut.safetensors")
    expected, found = _weights(whole.supernet), _weights(resumed.supernet)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_finished_training_is_not_repeated(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    _train(_trainee(tiny, digits), digits, tmp_path / "c.safetensors")
    again = _trainee(tiny, digits)
    _train(again, digits, tmp_path / "c.safetensors", KillAfter(1))  # no step, no kill
    stored = _trainee(tiny, digits)
    n = Checkpoint(tmp_path / "c.safetensors").load(stored.supernet.module)
    assert n == n_steps(CONFIG, len(digits.train)) == 16
    weights = _weights(again.supernet)
    assert all(torch.equal(v, weights[k]) for k, v in _weights(stored.supernet).items())


def test_damaged_checkpoint_says_how_to_go_on(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0 not a header")
    with pytest.raises(RunError, match=r"cannot be read.*rm "):
        _train(_trainee(tiny, digits), digits, path)


def test_loss_that_is_no_number_stops_training(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    trainee = _trainee(tiny, digits)
    with torch.no_grad():
        next(trainee.supernet.module.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="collapsed at step 0: the loss is nan"):
        _train(trainee, digits, tmp_path / "c.safetensors")
    assert not (tmp_path / "c.safetensors").exists()


def test_sandwich_holds_both_ends(tiny: SearchSpace) -> None:
    drawn = sandwich.draw(tiny, 2, random.Random(0))
    assert len(drawn) == 4
    assert (drawn[0], drawn[-1]) == (tiny.largest(), tiny.smallest())


def test_students_learn_from_the_largest_and_not_from_labels(
    tiny: SearchSpace, digits: ImageData
) -> None:
    """With labels that say nothing new, the gradient of a student is that of distillation."""
    trainee = _trainee(tiny, digits)
    supernet = trainee.supernet
    supernet.module.eval()
    images = digits.train.take(torch.arange(16))
    genotypes = [tiny.largest(), tiny.smallest()]
    sandwich.step(
        supernet,
        genotypes,
        lambda g: digits.prepare(images.images, trainee.resolution(g)),
        images.labels,
        0.0,
    )
    found = {n: p.grad.clone() for n, p in supernet.module.named_parameters() if p.grad is not None}
    supernet.module.zero_grad()
    logits = supernet.forward(digits.prepare(images.images, 12), genotypes[0])
    student = supernet.forward(digits.prepare(images.images, 8), genotypes[1])
    loss = torch.nn.functional.cross_entropy(logits, images.labels)
    loss = loss + torch.nn.functional.cross_entropy(student, logits.detach().softmax(1))
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in supernet.module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_training_makes_the_largest_subnet_better_than_chance(
    tiny: SearchSpace, digits: ImageData, tmp_path: Path
) -> None:
    from hwnas.accuracy.supernet import ScoringConfig, SupernetEvaluator

    trainee = _trainee(tiny, digits)
    longer = TrainingConfig(epochs=12, batch_size=128)
    _train(trainee, digits, tmp_path / "c.safetensors", config=longer)
    trainee.supernet.module.eval()
    family = families.get("mbconv")
    evaluator = SupernetEvaluator(trainee.supernet, family, tiny, digits, ScoringConfig())
    assert evaluator.score(tiny.largest()).accuracy.value > 0.3


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"batch_size": 0}, {"lr": -1.0}, {"momentum": 1.0}, {"n_random": -1}]
)
def test_impossible_training_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"train.{next(iter(change))}"):
        TrainingConfig(**change)  # type: ignore[arg-type]
