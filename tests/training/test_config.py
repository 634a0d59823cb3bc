import pytest

from hwnas.core.errors import ConfigError
from hwnas.models.families.base import TrainingRecipe
from hwnas.training.options import TrainingConfig, fine_tuning

FAMILY = TrainingRecipe("adamw", lr=0.001, weight_decay=0.05)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0}, {"batch_size": 0}, {"batch_size": 1}, {"lr": -1.0}, {"momentum": 1.0},
        {"n_random": -1}, {"ema": 1.0}, {"mixup": -0.1}, {"progressive": 1.1},
        {"progressive": -0.1}, {"plain_fraction": -0.1}, {"plain_fraction": 1.0},
        {"optimiser": "adam"}, {"dtype": "float16"}, {"weight_decay": -1.0},
        {"fine_tuning_epochs": 0}, {"warmup": 1.0}, {"label_smoothing": 1.0},
    ],
)  # fmt: skip
def test_invalid_options_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"train.{next(iter(change))}"):
        TrainingConfig(**change)  # type: ignore[arg-type]


def test_recipe_of_family_supplies_defaults() -> None:
    assert TrainingConfig().recipe(FAMILY) == FAMILY
    result = TrainingConfig(optimiser="sgd", lr=0.3, weight_decay=0.0).recipe(FAMILY)
    assert result == TrainingRecipe("sgd", 0.3, 0.0)
    other = TrainingConfig(optimiser="sgd").recipe(FAMILY)
    assert other.lr != FAMILY.lr, "the rate of the family is for another optimiser"
    assert TrainingConfig(optimiser=FAMILY.optimiser).recipe(FAMILY) == FAMILY
    assert fine_tuning(FAMILY).lr == pytest.approx(0.0001)


def test_decisive_options_are_those_that_change_weights() -> None:
    plain = TrainingConfig().decisive(FAMILY)
    assert plain["lr"] == 0.001
    assert TrainingConfig(lr=0.001, tensorboard=True, device="cpu").decisive(FAMILY) == plain
    for change in ({"ema": 0.9}, {"mixup": 0.1}, {"dtype": "bfloat16"}, {"distillation": False}):
        assert TrainingConfig(**change).decisive(FAMILY) != plain
