"""The option ``baseline`` of ``search`` on the command line."""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hwnas.__main__ import run
from hwnas.analysis.fronts import ComparedRun, FrontPoint
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.hardware.target import Target
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.training.data import DatasetConfig
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.baseline import Baseline
from tests.conftest import SHARED_WEIGHTS, last_of
from tests.core.unusable import edit

QUICK = (
    "search_space=tiny",
    "train.epochs=1",
    *SHARED_WEIGHTS,
    "n_trials=12",
    "budget=none",
)
NPU = ("+target=npu", *QUICK)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a search in ``b`` and its supernets."""
    folder = tmp_path_factory.mktemp("baseline")
    supernets = f"run.supernets={folder / 'supernets'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        options = ("sampler=random", supernets, f"run.dir={folder / 'b'}")
        assert run(["search", *NPU, *options]) == 0
    return folder


@pytest.fixture
def search(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Callable[..., str]:
    """Search in an empty folder with existing supernets; return the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    shutil.copytree(searched / "b", tmp_path / "b")

    def search_(*arguments: str) -> str:
        assert run(["search", *last_of(*arguments), f"run.supernets={searched / 'supernets'}"]) == 0
        return " ".join(capsys.readouterr().out.split())

    return search_


def _json(path: str) -> Row:
    content: Row = json.loads(Path(path).read_text())
    return content


def _rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_front_is_compared_with_baseline_of_each_resume(
    search: Callable[..., str],
) -> None:
    out = search(*NPU, "n_trials=16", "run.dir=a", "baseline=b")
    assert "Against b (front of " in out
    assert "weights of a supernet): " in out
    assert "baseline.csv" in out
    front, manifest = _json("a/front.json"), _json("a/manifest.json")
    baseline = front["baseline"]
    assert all(sentence in out for sentence in baseline["sentences"])
    summary = {name: value for name, value in baseline.items() if name != "levels"}
    assert manifest["baseline"] == summary
    assert "baseline" not in manifest["digests"]
    rows = _rows("a/baseline.csv")
    members = {row["id"]: row for row in _rows("b/front.csv")}
    assert len([row for row in rows if row["accuracy_gain"]]) <= baseline["n_baseline"] <= len(rows)
    for row in rows:
        member = members[row["baseline_id"]]
        assert row["baseline_latency_ms"] == member["verified_latency_ms"]
        assert float(row["accuracy"]) <= float(member["verified_accuracy_int8"])
    page = Path("a/report.html").read_text()
    assert "Cost at equal accuracy" in page
    assert '"beside":{"label":"baseline b"' in page
    with_baseline = Path("a/front.png").read_bytes()
    # The run resumes with another baseline and without one; its candidates stay the same.
    candidates = Path("a/candidates.parquet").read_bytes()
    out = search("run.resume=a", "baseline=b/front.csv")
    assert "Against b/front.csv (front of " in out
    levels = _json("a/front.json")["baseline"]["levels"]  # the same networks
    assert [row["ratio"] for row in levels] == [row["ratio"] for row in baseline["levels"]]
    out = search("run.resume=a", "baseline=null")
    assert "Against" not in out
    assert not Path("a/baseline.csv").exists()
    assert "baseline" not in _json("a/manifest.json")
    assert "Cost at equal accuracy" not in Path("a/report.html").read_text()
    assert Path("a/front.png").read_bytes() != with_baseline
    assert Path("a/candidates.parquet").read_bytes() == candidates


@pytest.mark.slow
def test_run_compared_with_itself_has_ratio_one(search: Callable[..., str]) -> None:
    out = search(*NPU, "sampler=random", "run.dir=a", "baseline=b")
    assert "speedup 1.00 (" in out
    baseline = _json("a/front.json")["baseline"]
    assert baseline["lowest_ratio"][0] == 1
    message = "above 1: the front with its cascades is faster)"
    assert Path("a/cascades.csv").exists() == (message in out) == ("on_average" in baseline)


