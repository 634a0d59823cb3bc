"""Searches with ``accuracy=trained`` on the command line."""

import csv
import json
import math
import random
import re
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
from hwnas.training.finetuning import pipeline
from hwnas.training.finetuning.stages import NetworkSource, TrainingStage
from hwnas.training.finetuning.time_budget import ALWAYS, TimeWindow
from hwnas.training.inference import at_chance_level
from hwnas.training.options import FinetuningConfig, FinishConfig
from hwnas.workflows.search import finish_runs, finishing, schedule
from hwnas.workflows.search.finetuning_outcome import FinetuningOutcome
from hwnas.workflows.search.finish_runs import FinetuneBatch, FinetuneResult
from hwnas.workflows.search.finisher import Finetuner
from tests.conftest import few_of, last_of
from tests.core.unusable import edit
from tests.models.int8.networks import calibrate_coarsely

_PARTS = ("", "_source", "_low", "_high")  # column suffixes of a quantity
QUICK = (
    "+target=npu", "search_space=tiny", "accuracy=trained", "trained.fidelities=[1,2]",
    "finish.epochs=2", "finish.min_candidates=4", "n_trials=8", "budget=none", "study.workers=1",
)  # fmt: skip


def _search(folder: Path, *options: str) -> None:
    paths = [f"run.dir={folder}", f"run.supernets={folder.parent / 'networks'}"]
    assert run(["search", *last_of(*QUICK, *paths, *options)]) == 0


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    _search(folder)
    return folder


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return rows


def test_run_files_contain_scores_and_finetuned_members(searched: Path) -> None:
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
    at_chance = at_chance_level("accuracy", figures, Quantity(*front["constant"]))
    assert front.get("guessing", []) == sorted(at_chance)
    assert {*front["classes"]["confusion"]} == {*figures}
    by_id = {row["id"]: row for row in reversed(rows)}
    shared = {*rows[0]} & {*members[0]}
    for member in members:
        for name in shared - {"trial"}:  # a repeated network has another trial
            value = by_id[member["id"]][name]
            assert member[name] == ("" if value is None else str(value)), name
        finished = float(member["accuracy_finished"])
        assert finished == finishing["finished"][member["id"]][0]
        assert abs(float(member["verified_accuracy_int8"]) - finished) < 0.1


def _forbid_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(single_network._SingleNetworkStep, "__call__", fail)


