"""Metrics in commands: objectives, budgets, columns and pages; also metrics of packages."""

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from tests.tasks.metrics.installed_metric import install_metric

QUICK = (
    "search_space=tiny", "train.epochs=1", "accuracy=supernet", "finish.epochs=0", "n_trials=14",
    "budget=none",
)  # fmt: skip
SEARCH = ("search", "+target=npu", *QUICK)
HEAT_FACT = ("target.facts.k_per_mj=2",)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


@pytest.fixture
def _installed_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_metrics: Callable[[], None]
) -> None:
    (tmp_path / "site").mkdir()
    install_metric(tmp_path / "site", "heat_k = own_metric:METRIC")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    fresh_metrics()


def _error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def _rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.usefixtures("_installed_metric")
def test_package_metric_is_objective_budget_column_and_axis(
    capsys: pytest.CaptureFixture[str],
) -> None:
    objectives = "objectives=[accuracy,heat_k]"
    assert run([*SEARCH, *HEAT_FACT, objectives, "run.dir=a"]) == 0
    rows = _rows("a/front.csv")
    for row in rows:
        assert float(row["heat_k"]) == pytest.approx(2 * float(row["energy_mj"]))
        verified = float(row["verified_energy_mj"])
        assert float(row["verified_heat_k"]) == pytest.approx(2 * verified)
        assert row["verified_heat_k_source"] == row["verified_energy_mj_source"]
        assert float(row["verified_heat_k_high"]) > float(row["verified_heat_k"])
    median = sorted(float(row["heat_k_high"]) for row in rows)[len(rows) // 2]
    page = Path("a/report.html").read_text()
    assert '"label":"heat","unit":"K"' in page.replace(": ", ":").replace(", ", ",")
    assert "Heat: from energy_mj, modelled; target.facts.k_per_mj=2." in capsys.readouterr().out

    limit = f"budget.heat_k={median}"
    assert run([*SEARCH, *HEAT_FACT, objectives, limit, "sampler=random", "run.dir=b"]) == 0
    candidates = pq.read_table("b/candidates.parquet").to_pylist()
    assert {row["state"] for row in candidates} >= {"infeasible"}
    for row in candidates:
        assert (row["heat_k_high"] > median) is (row["state"] == "infeasible")
        assert row["state"] != "infeasible" or f"over budget {median:g}" in row["reason"]
    assert json.loads(Path("b/front.json").read_text())["budget"] == {"heat_k": median}

    assert run(["compare", "runs=[a,b]", "n_bootstrap=0", "run.dir=c"]) == 0
    assert "heat [K]" in Path("c/report.html").read_text()
    assert "heat_k" in _rows("c/points.csv")[0]
    infeasible = next(row["id"] for row in candidates if row["state"] == "infeasible")
    capsys.readouterr()
    assert run(["why", "run=b", f"id={infeasible}"]) == 0
    output = capsys.readouterr().out
    assert "heat [K]" in output
    assert f"budget.heat_k {median:g}: upper end" in output


@pytest.mark.slow
def test_throughput_is_maximised_with_lower_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    objectives = "objectives=[accuracy,throughput_ips]"
    assert run([*SEARCH, objectives, "sampler=random", "run.dir=a"]) == 0
    rows = _rows("a/front.csv")
    on_front = [row for row in rows if row["verified_on_front"] == "True"]
    by_accuracy = sorted(on_front, key=lambda row: -float(row["verified_accuracy_int8"]))
    speeds = [float(row["verified_throughput_ips"]) for row in by_accuracy]
    assert speeds == sorted(speeds)
    for row in rows:
        assert float(row["throughput_ips"]) * float(row["latency_ms"]) == pytest.approx(1000)
    candidates = pq.read_table("a/candidates.parquet").to_pylist()
    median = sorted(row["throughput_ips"] for row in candidates)[len(candidates) // 2]

    for sampler in ("random", "pareto"):
        limits = (f"budget.throughput_ips={median}", f"sampler={sampler}")
        assert run([*SEARCH, objectives, *limits, f"run.dir={sampler}"]) == 0
        for row in pq.read_table(f"{sampler}/candidates.parquet").to_pylist():
            assert (row["throughput_ips"] < median) is (row["state"] == "infeasible")
            if row["state"] == "infeasible":
                assert f"under budget {median:g}" in row["reason"]
    assert "throughput_ips &gt;= " in Path("random/report.html").read_text()
    grouped = "group_by=budget.throughput_ips"  # one of them has no such limit
    assert run(["compare", "runs=[a,random]", grouped, "n_bootstrap=0", "run.dir=c"]) == 0
    assert {row["group"] for row in _rows("c/indicators.csv")} == {"None", str(median)}
    capsys.readouterr()
    slow = next(r["id"] for r in candidates if r["throughput_ips"] < median)
    assert run(["why", "run=random", f"id={slow}"]) == 0
    output = capsys.readouterr().out
    assert "breaks it by" in output
    assert "throughput [images/s]" in output

    line = _error_line(capsys, *SEARCH, objectives, "budget.throughput_ips=1e9", "run.dir=d")
    assert "the binding limit is budget.throughput_ips=1e+09: the cheapest candidate" in line
    assert re.search(r", reaches [\d.e+]+ images/s\. ", line)


@pytest.mark.slow
def test_targets_of_a_search_have_separate_facts_and_metrics() -> None:
    both = ("search", "+target=[npu,sketch]", *QUICK)
    options = ("npu.objectives=[accuracy,cost_usd_per_m]", "npu.target.facts.price_usd_per_h=0.1",
           "sketch.objectives=[accuracy,throughput_ips]",
           "sketch.budget.throughput_ips=100")  # fmt: skip
    assert run([*both, *options, "run.dir=r"]) == 0
    (first, *_) = _rows("r/front.csv")
    assert {"npu.cost_usd_per_m", "verified_sketch.throughput_ips"} <= first.keys()
    assert {"sketch.cost_usd_per_m", "npu.throughput_ips"}.isdisjoint(first)
    assert "throughput_ips &gt;= 100" in Path("r/report.html").read_text()
    assert run(["compare", "runs=[r]", "n_bootstrap=0", "run.dir=c"]) == 0
    assert "sketch.throughput_ips" in _rows("c/points.csv")[0]


@pytest.mark.slow
def test_files_without_facts_have_base_columns() -> None:
    assert run([*SEARCH, "run.dir=r"]) == 0
    (row, *_) = _rows("r/front.csv")
    costs = [name.removesuffix("_source") for name in row if name.endswith("_source")]
    known = ["latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m"]
    metrics = ("accuracy_fp32", "accuracy_int8", "balanced_accuracy", "macro_f1")
    verified = [f"verified_{name}" for name in (*metrics, *known)]
    assert costs == ["accuracy", *known, *verified]
    assert json.loads(Path("r/manifest.json").read_text())["config"]["budget"] == {"name": "none"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["objectives=[accuracy,co2_g]"], "needs target.facts.grid_g_per_kwh"),
        (["budget.cost_usd_per_m=2"], "add target.facts.price_usd_per_h=NUMBER"),
        (["budget.throughput=2"], "Write budget.throughput=2/s, or budget.throughput_ips=2"),
        (["objectives=[accuracy,throughput]"], "Did you mean 'throughput_ips'?"),
        (["target.facts.price=2"], "Unknown fact 'price'"),
        (["budget.latency_ms=much"], "budget.latency_ms must be a number in (0, 1e15], got 'much'"),
        (["budget.accuracy=0.9"], "budget.accuracy: a budget limits costs only"),
        (["baseline=x.csv", "objectives=[accuracy,throughput_ips]"], "baseline=x.csv"),
    ],
)
def test_invalid_options_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert message in _error_line(capsys, *SEARCH, *options, "run.dir=r")


def test_datacenter_budget_requires_tail_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = _error_line(capsys, "search", "+target=npu", "budget=datacenter")
    assert "latency_p99_ms needs target.facts.p99_over_p50" in line


@pytest.mark.slow
def test_front_in_datacenter_budget_has_measured_tail() -> None:
    options = ("target.runtime=onnxruntime", "cost=measured", "target.batch=8", "n_trials=3")
    facts = ("target.facts.price_usd_per_h=0.05", "target.facts.p99_over_p50=1.3")
    limits = ("budget=datacenter", "budget.latency_p99_ms=10000", "budget.power_w=10000")
    common = [option for option in QUICK if not option.startswith(("budget", "n_trials"))]
    arguments = ("search", "+target=cpu", *common, *options, *facts, *limits, "run.dir=run")
    assert run(arguments) == 0
    rows = _rows("run/front.csv")
    assert rows
    for row in rows:
        assert row["latency_p99_ms_source"] == "modelled"
        assert row["verified_latency_p99_ms_source"] == "measured"
        assert float(row["verified_latency_p99_ms_high"]) >= float(row["verified_latency_p99_ms"])
        assert float(row["cost_usd_per_m"]) > 0 < float(row["power_w"])
