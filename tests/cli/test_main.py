"""The command line as users call it."""

import csv
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from tests.conftest import SHARED, SHARED_WEIGHTS, last_of, needs_fashion_mnist

QUICK = (
    "+target=npu",
    "search_space=tiny",
    "train.epochs=1",
    *SHARED_WEIGHTS,
    "n_trials=30",
)
VIT = ("search_space=vit_small",)
INT8 = ("target.runtime=onnxruntime", "target.dtype=int8")
IN_DRAM = (
    "+target=ethos_u65_256",
    "target.clock_mhz=1000",
    "target.vela.system_config=Ethos_U65_High_End",
    "target.vela.memory_mode=Dedicated_Sram",
)


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; return its one-line error."""
    assert run(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.out + captured.err
    return lines[0]


def test_no_arguments_list_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "search" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serch"], "Unknown verb 'serch'. Did you mean 'search'?"),
        (["search"], "No target. Give one with +target=<name>: cpu, cuda, ethos_u55_256"),
        (["train", "+target=npu"], "hwnas train has no option target: leave it out"),
        (["search", "+target=npuu"], "Unknown target 'npuu'. Did you mean 'npu'?"),
        (["search", "+target=npu", "dataset=digit"], "Did you mean 'digits'?"),
        (["search", "+target=npu", "budget=egde"], "Did you mean 'edge'?"),
        (["search", "+target=npu", "n_trial=3"], "Did you mean 'n_trials'?"),
        (["search", "+target=npu", "n_trails=3"], "Did you mean 'n_trials'?"),
        (["search", "+target=npu", "sampler.features=[macs]"], "hwnas.ParetoSampler(features=...)"),
        (["search", "+target=npu", "latency=3"], "Did you mean 'budget.latency=3ms' (a limit)?"),
        (["search", "npu", "model=a.pt"], "it does not start from a model of your own"),
        (["compress", "model.PT"], "run=model.PT: hwnas searches its own network families"),
        (["export", "a.onnx", "pick=all"], "genotype=MODEL.onnx"),
        (["verify", "model.tflite"], "export=model.tflite: hwnas searches"),
        (["search", "resnet.pth"], "Torch-Pruning; to convert it to int8: LiteRT"),
        (["search", "+target=npu", "epochs=3"], "mean 'train.epochs' or 'finish.epochs'?"),
        (
            ["search", "+target=npu", "budget.latency=3"],
            "Write budget.latency=3ms, or budget.latency_ms=3.",
        ),
        (["search", "+target=npu", "+budget.srm=3KB"], "Did you mean 'budget.sram_kib'"),
        (["search", "+target=npu", "n_trials=many"], "n_trials"),
        (["search", "+target=npu", "objectives=[accuracy,sram]"], "Did you mean 'sram_kib'?"),
        (["search", "+target=npu", "search_space=mbconv_smal"], "Did you mean 'mbconv_small'"),
        (["search", "+target=npu", "search_space=no.yaml"], "file not found"),
        (["search", "+target=npu", *VIT], "norm1' cannot be written for the NPU"),
        (["search", "+target=[cpu,npu]", *VIT, "cpu.cost=measured"], "norm1' cannot be written"),
        (["search", "+target=sketch", *VIT], "'stages.0.blocks.0.norm1' cannot be written in int8"),
        (["profile", "+target=cpu", *INT8, *VIT], "norm1' cannot be written in int8"),
        (["search", "+target=npu", "dataset=images"], "needs dataset.path=DIR"),
        (["search", "+target=npu", "dataset=images", "dataset.path=nowhere"], "no such file"),
        (["search", "run.resume=nowhere"], "nowhere: no such folder. Give the folder of a run."),
        (["search", "+target=npu", "=3"], "hwnas:"),
        (["search", "+target=npu", "run.dir=afile"], "cannot be created"),
        (["search", *QUICK, "target.clock_mhz=200", "run.dir=r"], "runs at 500"),
        (["search", *QUICK[1:], *IN_DRAM, "run.dir=r"], "hwnas supports only off-chip flash"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("afile").touch()
    assert message in _error_line(capsys, *arguments)


@pytest.mark.slow
def test_infeasible_budget_keeps_candidates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("search", *QUICK, "run.dir=r", "budget.sram_kib=1")
    line = _error_line(capsys, *arguments)
    assert "budget.sram_kib=1: the nearest candidate" in line
    rows = pq.read_table(tmp_path / "r" / "candidates.parquet").to_pylist()
    assert len(rows) == 30
    assert all(row["state"] == "infeasible" and "sram_kib" in row["reason"] for row in rows)
    assert not (tmp_path / "runs" / "supernets").exists()  # no supernet was trained


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hwnas", *arguments]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*arguments), capture_output=True, text=True, check=False)


def _columns(folder: str, name: str = "candidates.parquet") -> dict[str, list[object]]:
    columns: dict[str, list[object]] = pq.read_table(Path(folder, name)).to_pydict()
    return columns


@pytest.mark.slow
def test_killed_runs_resume_to_the_same_result(tmp_path: Path) -> None:
    options = last_of(*QUICK, "n_trials=80", "train.epochs=12")
    assert _run("search", *options, "run.dir=whole", "run.supernets=s1").returncode == 0
    start = ["search", *options, "run.dir=cut", "run.supernets=s2"]
    for wait_for in (_has_manifest, _has_some_trials, _has_model):
        process = subprocess.Popen(
            _command(*start), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not wait_for(tmp_path / "cut") and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        start = ["search", "run.resume=cut"]
    resumed = _run(*start)
    assert resumed.returncode == 0, resumed.stderr
    assert _columns("cut") == _columns("whole")
    assert _columns("cut")["trial"] == list(range(80))
    assert Path("cut/front.csv").read_text() == Path("whole/front.csv").read_text()
    assert {p.name for p in Path("cut/models").iterdir()} == {
        p.name for p in Path("whole/models").iterdir()
    }
    shrunk = _run("search", "run.resume=cut", "n_trials=70")
    assert shrunk.returncode == 2
    assert "Set n_trials=" in shrunk.stderr
    grown = _run("search", "run.resume=cut", "n_trials=90")
    assert grown.returncode == 0, grown.stderr
    assert _columns("cut")["id"][:80] == _columns("whole")["id"]
    assert len(_columns("cut")["id"]) == 90


def _has_manifest(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def _has_some_trials(folder: Path) -> bool:
    try:
        with sqlite3.connect(f"file:{folder / 'study.db'}?mode=ro", uri=True) as connection:
            (n,) = connection.execute("select count(*) from trials").fetchone()
        return int(n) > 20
    except sqlite3.Error:
        return False


def _has_model(folder: Path) -> bool:
    return any((folder / "models").glob("*.json"))


@pytest.mark.slow
def test_run_writes_documented_files_and_refuses_reuse(tmp_path: Path) -> None:
    completed = _run("search", *QUICK, "run.dir=r")
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    assert "networks on the front" in completed.stdout
    assert "Took " in completed.stdout
    folder = tmp_path / "r"
    files = "front.csv front.json candidates.parquet study.db manifest.json front.png report.html"
    assert set(files.split()) <= {path.name for path in folder.iterdir()}
    head = (folder / "front.csv").read_text().splitlines()[0].split(",")
    for name in ("id", "accuracy", "verified_accuracy_int8", "verified_latency_ms"):
        assert {name, f"{name}_low"} <= set(head) or name == "id"
    explained = _run("why", "run=r", f"id={_front('r')['id'][0]}")
    assert explained.returncode == 0, explained.stderr
    assert "verified int8" in explained.stdout
    assert "By its own files it" in explained.stdout
    second = _run("search", *QUICK, "run.dir=r")
    assert second.returncode == 2
    assert "already contains a run" in second.stderr
    other = _run("search", "run.resume=r", "search_space=mbconv_small")
    assert other.returncode == 2
    assert "search_space differs from that of the run" in other.stderr
    assert len(other.stderr.splitlines()) == 1


@pytest.mark.slow
@needs_fashion_mnist
def test_search_on_local_fashion_mnist() -> None:
    options = [
        "search_space=tiny",
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "n_trials=12",
        "run.dir=r",
    ]
    path = f"dataset.path={SHARED / 'fashion_mnist'}"
    completed = _run("search", "+target=npu", "dataset=fashion_mnist", path, *options)
    assert completed.returncode == 0, completed.stderr
    accuracy = [float(value) for value in _front("r")["verified_accuracy_int8"]]
    assert max(accuracy) > 0.6  # an epoch of very small networks; chance is 0.1


def _front(folder: str) -> dict[str, list[str]]:
    with Path(folder, "front.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_parquet_without_image_column_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"x": np.arange(5)}), path)
    line = _error_line(
        capsys, "search", "+target=npu", "dataset=images", f"dataset.path={path}", "run.dir=r"
    )
    assert "needs a column 'image'" in line


def test_full_disk_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.core.run_folder import RunFolder

    def full(self: RunFolder, name: str, content: bytes) -> Path:
        raise OSError(28, "No space left on device", str(self.path / name))

    monkeypatch.setattr(RunFolder, "write_bytes", full)
    line = _error_line(capsys, "search", *QUICK, "run.dir=r")
    assert "No space left on device" in line
    assert "hwnas resume RUN" in line
