"""Searches for several targets on the command line."""

import csv
import json
import random
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import hwnas
from hwnas.__main__ import run
from hwnas.core.errors import ConfigError, RunError
from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front
from hwnas.nas.member import Member
from hwnas.nas.targets import Targets
from hwnas.nas.verified_files import FORMAT
from hwnas.tasks.classification import ClassificationTask
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.predictions import read_prediction_files
from hwnas.workflows.config.arguments import for_targets
from hwnas.workflows.search import joint_front
from hwnas.workflows.search.finetuning_outcome import FinetuningOutcome
from tests.conftest import SHARED_WEIGHTS
from tests.core.unusable import edit

BOTH = "+target=[npu,sketch]"
QUICK = (
    "search_space=tiny",
    "train.epochs=1",
    *SHARED_WEIGHTS,
    "n_trials=12",
    "budget=none",
)


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _error_line(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], verb: str = "search"
) -> str:
    assert run([verb, *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_arguments_with_target_prefix_apply_to_that_target() -> None:
    assert for_targets(["+target=npu", "n_trials=3"]) == [["+target=npu", "n_trials=3"]]
    npu, cpu = for_targets(
        ["seed=1", "+target=[npu, cpu]", "npu.budget.latency_ms=1", "+cpu.table.dir=x"]
    )
    latency = "objectives=[accuracy,latency_ms]"
    assert npu == ["+target=npu", "budget.latency_ms=1", latency, "seed=1"]
    assert cpu == ["+target=cpu", "+table.dir=x", latency, "seed=1"]
    npu, cpu = for_targets(["+target=[npu,cpu]", "npu.cost=roofline", "cost=vela", latency])
    assert npu == ["+target=npu", "cost=roofline", latency]
    assert cpu == ["+target=cpu", "cost=vela", latency]
    with pytest.raises(ConfigError, match="different targets"):
        for_targets(["target=[npu,npu]"])


@pytest.mark.slow
def test_cascades_run_locally_or_over_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = ("link.to=sketch", "link.latency_ms=0.002", "link.usd_per_m=3")
    assert run(["search", BOTH, *QUICK, *link, "run.dir=run", "finish.epochs=0"]) == 0
    output = "".join(capsys.readouterr().out.split())
    with Path("run/npu/cascades.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    linked = [row for row in rows if row["second_target"] == "sketch"]
    assert linked
    for row in linked:
        second = json.loads(Path(f"run/sketch/models/{row['second']}.json").read_text())
        first = json.loads(Path(f"run/npu/models/{row['first']}.json").read_text())
        a, b = (record["figures"]["latency_ms"][0] for record in (first, second))
        share = float(row["verified_share"])
        assert float(row["latency_ms"]) == pytest.approx(a + b + 0.002)
        assert float(row["verified_expected_latency_ms"]) == pytest.approx(a + share * (b + 0.002))
        assert float(row["verified_expected_usd_per_m"]) == pytest.approx(3 * share)
        assert float(row["flash_kib"]) == first["figures"]["flash_kib"][0]
    predictions = read_prediction_files([Path("run/npu")])  # with names as in plans
    assert {row["first"] for row in rows} <= {n.removesuffix("-int8") for n in predictions.models}
    on_front = [row for row in rows if row["verified_on_front"] == "True"]
    assert f"{len(on_front)}cascade" in output
    assert "Cascades and single networks" in Path("run/npu/report.html").read_text()
    # A resumed run gives the same table from its files.
    content = Path("run/npu/cascades.csv").read_bytes()
    Path("run/npu/cascades.csv").unlink()
    assert run(["search", "run.resume=run"]) == 0
    assert Path("run/npu/cascades.csv").read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [BOTH, "link.to=cpu"],
            "link.to: Unknown target 'cpu'. Did you mean 'npu'? Allowed: npu, sketch",
        ),
        (["+target=npu", "link.to=npu"], "but the only target is npu"),
        ([BOTH, "link.latency_ms=3"], "need link.to=TARGET"),
        ([BOTH, "link.to=sketch", "link.latency_ms=nan"], "link.latency_ms must be"),
    ],
)
def test_invalid_links_are_reported(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in _error_line(capsys, [*arguments, *QUICK, "run.dir=run"])
    assert not Path("run").exists()


def _check_joint_page(folder: Path, ids: Sequence[str]) -> None:
    page = (folder / "report.html").read_text()
    assert page.index("<h2>Result</h2>") < page.index("Models for all targets")
    assert "npu latency ≤ 0.05 ms, " in page
    assert f'data-copy="hwnas export {folder} pick={ids[0]}"' in page
    assert (folder / re.findall(r'<a href="(npu/models/[^"]+)">npu ', page)[0]).is_file()
    assert "<h2>Confusion matrices</h2>" in page
    assert 'href="npu/report.html"' in page
    of_target = (folder / "npu" / "report.html").read_text()
    assert f'data-copy="hwnas export {folder} pick=' in of_target
    assert " target_name=npu" in of_target
    classes = json.loads((folder / "front.json").read_text())["classes"]
    assert {name.split()[0] for name in classes["recall"]} == {*ids}


@pytest.mark.slow
def test_search_gives_target_fronts_and_joint_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    limits = ("npu.budget.latency_ms=0.05", "sketch.budget.flash_kib=40")
    assert run(["search", BOTH, *QUICK, *limits, f"run.dir={folder}"]) == 0
    out = capsys.readouterr().out
    for expected in ("\nnpu ", "\nsketch ", "Models for all targets", "For all targets, "):
        assert expected in out
    rows = pq.read_table(folder / "candidates.parquet").to_pylist()
    assert len(rows) == 12
    ids = {}
    for target in ("npu", "sketch"):
        front = json.loads((folder / target / "front.json").read_text())
        assert front["target"] == target
        assert front["format"] == FORMAT
        ids[target] = {member["id"] for member in front["members"]}
        for member in front["members"]:
            files = [p.name for p in (folder / target / "models").glob(f"{member['id']}*")]
            assert files
            record = json.loads((folder / target / "models" / f"{member['id']}.json").read_text())
            assert record["format"] == FORMAT
        manifest = json.loads((folder / target / "manifest.json").read_text())
        assert manifest["config"]["target"]["name"] == target
    assert json.loads((folder / "front.json").read_text())["format"] == FORMAT
    with (folder / "front.csv").open(newline="") as file:
        joint = list(csv.DictReader(file))
    assert joint
    for row in joint:
        assert float(row["npu.latency_ms"]) <= 0.05
        assert float(row["sketch.flash_kib"]) <= 40
        assert float(row["verified_npu.accuracy_int8"]) > 0
    _check_joint_page(folder, [row["id"] for row in joint])
    assert (folder / "front.png").read_bytes()[:4] == b"\x89PNG"

    before = (folder / "candidates.parquet").read_bytes()
    assert run(["search", f"run.resume={folder}"]) == 0
    assert (folder / "candidates.parquet").read_bytes() == before
    capsys.readouterr()
    line = _error_line(capsys, [f"run.resume={folder}", "npu.budget.latency_ms=0.04"])
    assert "npu.budget differs" in line
    line = _error_line(capsys, [f"run.resume={folder / 'npu'}"])
    assert f"is part of {folder}" in line

    assert run(["why", f"run={folder}", f"id={joint[0]['id']}"]) == 0
    output = capsys.readouterr().out
    assert "npu latency" in output
    assert "npu.budget.latency_ms" in output

    for target in ids:  # as after a kill
        shutil.rmtree(folder / target)
    edit(folder, "status", "running")
    unfinished = hwnas.load(folder)
    assert [axes.get_title() for axes in unfinished.plot().axes] == ["run on npu", "run on sketch"]
    with pytest.raises(
        RunError, match="has no results of each target yet: its status is 'running'"
    ):
        unfinished.targets  # noqa: B018


def test_joint_front_excludes_model_unverified_on_a_target(
    tmp_path: Path, tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("accuracy", "a.latency_ms", "b.latency_ms")
    genotypes = {c.id: c for c in map(tiny.sample, [random.Random(i) for i in range(9)])}
    first, second, third = (
        Candidate(i, genotype, {name: Quantity(0.5 + i, "modelled") for name in names})
        for i, genotype in enumerate([*genotypes.values()][:3])
    )
    calls = []

    def verified(target: str, candidates: Sequence[Candidate], *_: object) -> Front:
        calls.append((target, [c.id for c in candidates]))
        members = [
            Member(c, _verified(c), {}, {})
            for c in candidates
            if (target, c.id) != ("a", unverifiable)
        ]
        return Front(
            names,
            members,
            {c.id: "no" for c in candidates if (target, c.id) == ("a", unverifiable)},
        )

    unverifiable, contexts = (
        second.id,
        [_context(target, partial(verified, target)) for target in "ab"],
    )
    monkeypatch.setattr(joint_front, "objectives", lambda contexts: names)
    targets = Targets({target: Budget() for target in "ab"})
    monkeypatch.setattr("hwnas.workflows.search.context.targets", lambda contexts: targets)
    finish: Any = SimpleNamespace(as_finished=lambda candidate: candidate, finisher=None)
    target_front: Any = SimpleNamespace(front=Front(names, [], {third.id: "reported already"}))
    reporter: Any = SimpleNamespace(say=lambda lines, alarming: messages.extend(lines))
    messages: list[str] = []
    joint = joint_front.verified(
        contexts, RunFolder(tmp_path), [first, second, third], finish, [target_front], reporter
    )
    assert calls == [("a", [first.id, second.id]), ("b", [first.id])]
    assert [member.candidate for member in joint.front.members] == [first]
    assert joint.front.failed == {second.id: "a: no"}
    chance_message, left_out = messages
    assert left_out == f"{second.id} is left out, it could not be verified: a: no"
    constant = "the majority class, 'a' (accuracy 0.5000 on 100 test images)"
    assert chance_message.startswith(f"No network is better than {constant} by its 95 % interval: ")
    assert joint.headline == [chance_message]
    none = joint_front.JointFront(Front(names, [], joint.front.failed))
    assert joint_front.empty_front_message(joint, contexts, [first]) == []
    (line,) = joint_front.empty_front_message(none, contexts, [first])
    assert line.endswith("could be verified on each.")
    nothing_fits = Targets({"a": Budget(), "b": Budget({"latency_ms": 0.0001})})
    monkeypatch.setattr("hwnas.workflows.search.context.targets", lambda contexts: nothing_fits)
    (line,) = joint_front.empty_front_message(none, contexts, [first])
    assert line.startswith("No candidate meets the budgets of all targets.")


def test_joint_models_have_finetuned_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finished = Candidate(0, Genotype("s", ()), {"accuracy": Quantity(0.5, "measured")})
    other = Candidate(1, Genotype("s", (("a", 1),)), {"accuracy": Quantity(0.6, "measured")})
    parts = SimpleNamespace(config=SimpleNamespace(metric="accuracy"))
    finish: Any = SimpleNamespace(
        finished={finished.id: Quantity(0.7, "measured")}, finisher=SimpleNamespace(parts=parts)
    )
    finish.as_finished = partial(FinetuningOutcome.as_finished, finish)
    monkeypatch.setattr(
        "hwnas.workflows.search.context.targets", lambda contexts: Targets({"a": Budget()})
    )
    stopped = replace(finished, stopped=True)  # while it was scored; then it was fine-tuned
    (joint,) = joint_front.fitting([], [stopped, other], finish)
    assert (joint.id, joint.figures["accuracy"].value) == (finished.id, 0.7)
    assert joint.details == {"accuracy_read": 0.5, "accuracy_finished": 0.7}


def _context(target: str, verified: Any) -> Any:
    data = SimpleNamespace(
        task=ClassificationTask(("a", "b"), (50, 50)),
        test=range(100),
        constant=lambda split: Quantity(0.5, "measured"),
    )
    parts, config = SimpleNamespace(data=data), SimpleNamespace(metric="accuracy")
    return SimpleNamespace(target=target, verified=verified, parts=parts, config=config)


def _verified(candidate: Candidate) -> Quantities:
    figures = candidate.figures
    return {"accuracy_int8": figures["accuracy"], "latency_ms": figures["latency_ms"]}


@pytest.mark.slow
def test_target_with_infeasible_budget_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = [BOTH, *QUICK, "npu.budget.latency_ms=0.0001"]
    assert run(["search", *options, f"run.dir={folder}"]) == 0
    out = capsys.readouterr().out
    assert "npu: None of 12 candidates meets the budget" in out
    assert "No candidate meets the budgets of all targets." in out
    assert "No candidate meets" in (folder / "report.html").read_text()
    (files,) = re.findall(rf"Files in {re.escape(str(folder))}: (.*)", out)
    assert "front.csv" not in files
    assert "target_name=TARGET" in _error_line(
        capsys, [f"run={folder}", f"dir={tmp_path}"], verb="export"
    )
    infeasible = [*options, "sketch.budget.latency_ms=0.0000001", "sampler=random"]
    line = _error_line(capsys, infeasible)
    assert "npu: None of 12" in line
    assert "sketch: None of 12" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([BOTH, "npu.seed=3"], "seed must be the same for all targets"),
        (["+target=[npu,npuu]"], "Unknown target 'npuu'. Did you mean 'npu'?"),
        ([BOTH, "npu.budget.latency=3"], "Write budget.latency=3ms"),
        (["+target=[]"], "must be a list of different targets"),
        (
            ["+target=[npu,sketch,ethos_u65_256]", "sampler=pareto"],
            "sampler=pareto supports at most 3 objectives, got 4 (costs count on each target): use",
        ),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in _error_line(capsys, arguments)