@pytest.mark.slow
def test_copied_run_uses_its_own_weights(
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
def test_damaged_run_files_are_restored(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(searched, tmp_path / "run"))
    files = {file: file.read_bytes() for file in folder.glob("models/*")}
    weights = {file: file.read_bytes() for file in folder.glob("weights/*/*")}
    damaged = next(file for file in files if file.suffix == ".tflite")
    damaged.write_bytes(b"damaged")
    next(iter(folder.glob("models/*.npz"))).unlink()
    for file, content in weights.items():
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # the file can still be read
    assert run(["export", f"run={folder}", f"dir={tmp_path / 'out'}"]) == 2
    assert "does not have the digest in manifest.json" in capsys.readouterr().err
    assert run(["search", f"run.resume={folder}", f"run.supernets={tmp_path / 'none'}"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Its network is verified again." in output
    assert "Its network is trained again if it is needed." in output
    assert {file: file.read_bytes() for file in files if file.suffix != ".json"} == {
        file: content for file, content in files.items() if file.suffix != ".json"
    }
    assert run(["export", f"run={folder}", f"dir={tmp_path / 'out'}"]) == 0


@pytest.mark.slow
def test_start_from_other_target_reuses_networks(
    searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    other = searched.parent / "other"
    paths = [f"run.dir={other}", f"run.supernets={searched.parent / 'networks'}"]
    options = ["+target=ethos_u65_256", f"start_from={searched}", "finish.epochs=0"]
    assert run(["search", *last_of(*QUICK[1:], *options, *paths)]) == 0
    assert [row["id"] for row in _rows(other)] == [row["id"] for row in _rows(searched)]
    repeated = searched.parent / "again"
    _search(repeated)
    assert (repeated / "front.csv").read_bytes() == (searched / "front.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("n_failing", [1, 99])
def test_unverifiable_members_are_omitted(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    n_failing: int,
) -> None:
    folder, verify_once = (
        Path(shutil.copytree(searched, tmp_path / "run")),
        verification._verify_once,
    )
    before = json.loads((folder / "front.json").read_text())["members"]
    failing = [row["id"] for row in before][:n_failing]

    def fail_late(candidate: Candidate, *arguments: Any) -> Member:
        if candidate.id in failing:
            raise CompileError("no answer within 120 s (export); the process was killed.")
        return verify_once(candidate, *arguments)

    monkeypatch.setattr(verification, "_verify_once", fail_late)
    code = run(["search", f"run.resume={folder}", f"run.supernets={searched.parent / 'networks'}"])
    captured, manifest = capsys.readouterr(), json.loads((folder / "manifest.json").read_text())
    if n_failing > len(before):
        assert code == 2
        (line,) = captured.err.strip().splitlines()
        assert f"None of {len(before)} networks that may be on the front could be verified" in line
        assert line.endswith(f"hwnas resume {folder}")
        assert manifest["status"] == "none could be verified"
        assert not [*folder.glob("front.*"), *folder.glob("report.html")], "of an earlier end"
        assert run(["why", f"run={folder}", f"id={failing[0]}"]) == 0
        assert "It could not be verified: no answer" in " ".join(capsys.readouterr().out.split())
        return
    assert (code, manifest["status"]) == (0, "finished")
    why = "it could not be verified: no answer within 120 s (export); the process was killed."
    assert f"{failing[0]} is left out, {why}" in " ".join(captured.out.split())
    assert f"{failing[0]} is left out, {why}" in (folder / "report.html").read_text()
    after = json.loads((folder / "front.json").read_text())
    assert {row["id"] for row in after["members"]} == {row["id"] for row in before} - {*failing}
    assert run(["why", f"run={folder}", f"id={failing[0]}"]) == 0
    assert why.capitalize() in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize("n_calls", [9, 120])
def test_killed_search_resumes_to_same_front(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_calls: int
) -> None:
    original: Callable[..., Any] = single_network._SingleNetworkStep.__call__
    remaining_calls = [n_calls]

    class Killed(BaseException):
        pass

    def step(*arguments: Any) -> Any:
        remaining_calls[0] -= 1
        if remaining_calls[0] < 0:
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
def test_parallel_search_respects_time_limit(tmp_path: Path) -> None:
    options = ["study.workers=2", "minutes=1", "n_trials=500"]
    _search(tmp_path / "run", *options)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert 1 <= manifest["n_candidates"] < 500
    assert manifest["n_front"] >= 1


@pytest.mark.slow
def test_trained_networks_are_finished_after_time_limit(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    paths = [f"run.dir={tmp_path / 'run'}", f"run.supernets={searched.parent / 'networks'}"]
    assert run(["search", *QUICK, *paths, "finish.minutes=1e-6"]) == 0
    assert (tmp_path / "run" / "front.csv").read_bytes() == (searched / "front.csv").read_bytes()


@pytest.mark.slow
def test_resume_keeps_default_fidelities_of_run(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The default may differ from that of the version that started the run."""
    _forbid_training(monkeypatch)
    shutil.copytree(searched, tmp_path / "run")
    arguments = json.loads((tmp_path / "run" / "manifest.json").read_text())["arguments"]
    arguments.remove("trained.fidelities=[1,2]")
    edit(tmp_path / "run", "arguments", arguments)
    assert run(["search", f"run.resume={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run" / "front.csv").read_bytes() == (searched / "front.csv").read_bytes()
    assert "Fine-tune" not in capsys.readouterr().out, "a bar for what was trained before"


def _copy_unfinished(searched: Path, folder: Path, minutes: float, elapsed_s: float) -> Path:
    """Return a copy of a run that was killed after fine-tuning the teacher."""
    run_folder, networks = folder / "run", folder / "networks"
    shutil.copytree(searched, run_folder)
    shutil.copytree(searched.parent / "networks", networks)
    for file in [*networks.glob("*/*.safetensors"), *run_folder.glob("weights/*/*")]:
        if b"taught by" in file.read_bytes():
            shutil.rmtree(file.parent)
    manifest = json.loads((run_folder / "manifest.json").read_text())
    arguments = [f"run.supernets={networks}", f"finish.minutes={minutes}"]
    manifest |= {"arguments": [*manifest["arguments"], *arguments], "finishing_s": elapsed_s}
    del manifest["finishing"]
    RunFolder(run_folder).write_json("manifest.json", manifest)
    return run_folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("elapsed_s", "duration_s"),
    [pytest.param(601.0, 0.0, id="exhausted"), pytest.param(1.0, 600.0, id="long")],
)
def test_no_training_starts_that_exceeds_time_limit(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elapsed_s: float,
    duration_s: float,
) -> None:
    """The time is exhausted before the resume, or a training takes longer than the rest."""
    folder = _copy_unfinished(searched, tmp_path, 10, elapsed_s)
    _forbid_training(monkeypatch)
    monkeypatch.setattr(TrainingStage, "takes_s", lambda *_: duration_s)
    monkeypatch.setattr(TrainingStage, "epoch_s", lambda _: duration_s)
    assert run(["search", f"run.resume={folder}"]) == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [*manifest["finishing"]["finished"]] == [manifest["finishing"]["teacher"]]
    assert manifest["finishing_s"] >= 600


@pytest.mark.slow
@pytest.mark.parametrize("n_available", [0, 3], ids=["none", "some"])
def test_resume_without_networks_keeps_front(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    n_available: int,
) -> None:
    _forbid_training(monkeypatch)
    folder = tmp_path / "run"
    shutil.copytree(searched, folder, ignore=shutil.ignore_patterns("weights"))
    for network in sorted((searched.parent / "networks").iterdir())[:n_available]:
        shutil.copytree(network, tmp_path / "others" / network.name)
    before = {file: file.read_bytes() for file in folder.rglob("*.[cj]s*")}
    arguments = [f"run.resume={folder}", f"run.supernets={tmp_path / 'others'}"]
    assert run(["search", *arguments, "finish.minutes=10"]) == 2
    assert "its fine-tuned networks are not in" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.rglob("*.[cj]s*")} == before


@pytest.mark.slow
def test_int8_is_only_calibrated_until_time_suffices(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "hwnas.training.finetuning.pipeline.calibrate", partial(calibrate_coarsely, times=16)
    )
    shutil.copytree(searched, tmp_path / "run")
    shutil.copytree(searched.parent / "networks", tmp_path / "networks")
    arguments = [f"run.resume={tmp_path / 'run'}", f"run.supernets={tmp_path / 'networks'}"]

    def search(minutes: int) -> set[str]:
        """Return the ids of networks without int8 training; check the verified weights."""
        assert run(["search", *arguments, f"finish.minutes={minutes}"]) == 0
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
        output = " ".join(capsys.readouterr().out.split())
        message = "lose more than finish.max_int8_drop in int8, as the time limit ended"
        assert message in output
        assert message in (tmp_path / "run" / "report.html").read_text()
        hurried_members = json.loads((tmp_path / "run" / "front.json").read_text())["hurried"]
        assert {*hurried_members} <= hurried
        assert run(["why", f"run={tmp_path / 'run'}", f"id={hurried_members[0]}"]) == 0
        assert "it is calibrated alone" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(TrainingStage, "takes_s", lambda *_: 0.0)
    assert search(20) == set()
    out = capsys.readouterr().out
    assert "train for int8" in out  # within the time of fine-tuning
    assert "before their int8 training" not in out


@pytest.mark.parametrize(
    ("slot", "without_int8_training"), [(ALWAYS, False), (TimeWindow(0.0, 1e9), True)]
)
def test_limited_time_trains_int8_per_target(slot: TimeWindow, without_int8_training: bool) -> None:
    calls = list[tuple[str, bool]]()

    def fake_finetuner(target: str) -> Any:
        def for_int8(_: Genotype, left_s: Callable[[], float]) -> bool:
            calls.append((target, left_s() < math.inf))
            return target == "cpu"

        accuracy, checkpoint = Quantity(0.9, "measured"), SimpleNamespace(n_steps=lambda: 0)
        return SimpleNamespace(
            fits=lambda *_: True, tuned=lambda _: accuracy, for_int8=for_int8,
            checkpoint=lambda _: checkpoint,
        )  # fmt: skip

    finetuners = [fake_finetuner("npu"), fake_finetuner("too small"), fake_finetuner("cpu")]
    _, ready = finish_runs._finetuned_network(
        Genotype("tiny", ()), slot, [True, False, True], 1.0, finetuners
    )
    assert ready is not None
    assert ready.without_int8_training == without_int8_training
    assert calls == [("npu", True), ("cpu", True)] * without_int8_training


@pytest.mark.parametrize("minutes", ["null", "10"])
def test_collapse_of_one_network_does_not_end_search(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    minutes: str,
) -> None:
    """The teacher and another network collapse: a second teacher is chosen."""
    finetune, collapsed = pipeline.finetune_float, list[str]()

    def fail(origin: NetworkSource, *args: Any) -> Any:
        if len(collapsed) < 2 and origin.genotype.id not in collapsed:
            collapsed.append(origin.genotype.id)
        if origin.genotype.id in collapsed:
            raise CollapseError("Step 7: the loss is nan.")
        return finetune(origin, *args)

    monkeypatch.setattr(pipeline, "finetune_float", fail)
    _search(tmp_path / "run", f"finish.minutes={minutes}")
    finishing_facts = json.loads((tmp_path / "run" / "manifest.json").read_text())["finishing"]
    assert len(collapsed) == 2
    assert not {finishing_facts["teacher"], *finishing_facts["finished"]} & {*collapsed}
    out = " ".join(capsys.readouterr().out.split())
    for name in collapsed:
        assert f"The fine-tuning of {name} failed, and the network is left out: Step 7" in out
    other = finishing_facts["teacher"]
    assert re.search(rf"The training of the teacher .* failed: another network, {other}, re", out)


@pytest.mark.parametrize("error", [CompileError("refused"), CollapseError("forgotten")])
def test_int8_error_of_one_network_does_not_end_search(
    monkeypatch: pytest.MonkeyPatch, error: HwnasError
) -> None:
    """Verification reports the error."""

    def fail(*_: object) -> None:
        raise error

    config = SimpleNamespace(accuracy="supernet", finish=FinishConfig())
    parts: Any = SimpleNamespace(config=config, networks=SimpleNamespace(dtype=lambda _: "int8"))
    weights: Any = None
    monkeypatch.setattr(Finetuner, "_int8_network", fail)
    assert not Finetuner(parts, weights).for_int8(Genotype("tiny", ()), lambda: 60.0)


def test_workers_collect_all_trained_networks(
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
    batch = FinetuneBatch(TimeWindow(0.0, 1e9), crew=crew)
    results = finish_runs.finished(finisher, genotypes, NullProgress(), "", batch)
    assert {name for name, ready in results.items() if ready} == {g.id for g in genotypes[2:]}


def test_run_records_finishing_time(searched: Path) -> None:
    manifest = json.loads((searched / "manifest.json").read_text())
    phases = ("Train the teacher", "Finish members", "Fine-tune", "Teacher answers")
    phases_s = sum(manifest["seconds"][phase] for phase in phases)
    assert phases_s <= manifest["finishing_s"] <= sum(manifest["seconds"].values())


@pytest.mark.slow
def test_one_network_is_finished_without_time(searched: Path, tmp_path: Path) -> None:
    paths = [f"run.dir={tmp_path / 'run'}", f"run.supernets={searched.parent / 'networks'}"]
    options = ["n_trials=4", "finish.alpha=0", "finish.rate=0.5", "finish.minutes=1e-6"]
    assert run(["search", *last_of(*QUICK, *paths, *options)]) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["finishing"]["finished"]) == manifest["n_front"] == 1
    assert manifest["seconds"]["Fine-tune"] > 0, "steps are shown, and their time is kept"


@pytest.mark.slow
def test_slow_teacher_is_replaced(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """First one teacher is stopped, then all; the others are trained without a teacher."""
    ready, n_slow = finish_runs._finetuned_network, 1
    teachers = list[str]()

    def slow(genotype: Genotype, slot: TimeWindow, *rest: Any) -> Any:
        if math.isfinite(slot.end_by) and math.isinf(slot.begin_by) and len(teachers) < n_slow:
            teachers.append(genotype.id)
            return genotype.id, None
        return ready(genotype, slot, *rest)

    monkeypatch.setattr(finish_runs, "_finetuned_network", slow)
    options = [f"run.supernets={searched.parent / 'networks'}", "n_trials=4", "finish.minutes=1"]
    for n_slow in (1, 3):
        teachers.clear()
        folder = tmp_path / str(n_slow)
        assert run(["search", *last_of(*QUICK, f"run.dir={folder}", *options)]) == 0
        finishing_facts = json.loads((folder / "manifest.json").read_text())["finishing"]
        assert len({*teachers}) == n_slow
        assert finishing_facts["teacher"] not in teachers
        assert (finishing_facts["teacher"] is None) == (n_slow == 3)
        assert (finishing_facts["alpha"] == 0) == (n_slow == 3)
        assert finishing_facts["finished"]
        message = f"The training of the teacher ({', '.join(teachers)}) was too slow for the time"
        assert message in " ".join(capsys.readouterr().out.split())
        assert run(["export", str(folder), f"dir={folder}/export", "force=true"]) == 0


def test_members_name_verified_weights(searched: Path) -> None:
    files = [*(searched / "models").glob("*.json")]
    weights = [json.loads(file.read_text())["weights"] for file in files]
    assert all((searched.parent / "networks" / name).is_dir() for name in weights)
    assert len({*weights}) == len(files) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("max_candidates", few_of([2, 1, 5], 1))
def test_max_candidates_limits_finetuning(
    searched: Path, tmp_path: Path, max_candidates: int, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [f"run.dir={tmp_path / 'run'}", f"run.supernets={searched.parent / 'networks'}"]
    options = [
        "finish.min_candidates=12",
        "finish.probability=1e-9",
        f"finish.max_candidates={max_candidates}",
    ]
    assert run(["search", *last_of(*QUICK, *paths, *options)]) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["finishing"]["finished"]) == max_candidates
    assert manifest["finishing"]["teacher"] in manifest["finishing"]["finished"]
    unfinished = json.loads((tmp_path / "run" / "front.json").read_text())["unfinished"]
    assert unfinished
    assert not {*unfinished} & {*manifest["finishing"]["finished"]}
    output = " ".join(capsys.readouterr().out.split())
    assert f"{len(unfinished)} more may be on the front (finish.probability=1e-09), but" in output
    command = output.partition("To continue: hwnas ")[2].split()[:3]
    assert command == [
        "resume",
        str(tmp_path / "run"),
        f"finish.max_candidates={max_candidates + len(unfinished)}",
    ]
    assert run(command) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(manifest["finishing"]["finished"]) == max_candidates + len(unfinished), (
        "all are finished"
    )


@pytest.mark.parametrize(
    ("minutes", "started", "expected"),
    [
        (None, 1, 3),
        (5.0, None, 2),
        (0.1, None, 0),
        (9.0, None, 1),
        (5.0, 3, 3),
        (9.0, 2, 2),  # not significantly less accurate
        (9.0, 0, 1),
    ],
)
def test_teacher_is_most_accurate_within_quarter_of_time(
    minutes: float | None, started: int | None, expected: int
) -> None:
    """Accuracies of 0.90, 0.93, 0.92 and 0.935, within 0.015."""
    candidates = [
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
        return SimpleNamespace(n_steps=lambda: 7 * (size(genotype) == started))

    finisher: Any = SimpleNamespace(
        parts=SimpleNamespace(
            config=SimpleNamespace(metric="accuracy", finish=FinishConfig(minutes=minutes)),
        ),
        n_macs=lambda genotype: (10, 30, 20, 40)[size(genotype)],
        checkpoint=checkpoint,
        is_kept=lambda _: False,
        teaching_s=lambda genotype: (20.0, 130.0, 70.0, 300.0)[size(genotype)],
    )
    remaining_s = math.inf if minutes is None else 60 * minutes
    assert (
        size(schedule.choose_teacher(candidates, candidates, finisher, lambda: remaining_s))
        == expected
    )
    if minutes == 9.0 and started == 2:  # a larger one was stopped, as it was too slow
        finisher.checkpoint = lambda _: SimpleNamespace(n_steps=lambda: 7)
        finisher.is_kept = lambda genotype: size(genotype) == 2
        kept = schedule.choose_teacher(candidates, candidates, finisher, lambda: remaining_s)
        assert size(kept) == 2
    if minutes == 0.1:  # too few: the started teacher continues
        started = 3
        few = schedule.choose_teacher(candidates[:2], candidates, finisher, lambda: -1.0)
        assert size(few) == started


@pytest.mark.parametrize("disturbed", [(), (0,), (1, 2), (0, 3), (0, 7)])
def test_teacher_choice_times_few_networks(disturbed: tuple[int, ...]) -> None:
    """One or two disturbed timings do not change the choice."""
    timed = list[int]()

    def teaching_s(genotype: int) -> float:
        timed.append(genotype)
        return genotype * (10.0 if len(timed) - 1 in disturbed else 1.0)

    finisher: Any = SimpleNamespace(
        n_macs=lambda genotype: genotype,
        teaching_s=teaching_s,
    )
    candidates: Any = [SimpleNamespace(id=str(i), genotype=i) for i in range(99, -1, -1)]
    first = schedule._first_within(62.0, candidates, finisher)
    assert first is not None
    assert first.id == "62"
    assert len(timed) <= (8 if not disturbed else 24)


def test_each_target_has_a_finished_network(tiny: SearchSpace) -> None:
    """This holds for any time limit and any number of candidates."""
    latency = {"latency_ms": Quantity(1.0, "modelled"), "accuracy": Quantity(0.9, "modelled")}
    candidates = [Candidate(i, tiny.sample(random.Random(i)), latency) for i in range(3)]
    posteriors = {f"t{c.trial}": CandidatePosteriors([c], {c.id: 1.0}) for c in candidates}
    parts: Any = SimpleNamespace(config=SimpleNamespace(finish=FinishConfig()))
    finisher: Any = SimpleNamespace(parts=parts)
    state = FinetuningOutcome(
        posteriors, {}, finisher, finished={candidates[1].id: Quantity(0.9, "measured")}
    )
    assert [*finishing._needed_networks(state, is_limited=False)] == [
        candidates[0].genotype,
        candidates[2].genotype,
    ]


@pytest.mark.parametrize(
    ("minutes", "of_search", "in_time", "options"),
    [
        (30.0, None, False, ("finish.minutes", "finish.minutes=60")),
        (30.0, 50.0, False, ("minutes and finish.minutes", "minutes=100 finish.minutes=60")),
        (None, 50.0, False, ("minutes", "minutes=100")),
        (30.0, None, True, ("finish.max_candidates", "finish.max_candidates=3")),
        (None, None, True, ("finish.max_candidates", "finish.max_candidates=3")),
    ],
)
def test_unfinished_message_names_option_to_continue(
    tiny: SearchSpace,
    minutes: float | None,
    of_search: float | None,
    in_time: bool,
    options: tuple[str, str],
) -> None:
    figures = {"latency_ms": Quantity(1.0, "modelled"), "accuracy": Quantity(0.9, "modelled")}
    candidates = [Candidate(i, tiny.sample(random.Random(i)), figures) for i in range(4)]
    probabilities = dict(zip((c.id for c in candidates), (0.3, 0.9, 0.5, 0.1), strict=True))
    parts: Any = SimpleNamespace(
        config=SimpleNamespace(finish=FinishConfig(minutes=minutes), minutes=of_search)
    )
    finisher: Any = SimpleNamespace(parts=parts)
    state = FinetuningOutcome({"t": CandidatePosteriors(candidates, probabilities)}, {}, finisher)
    state.add({candidates[1].id: FinetuneResult(Quantity(0.9, "measured"))})
    state.add({candidates[0].id: None}, final=not in_time)
    unfinished = state.unfinished("t")
    assert unfinished.ids == [candidates[2].id, candidates[0].id], "the most probable first"
    (sentence,) = unfinished.messages(0.2, Path("a run"))
    assert sentence == (
        "2 more may be on the front (finish.probability=0.2), but were not fine-tuned because of "
        f"{options[0]}. To continue: hwnas resume 'a run' {options[1]}"
    )
    state.add({c.id: FinetuneResult(Quantity(0.9, "measured")) for c in candidates})
    assert state.unfinished("t").messages(0.2, Path("a run")) == []


def test_infeasible_budget_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid_training(monkeypatch)
    paths = [f"run.dir={tmp_path / 'run'}", f"run.supernets={tmp_path / 'networks'}"]
    assert run(["search", *QUICK, "budget.flash_kib=0.1", *paths]) == 2
    assert "binding limit is budget.flash_kib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("accuracy=alone", "Unknown accuracy 'alone'"),
        ("trained.fidelities=[0]", "trained.fidelities must be whole numbers, each in"),
        ("finish.probability=2", "finish.probability must be a number in"),
        ("finish.max_candidates=0", "finish.max_candidates must be a whole number in"),
        ("minutes=-1", "minutes must be a number in"),
        ("start_from=nowhere", "start_from=nowhere: no such folder"),
    ],
)
def test_invalid_options_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    assert run(["search", *last_of(*QUICK, f"run.dir={tmp_path / 'run'}", option)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_one_member_is_verified_for_equal_candidates(tiny: SearchSpace) -> None:
    """Many equal candidates share the probability to be on the front."""
    latency = {"latency_ms": Quantity(1.0, "modelled"), "accuracy": Quantity(0.9, "modelled")}
    rng = random.Random(0)
    equal_candidates = {
        c.id: c for c in (Candidate(i, tiny.sample(rng), latency) for i in range(12))
    }
    posteriors = CandidatePosteriors(
        [*equal_candidates.values()], dict.fromkeys(equal_candidates, 1 / len(equal_candidates))
    )
    parts = SimpleNamespace(config=SimpleNamespace(finish=FinishConfig()))
    finisher: Any = SimpleNamespace(parts=parts)
    all_candidates = [
        replace(c, figures={**latency, "accuracy": Quantity(0.8, "modelled")})
        for c in equal_candidates.values()
    ]
    all_posteriors = {"npu": replace(posteriors, candidates=all_candidates)}
    (member,) = FinetuningOutcome(all_posteriors, {"npu": posteriors}, finisher).members("npu")
    assert member.figures["accuracy"].value == 0.8, "as in the file of all candidates"
