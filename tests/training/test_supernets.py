"""By what trained weights are found again: all that decides them, and nothing else."""

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


@pytest.fixture(params=["how they run", "in what they compute"])
def several(request: pytest.FixtureRequest, setup: TrainingSetup) -> TrainingSetup:
    """Return the training of a space that says more, of which weights know nothing."""
    space = annotations.with_run_choices(setup.space, {"batch": [1, 8], "threads": [1, 2]})
    if request.param != "how they run":
        when = {"float_edges": {"precision": ("int8",)}}
        space = replace(setup.space, choices={**PRECISE, **setup.space.choices}, when=when)
    return replace(setup, space=space, family=families.family_of(space))


def test_weights_are_found_however_networks_run_and_compute(
    setup: TrainingSetup, several: TrainingSetup
) -> None:
    assert several.space.digest != setup.space.digest
    assert several.checkpoint().path == setup.checkpoint().path
    alone, same = (s.network_checkpoint(s.space.largest(), "scratch") for s in (setup, several))
    assert alone.path == same.path
    taught = [
        FinetunedTeacher(nn.Identity(), s.space.largest(), s, "scratch", NullProgress()).digest_text
        for s in (setup, several)
    ]
    assert taught[0] == taught[1]


def test_supernet_draws_the_same_subnets_however_networks_run_and_compute(
    setup: TrainingSetup, several: TrainingSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_from = []

    def train(trainee: TrainingJobSpec, *_: object) -> None:
        drawn_from.append(trainee.step.space)  # type: ignore[attr-defined]

    monkeypatch.setattr("hwnas.training.loop.train", train)
    for each in (setup, several):
        each.trained(NullProgress())
    assert drawn_from == [setup.space, setup.space]


def test_task_that_a_package_brings_decides_weights_and_those_of_hwnas_as_ever(
    setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.identity["search space"] == f"tiny ({setup.space.digest})"
    assert setup.identity["task"] == "1 channels, 10 classes"
    assert tasks.plugin_identity("regression") == ()
    places = set()
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
        places.add(replace(setup, data=replace(setup.data, task=task)).checkpoint().path)
    assert len(places | {setup.checkpoint().path}) == 4
