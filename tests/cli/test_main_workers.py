"""Parallel searches and sweeps on the command line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.trial import TrialState
from sqlalchemy import create_engine, text

from hwnas.__main__ import run
from hwnas.core.manifest import read_manifest
from hwnas.core.run_folder import Row
from tests.cli.test_main_tabular import table  # noqa: F401, a fixture
from tests.core.unusable import edit
from tests.nas.postgresql import Server

SETTINGS = (
    "benchmark.genotype=[e0,e1,e2,e3,e4]",
    "benchmark.accuracy=acc",
    "benchmark.costs={latency_ms: ms}",
)


def _arguments(path: Path, *more: str) -> list[str]:
    return ["search", "accuracy=table", f"benchmark.path={path}", *SETTINGS, *more]


def _start(arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "hwnas", *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _rows(folder: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return rows


def _workers(command: subprocess.Popen[bytes]) -> list[int]:
    """Return the ids of the worker processes of a command: children of its fork server."""
    parents = {}
    for task in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid, _, rest = task.read_text().partition(" ")
            parents[int(pid)] = int(rest.rpartition(") ")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == command.pid]


def _n_finished(url: str) -> int:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            count = text("select count(*) from trials where state = 'COMPLETE'")
            return int(connection.execute(count).scalar() or 0)
    except Exception:  # no tables yet
        return 0
    finally:
        engine.dispose()


def _wait_for(url: str, n: int) -> None:
    for _ in range(600):
        if _n_finished(url) >= n:
            return
        time.sleep(0.1)
    raise AssertionError(f"{n} trials did not finish in a minute")


@pytest.mark.slow
def test_search_uses_worker_processes(
    table: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    arguments = _arguments(table, "sampler=pareto", f"run.dir={folder}")
    assert run([*arguments, "n_trials=20", "study.workers=2"]) == 0
    first = _rows(folder)
    assert len(first) == len({row["trial"] for row in first}) == 20
    assert run(["search", f"run.resume={folder}", "n_trials=24", "study.workers=1"]) == 0
    rows = _rows(folder)
    assert rows[:20] == first
    assert len(rows) == 24
    assert run(["search", f"run.resume={folder}", "n_trials=28", "study.workers=2"]) == 0
    assert len(_rows(folder)) == 28
    capsys.readouterr()
    assert run(["why", f"run={folder}", f"id={rows[0]['id']}"]) == 0
    assert "pareto" in capsys.readouterr().out


@pytest.mark.slow
def test_workers_end_after_kill_of_command(
    table: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    url = f"sqlite:///{folder / 'study.db'}"
    arguments = _arguments(table, "sampler=tpe", f"run.dir={folder}", "study.workers=2")
    command = _start([*arguments, "n_trials=1000"], tmp_path)
    _wait_for(url, 5)
    workers = _workers(command)
    assert len(workers) == 2
    command.kill()
    command.wait()
    for _ in range(100):
        if not any(Path("/proc", str(pid), "cmdline").exists() for pid in workers):
            break
        time.sleep(0.1)
    assert not any(Path("/proc", str(pid), "cmdline").exists() for pid in workers)
    n = _n_finished(url) + 10
    config = json.loads((folder / "manifest.json").read_text())["config"]
    edit(folder, "config", config | {"n_trials": 5})  # as if fewer trials were requested
    assert run(["search", f"run.resume={folder}", f"n_trials={n}"]) == 0
    assert len(_rows(folder)) == n


@pytest.mark.slow
def test_shared_study_survives_killed_worker(
    table: Path,  # noqa: F811
    tmp_path: Path,
    postgresql: Server,
) -> None:
    url = postgresql.new()
    n = 150
    shared = (
        f"study.storage={url}",
        "study.heartbeat_timeout_s=3",
        f"n_trials={n}",
        "sampler=pareto",
    )
    folders = [tmp_path / "a", tmp_path / "b"]
    commands = [
        _start(_arguments(table, *shared, f"run.dir={folders[0]}"), tmp_path),
        _start(_arguments(table, *shared, "study.workers=2", f"run.dir={folders[1]}"), tmp_path),
    ]
    _wait_for(url, 20)
    victims = _workers(commands[1])
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    assert commands[1].wait(timeout=240) == 0
    assert commands[0].wait(timeout=60) == 0
    log = (tmp_path / "log.txt").read_text()
    assert "worker 0 ended with exit code -9" in log
    rows = _rows(folders[0])
    assert rows == _rows(folders[1])
    assert len(rows) == len({row["trial"] for row in rows}) == n
    states = _states(url)
    assert states.count(TrialState.COMPLETE.name) == n
    assert TrialState.RUNNING.name not in states
    assert TrialState.WAITING.name not in states

    late = tmp_path / "late"
    assert run(_arguments(table, *shared, f"run.dir={late}")) == 0
    assert _rows(late) == rows
    assert read_manifest(late)["status"] == "finished"


def _states(url: str) -> list[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        states = [str(state) for (state,) in connection.execute(text("select state from trials"))]
    engine.dispose()
    return states


def test_manifest_hides_database_password(
    table: Path,  # noqa: F811
    tmp_path: Path,
    postgresql: Server,
) -> None:
    url = postgresql.new().replace("postgres@", "postgres:geheim@")
    folder = tmp_path / "run"
    arguments = _arguments(table, f"study.storage={url}", "n_trials=5", f"run.dir={folder}")
    assert run(arguments) == 0
    manifest = (folder / "manifest.json").read_text()
    assert "geheim" not in manifest
    assert url.replace(":geheim", "") in manifest


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "submitit_local"])
def test_sweep_runs_every_combination(
    table: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "budget").mkdir(parents=True)
    (tmp_path / "mine" / "budget" / "own.yaml").write_text("name: own\nlatency_ms: 1000\n")
    own = ("--config-dir", "mine", "budget=own")
    swept = ("-m", "sampler=random,pareto", "seed=7", f"hydra/launcher={launcher}", *own)
    command = _start(_arguments(table, "n_trials=18", *swept), tmp_path)
    assert command.wait(timeout=240) == 0, (tmp_path / "log.txt").read_text()
    (sweep,) = (tmp_path / "runs" / "multirun").iterdir()
    manifests = [read_manifest(sweep / number) for number in "01"]
    assert [m["config"]["sampler"]["name"] for m in manifests] == ["random", "pareto"]
    assert [m["config"]["seed"] for m in manifests] == [7, 7]
    assert [m["status"] for m in manifests] == ["finished"] * 2
    assert [m["config"]["budget"]["name"] for m in manifests] == ["own"] * 2
    assert run(["search", f"run.resume={sweep / '1'}", "n_trials=20"]) == 0
    assert len(_rows(sweep / "1")) == 20


def test_sweep_rejects_lists_of_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "-m", "+target=[npu,cpu]", "seed=0,1"]) == 2
    assert "-m starts one run for each target" in capsys.readouterr().err


def test_measured_search_rejects_several_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "+target=cpu", "cost=measured", "study.workers=2"]) == 2
    assert "would disturb each other's measurements" in capsys.readouterr().err
