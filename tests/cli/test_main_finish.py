"""Searches whose candidates are trained alone, as their users start them."""

import csv
import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from hwnas.core.errors import CollapseError, CompileError, HwnasError
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import verification
from hwnas.nas.candidates import Candidate
from hwnas.nas.front_probability import CandidatePosteriors
from hwnas.nas.member import Member
from hwnas.training import single_network
from hwnas.training.finetuning.stages import TrainingStage
from hwnas.training.finetuning.time_budget import ALWAYS, TimeWindow
from hwnas.training.inference import at_chance_level
from hwnas.training.options import FinetuningConfig, FinishConfig
from hwnas.workflows.search import finish_runs, finishing
from hwnas.workflows.search import finisher as search_finisher
from hwnas.workflows.search.finish_runs import FinetuneBatch, FinetuneResult
from hwnas.workflows.search.finisher import Finetuner
from tests.conftest import few_of, last_of
from tests.core.unusable import edit
from tests.models.int8.networks import coarsely

_PARTS = ("", "_source", "_low", "_high")  # of a quantity's columns
QUICK = (
    "+target=npu", "search_space=tiny", "accuracy=trained", "trained.fidelities=[1,2]",
    "finish.epochs=2", "finish.min_candidates=4", "n_trials=8", "budget=none", "study.workers=1",
)  # fmt: skip


def _search(folder: Path, *options: str) -> None:
    given = [f"run.dir={folder}", f"run.supernets={folder.parent / 'networks'}"]
    assert run(["search", *last_of(*QUICK, *given, *options)]) == 0


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    _search(folder)
    return folder


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return rows


def test_files_say_what_was_read_believed_and_finished(searched: Path) -> None:
    rows, manifest = _rows(searched), json.loads((searched / "manifest.json").read_text())
    scored = [row for row in rows if row["accuracy"] is not None]
    assert len(rows) == 8
    assert all(0 < row["accuracy_after_1_epochs"] < 1 for row in scored)
    assert {row["accuracy_source"] for row in scored} == {"modelled"}
    assert all(row["accuracy_read"] is not None for row in scored)
    finishing = manifest["finishing"]
    assert finishing["epochs"] == 2
    assert finishing["teacher"] in finishing["finished"]
    with (searched / "front.csv").open(newline="") as file:
        members = list(csv.DictReader(file))
    assert len(members) >= 4
    assert {member["id"] for member in members} <= set(finishing["finished"])
    front = json.loads((searched / "front.json").read_text())
    figures = {
        row["id"]: Quantity(*(row[f"verified_accuracy_int8{p}"] for p in _PARTS))
        for row in front["members"]
    }
    guessing = at_chance_level("accuracy", figures, Quantity(*front["constant"]))
    assert front.get("guessing", []) == sorted(guessing)
    assert {*front["classes"]["confusion"]} == {*figures}
    by_id = {row["id"]: row for row in reversed(rows)}
    shared = {*rows[0]} & {*members[0]}
    for member in members:
        for name in shared - {"trial"}:  # of a network that came again
            told = by_id[member["id"]][name]
            assert member[name] == ("" if told is None else str(told)), name
        finished = float(member["accuracy_finished"])
        assert finished == finishing["finished"][member["id"]][0]
        assert abs(float(member["verified_accuracy_int8"]) - finished) < 0.1


def _forbid_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(single_network._SingleNetworkStep, "__call__", step)


def test_copy_of_a_run_is_exported_and_resumed_by_its_own_weights(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(searched, "copy")
    before = {file: file.read_bytes() for file in Path("copy").rglob("*.[cjs]*")}
    assert run(["export", "run=copy", "dir=out"]) == 0
    (proof,) = (json.loads(file.read_text()) for file in Path("out").glob("*/proof.json"))
    assert "model.int8.tflite" in proof["source"]["reported"]["same_files"]
    assert {file: file.read_bytes() for file in Path("copy").rglob("*.[cjs]*")} == before
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "out"}
    assert run(["search", "run.resume=copy", "run.supernets=none"]) == 0
    assert Path("copy/front.csv").read_bytes() == (searched / "front.csv").read_bytes()
    assert not Path("none").exists()


