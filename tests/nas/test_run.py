"""Files of a run: digests, damage and refused resumes."""

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from hwnas.__main__ import run
from hwnas.core.errors import RunError
from hwnas.core.run_folder import (
    WEIGHTS,
    RunFolder,
    damaged_files,
    file_digests,
    initial_manifest,
)
from hwnas.nas.options import NAME
from hwnas.nas.run import Run, check_files
from hwnas.workflows.config import RunConfig
from hwnas.workflows.config.compose import compose, keep_inputs, with_resumed


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished search in a benchmark table."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        {"e0": f"a{i}", "e1": j, "acc": i / 9 + j / 99, "ms": i + j}
        for i in range(8)
        for j in (1, 2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "cells.parquet")
    options = (
        "accuracy=table", "cost=table", f"benchmark.path={folder / 'cells.parquet'}",
        "benchmark.genotype=[e0,e1]", "benchmark.accuracy=acc", "benchmark.costs={latency_ms: ms}",
        "sampler=random", "n_trials=5", f"run.dir={folder / 'run'}",
    )  # fmt: skip
    assert run(["search", *options]) == 0
    return folder / "run"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the run."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def _change_manifest(folder: Path, **fields: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    RunFolder(folder).write_json("manifest.json", manifest | fields)


def _sql(folder: Path, *commands: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "study.db")) as connection:
        for command in commands:
            connection.execute(command)
        connection.commit()


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda folder: (folder / "study.db").unlink(),
    "empty": lambda folder: (folder / "study.db").write_bytes(b""),
    "no table": lambda folder: _sql(folder, "DROP TABLE trials"),
    "no values": lambda folder: _sql(folder, "DROP TABLE trial_values"),
    "no trials": lambda folder: _sql(folder, "DELETE FROM trials"),
    "one trial less": lambda folder: _sql(folder, "DELETE FROM trials WHERE number = 4"),
    "no parameters": lambda folder: _sql(folder, "DELETE FROM trial_params"),
    "no objectives": lambda folder: _sql(folder, "DELETE FROM study_system_attributes"),
    "no study": lambda folder: _sql(folder, "DELETE FROM studies"),
    "no version": lambda folder: _sql(folder, "DELETE FROM version_info"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", _DAMAGES)
@pytest.mark.parametrize("n_workers", [1, 2])
def test_run_with_damaged_study_is_refused_unchanged(
    folder: Path, kind: str, n_workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _DAMAGES[kind](folder)
    before = _contents(folder)
    assert run(["search", f"run.resume={folder}", "n_trials=8", f"study.workers={n_workers}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "study.db" in line
    assert line.endswith("Restore the study from a backup, or start a new search.")
    assert _contents(folder) == before


@pytest.mark.parametrize("option", ["seed=9", "n_trials=2", "sampler=tpe", "budget.latency_ms=3"])
def test_refused_resume_changes_nothing(folder: Path, option: str) -> None:
    before = _contents(folder)
    assert run(["search", f"run.resume={folder}", option]) == 2
    assert _contents(folder) == before


def test_damaged_file_is_named_and_rewritten(folder: Path) -> None:
    content = (folder / "candidates.parquet").read_bytes()
    (folder / "candidates.parquet").write_bytes(content[:-9] + b"x" + content[-8:])
    (folder / "front.csv").unlink()
    with pytest.raises(RunError, match=rf"front.csv is missing\. .*hwnas resume {folder}"):
        check_files(Run.load(folder), "front.csv", "of no digest")
    with pytest.raises(RunError, match=r"candidates\.parquet does not have the digest"):
        _ = Run.load(folder).candidates
    assert run(["search", f"run.resume={folder}"]) == 0
    check_files(Run.load(folder))
    assert (folder / "candidates.parquet").read_bytes() == content


def test_manifest_has_digests_of_files(folder: Path) -> None:
    recorded = json.loads((folder / "manifest.json").read_text())["files"]
    assert [*recorded] == ["candidates.parquet", "front.csv"]
    assert recorded == file_digests(folder)


def test_files_that_may_change_have_no_digest(tmp_path: Path) -> None:
    """A log of the output, exports, and a checkpoint whose training may go on."""
    for name, is_complete in (("done", True), ("partial", False), ("old", None)):
        metadata = {"n_steps": 5} | ({} if is_complete is None else {"complete": is_complete})
        path = tmp_path / WEIGHTS / name / "network.safetensors"
        path.parent.mkdir(parents=True)
        save_file({"a": torch.zeros(2)}, path, {"hwnas": json.dumps(metadata)})
    (tmp_path / "export" / "ID").mkdir(parents=True)
    for name in ("log.txt", "front.csv", "export/ID/proof.json", "export/ID/model.onnx"):
        (tmp_path / name).write_text("")
    assert [*file_digests(tmp_path)] == [
        "front.csv",
        "weights/done/network.safetensors",
        "weights/old/network.safetensors",
    ]


def test_digests_outside_run_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").touch()
    (folder / "models").symlink_to(tmp_path / "other")
    for name in ("../other/a", str(tmp_path / "other" / "a"), "models/a"):
        with pytest.raises(RunError, match=re.escape(f"'files' has the name {name!r}")):
            damaged_files(folder, {name: "0"})


def test_manifest_cannot_set_storage_or_sweep(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    arguments = json.loads((folder / "manifest.json").read_text())["arguments"]
    storage = f"study.storage=sqlite:///{tmp_path / 'made.db'}"
    _change_manifest(folder, arguments=[*arguments, storage])
    assert run(["search", f"run.resume={folder}"]) == 2
    assert f"add it to the command: {storage}" in capsys.readouterr().err
    assert not (tmp_path / "made.db").exists()
    untrusted = [
        *arguments,
        "-m",
        "--config-name",
        "x",
        "hydra.verbose=true",
        "+hydra/launcher=joblib",
    ]
    untrusted += ["run.supernets=/made/up", "--config-dir", "mine", "seed=1", "seed=0"]
    _change_manifest(folder, arguments=untrusted)
    used = with_resumed([f"run.resume={folder}"])
    assert not {"-m", "--config-name", "x", "run.supernets=/made/up", "seed=1"} & {*used}
    assert not any("hydra" in argument for argument in used)
    assert used[0] == "--config-dir=mine"
    assert "seed=0" in used


def test_search_by_one_process_is_resumed_by_one(folder: Path) -> None:
    config = json.loads((folder / "manifest.json").read_text())["config"]
    resumed = [f"run.resume={folder}"]
    for n, is_added in ((1, True), (2, False), (None, False)):
        _change_manifest(folder, config=config | {"study": config["study"] | {"workers": n}})
        assert ("study.workers=1" in with_resumed(resumed)) is is_added
    _change_manifest(folder, config=config | {"study": config["study"] | {"workers": 1}})
    assert "study.workers=1" not in with_resumed([*resumed, "minutes=5"])
    assert "study.workers=1" not in with_resumed([*resumed, "study.workers=3"])


def test_why_and_compare_do_not_open_database_of_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((folder / "manifest.json").read_text())["config"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"postgresql://me@127.0.0.1:{server.getsockname()[1]}/x"
        _change_manifest(folder, config=config | {"study": {"storage": url, "name": "search"}})
        assert run(["why", str(folder)]) == 2
        assert f"add it to the command: study.storage={url}" in capsys.readouterr().err
        copy = shutil.copytree(folder, tmp_path / "other")
        output = tmp_path / "compared"
        assert run(["compare", str(folder), str(copy), f"run.dir={output}"]) == 0
        assert f"study.storage={url}; candidates.parquet is read instead" in capsys.readouterr().out
        with pytest.raises(BlockingIOError):
            server.accept()
    url = f"sqlite:///{folder / 'study.db'}"
    _change_manifest(folder, config=config | {"study": {"storage": url, "name": NAME}})
    assert run(["why", str(folder), f"study.storage={url}"]) == 0
    assert run(["why", str(folder), f"study.storage={url}x"]) == 2


@pytest.mark.parametrize(
    "options",
    [
        "target.tvm.cc={cc}",
        "target.tvm={{cc: {cc}}}",
        "target.tvm.cc='{cc}'",
        "target.vela.config={cc}",
        "rpc.tracker=10.1.2.3:9190; rpc.key=board",
        "+target=made",
    ],
)
@pytest.mark.parametrize("verb", ["resume", "export"])
def test_run_folder_cannot_start_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, verb: str
) -> None:
    """Neither by its arguments nor by its copy of a target file."""
    marker, program, folder = tmp_path / "ran", tmp_path / "cc", tmp_path / "run"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    targets = folder / "inputs" / "conf" / "target"
    targets.mkdir(parents=True)
    (targets / "made.yaml").write_text(
        f"defaults: [npu]\nname: made\nvela: {{config: {program}}}\n"
    )
    target = [] if "=made" in options else [f"+target={'raspi4' if 'tvm' in options else 'npu'}"]
    extra = ["--config-dir", str(targets.parent)] if not target else []
    arguments = [*extra, *target, *options.format(cc=program).split("; ")]
    config = compose("search", ["+target=npu", "search_space=tiny", "accuracy=trained"])
    manifest = initial_manifest("search", arguments, {}, config)
    RunFolder(folder).write_json("manifest.json", manifest)
    before = (folder / "manifest.json").read_bytes()
    assert run([verb, str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "add it to the command: " in line
    assert (folder / "manifest.json").read_bytes() == before
    assert not marker.exists()
    if "vela.config={" in options:
        option = line.rpartition("add it to the command: ")[2]
        run([verb, str(folder), option])
        assert "you trust it" not in capsys.readouterr().err


def test_files_in_arguments_are_found_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, run_folder = tmp_path / "first", tmp_path / "run"
    (first / "mine" / "target").mkdir(parents=True)
    (first / "mine" / "target" / "board.yaml").write_text("name: board")
    (first / "images").mkdir()
    (first / "own.yaml").write_text("family: mbconv")
    (first / "vela.ini").write_text("[a]")
    arguments = ["--config-dir", "mine", "+target=board", "dataset.path=images", "seed=0.5"]
    arguments += ["search_space=[own.yaml,tiny]", "target.vela.config='vela.ini'"]
    monkeypatch.chdir(first)
    keep_inputs(run_folder, arguments)
    manifest = initial_manifest("search", arguments, {}, RunConfig())
    RunFolder(run_folder).write_json("manifest.json", manifest | {"verb": "train"})
    resumed = [f"run.resume={run_folder}"]
    _, _, *others = arguments
    assert with_resumed(resumed) == ["--config-dir=mine", *others, *resumed]
    other = f"--config-dir={first / 'mine'}"
    assert with_resumed([other, *resumed]) == [*others, other, *resumed], "it replaces the former"
    monkeypatch.chdir(tmp_path)
    assert with_resumed(resumed)[:-1] == [
        f"--config-dir={first / 'mine'}", "+target=board", f"dataset.path={first / 'images'}",
        "seed=0.5", f"search_space=[{first / 'own.yaml'},tiny]",
        f"target.vela.config={first / 'vela.ini'}",
    ]  # fmt: skip
    shutil.rmtree(first)
    copies = run_folder / "inputs"
    assert with_resumed(resumed)[:-1] == [
        f"--config-dir={copies / 'mine'}", "+target=board", "dataset.path=images", "seed=0.5",
        f"search_space=[{copies / 'own.yaml'},tiny]", f"target.vela.config={copies / 'vela.ini'}",
    ]  # fmt: skip
    assert (copies / "mine" / "target" / "board.yaml").read_text() == "name: board"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_write_access_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert run(["search", "+target=npu", f"run.supernets={tmp_path}"]) == 2
