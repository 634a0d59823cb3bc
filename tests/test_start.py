"""Commands that only read files do not import libraries for training, compilation or plots."""

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


def _imported_packages(*commands: str) -> set[str]:
    """Return the top-level packages that a process imports for commands."""
    completed = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "-", *commands], check=True, capture_output=True, text=True
    )
    assert completed.stdout
    (line,) = (text for text in completed.stderr.splitlines() if text.startswith("loaded:"))
    return set(line.split()[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search in a benchmark table."""
    path = tmp_path_factory.mktemp("start")
    rows = [
        {"a": a, "b": b, "acc": 40 + 5 * a + b, "ms": 1.0 + a} for a in range(4) for b in (0, 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path / "cells.parquet")
    arguments = [
        "search", "accuracy=table", "cost=table", f"benchmark.path={path / 'cells.parquet'}",
        "benchmark.genotype=[a,b]", "benchmark.accuracy=acc", "benchmark.costs={latency_ms: ms}",
        "sampler=random", "n_trials=8", f"run.dir={path / 'run'}",
    ]  # fmt: skip
    assert run(arguments) == 0
    return path


def test_help_imports_no_heavy_library() -> None:
    packages = _imported_packages("", "--version", *(f"{verb} --help" for verb in VERBS))
    assert "hwnas" in packages
    assert packages.isdisjoint({*HEAVY, *DRAWING, "hydra", "numpy", "pyarrow"})


def test_why_imports_no_training_or_plotting_library(folder: Path) -> None:
    packages = _imported_packages(f"why run={folder / 'run'} id=front")
    assert "optuna" in packages
    assert packages.isdisjoint({*HEAVY, "matplotlib", "scipy", "pandas"})


def test_compare_imports_no_training_library(folder: Path) -> None:
    packages = _imported_packages(f"compare runs=[{folder / 'run'}] run.dir={folder / 'compared'}")
    assert "matplotlib" in packages
    assert packages.isdisjoint(HEAVY)


def test_closed_output_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hwnas"]
    completed = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (completed.returncode, completed.stderr) == (141, b"")


_MAX_ENTERED = 150  # of about 340 modules, so that newcomers can follow a search

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
def test_search_enters_few_modules(tmp_path: Path) -> None:
    arguments = [
        "search", "+target=npu", "search_space=tiny", "n_trials=4", "train.epochs=1",
        "finish.epochs=0", "study.workers=1", f"run.dir={tmp_path / 'run'}",
        f"run.supernets={tmp_path / 'supernets'}",
    ]  # fmt: skip
    command = [sys.executable, "-c", _TRACED, *arguments]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    (line,) = (text for text in completed.stderr.splitlines() if text.startswith("entered:"))
    assert 50 < int(line.split()[1]) <= _MAX_ENTERED
