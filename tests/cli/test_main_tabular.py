"""Searches with ``accuracy=table`` on the command line."""

import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from hwnas.__main__ import run
from hwnas.analysis import run_fronts
from hwnas.cli import tabular
from hwnas.core.manifest import read_manifest
from hwnas.workflows.config.compose import compose
from hwnas.workflows.reporter import RecordingReporter
from hwnas.workflows.search.tabular import search_table
from tests.conftest import few_of, last_of

OPS = ("conv1", "conv3", "none", "skip")
_WORK = {"none": 0.0, "skip": 0.1, "conv1": 0.5, "conv3": 1.0}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 1,024 cells with five edges."""
    rows = []
    for cell in itertools.product(OPS, repeat=5):
        work = sum(_WORK[op] for op in cell)
        accuracy = 94 - 40 * 0.4**work - 3 * cell.count("none") + 0.3 * (cell[0] == "conv3")
        latency = 1 + work + 0.2 * sum(i * (op == "conv3") for i, op in enumerate(cell))
        edges = {f"e{i}": op for i, op in enumerate(cell)}
        rows.append({**edges, "acc": accuracy, "ms": latency, "mj": 2.0 + work**2})
    path = tmp_path_factory.mktemp("table") / "cells.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _arguments(table: Path, *more: str) -> list[str]:
    return last_of(
        "search", "accuracy=table", "cost=table", f"benchmark.path={table}",
        "benchmark.genotype=[e0,e1,e2,e3,e4]", "benchmark.accuracy=acc",
        "benchmark.costs={latency_ms: ms}", *more,
    )  # fmt: skip


def _error_line(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_search_keeps_trial_order_and_reports_hypervolume(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    arguments = _arguments(table, "sampler=pareto", "n_trials=60", "seed=1")
    assert run([*arguments, f"run.dir={folder}"]) == 0
    rows = pq.read_table(folder / "candidates.parquet").to_pylist()
    rows_by_genotype = {
        tuple(r[f"e{i}"] for i in range(5)): r for r in pq.read_table(table).to_pylist()
    }
    assert [row["trial"] for row in rows] == list(range(60))
    for row in rows:
        expected = rows_by_genotype[tuple(row[f"e{i}"] for i in range(5))]
        assert (row["accuracy"], row["latency_ms"]) == (expected["acc"], expected["ms"])
    share = read_manifest(folder)["hypervolume_share"]
    assert share is not None
    assert 0.95 < share <= 1.0
    assert f"hypervolume {share:.4f}" in capsys.readouterr().out
    assert (folder / "front.csv").read_text().count("\n") == 1 + read_manifest(folder)["n_front"]


def test_printed_number_of_trials_counts_finished_ones(table: Path, tmp_path: Path) -> None:
    _, *arguments = _arguments(table, "sampler=random", "n_trials=5", f"run.dir={tmp_path / 'run'}")
    config = compose("tabular", arguments)
    outcome = search_table(config, arguments, RecordingReporter())
    console = Console(width=200)
    with console.capture() as captured:  # as after a time limit
        tabular._print(replace(config, n_trials=100), console, replace(outcome, share=math.nan))
    assert "after 5 trials by sampler=random.\n" in captured.get()


@pytest.mark.parametrize("name", few_of(["pareto", "nsga2", "tpe", "random"], 1))
def test_resumed_search_equals_uninterrupted_one(table: Path, tmp_path: Path, name: str) -> None:
    arguments = _arguments(table, f"sampler={name}", "seed=3")
    assert run([*arguments, "n_trials=30", f"run.dir={tmp_path / 'whole'}"]) == 0
    assert run([*arguments, "n_trials=20", f"run.dir={tmp_path / 'cut'}"]) == 0
    assert run(["search", f"run.resume={tmp_path / 'cut'}", "n_trials=30"]) == 0
    for file in ("candidates.parquet", "front.csv"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_budget_and_additional_costs(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = _arguments(table, "n_trials=40", "budget.latency_ms=3", f"run.dir={folder}")
    costs = "benchmark.costs={latency_ms: ms, energy_mj: mj}"
    assert run(last_of(*arguments, costs)) == 0
    rows = pq.read_table(folder / "candidates.parquet").to_pylist()
    assert all(row["latency_ms"] <= 3 and row["energy_mj"] is not None for row in rows)


def test_table_without_latencies_uses_other_cost(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = _arguments(table, "n_trials=20", f"run.dir={folder}")
    costs = [a.replace("latency_ms: ms", "energy_mj: mj") for a in arguments]
    assert run(costs) == 0
    with (folder / "front.csv").open(newline="") as file:
        energies = [float(row["energy_mj"]) for row in csv.DictReader(file)]
    assert energies == sorted(energies)
    assert len(energies) > 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["benchmark.accuracy=top1"], "Unknown column 'top1'"),
        (["benchmark.genotype=[e0,e1]"], "same genotype"),
        (["benchmark.costs={latency_ms: watts}"], "Unknown column 'watts'"),
        (["benchmark.costs={speed: ms}"], "Unknown cost in benchmark.costs 'speed'"),
        (["benchmark.path=missing.csv"], "benchmark.path=missing.csv: file not found"),
        (["cost=vela"], "cost=vela: with accuracy=table"),
        (["budget.sram_kib=3"], "benchmark.costs has no such cost"),
        (["sampler=paretto"], "Did you mean 'pareto'"),
        (["n_trials=0"], "n_trials must be a whole number in"),
        (["dataset=digits"], "Unknown option 'dataset'"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in _error_line(_arguments(table, *more), capsys)
    assert not (tmp_path / "runs").exists()


def test_infeasible_budget_names_limit(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _arguments(table, "n_trials=20", "budget.latency_ms=0.5")
    line = _error_line([*arguments, f"run.dir={tmp_path / 'run'}"], capsys)
    assert "binding limit is budget.latency_ms=0.5" in line


def test_interrupt_names_command_that_continues(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hwnas.workflows.search.tabular.engine.run_engine", interrupted)
    folder = tmp_path / "run"
    assert run(_arguments(table, "n_trials=5", f"run.dir={folder}")) == 130
    assert f"hwnas resume {folder}" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(["resume", str(folder)]) == 0


def test_limit_before_first_candidate_leaves_run_resumable(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    arguments = _arguments(table, "n_trials=5", "minutes=1e-4", f"run.dir={folder}")
    assert "time limit ended before a candidate was scored" in _error_line(arguments, capsys)
    assert read_manifest(folder)["status"] == "running"
    assert run(["resume", str(folder), "minutes=10"]) == 0


def test_same_name_is_not_the_same_table(table: Path, tmp_path: Path) -> None:
    folders = []
    for name in "ab":
        other = tmp_path / name / "cells.parquet"
        other.parent.mkdir()
        columns = pq.read_table(table)
        pq.write_table(columns.slice(0 if name == "a" else 1), other)
        folders.append(tmp_path / f"run_{name}")
        partial = ["benchmark.partial=true", "n_trials=5", f"run.dir={folders[-1]}"]
        assert run(_arguments(other, *partial)) == 0
    data = [run_fronts.read_run_folder(folder).data for folder in folders]
    assert data[0] != data[1]


def test_changed_run_is_not_resumed(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(_arguments(table, "n_trials=5", f"run.dir={folder}")) == 0
    capsys.readouterr()
    for change, message in (
        ("seed=5", "seed differs"),
        ("benchmark.costs={latency_ms: mj}", "table differs"),
        (
            "n_trials=4",
            "has 5 finished trials, and n_trials=4 is their total number. Set n_trials=5 or",
        ),
    ):
        assert message in _error_line(["search", f"run.resume={folder}", change], capsys)
