"""Regression on the command line, from search to verification."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hwnas.__main__ import run
from tests.export.blocked import LARGE, run_hwnas

pytestmark = pytest.mark.slow

SEARCH = (
    "search", "+target=npu", "task=regression", "dataset=digit_angles", "search_space=tiny",
    "train.epochs=2", "accuracy=supernet", "finish.epochs=1", "finish.min_candidates=2",
    "n_trials=12",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("regression")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "argv", ["hwnas"])
        assert run([*SEARCH, "run.dir=a"]) == 0
        assert run([*SEARCH, "run.dir=b", "seed=1", "baseline=a"]) == 0
        assert run(["export", "run=a", "pick=most_accurate", "dir=out"]) == 0
    return path


@pytest.fixture(autouse=True)
def _change_to_root(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _members() -> list[dict[str, str]]:
    with Path("a/front.csv").open() as file:
        return list(csv.DictReader(file))


def test_front_has_errors_below_constant_prediction() -> None:
    rows = [row for row in _members() if row["verified_on_front"] == "True"]
    assert rows
    front = json.loads(Path("a/front.json").read_text())
    assert front["objectives"] == {"mae": "min", "latency_ms": "min", "energy_mj": "min"}
    constant_mae = json.loads(Path("a/manifest.json").read_text())["task"]["guess_mae"]
    for row in rows:
        low, value, high = (float(row[f"verified_mae_int8{end}"]) for end in ("_low", "", "_high"))
        assert 0 < low < value < high < constant_mae
    by_error = sorted(rows, key=lambda row: float(row["verified_mae_int8"]))
    latencies = [float(row["verified_latency_ms"]) for row in by_error]
    assert latencies[0] == max(latencies)


def test_export_predicts_values_in_their_unit(capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = (path for path in Path("out").iterdir() if path.is_dir())
    best = min(_members(), key=lambda row: float(row["verified_mae_int8"]))
    assert folder.name == best["id"]
    with np.load(folder / "images.npz") as content:
        pixels, targets = content["pixels"][:60], content["targets"][:60, 0]
    np.save("some.npy", pixels)
    for name in ("model.py", "run_onnx.py", "run_tflite.py"):
        completed = subprocess.run(
            [sys.executable, str(folder / name), "some.npy"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        predictions = np.array(completed.stdout.split(), float)
        assert np.abs(predictions - targets).mean() < 25
        assert np.corrcoef(predictions, targets)[0, 1] > 0.7
    assert run(["verify", str(folder)]) == 0
    assert "mean absolute error" in capsys.readouterr().out
    verified = run_hwnas("verify", str(folder), blocked=LARGE)
    assert verified.returncode == 0, verified.stderr
    assert "regression network" in (folder / "MODEL_CARD.md").read_text()


def test_why_and_compare_use_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "run=a", f"id={_members()[0]['id']}"]) == 0
    assert "Mean absolute error, training by training" in capsys.readouterr().out
    assert run(["compare", "runs=[a,b]", "n_bootstrap=100", "run.dir=both"]) == 0
    assert "lowest mean absolute error for" in capsys.readouterr().out
    with Path("b/baseline.csv").open() as file:
        assert all(0 < float(row["mae"]) < 60 for row in csv.DictReader(file))
    page = Path("a/report.html").read_text()
    assert "mean absolute error" in page
    assert "lowest verified mean absolute error" in page


def test_data_and_task_must_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "+target=npu", "dataset=digit_angles", "run.dir=no"]) == 2
    assert "Set task=regression" in capsys.readouterr().err
    arguments = ["search", "+target=npu", "task=regression", "dataset=digit_angles", "run.dir=no"]
    assert run([*arguments, "objectives=[accuracy,latency_ms]"]) == 2
    assert "accuracy" in capsys.readouterr().err