@pytest.mark.slow
def test_each_target_has_its_own_baseline(
    search: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("+target=[npu,sketch]", *QUICK)
    search(*both, "sampler=random", "run.dir=both")
    line = _error_line(("+target=ethos_u55_256", *QUICK, "baseline=both"), capsys)
    assert "Unknown target 'ethos_u55_256'. Allowed: npu, sketch." in line
    out = search(*both, "run.dir=a", "baseline=both")
    assert "Against both/npu (front of" in out
    assert "Against both/sketch (front of" in out
    manifest = _json("a/manifest.json")
    assert {*manifest["baseline"]} == {"npu", "sketch"}
    assert _json("a/npu/manifest.json")["baseline"]["path"] == "both/npu"
    assert Path("a/sketch/baseline.csv").exists()
    page = Path("a/report.html").read_text()
    assert "npu: Against both/npu" in page
    assert page.count('"beside":{') == 2
    # A search for one target uses its part of a run for several targets.
    assert "Against both/npu" in search(*NPU, "run.dir=c", "baseline=both")
    out = search(*both, "run.dir=d", "npu.baseline=b")
    assert "Against b (" in out
    assert {*_json("d/manifest.json")["baseline"]} == {"npu"}


def _error_line(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["search", *arguments, "run.dir=x", "run.supernets=nowhere"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert not Path("x").exists()
    assert not Path("nowhere").exists()  # nothing was trained
    return line


@pytest.mark.slow
@pytest.mark.usefixtures("search")
def test_invalid_baseline_is_reported_before_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def error_line(*arguments: str) -> str:
        return _error_line(arguments, capsys)

    b = (*NPU, "baseline=b")
    assert "folder or file not found" in error_line(*NPU, "baseline=nowhere")
    assert "it has no manifest.json" in error_line(*NPU, "baseline=b/models")
    line = error_line("+target=ethos_u55_256", *QUICK, "baseline=b")
    assert "a search for target 'npu', not for 'ethos_u55_256'" in line
    line = error_line(*b, "target.energy.mac_pj=0.4")
    assert "of this search: target.energy.mac_pj=0.3, here 0.4" in line
    assert "other data: images, splits or sizes of dataset=digits" in error_line(
        *b, "dataset.validation=0.2"
    )
    assert "none of its networks meets the budget" in error_line(*b, "budget.latency_ms=0.0001")
    line = error_line("+target=[npu,sketch]", *QUICK, "baseline=b")
    assert "for target 'npu', not for 'sketch'" in line
    edit(Path("b"), "status", "running")
    assert "b is running or was interrupted. Finish it: hwnas resume b" in error_line(*b)


@pytest.mark.usefixtures("search")
def test_invalid_baseline_tables_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    table = Path("t.csv")
    for content, message in (
        ("accuracy,energy_mj\n0.5,1\n", "no column 'latency_ms'"),
        ("accuracy,latency_ms\n50,1\n", "accuracies are per cent"),
        ("accuracy,latency_ms\n0.5,0\n", "line 2: latency_ms must be above 0, got '0'"),
        ("accuracy,latency_ms,run\n0.5,1,a\n0.5,1,b\n", "has 2 runs. Allowed: one"),
    ):
        table.write_text(content)
        assert message in _error_line((*NPU, "baseline=t.csv"), capsys)
    table.write_text("accuracy,latency_ms\n0.5,1\n")
    both = ("+target=[npu,sketch]", *QUICK, "baseline=t.csv")
    assert "Write npu.baseline=t.csv" in _error_line(both, capsys)


@pytest.mark.slow
def test_baseline_accepts_table_of_another_tool(search: Callable[..., str]) -> None:
    Path("t.csv").write_text("id,accuracy,latency_ms\nfast,0.01,1\nslow,0.999,9\nover,0.99,99\n")
    options = ("n_trials=4", "budget.latency_ms=10")
    out = search(*NPU, *options, "run.dir=a", "baseline=t.csv")
    assert "Against t.csv (front of 2 networks): from 0.0100 to" in out
    assert "; the baseline 0.0100 at 1 ms to 0.9990 at 9 ms." in out
    assert "over the budget of this search: 1 network." in out
    first, *_, last = _rows("a/baseline.csv")
    assert float(first["ratio"]) > 1
    assert (last["baseline_id"], last["ratio"]) == ("slow", "")


def test_comparison_excludes_int8_members_slower_than_float32(npu: Target) -> None:
    objectives = ["accuracy", "latency_ms"]
    config = SearchConfig(npu, dataset=DatasetConfig("digits"), objectives=objectives)

    def member(latency_ms: float, ratio: float) -> Member:
        values = zip(("accuracy_int8", "latency_ms"), (0.9, latency_ms), strict=True)
        figures = {name: Quantity(value, "measured") for name, value in values}
        candidate = Candidate(0, Genotype("s", (("ms", latency_ms),)), {})
        return Member(candidate, figures, dict.fromkeys(RATIOS, ratio), {})

    figures = {n: Quantity(v, "measured") for n, v in zip(objectives, (0.9, 2.0), strict=True)}
    baseline = Baseline(
        "b", ComparedRun("b", {}, [], [FrontPoint("x", figures)]), "verified", "", 0
    )
    comparison = baseline.compared_with(config, [], [member(1.0, 1.1), member(4.0, 0.8)])
    assert comparison.speedup.front.tolist() == [[0.9, 4.0]]
