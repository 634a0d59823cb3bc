"""How a search ends where something is missing."""

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
from hwnas.workflows.proof_record import reported
from hwnas.workflows.results import SearchResult
from hwnas.workflows.search import ending
from hwnas.workflows.search.front import FILES, TargetFront


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def _front(folder: RunFolder, failed: dict[str, str]) -> TargetFront:
    context: Any = SimpleNamespace(target="npu")
    return TargetFront(context, folder, [], Front((), [], failed), None)


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ({}, "None of the networks within its budget was fine-tuned"),
        ({"abc": "no answer."}, "None of 1 networks that may be on the front could be verified, "),
    ],
)
def test_a_target_of_which_none_is_verified_says_why(
    folder: RunFolder, failed: dict[str, str], words: str
) -> None:
    line = ending._none_verified(_front(folder, failed), folder, 2)
    assert line.startswith(f"npu: {words}")
    assert line.endswith(f"search run.resume={folder.path}")


def test_a_target_without_a_front_says_so_and_keeps_none_of_an_earlier_end(
    folder: RunFolder,
) -> None:
    config = {
        "n_trials": 1, "seed": 0, "budget": {}, "sampler": {"name": "random"},
        "target": {"name": "npu"}, "dataset": {"name": "digits"}, "cost": "analytic",
        "search_space": "tiny",
    }  # fmt: skip
    of_target = {"config": config}
    manifest = {
        "format": 2, "verb": "search", "arguments": [], "config": config,
        "targets": {"npu": of_target, "cpu": of_target}, "objectives": ["accuracy", "latency_ms"],
    }  # fmt: skip
    for name in FILES:
        folder.write_bytes(f"npu/{name}", b"earlier")
    folder.write_bytes("front.json", b"earlier")
    lacking = {"npu": "none could be verified", "cpu": "nothing fits the budget"}
    ending._without_front(folder, manifest, lacking, "none could be verified")
    own = RunFolder(folder.path / "npu").path
    assert {p.name for p in own.iterdir()} == {"candidates.parquet", "manifest.json"}
    assert {p.name for p in folder.path.iterdir()} == {"manifest.json", *lacking}
    assert json.loads((own / "manifest.json").read_text())["part_of"] == ".."
    targets = SearchResult(folder.path).targets
    assert {name: found.manifest["status"] for name, found in targets.items()} == lacking


def test_members_without_int8_training_are_named_wherever_what_is_left_out_is(
    folder: RunFolder,
) -> None:
    front = replace(_front(folder, {"abc": "no."}), without_int8_training={"f00"})
    left_out, hurried = front.notes
    assert left_out.startswith("abc is left out")
    assert hurried.endswith("An export trains its network for int8: f00.")
    assert _front(folder, {}).notes == []


def _member(name: str, n_right: int) -> Any:
    candidate = SimpleNamespace(id=name)
    quality, figures = proportion(n_right, 360), {"energy_mj": Quantity(1.0, "modelled")}
    return SimpleNamespace(candidate=candidate, quality=quality, figures=figures, on_front=True)


def _data_of_ten() -> ImageData:
    targets = torch.arange(360) % 10
    split = InMemorySplit(torch.zeros(360, 1, 1, 1), targets)
    task = ClassificationTask(tuple("0123456789"), (36,) * 10)
    return ImageData("made", split, split, split, task, (0.0,), (1.0,))


@pytest.mark.parametrize("n_better", [0, 1])
def test_members_that_are_not_better_than_a_constant_answer_are_named(
    folder: RunFolder, n_better: int
) -> None:
    parts = SimpleNamespace(data=_data_of_ten())
    context: Any = SimpleNamespace(target="npu", parts=parts)
    members = [_member("f00", 39), *[_member("f01", 180)] * n_better]
    front = Front(("accuracy", "latency_ms"), members, {}, ["f00"])
    found = replace(_front(folder, {}), context=context, front=front)
    of = "the majority class, '0' (accuracy 0.1000 on 360 test images)"
    assert front.is_at_chance_level is not bool(n_better)
    if n_better:
        (note,) = found.notes
        assert note.startswith(f"Not significantly better than {of}: f00 (0.1083). Train longer: ")
        assert found.headline == []
        assert [m.candidate.id for m in front.recommendable] == ["f01"]
    else:
        (line,) = found.headline
        assert line.startswith(f"No network is better than {of}: none is recommended, and export ")
        assert found.notes == []


def test_members_whose_energy_idling_hides_are_counted(folder: RunFolder) -> None:
    target = SimpleNamespace(meter="nvml")
    context: Any = SimpleNamespace(target="cuda", config=SimpleNamespace(target=target))
    told, hidden = Quantity(0.5, "measured", 0.4, 0.6), Quantity(0.23, "measured", 0.0, 0.62)
    modelled = Quantity(43.0, "modelled", 0.0, 84.0)
    for energies, words in (
        (
            [told, hidden, hidden],
            "Energy of 2 of 3 is not significantly above idle by target.meter=nvml: ",
        ),
        ([hidden, modelled], "Energy of 1 of 1 "),
        ([told, modelled], ""),
    ):
        members: Any = [SimpleNamespace(figures={"energy_mj": energy}) for energy in energies]
        notes = replace(_front(folder, {}), context=context, front=Front((), members)).notes
        assert [note.startswith(words) for note in notes] == [True] * bool(words)


@pytest.mark.parametrize(
    ("hurried", "short", "of"),
    [
        (True, "int8", "the weights calibrated to int8 without training"),
        (True, "fp32", "these weights"),
        (False, "int8", "these weights"),
    ],
)
def test_an_export_says_that_the_search_had_no_time_for_int8(
    folder: RunFolder, hurried: bool, short: str, of: str
) -> None:
    genotype = Genotype("tiny", ())
    figures = {f"accuracy_{short}": [0.9, "measured", None, None]}
    made = {"genotype": {}, "figures": figures, "details": {}, "files": {}}
    folder.write_json(f"models/{genotype.id}.json", made)
    finishing = {"hurried": [genotype.id]} if hurried else {}
    pick: Any = SimpleNamespace(
        context=SimpleNamespace(target="npu"), genotype=genotype, manifest={"finishing": finishing},
        finisher=SimpleNamespace(other=None),
    )  # fmt: skip
    order: Any = SimpleNamespace(config=SimpleNamespace(run=folder.path))
    found = reported(order, pick, {})
    assert found is not None
    assert found["of"] == of
