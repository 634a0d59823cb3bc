"""Commands that read or explain start without the libraries that train, compile and draw."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from hwnas.cli.help_texts import VERBS

HEAVY = (
    "torch", "tvm", "sklearn", "onnxruntime", "openvino", "ai_edge_litert", "ethosu", "datasets",
)  # fmt: skip
DRAWING = ("matplotlib", "scipy", "optuna", "sqlalchemy", "pandas")

_SCRIPT = """
import sys
from hwnas.__main__ import run
assert all(run(words.split()) == 0 for words in sys.argv[2:])
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def _loaded(*commands: str) -> set[str]:
    """Return the outermost packages that are imported once a process has run commands."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "-", *commands], check=True, capture_output=True, text=True
    )
    assert done.stdout
    (line,) = (text for text in done.stderr.splitlines() if text.startswith("loaded:"))
    return set(line.split()[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search in a benchmark table."""
    found = tmp_path_factory.mktemp("start")
    rows = [
        {"a": a, "b": b, "acc": 40 + 5 * a + b, "ms": 1.0 + a} for a in range(4) for b in (0, 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows), found / "cells.parquet")
    arguments = [
        "search", "accuracy=table", "cost=table", f"benchmark.path={found / 'cells.parquet'}",
        "benchmark.genotype=[a,b]", "benchmark.accuracy=acc", "benchmark.costs={latency_ms: ms}",
        "sampler=random", "n_trials=8", f"run.dir={found / 'run'}",
    ]  # fmt: skip
    assert run(arguments) == 0
    return found


def test_help_needs_nothing_heavy() -> None:
    loaded = _loaded("", "--version", *(f"{verb} --help" for verb in VERBS))
    assert "hwnas" in loaded
    assert loaded.isdisjoint({*HEAVY, *DRAWING, "hydra", "numpy", "pyarrow"})


def test_why_needs_nothing_that_trains_or_draws(folder: Path) -> None:
    loaded = _loaded(f"why run={folder / 'run'} id=front")
    assert "optuna" in loaded
    assert loaded.isdisjoint({*HEAVY, "matplotlib", "scipy", "pandas"})


def test_compare_needs_nothing_that_trains(folder: Path) -> None:
    loaded = _loaded(f"compare runs=[{folder / 'run'}] run.dir={folder / 'compared'}")
    assert "matplotlib" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_output_that_is_no_longer_read_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hwnas"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


_MAX_ENTERED = 150  # of about 340 modules, so that a newcomer can follow a search

_TRACED = """
import sys, threading
from pathlib import Path
import hwnas
root, entered = str(Path(hwnas.__file__).parent), set()
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        entered.add(frame.f_code.co_filename)
threading.setprofile(note)
sys.setprofile(note)
from hwnas.__main__ import run
assert run(sys.argv[1:]) == 0
sys.setprofile(None)
print("entered:", sum(name.startswith(root) for name in entered), file=sys.stderr)
"""


@pytest.mark.slow
def test_functions_of_few_modules_run_in_a_search(tmp_path: Path) -> None:
    arguments = [
        "search", "+target=npu", "search_space=tiny", "n_trials=4", "train.epochs=1",
        "finish.epochs=0", "study.workers=1", f"run.dir={tmp_path / 'run'}",
        f"run.supernets={tmp_path / 'supernets'}",
    ]  # fmt: skip
    command = [sys.executable, "-c", _TRACED, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (line,) = (text for text in done.stderr.splitlines() if text.startswith("entered:"))
    assert 50 < int(line.split()[1]) <= _MAX_ENTERED
