"""The verb ``compare`` on the command line."""

import csv
import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from hwnas.core.run_folder import RunFolder
from tests.conftest import SHARED_WEIGHTS

OPS = ("conv1", "conv3", "none", "skip")
_WORK = {"none": 0.0, "skip": 0.1, "conv1": 0.5, "conv3": 1.0}
OBJECTIVES = "objectives={accuracy: max, latency_ms: min}"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with six tabular searches: two samplers with three seeds each."""
    folder = tmp_path_factory.mktemp("searched")
    rows = []
    for cell in itertools.product(OPS, repeat=4):
        work = sum(_WORK[op] for op in cell)
        edges = {f"e{i}": op for i, op in enumerate(cell)}
        accuracy = 94 - 40 * 0.4**work - 3 * cell.count("none")
        rows.append({**edges, "acc": accuracy, "ms": 1 + work + 0.1 * cell.count("skip")})
    pq.write_table(pa.Table.from_pylist(rows), folder / "cells.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        for sampler, seed in itertools.product(("random", "pareto"), range(3)):
            arguments = [
                "search", "accuracy=table", "cost=table",
                f"benchmark.path={folder / 'cells.parquet'}",
                "benchmark.genotype=[e0,e1,e2,e3]", "benchmark.accuracy=acc",
                "benchmark.costs={latency_ms: ms}", "n_trials=24", f"sampler={sampler}",
                f"seed={seed}", f"run.dir={folder / f'{sampler}{seed}'}",
            ]  # fmt: skip
            assert run(arguments) == 0
    return folder


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small search for two targets."""
    folder = tmp_path_factory.mktemp("targets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        arguments = [
            "search", "+target=[npu,sketch]", "search_space=tiny", "budget=none", "n_trials=8",
            "sampler=random", *SHARED_WEIGHTS, "train.epochs=1",
            f"run.dir={folder / 'both'}", f"run.supernets={folder / 'supernets'}",
        ]  # fmt: skip
        assert run(arguments) == 0
    return folder / "both"