@pytest.mark.slow
def test_damaged_files_of_a_run_are_made_again(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(searched, tmp_path / "run"))
    files = {file: file.read_bytes() for file in folder.glob("models/*")}
    weights = {file: file.read_bytes() for file in folder.glob("weights/*/*")}
    broken = next(file for file in files if file.suffix == ".tflite")
    broken.write_bytes(b"damaged")
    next(iter(folder.glob("models/*.npz"))).unlink()
    for file, content in weights.items():
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # the file can still be read
    assert run(["export", f"run={folder}", f"dir={tmp_path / 'out'}"]) == 2
    assert "does not have the digest in manifest.json" in capsys.readouterr().err
    assert run(["search", f"run.resume={folder}", f"run.supernets={tmp_path / 'none'}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Its network is verified again." in said
    assert "Its network is trained again if it is needed." in said
    assert {file: file.read_bytes() for file in files if file.suffix != ".json"} == {
        file: content for file, content in files.items() if file.suffix != ".json"
    }
    assert run(["export", f"run={folder}", f"dir={tmp_path / 'out'}"]) == 0


@pytest.mark.slow
def test_another_target_trains_no_candidate_again(
    searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    other = searched.parent / "other"
    given = [f"run.dir={other}", f"run.supernets={searched.parent / 'networks'}"]
    options = ["+target=ethos_u65_256", f"start_from={searched}", "finish.epochs=0"]
    assert run(["search", *last_of(*QUICK[1:], *options, *given)]) == 0
    assert [row["id"] for row in _rows(other)] == [row["id"] for row in _rows(searched)]
    again = searched.parent / "again"
    _search(again)
    assert (again / "front.csv").read_bytes() == (searched / "front.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("n_failing", [1, 99])
def test_search_ends_without_members_that_cannot_be_verified(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    n_failing: int,
) -> None:
    folder, verified = Path(shutil.copytree(searched, tmp_path / "run")), verification._verify_once
    before = json.loads((folder / "front.json").read_text())["members"]
    failing = [row["id"] for row in before][:n_failing]

    def late(candidate: Candidate, *arguments: Any) -> Member:
        if candidate.id in failing:
            raise CompileError("no answer within 120 s (export); it was killed.")
        return verified(candidate, *arguments)

    monkeypatch.setattr(verification, "_verify_once", late)
    code = run(["search", f"run.resume={folder}", f"run.supernets={searched.parent / 'networks'}"])
    said, manifest = capsys.readouterr(), json.loads((folder / "manifest.json").read_text())
    if n_failing > len(before):
        assert code == 2
        (line,) = said.err.strip().splitlines()
        assert f"None of {len(before)} networks that may be on the front could be verified" in line
        assert line.endswith(f"hwnas search run.resume={folder}")
        assert manifest["status"] == "none could be verified"
        assert not [*folder.glob("front.*"), *folder.glob("report.html")], "of an earlier end"
        assert run(["why", f"run={folder}", f"id={failing[0]}"]) == 0
        assert "It could not be verified: no answer" in " ".join(capsys.readouterr().out.split())
        return
    assert (code, manifest["status"]) == (0, "finished")
    why = "it could not be verified: no answer within 120 s (export); it was killed."
    assert f"{failing[0]} is left out, {why}" in " ".join(said.out.split())
    assert f"{failing[0]} is left out, {why}" in (folder / "report.html").read_text()
    after = json.loads((folder / "front.json").read_text())
    assert {row["id"] for row in after["members"]} == {row["id"] for row in before} - {*failing}
    assert run(["why", f"run={folder}", f"id={failing[0]}"]) == 0
    assert why.capitalize() in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize("n_calls", [9, 120])
def test_search_that_was_killed_ends_as_it_would_have(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_calls: int
) -> None:
    original: Callable[..., Any] = single_network._SingleNetworkStep.__call__
    left = [n_calls]

    class Killed(BaseException):
        pass

    def step(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(single_network._SingleNetworkStep, "__call__", step)
        with pytest.raises(Killed):
            _search(tmp_path / "run")
    assert run(["search", f"run.resume={tmp_path / 'run'}"]) == 0
    for name in ("front.csv", "candidates.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (searched / name).read_bytes()


@pytest.mark.slow
def test_several_processes_find_a_front_within_minutes(tmp_path: Path) -> None:
    options = ["study.workers=2", "minutes=1", "n_trials=500"]
    _search(tmp_path / "run", *options)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert 1 <= manifest["n_candidates"] < 500
    assert manifest["n_front"] >= 1


@pytest.mark.slow
def test_what_is_trained_already_is_finished_however_late(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    given = [f"run.dir={tmp_path / 'run'}", f"run.supernets={searched.parent / 'networks'}"]
    assert run(["search", *QUICK, *given, "finish.minutes=1e-6"]) == 0
    assert (tmp_path / "run" / "front.csv").read_bytes() == (searched / "front.csv").read_bytes()


def test_a_run_keeps_for_how_long_its_candidates_were_trained(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where that was the default of the version that began it."""
    _forbid_training(monkeypatch)
    shutil.copytree(searched, tmp_path / "run")
    arguments = json.loads((tmp_path / "run" / "manifest.json").read_text())["arguments"]
    arguments.remove("trained.fidelities=[1,2]")
    edit(tmp_path / "run", "arguments", arguments)
    assert run(["search", f"run.resume={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run" / "front.csv").read_bytes() == (searched / "front.csv").read_bytes()
    assert "Fine-tune" not in capsys.readouterr().out, "a bar for what was trained before"


def _unfinished(searched: Path, folder: Path, minutes: float, spent_s: float) -> Path:
    """Return a copy of a run that was killed when it had finished the teacher alone."""
    run_folder, networks = folder / "run", folder / "networks"
    shutil.copytree(searched, run_folder)
    shutil.copytree(searched.parent / "networks", networks)
    for file in [*networks.glob("*/*.safetensors"), *run_folder.glob("weights/*/*")]:
        if b"taught by" in file.read_bytes():
            shutil.rmtree(file.parent)
    manifest = json.loads((run_folder / "manifest.json").read_text())
    given = [f"run.supernets={networks}", f"finish.minutes={minutes}"]
    manifest |= {"arguments": [*manifest["arguments"], *given], "finishing_s": spent_s}
    del manifest["finishing"]
    RunFolder(run_folder).write_json("manifest.json", manifest)
    return run_folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spent_s", "takes_s"),
    [pytest.param(601.0, 0.0, id="spent"), pytest.param(1.0, 600.0, id="long")],
)
def test_what_the_time_of_a_run_does_not_suffice_for_is_not_begun(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent_s: float, takes_s: float
) -> None:
    """Whether it was spent before the run was resumed, or a training takes more than is left."""
    folder = _unfinished(searched, tmp_path, 10, spent_s)
    _forbid_training(monkeypatch)
    monkeypatch.setattr(TrainingStage, "takes_s", lambda *_: takes_s)
    monkeypatch.setattr(TrainingStage, "epoch_s", lambda _: takes_s)
    assert run(["search", f"run.resume={folder}"]) == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [*manifest["finishing"]["finished"]] == [manifest["finishing"]["teacher"]]
    assert manifest["finishing_s"] >= 600


@pytest.mark.parametrize("n_kept", [0, 3], ids=["none", "some"])
def test_a_front_whose_networks_are_not_kept_any_more_is_not_lost_for_want_of_time(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    n_kept: int,
) -> None:
    _forbid_training(monkeypatch)
    folder = tmp_path / "run"
    shutil.copytree(searched, folder, ignore=shutil.ignore_patterns("weights"))
    for kept in sorted((searched.parent / "networks").iterdir())[:n_kept]:
        shutil.copytree(kept, tmp_path / "others" / kept.name)
    before = {file: file.read_bytes() for file in folder.rglob("*.[cj]s*")}
    resumed = [f"run.resume={folder}", f"run.supernets={tmp_path / 'others'}"]
    assert run(["search", *resumed, "finish.minutes=10"]) == 2
    assert "its fine-tuned networks are not in" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.rglob("*.[cj]s*")} == before


@pytest.mark.slow
def test_what_there_is_no_time_to_train_for_int8_is_calibrated_until_there_is(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hwnas.training.finetuning.pipeline.calibrate", partial(coarsely, times=16))
    shutil.copytree(searched, tmp_path / "run")
    shutil.copytree(searched.parent / "networks", tmp_path / "networks")
    resumed = [f"run.resume={tmp_path / 'run'}", f"run.supernets={tmp_path / 'networks'}"]

    def search(minutes: int) -> set[str]:
        """Return the ids of those that were hurried; look at what was verified."""
        assert run(["search", *resumed, f"finish.minutes={minutes}"]) == 0
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        assert manifest["status"] == "finished"
        for member in manifest["finishing"]["finished"]:
            file = tmp_path / "run" / "models" / f"{member}.json"
            if file.is_file():
                is_hurried = member in manifest["finishing"].get("hurried", ())
                assert json.loads(file.read_text())["weights"].endswith("in haste") == is_hurried
        return {*manifest["finishing"].get("hurried", ())}

    with monkeypatch.context() as patched:
        _forbid_training(patched)
        patched.setattr(TrainingStage, "takes_s", lambda *_: 600.0)
        patched.setattr(TrainingStage, "epoch_s", lambda _: 600.0)
        hurried = search(10)
        assert len(hurried) >= 2
        told = " ".join(capsys.readouterr().out.split())
        words = "lose more than finish.max_int8_drop in int8 and are only calibrated"
        assert words in told
        assert words in (tmp_path / "run" / "report.html").read_text()
        named = json.loads((tmp_path / "run" / "front.json").read_text())["hurried"]
        assert {*named} <= hurried
        assert run(["why", f"run={tmp_path / 'run'}", f"id={named[0]}"]) == 0
        assert "it is calibrated alone" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(TrainingStage, "takes_s", lambda *_: 0.0)
    assert search(20) == set()
    out = capsys.readouterr().out
    assert out.count("Train for int8") >= len(hurried), "trained while members are finished"
    assert "only calibrated" not in out


@pytest.mark.parametrize(
    ("slot", "without_int8_training"), [(ALWAYS, False), (TimeWindow(0.0, 1e9), True)]
)
def test_where_time_is_limited_int8_is_trained_for_right_behind_for_each_target(
    slot: TimeWindow, without_int8_training: bool
) -> None:
    asked = list[tuple[str, bool]]()

    def of(target: str) -> Any:
        def for_int8(_: Genotype, left_s: Callable[[], float]) -> bool:
            asked.append((target, left_s() < math.inf))
            return target == "cpu"

        found = Quantity(0.9, "measured")
        return SimpleNamespace(fits=lambda *_: True, tuned=lambda _: found, for_int8=for_int8)

    crew = [of("npu"), of("too small"), of("cpu")]
    _, ready = finish_runs._ready(Genotype("tiny", ()), slot, [True, False, True], 1.0, crew)
    assert ready is not None
    assert ready.without_int8_training == without_int8_training
    assert asked == [("npu", True), ("cpu", True)] * without_int8_training


@pytest.mark.parametrize("error", [CompileError("refused"), CollapseError("forgotten")])
def test_what_goes_wrong_in_int8_with_one_network_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch, error: HwnasError
) -> None:
    """Its verification says so."""

    def refused(*_: object) -> None:
        raise error

    config = SimpleNamespace(accuracy="supernet", finish=FinishConfig())
    parts: Any = SimpleNamespace(config=config, networks=SimpleNamespace(dtype=lambda _: "int8"))
    weights: Any = None
    monkeypatch.setattr(Finetuner, "_in_int8", refused)
    assert not Finetuner(parts, weights).for_int8(Genotype("tiny", ()), lambda: 60.0)


def test_several_processes_take_in_all_that_is_trained_already_however_late(
    tiny: SearchSpace,
) -> None:
    genotypes = [tiny.sample(random.Random(i)) for i in range(4)]
    steps = {g.id: n for g, n in zip(genotypes, (0, 5, 9, 9), strict=True)}
    finisher: Any = SimpleNamespace(
        config=FinetuningConfig(), n_steps=9, left={}, chosen_epochs=None,
        teacher=None, is_teacher=lambda _: False, is_kept=lambda g: steps[g.id] == 9,
        checkpoint=lambda g: SimpleNamespace(n_steps=lambda: steps[g.id]),
    )  # fmt: skip

    def run(next_task: Callable[[], Any], collect: Callable[[Any], None], *_: Any) -> None:
        while (task := next_task()) is not None:
            collect((task.args[0].id, FinetuneResult(Quantity(0.9, "measured"))))

    crew: Any = SimpleNamespace(run=run)
    how = FinetuneBatch(TimeWindow(0.0, 1e9), crew=crew)
    found = finish_runs.finished(finisher, genotypes, NullProgress(), "", how)
    assert {name for name, ready in found.items() if ready} == {g.id for g in genotypes[2:]}


def test_a_run_keeps_what_its_finishing_took(searched: Path) -> None:
    manifest = json.loads((searched / "manifest.json").read_text())
    phases = ("Train the teacher", "Finish members", "Fine-tune", "Teacher answers")
    took = sum(manifest["seconds"][phase] for phase in phases)
    assert took <= manifest["finishing_s"] <= sum(manifest["seconds"].values())


def test_one_is_finished_however_little_time_there_is(searched: Path, tmp_path: Path) -> None:
    given = [f"run.dir={tmp_path / 'run'}", f"run.supernets={searched.parent / 'networks'}"]
    options = ["n_trials=4", "finish.alpha=0", "finish.rate=0.5", "finish.minutes=1e-6"]
    assert run(["search", *last_of(*QUICK, *given, *options)]) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["finishing"]["finished"]) == manifest["n_front"] == 1
    assert manifest["seconds"]["Fine-tune"] > 0, "steps are shown, and their time is kept"


@pytest.mark.slow
def test_a_teacher_that_is_slower_than_estimated_is_replaced(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first teacher is stopped; then all are, and the others are trained without one."""
    ready, n_slow = finish_runs._ready, 1
    teachers = list[str]()

    def slow(genotype: Genotype, slot: TimeWindow, *rest: Any) -> Any:
        if math.isfinite(slot.end_by) and math.isinf(slot.begin_by) and len(teachers) < n_slow:
            teachers.append(genotype.id)
            return genotype.id, None
        return ready(genotype, slot, *rest)

    monkeypatch.setattr(finish_runs, "_ready", slow)
    given = [f"run.supernets={searched.parent / 'networks'}", "n_trials=4", "finish.minutes=1"]
    for n_slow in (1, 3):
        teachers.clear()
        folder = tmp_path / str(n_slow)
        assert run(["search", *last_of(*QUICK, f"run.dir={folder}", *given)]) == 0
        finishing_facts = json.loads((folder / "manifest.json").read_text())["finishing"]
        assert len({*teachers}) == n_slow
        assert finishing_facts["teacher"] not in teachers
        assert (finishing_facts["teacher"] is None) == (n_slow == 3)
        assert (finishing_facts["alpha"] == 0) == (n_slow == 3)
        assert finishing_facts["finished"]
        message = f"The training of the teacher ({', '.join(teachers)}) was too slow for the time"
        assert message in " ".join(capsys.readouterr().out.split())
        assert run(["export", str(folder), f"dir={folder}/export", "force=true"]) == 0


def test_members_say_which_weights_were_verified(searched: Path) -> None:
    files = [*(searched / "models").glob("*.json")]
    weights = [json.loads(file.read_text())["weights"] for file in files]
    assert all((searched.parent / "networks" / name).is_dir() for name in weights)
    assert len({*weights}) == len(files) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("most", few_of([2, 1, 5], 1))
def test_no_more_are_trained_on_than_are_asked_for(
    searched: Path, tmp_path: Path, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"run.dir={tmp_path / 'run'}", f"run.supernets={searched.parent / 'networks'}"]
    options = [
        "finish.min_candidates=12",
        "finish.probability=1e-9",
        f"finish.max_candidates={most}",
    ]
    assert run(["search", *last_of(*QUICK, *given, *options)]) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["finishing"]["finished"]) == most
    assert manifest["finishing"]["teacher"] in manifest["finishing"]["finished"]
    left = json.loads((tmp_path / "run" / "front.json").read_text())["unfinished"]
    assert left
    assert not {*left} & {*manifest["finishing"]["finished"]}
    words = " ".join(capsys.readouterr().out.split())
    assert f"{len(left)} more may be on the front (finish.probability=1e-09), but" in words
    again = words.partition("To continue: hwnas ")[2].split()[:3]
    assert again == [
        "search",
        f"run.resume={tmp_path / 'run'}",
        f"finish.max_candidates={most + len(left)}",
    ]
    assert run(again) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["finishing"]["finished"]) == most + len(left), "it finishes as many"


@pytest.mark.parametrize(
    ("minutes", "begun", "taught_by"),
    [
        (None, 1, 3),
        (5.0, None, 2),
        (0.1, None, 0),
        (9.0, None, 1),
        (5.0, 3, 3),
        (9.0, 2, 2),  # as accurate, for all that is known
        (9.0, 0, 1),
    ],
)
def test_where_time_is_limited_the_most_accurate_that_is_trained_in_a_quarter_of_it_teaches(
    minutes: float | None, begun: int | None, taught_by: int
) -> None:
    """Accuracies of 0.90, 0.93, 0.92 and 0.935, within 0.015."""
    wanted = [
        Candidate(
            i,
            Genotype("tiny", (("size", i),)),
            {"accuracy": Quantity(a, "modelled", a - 0.015, a + 0.015)},
        )
        for i, a in enumerate((0.90, 0.93, 0.92, 0.935))
    ]

    def size(genotype: Genotype) -> int:
        return int(dict(genotype.options)["size"])

    def checkpoint(genotype: Genotype) -> Any:
        return SimpleNamespace(n_steps=lambda: 7 * (size(genotype) == begun))

    finisher: Any = SimpleNamespace(
        parts=SimpleNamespace(
            config=SimpleNamespace(metric="accuracy", finish=FinishConfig(minutes=minutes)),
        ),
        n_macs=lambda genotype: (10, 30, 20, 40)[size(genotype)],
        checkpoint=checkpoint,
        teaching_s=lambda genotype: (20.0, 130.0, 70.0, 300.0)[size(genotype)],
    )
    left_s = math.inf if minutes is None else 60 * minutes
    assert (
        size(search_finisher.choose_teacher(wanted, wanted, finisher, lambda: left_s)) == taught_by
    )
    if minutes == 0.1:  # too few: what is wanted no more goes on teaching
        begun = 3
        few = search_finisher.choose_teacher(wanted[:2], wanted, finisher, lambda: -1.0)
        assert size(few) == begun


@pytest.mark.parametrize("disturbed", [(), (0,), (1, 2), (0, 3), (0, 7)])
def test_few_are_timed_before_one_teaches(disturbed: tuple[int, ...]) -> None:
    """What disturbs one reading, or two, is not taken for how long that network takes."""
    timed = list[int]()

    def teaching_s(genotype: int) -> float:
        timed.append(genotype)
        return genotype * (10.0 if len(timed) - 1 in disturbed else 1.0)

    finisher: Any = SimpleNamespace(
        n_macs=lambda genotype: genotype,
        teaching_s=teaching_s,
    )
    some: Any = [SimpleNamespace(id=str(i), genotype=i) for i in range(99, -1, -1)]
    first = search_finisher._first_within(62.0, some, finisher)
    assert first is not None
    assert first.id == "62"
    assert len(timed) <= (8 if not disturbed else 24)


def test_each_target_has_one_that_is_finished(tiny: SearchSpace) -> None:
    """However little time there is, and however few are asked for."""
    latency = {"latency_ms": Quantity(1.0, "modelled"), "accuracy": Quantity(0.9, "modelled")}
    own = [Candidate(i, tiny.sample(random.Random(i)), latency) for i in range(3)]
    known = {f"t{c.trial}": CandidatePosteriors([c], {c.id: 1.0}) for c in own}
    parts: Any = SimpleNamespace(config=SimpleNamespace(finish=FinishConfig()))
    finisher: Any = SimpleNamespace(parts=parts)
    state = finishing.FinetuningOutcome(
        known, {}, finisher, finished={own[1].id: Quantity(0.9, "measured")}
    )
    assert [*finishing._needed(state, is_limited=False)] == [own[0].genotype, own[2].genotype]


@pytest.mark.parametrize(
    ("minutes", "in_time", "words"),
    [
        (30.0, False, ("finish.minutes", "finish.minutes=60")),
        (30.0, True, ("finish.max_candidates", "finish.max_candidates=3")),
        (None, True, ("finish.max_candidates", "finish.max_candidates=3")),
    ],
)
def test_what_may_be_on_the_front_and_is_not_finished_is_said_with_what_would_finish_it(
    tiny: SearchSpace, minutes: float | None, in_time: bool, words: tuple[str, str]
) -> None:
    figures = {"latency_ms": Quantity(1.0, "modelled"), "accuracy": Quantity(0.9, "modelled")}
    own = [Candidate(i, tiny.sample(random.Random(i)), figures) for i in range(4)]
    likely = dict(zip((c.id for c in own), (0.3, 0.9, 0.5, 0.1), strict=True))
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(finish=FinishConfig(minutes=minutes), minutes=None)
    )
    finisher: Any = SimpleNamespace(parts=parts)
    state = finishing.FinetuningOutcome({"t": CandidatePosteriors(own, likely)}, {}, finisher)
    state.add({own[1].id: FinetuneResult(Quantity(0.9, "measured"))})
    state.add({own[0].id: None}, final=not in_time)
    left = state.unfinished("t")
    assert left.ids == [own[2].id, own[0].id], "the most probable first"
    (sentence,) = left.messages(0.2, Path("a run"))
    assert sentence == (
        "2 more may be on the front (finish.probability=0.2), but were not fine-tuned because of "
        f"{words[0]}. To continue: hwnas search 'run.resume=a run' {words[1]}"
    )
    state.add({c.id: FinetuneResult(Quantity(0.9, "measured")) for c in own})
    assert state.unfinished("t").messages(0.2, Path("a run")) == []


def test_nothing_is_trained_for_a_budget_that_nothing_meets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    given = [f"run.dir={tmp_path / 'run'}", f"run.supernets={tmp_path / 'networks'}"]
    assert run(["search", *QUICK, "budget.flash_kib=0.1", *given]) == 2
    assert "binding limit is budget.flash_kib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("accuracy=alone", "Unknown accuracy 'alone'"),
        ("trained.fidelities=[0]", "trained.fidelities must be whole numbers, each in"),
        ("finish.probability=2", "finish.probability must be a number in"),
        ("finish.max_candidates=0", "finish.max_candidates must be a whole number in"),
        ("minutes=-1", "minutes must be a number in"),
        ("start_from=nowhere", "start_from=nowhere: no such folder"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, words: str
) -> None:
    assert run(["search", *last_of(*QUICK, f"run.dir={tmp_path / 'run'}", option)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_one_is_verified_though_none_is_probable(tiny: SearchSpace) -> None:
    """Many that cost and answer alike share the probability to be on the front."""
    latency = {"latency_ms": Quantity(1.0, "modelled"), "accuracy": Quantity(0.9, "modelled")}
    drawn = random.Random(0)
    alike = {c.id: c for c in (Candidate(i, tiny.sample(drawn), latency) for i in range(12))}
    shared = CandidatePosteriors([*alike.values()], dict.fromkeys(alike, 1 / len(alike)))
    parts = SimpleNamespace(config=SimpleNamespace(finish=FinishConfig()))
    finisher: Any = SimpleNamespace(parts=parts)
    among_all = [
        replace(c, figures={**latency, "accuracy": Quantity(0.8, "modelled")})
        for c in alike.values()
    ]
    known = {"npu": replace(shared, candidates=among_all)}
    (member,) = finishing.FinetuningOutcome(known, {"npu": shared}, finisher).members("npu")
    assert member.figures["accuracy"].value == 0.8, "as the file of all candidates has it"
