"""End of a search with missing results, and its notes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import Genotype
from hwnas.nas.front import Front
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.intervals import proportion
from hwnas.training.data import ImageData, InMemorySplit
from hwnas.training.options import FinishConfig
from hwnas.workflows.proof_record import reported
from hwnas.workflows.results import SearchResult
from hwnas.workflows.search import ending
from hwnas.workflows.search.front import FILES, TargetFront


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def _front(folder: RunFolder, failed: dict[str, str]) -> TargetFront:
    context: Any = SimpleNamespace(label="npu: ")
    return TargetFront(context, folder, [], Front((), [], failed), None)


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ({}, "None of the networks within its budget was fine-tuned"),
        ({"abc": "no answer."}, "None of 1 networks that may be on the front could be verified, "),
    ],
)
def test_target_without_verified_networks_names_reason(
    folder: RunFolder, failed: dict[str, str], message: str
) -> None:
    line = ending._no_front_message(_front(folder, failed), folder)
    assert line.startswith(f"npu: {message}")
    assert line.endswith(f"hwnas resume {folder.path}")


def test_target_without_front_removes_earlier_files(
    folder: RunFolder,
) -> None:
    config = {
        "n_trials": 1, "seed": 0, "budget": {}, "sampler": {"name": "random"},
        "target": {"name": "npu"}, "dataset": {"name": "digits"}, "cost": "analytic",
        "search_space": "tiny",
    }  # fmt: skip
    target_facts = {"config": config}
    manifest = {
        "format": 2, "verb": "search", "arguments": [], "config": config,
        "targets": {"npu": target_facts, "cpu": target_facts},
        "objectives": ["accuracy", "latency_ms"],
    }  # fmt: skip
    for name in FILES:
        folder.write_bytes(f"npu/{name}", b"earlier")
    folder.write_bytes("front.json", b"earlier")
    statuses = {"npu": "none could be verified", "cpu": "nothing fits the budget"}
    ending._write_without_front(folder, manifest, statuses, "none could be verified")
    npu_folder = RunFolder(folder.path / "npu").path
    assert {p.name for p in npu_folder.iterdir()} == {"candidates.parquet", "manifest.json"}
    assert {p.name for p in folder.path.iterdir()} == {"manifest.json", *statuses}
    assert json.loads((npu_folder / "manifest.json").read_text())["part_of"] == ".."
    targets = SearchResult(folder.path).targets
    assert {name: result.manifest["status"] for name, result in targets.items()} == statuses


def test_notes_name_members_without_int8_training(
    folder: RunFolder,
) -> None:
    front = replace(_front(folder, {"abc": "no."}), without_int8_training={"f00"})
    left_out, without_training = front.notes
    assert left_out.startswith("abc is left out")
    assert "training: f00. An export" in without_training
    assert _front(folder, {}).notes == []


def _member(name: str, n_right: int) -> Any:
    candidate = SimpleNamespace(id=name)
    quality, figures = proportion(n_right, 360), {"energy_mj": Quantity(1.0, "modelled")}
    return SimpleNamespace(candidate=candidate, quality=quality, figures=figures, on_front=True)


def _data_of_ten_classes() -> ImageData:
    targets = torch.arange(360) % 10
    split = InMemorySplit(torch.zeros(360, 1, 1, 1), targets)
    task = ClassificationTask(tuple("0123456789"), (36,) * 10)
    return ImageData("made", split, split, split, task, (0.0,), (1.0,))


@pytest.mark.parametrize("n_better", [0, 1])
def test_members_at_chance_level_are_named(folder: RunFolder, n_better: int) -> None:
    parts = SimpleNamespace(data=_data_of_ten_classes())
    context: Any = SimpleNamespace(target="npu", parts=parts)
    members = [_member("f00", 39), *[_member("f01", 180)] * n_better]
    front = Front(("accuracy", "latency_ms"), members, {}, ["f00"])
    target_front = replace(_front(folder, {}), context=context, front=front)
    majority = "the majority class, '0' (accuracy 0.1000 on 360 test images)"
    assert front.is_at_chance_level is not bool(n_better)
    if n_better:
        (note,) = target_front.notes
        assert note.startswith(
            f"Not significantly better than {majority}, at 95 % corrected for 2 networks: "
            "f00 (0.1083). Train longer: "
        )
        assert target_front.headline == []
        assert [m.candidate.id for m in front.recommendable] == ["f01"]
    else:
        (line,) = target_front.headline
        assert line.startswith(
            f"No network is better than {majority} by its 95 % interval: none is recommended, and "
        )
        assert target_front.notes == []


def test_members_with_energy_near_idle_are_counted(folder: RunFolder) -> None:
    target = SimpleNamespace(meter="nvml")
    context: Any = SimpleNamespace(target="cuda", config=SimpleNamespace(target=target))
    significant, insignificant = (
        Quantity(0.5, "measured", 0.4, 0.6),
        Quantity(0.23, "measured", 0.0, 0.62),
    )
    modelled = Quantity(43.0, "modelled", 0.0, 84.0)
    for energies, message in (
        (
            [significant, insignificant, insignificant],
            "Energy of 2 of 3 members is not significantly above idle by target.meter=nvml: ",
        ),
        ([insignificant, modelled], "Energy of 1 of 1 "),
        ([significant, modelled], ""),
    ):
        members: Any = [SimpleNamespace(figures={"energy_mj": energy}) for energy in energies]
        notes = replace(_front(folder, {}), context=context, front=Front((), members)).notes
        assert [note.startswith(message) for note in notes] == [True] * bool(message)


@pytest.mark.parametrize(
    ("hurried", "short", "weights"),
    [
        (True, "int8", "the weights calibrated to int8 without training"),
        (True, "fp32", "these weights"),
        (False, "int8", "these weights"),
    ],
)
def test_export_record_names_calibrated_weights(
    folder: RunFolder, hurried: bool, short: str, weights: str
) -> None:
    genotype = Genotype("tiny", ())
    figures = {f"accuracy_{short}": [0.9, "measured", None, None]}
    record = {"genotype": {}, "figures": figures, "details": {}, "files": {}}
    folder.write_json(f"models/{genotype.id}.json", record)
    finishing = {"hurried": [genotype.id]} if hurried else {}
    pick: Any = SimpleNamespace(
        context=SimpleNamespace(target="npu"), genotype=genotype, manifest={"finishing": finishing},
        finisher=SimpleNamespace(other=None),
    )  # fmt: skip
    order: Any = SimpleNamespace(config=SimpleNamespace(run=folder.path))
    source = reported(order, pick, {})
    assert source is not None
    assert source["of"] == weights


def test_limit_given_on_resume_keeps_epochs_of_earlier_trainings(folder: RunFolder) -> None:
    config = FinishConfig(minutes=10)
    for manifest, epochs in (
        ({"finishing": {"epochs": 20}}, 20),
        ({"finishing": {"epochs": 20}, "finishing_epochs": 8}, 8),
        ({}, None),
    ):
        assert ending._time_budget(config, folder, manifest, None).epochs == epochs
