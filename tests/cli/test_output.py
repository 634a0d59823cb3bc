"""Printed results: JSON documents, wrapped lines, and the recommended member."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from hwnas.__main__ import run
from hwnas.cli.output import Terminal, print_lines
from hwnas.cli.search_notes import whole_percents


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments of a search in a benchmark table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hwnas"])
    rows = [
        {"a": a, "b": b, "acc": 40 + 5 * a + b, "ms": 1.0 + a} for a in range(4) for b in (0, 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "cells.parquet")
    return [
        "search", "accuracy=table", "cost=table", "benchmark.path=cells.parquet",
        "benchmark.genotype=[a,b]", "benchmark.accuracy=acc", "benchmark.costs={latency_ms: ms}",
        "sampler=random", "n_trials=8", "budget.latency=0.003s", "run.dir=run",
    ]  # fmt: skip


def test_percentages_add_up() -> None:
    assert whole_percents([1.6, 15.7, 82.7]) == [1, 16, 83]
    assert whole_percents([1, 1, 1]) == [34, 33, 33]
    assert whole_percents([2.0, 0.0]) == [100, 0]


def test_json_output_is_one_document(table: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*table, "json=true"]) == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert content["path"] == "run"
    assert [row["latency_ms"] for row in content["front"]] == [1.0, 2.0, 3.0]
    assert "Took " in captured.err
    manifest = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    assert "budget.latency_ms=3.0" in manifest["arguments"]
    assert not any("json" in argument for argument in manifest["arguments"])
    assert run(["why", "run", content["front"][0]["id"], "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["headline"].startswith(content["front"][0]["id"])


def test_error_leaves_stdout_empty(table: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*table, "json=true", "n_trial=3"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hwnas: Unknown option 'n_trial'")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_wrap_only_in_terminals(width: int) -> None:
    text = "data       " + "sentence " * 40
    command = f"  hwnas export {'a' * 200}"
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=width)
        print_lines(console, [text.strip(), command, ""])
        assert isinstance(console.file, io.StringIO)
        *lines, last = console.file.getvalue().splitlines()
        assert last == command
        if is_terminal:
            assert max(map(len, lines)) <= width
            assert all(line.startswith(" " * 11 + "sentence") for line in lines[1:])
        else:
            assert lines == [text.strip()]


def test_closed_pipe_is_left_to_main() -> None:
    """rich would end the program with exit code 1, that of a failed proof."""

    def write() -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            Terminal().on_broken_pipe()

    with pytest.raises(BrokenPipeError):
        write()


def test_full_disk_of_the_output_is_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "hwnas", "list", "metrics"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert completed.returncode == 2
    assert completed.stderr.startswith("hwnas: ")
    assert "No space left on device" in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_closed_output_is_no_error() -> None:
    command = f"{sys.executable} -m hwnas list metrics >&-"
    completed = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
