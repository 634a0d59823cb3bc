"""Keys of trained weights: all options that decide them and no others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from hwnas import tasks
from hwnas.core.progress import NullProgress
from hwnas.models import families
from hwnas.models.families import annotations
from hwnas.models.spaces import SearchSpace
from hwnas.training.data import DatasetConfig, ImageData
from hwnas.training.finetuning.stages import FinetunedTeacher
from hwnas.training.loop import TrainingJobSpec
from hwnas.training.options import TrainingConfig
from hwnas.training.supernet import TrainingSetup

PRECISE: dict[str, tuple[Any, ...]] = {"precision": ("float32", "int8"), "float_edges": (0, 1)}


@pytest.fixture
def setup(tiny: SearchSpace, digits: ImageData, tmp_path: Path) -> TrainingSetup:
    train = TrainingConfig(epochs=1)
    return TrainingSetup(
        tiny, families.family_of(tiny), digits, DatasetConfig("digits"), train, 0, tmp_path
    )


@pytest.fixture(params=["run options", "precision"])
def space_with_run_choices(request: pytest.FixtureRequest, setup: TrainingSetup) -> TrainingSetup:
    """Return the training of a space with choices that do not affect weights."""
    space = annotations.with_run_choices(setup.space, {"batch": [1, 8], "threads": [1, 2]})
    if request.param != "run options":
        when = {"float_edges": {"precision": ("int8",)}}
        space = replace(setup.space, choices={**PRECISE, **setup.space.choices}, when=when)
    return replace(setup, space=space, family=families.family_of(space))


def test_run_choices_do_not_change_checkpoints(
    setup: TrainingSetup, space_with_run_choices: TrainingSetup
) -> None:
    assert space_with_run_choices.space.digest != setup.space.digest
    assert space_with_run_choices.checkpoint().path == setup.checkpoint().path
    alone, same = (
        s.network_checkpoint(s.space.largest(), "scratch") for s in (setup, space_with_run_choices)
    )
    assert alone.path == same.path
    digest_texts = [
        FinetunedTeacher(nn.Identity(), s.space.largest(), s, "scratch", NullProgress()).digest_text
        for s in (setup, space_with_run_choices)
    ]
    assert digest_texts[0] == digest_texts[1]


def test_run_choices_do_not_change_sampled_subnets(
    setup: TrainingSetup, space_with_run_choices: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_from = []

    def train(trainee: TrainingJobSpec, *_: object) -> None:
        drawn_from.append(trainee.step.space)  # type: ignore[attr-defined]

    monkeypatch.setattr("hwnas.training.loop.train", train)
    for training_setup in (setup, space_with_run_choices):
        training_setup.trained(NullProgress())
    assert drawn_from == [setup.space, setup.space]


def test_package_and_version_of_task_change_checkpoints(
    setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.identity["search space"] == f"tiny ({setup.space.digest})"
    assert setup.identity["task"] == "1 channels, 10 classes"
    assert tasks.plugin_identity("regression") == ()
    paths = set()
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    for name, version in (("mine", "1.0"), ("other", "1.0"), ("other", "1.1")):
        info = tmp_path / "installed" / "two_tasks.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Name: two-tasks\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{tasks.GROUP}]\nmine = x:X\nother = x:X\n")
        assert tasks.plugin_identity(name) == (name, "two-tasks", version)
        task: Any = SimpleNamespace(
            name=name, description=setup.data.task.description, n_outputs=setup.data.task.n_outputs
        )
        paths.add(replace(setup, data=replace(setup.data, task=task)).checkpoint().path)
    assert len(paths | {setup.checkpoint().path}) == 4
