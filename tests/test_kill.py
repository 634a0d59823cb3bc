"""Searches in separate processes that are killed at random moments."""

import itertools
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from hwnas.core.manifest import read_manifest
from tests.conftest import last_of

_N_TRIALS = 60
_LIMIT_S = 300.0  # per process, on a busy machine
_OPS = ("conv1", "conv3", "none", "skip")
_WORK = {"none": 0.0, "skip": 0.1, "conv1": 0.5, "conv3": 1.0}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 256 cells with four edges."""
    rows = []
    for cell in itertools.product(_OPS, repeat=4):
        work = sum(_WORK[op] * (1 + i / 9) for i, op in enumerate(cell))
        edges = {f"e{i}": op for i, op in enumerate(cell)}
        rows.append({**edges, "acc": 0.9 - 0.5 * math.exp(-work), "ms": 1 + work**2})
    path = tmp_path_factory.mktemp("table") / "cells.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _arguments(table: Path, sampler: str) -> list[str]:
    return [
        "accuracy=table", "cost=table", f"benchmark.path={table}",
        "benchmark.genotype=[e0,e1,e2,e3]", "benchmark.accuracy=acc",
        "benchmark.costs={latency_ms: ms}", f"sampler={sampler}",
        f"n_trials={_N_TRIALS}", "seed=5",
    ]  # fmt: skip


class Moment(NamedTuple):
    """A delay after a number of finished trials; for 0, after the start."""

    n_trials: int
    delay_s: float


def _start_search(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hwnas", "search", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _n_trials(folder: Path) -> int:
    """Return the number of trials that another process has finished."""
    try:
        with sqlite3.connect(f"file:{folder / 'study.db'}?mode=ro", uri=True) as connection:
            count = connection.execute("SELECT count(*) FROM trials").fetchone()[0]
        connection.close()
        return int(count)
    except sqlite3.OperationalError:  # no study yet
        return 0


def _kill(process: subprocess.Popen[str], folder: Path, moment: Moment) -> None:
    """Kill a process at a moment; a faster process must have succeeded."""
    deadline = time.monotonic() + _LIMIT_S
    while process.poll() is None and _n_trials(folder) < moment.n_trials:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(moment.delay_s)
    process.kill()
    stderr = process.communicate(timeout=_LIMIT_S)[1]
    assert process.returncode in (-signal.SIGKILL, 0), stderr


def _moments(rng: random.Random, n: int, start_s: float) -> list[Moment]:
    """Return moments: a quarter at the start, a fifth at the end, the others in the search."""
    n_start, n_end = n // 4, n // 5
    targets = sorted(rng.randrange(1, _N_TRIALS) for _ in range(n - n_start - n_end))
    moments = [Moment(target, rng.uniform(0, 0.1)) for target in targets]
    for i in range(n_start):  # the first one before the run exists
        moments.insert(rng.randrange(len(moments)) if i else 0, Moment(0, rng.uniform(0, start_s)))
    return moments + [Moment(_N_TRIALS, rng.uniform(0, 0.3)) for _ in range(n_end)]


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "n_kills"), [("pareto", 20), ("nsga2", 5)])
def test_search_killed_at_random_equals_uninterrupted_one(
    table: Path, tmp_path: Path, sampler: str, n_kills: int
) -> None:
    arguments = _arguments(table, sampler)
    uninterrupted, folder = tmp_path / "whole", tmp_path / "killed"
    start_time = time.monotonic()
    process = _start_search(*arguments, f"run.dir={uninterrupted}")
    while not (uninterrupted / "study.db").exists() and process.poll() is None:
        time.sleep(0.01)
    start_s = time.monotonic() - start_time
    assert process.communicate(timeout=_LIMIT_S)[1] == ""
    assert process.returncode == 0

    def start() -> subprocess.Popen[str]:
        if (folder / "manifest.json").exists():
            return _start_search(f"run.resume={folder}")
        return _start_search(*arguments, f"run.dir={folder}")  # killed before the run existed

    for moment in _moments(random.Random(sampler), n_kills, start_s):
        _kill(start(), folder, moment)
    process = start()
    assert process.communicate(timeout=_LIMIT_S)[1] == ""
    assert process.returncode == 0
    for name in ("candidates.parquet", "front.csv"):
        assert (folder / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        p.name for p in uninterrupted.iterdir()
    )
    study = optuna.load_study(study_name="hwnas", storage=f"sqlite:///{folder / 'study.db'}")
    assert [trial.number for trial in study.get_trials()] == list(range(_N_TRIALS))
    assert all(trial.state.is_finished() for trial in study.get_trials())
    manifest = read_manifest(folder)
    assert manifest["status"] == "finished"
    assert 1 <= len(manifest["started"]) <= n_kills + 1


def test_run_killed_before_manifest_can_be_restarted(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kill leaves the folder, its lock, and perhaps a partial file."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".manifest.json.tmp").write_text("{")
    assert run(["search", f"run.resume={folder}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "it has no manifest.json" in line
    options = last_of(*_arguments(table, "random"), f"run.dir={folder}", "n_trials=5")
    assert run(["search", *options]) == 0
    assert read_manifest(folder)["status"] == "finished"
    assert not (folder / ".manifest.json.tmp").exists()