@pytest.fixture(autouse=True)
def _change_to_tmp_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    monkeypatch.chdir(tmp_path)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _error_line(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["compare", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_group_comparison_is_deterministic(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", f"runs={searched}/*[0-9]", "group_by=sampler"]
    assert run([*arguments, f"run.dir={tmp_path / 'one'}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Indicators: means over runs" in out
    assert "Too few runs for a test: with 3 and 3 runs" in out
    assert "Not significantly different: " in out
    assert "highest accuracy for latency [ms] at most" in out
    rows = _rows(tmp_path / "one" / "indicators.csv")
    assert [row["group"] for row in rows] == ["pareto"] * 3 + ["random"] * 3
    assert [row["seed"] for row in rows] == ["0", "1", "2"] * 2
    (test,) = (r for r in _rows(tmp_path / "one" / "tests.csv") if r["indicator"] == "r2")
    assert test["test"] == "wilcoxon"
    convergence = _rows(tmp_path / "one" / "convergence.csv")
    assert all(float(row["seconds"]) > 0 for row in convergence[1:])
    assert run([*arguments, f"run.dir={tmp_path / 'two'}"]) == 0
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names >= {"report.html", "fronts.svg", "attainment.png", "convergence.svg", "points.csv"}
    for name in names - {"manifest.json", ".lock"}:
        first, second = (tmp_path / folder / name for folder in ("one", "two"))
        assert first.read_bytes() == second.read_bytes(), name


def test_compared_front_equals_front_of_run(searched: Path, tmp_path: Path) -> None:
    arguments = ["compare", f"runs=[{searched / 'random0'}]", f"run.dir={tmp_path / 'out'}"]
    assert run(arguments) == 0
    points = {row["id"]: row["accuracy"] for row in _rows(tmp_path / "out" / "points.csv")}
    assert points == {r["id"]: r["accuracy"] for r in _rows(searched / "random0" / "front.csv")}


@pytest.mark.slow
def test_comparison_of_targets_uses_verified_figures(
    targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    runs = f"runs=[{targets / 'npu'},{targets / 'sketch'}]"
    assert run(["compare", runs, "n_bootstrap=100", f"run.dir={out}"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "different targets: npu, sketch" in output
    content = json.loads((out / "comparison.json").read_text())
    assert any(line.startswith("Compared: verified figures") for line in content["sentences"])
    assert content["format"] == 1
    for row in content["runs"]:
        assert row["hypervolume_share_low"] < row["hypervolume_share_high"]
    for row in _rows(out / "points.csv"):
        assert 0 <= float(row["p_on_front_of_all"]) <= float(row["p_on_own_front"]) <= 1
    assert len(_rows(out / "verification.csv")) == 2


@pytest.mark.slow
def test_joint_front_comparison_uses_all_objectives(
    targets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", f"runs={targets}", "n_bootstrap=0", f"run.dir={tmp_path / 'o'}"]) == 0
    content = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert [*content["objectives"]] == ["accuracy", "npu.latency_ms", "sketch.latency_ms"]
    members = json.loads((targets / "front.json").read_text())["members"]
    feasible = [row for row in members if row["verified_fits_budget"]]
    assert len(_rows(tmp_path / "o" / "points.csv")) == len(feasible)
    line = _error_line([f"runs=[{targets},{targets / 'npu'}]"], capsys)
    assert "The objectives differ" in line
    assert "leave one of them out" in line


def test_running_search_is_compared_with_note(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Path(shutil.copytree(searched / "random0", tmp_path / "going"))
    for name in ("candidates.parquet", "front.csv"):
        (running / name).unlink()
    manifest = json.loads((running / "manifest.json").read_text()) | {"status": "running"}
    manifest["config"]["n_trials"] = 99
    RunFolder(running).write_json("manifest.json", manifest)
    assert run(["compare", f"runs=[{running},{searched / 'random1'}]"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "going: the search is running or was interrupted: compared after 24 of 99 trials." in out
    assert len(list((tmp_path / "runs" / "compare").iterdir())) == 1


def test_run_without_study_is_read_from_candidates(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_study = Path(shutil.copytree(searched / "random0", tmp_path / "old"))
    (without_study / "study.db").unlink()
    runs = f"runs=[{without_study},{searched / 'random0'}]"
    assert run(["compare", runs, f"run.dir={tmp_path / 'out'}"]) == 0
    first, second = _rows(tmp_path / "out" / "indicators.csv")
    assert first["hypervolume"] == second["hypervolume"]
    assert first["n_points"] == second["n_points"]
    (row,) = _rows(tmp_path / "out" / "shared.csv")
    assert row["share_of_first"] == "1.0"
    assert "its study cannot be read" in capsys.readouterr().out


def test_csv_files_with_reference_and_true_front(tmp_path: Path) -> None:
    Path("a.csv").write_text("accuracy,latency_ms\n0.9,4\n0.8,2\n")
    Path("b, c.csv").write_text("accuracy,latency_ms\n0.85,2\n")
    Path("true.csv").write_text("accuracy,latency_ms\n0.95,1\n")
    Path("frame.yaml").write_text(
        "ideal: {accuracy: 1, latency_ms: 0}\nreference: {accuracy: 0, latency_ms: 5}\n"
    )
    arguments = ["compare", "runs=['a.csv','b, c.csv']", OBJECTIVES, "reference=frame.yaml"]
    assert run([*arguments, "true_front=true.csv", "run.dir=out"]) == 0
    first, second = _rows(Path("out/indicators.csv"))
    assert float(first["hypervolume"]) == pytest.approx(0.8 * 3 + 0.1 * 1)
    assert float(second["hypervolume_share"]) == pytest.approx(0.85 * 3 / 5)
    assert float(second["epsilon_additive"]) == pytest.approx(0.2)
    assert json.loads(Path("out/comparison.json").read_text())["ideal"]["accuracy"] == 1


def test_unusual_file_names_are_supported(tmp_path: Path) -> None:
    for name in ("a=b.csv", "ü d.csv", "it's.csv", "12e4.csv"):
        Path(name).write_text("accuracy,latency_ms\n0.9,4\n0.8,2\n")
    assert run(["compare", "runs=[a=b.csv, ü d.csv,12e4.csv]", OBJECTIVES, "run.dir=out"]) == 0
    assert run(["compare", "runs=it's.csv", OBJECTIVES, "run.dir=other"]) == 0
    names = [row["run"] for row in _rows(Path("out/indicators.csv"))]
    assert names == ["a=b", "ü d", "12e4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "compare needs folders of searches"),
        (["runs=[]"], "compare needs folders of searches"),
        (["runs=[nothing]"], "no such folder or file"),
        (["runs=x", "figures=all"], "Allowed: searched, verified"),
        (["runs=x", "n_bootstrap=10"], "n_bootstrap must be 0 or at least 100"),
        (["runs=x", "group=sampler"], "Did you mean 'group_by'"),
        (["runs={searched}/random0", "group_by=samplr"], "Did you mean 'sampler'"),
        (["runs={searched}/random0", "figures=verified"], "has no verified figures"),
        (["runs={searched}/random0", "reference=none.json"], "file not found"),
        (["runs={searched}/random0", "true_front=none.csv"], "file not found"),
        (["runs=[{searched}/random0,damaged]"], "'config' is missing"),
        (["runs={searched}/cells.parquet"], "is a CSV file, which does not say what to compare"),
        (["runs={searched}/random0", "run.dir={searched}/random1"], "random1 is not empty"),
    ],
)
def test_invalid_comparison_is_reported_without_output(
    searched: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    Path("damaged").mkdir()
    Path("damaged/manifest.json").write_text('{"format": 2, "verb": "search", "arguments": []}')
    options = [argument.replace("{searched}", str(searched)) for argument in arguments]
    assert message in _error_line(options, capsys)
    assert not list(tmp_path.rglob("comparison.json"))


def test_mixed_data_require_allow_mixed(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(searched / "random0", tmp_path / "other"))
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["table_sha256"] = "0" * 64
    RunFolder(other).write_json("manifest.json", manifest)
    runs = f"runs=[{other},{searched / 'random1'}]"
    assert "not scored on the same images" in _error_line([runs], capsys)
    assert run(["compare", runs, "allow_mixed=true", "n_bootstrap=0"]) == 0
    assert "are mixed" in capsys.readouterr().out


def test_two_runs_are_compared_at_equal_accuracy(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    runs = f"runs=[{searched / 'pareto0'},{searched / 'random0'}]"
    assert run(["compare", runs, f"run.dir={out}"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    rows = _rows(out / "equal_quality.csv")
    ((faster, slower),) = {(row["front"], row["baseline"]) for row in rows}
    assert {faster, slower} == {"pareto0", "random0"}
    assert f"{faster} is " in output
    assert f" times as fast as {slower} at equal accuracy" in output
    ratio = f"(ratio: {slower} / {faster}, above 1: {faster} is faster)"
    assert f"latency [ms] at equal accuracy {ratio}" in output
    assert f"{faster} against {slower}, at equal accuracy: " in output
    assert len(json.loads((out / "comparison.json").read_text())["equal_quality"]["levels"]) == len(
        rows
    )
    assert "<h2>Cost at equal accuracy</h2>" in (out / "report.html").read_text()
    arguments = [f"runs={searched}/random*", f"run.dir={tmp_path / 'three'}"]
    assert run(["compare", *arguments]) == 0
    assert not (tmp_path / "three" / "equal_quality.csv").exists()


def test_run_name_may_equal_column_name(searched: Path, tmp_path: Path) -> None:
    shutil.copytree(searched / "random0", tmp_path / "run")
    runs = f"runs=[{tmp_path / 'run'},{searched / 'random1'}]"
    assert run(["compare", runs, f"run.dir={tmp_path / 'out'}"]) == 0
    pairs = [(row["run"], row["covered"]) for row in _rows(tmp_path / "out" / "coverage.csv")]
    assert pairs == [(a, b) for a in ("run", "random1") for b in ("run", "random1")]
