"""Verified fronts read from run folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hwnas.analysis.page.data import Page
from hwnas.analysis.page.html import render
from hwnas.analysis.sections import class_tables
from hwnas.core.errors import RunError
from hwnas.core.manifest import Manifest
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.run import Run
from hwnas.nas.verified_files import classes_record, file_of_member, member_of_file, read_model

CANDIDATE = Candidate(0, Genotype("s", ()), {})
ONE: Manifest = {
    "format": 2,
    "verb": "search",
    "arguments": [],
    "config": {"budget": {"latency_ms": 2.0}},
}
TWO: Manifest = {
    "format": 2,
    "verb": "search",
    "arguments": [],
    "config": {},
    "targets": {
        "npu": {"config": {"budget": {"latency_ms": 2.0}}}, "cpu": {"config": {"budget": {}}},
    },
}  # fmt: skip
SLOW_INT8 = dict(zip(RATIOS, (1.0, 0.9, 1.1), strict=True))


def _write_front(
    run: Path, objectives: list[str], figures: Mapping[str, float], **columns: Any
) -> None:
    """Write a front of one member whose figures all have an interval of width 1."""
    row = {"id": CANDIDATE.id, "verified_fits_budget": True, "verified_on_front": True, **columns}
    row |= dict.fromkeys(objectives, 0.5)
    for name, value in figures.items():
        figure = Quantity(value, "measured", value - 0.5, value + 0.5)
        row |= figure.columns(f"verified_{name}")
    directions = {name: "max" if name == "accuracy" else "min" for name in objectives}
    RunFolder(run).write_json("front.json", {"objectives": directions, "members": [row]})


def _write_member(run: Path, figures: Mapping[str, Quantity], details: Mapping[str, float]) -> None:
    (run / "models").mkdir(parents=True)
    rows = {name: figure.to_json() for name, figure in figures.items()}
    content = {"genotype": {}, "figures": rows, "details": details, "files": {}}
    RunFolder(run).write_json(f"models/{CANDIDATE.id}.json", content)


def test_front_member_has_verified_figures(tmp_path: Path) -> None:
    figures = {"accuracy_fp32": 0.9, "accuracy_int8": 0.8, "latency_ms": 1.8}
    near = {"verified_near_front": True, f"verified_{RATIOS[-1]}": 0.7, "verified_cycles": 9.0}
    _write_front(tmp_path, ["accuracy", "latency_ms"], figures, **near)
    front = Run(tmp_path, ONE).front([CANDIDATE])
    assert front.objectives == ("accuracy", "latency_ms")
    (member,) = front.remaining
    assert member.candidate is CANDIDATE
    assert {name: figure.value for name, figure in member.figures.items()} == figures
    assert member.quality == Quantity(0.8, "measured", 0.8 - 0.5, 0.8 + 0.5)
    assert member.details == {RATIOS[-1]: 0.7}
    assert member.near_front
    assert member.over_budget == ("latency_ms",)  # by the upper end of its interval


def test_member_that_left_front_is_marked(tmp_path: Path) -> None:
    figures = {"accuracy_int8": 0.8, "latency_ms": 1.0}
    _write_front(tmp_path, ["accuracy", "latency_ms"], figures, verified_on_front=False)
    front = Run(tmp_path, ONE).front([CANDIDATE])
    assert [member.on_front for member in front.members] == [False]
    assert front.remaining == []


def test_joint_member_has_figures_of_each_target(tmp_path: Path) -> None:
    npu = {"npu.accuracy_fp32": 0.9, "npu.accuracy_int8": 0.7, "npu.latency_ms": 1.8}
    figures = npu | {"cpu.accuracy_fp32": 0.9, "cpu.latency_ms": 4.0}
    _write_front(tmp_path, ["accuracy", "npu.latency_ms", "cpu.latency_ms"], figures)
    _write_member(tmp_path / "npu", {}, SLOW_INT8)
    (member,) = Run(tmp_path, TWO).front([CANDIDATE]).members
    assert {name: part.quality.value for name, part in member.parts.items()} == {
        "npu": 0.7, "cpu": 0.9,
    }  # fmt: skip
    assert member.quality.value == 0.7
    assert member.over_budget == ("npu.latency_ms",)
    assert member.int8_slowdown.endswith("timed in turns on npu")


def test_run_without_front_has_no_members(tmp_path: Path) -> None:
    assert Run(tmp_path, ONE).front([CANDIDATE]).members == ()


def test_member_without_candidate_is_refused(tmp_path: Path) -> None:
    figures = {"accuracy_int8": 0.8, "latency_ms": 1.0}
    _write_front(tmp_path, ["accuracy", "latency_ms"], figures)
    with pytest.raises(
        RunError, match=rf"names {CANDIDATE.id}, which is no candidate of the search\."
    ):
        Run(tmp_path, ONE).front([])


def test_member_is_read_before_front_is_written(tmp_path: Path) -> None:
    assert Run(tmp_path, ONE).member(CANDIDATE) is None
    figures = {"accuracy_int8": Quantity(0.8, "measured"), "latency_ms": Quantity(1.0, "measured")}
    _write_member(tmp_path, figures, SLOW_INT8)
    member = Run(tmp_path, ONE).member(CANDIDATE)
    assert member is not None
    assert (member.figures, member.details, member.on_front) == (figures, SLOW_INT8, None)
    values = {name: figure.value for name, figure in figures.items()}
    _write_front(tmp_path, ["accuracy", "latency_ms"], values)
    member = Run(tmp_path, ONE).member(CANDIDATE)
    assert member is not None
    assert member.on_front is True


def test_member_verified_on_one_target_has_its_figures(tmp_path: Path) -> None:
    _write_member(tmp_path / "cpu", {"accuracy_fp32": Quantity(0.8, "measured")}, {"cycles": 7.0})
    member = Run(tmp_path, TWO).member(CANDIDATE)
    assert member is not None
    assert [*member.figures] == ["cpu.accuracy_fp32"]
    assert member.details == {"cpu.cycles": 7.0}


def test_members_at_chance_level_are_not_recommendable(tmp_path: Path) -> None:
    _write_front(tmp_path, ["accuracy", "latency_ms"], {"accuracy_int8": 0.5, "latency_ms": 1.0})
    content = json.loads((tmp_path / "front.json").read_text())
    RunFolder(tmp_path).write_json("front.json", content | {"guessing": [CANDIDATE.id]})
    front = Run(tmp_path, ONE).front([CANDIDATE])
    assert front.is_at_chance_level
    assert front.recommendable == []


def test_confusion_matrices_round_trip_and_are_shown(tmp_path: Path) -> None:
    confusion = {"cat": {"cat": 3, "dog": 1}, "dog": {"dog": 4}, "cow": {}}
    figures = {"accuracy_int8": Quantity(0.9, "measured"), "macro_f1": Quantity(0.8, "measured")}
    member = Member(CANDIDATE, figures, {}, {}, confusion=confusion)
    content = file_of_member(member, "w", [])
    RunFolder(tmp_path).write_json("models/x.json", content)
    (tmp_path / "models" / "x.json").rename(tmp_path / "models" / f"{CANDIDATE.id}.json")
    model_file = read_model(tmp_path, CANDIDATE.id)
    assert model_file is not None
    assert member_of_file(CANDIDATE, model_file) == member
    record = classes_record({"train": {"cat": 9, "dog": 8, "cow": 7}}, {CANDIDATE.id: confusion})
    assert record["confusion"] == {CANDIDATE.id: confusion}
    recall = record["recall"][CANDIDATE.id]
    assert recall["cow"] is None
    assert recall["cat"] is not None
    assert recall["cat"][0] == 0.75
    (tables, matrix) = class_tables(record["images"], {CANDIDATE.id: confusion})
    assert class_tables(record["images"], {}) == []
    assert tables.rows[0][:2] == ["cat", "9"]
    assert tables.rows[0][2].startswith("0.750 (0.301 to ")
    assert [row[0] for row in tables.rows[3:]] == ["balanced accuracy", "macro-F1"]
    assert tables.rows[3][2].startswith("0.875 (")
    assert matrix.rows == [["cat", "3", "1", "0"], ["dog", "0", "4", "0"], ["cow", "0", "0", "0"]]
    page = render(Page("p", [], tables=[tables, matrix]))
    assert page.count("<details>") == 2
