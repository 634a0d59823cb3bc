"""The verbs ``plan`` and ``simulate`` on the command line."""

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import hwnas
from hwnas.__main__ import run
from hwnas.fleet.plan import read_plan
from tests.fleet import examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a service, a fleet, and a plan for them."""
    path = tmp_path_factory.mktemp("fleet")
    service, fleet = examples.service(survive={"any_one": "device"}), examples.fleet()
    fleet["devices"]["cpu"]["quota"] = 6
    fleet["devices"]["dream"] = {**fleet["devices"]["cpu"], "like": "cpu", "speed": 4.0,
                                 "price": 0.02, "sketch": True}  # fmt: skip
    examples.write(path, service, fleet)
    files = [f"service={path / 'service.yaml'}", f"fleet={path / 'fleet.yaml'}"]
    assert run(["plan", *files, f"run.dir={path / 'plan'}"]) == 0
    return path


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def test_plan_writes_tables_and_deployment_files(folder: Path) -> None:
    names = {path.name for path in (folder / "plan").iterdir()}
    tables = {f"{name}.csv" for name in ("classes", "pools", "hours", "costs", "models")}
    assert {"plan.yaml", "report.html", "serving.png", "manifest.json", "deploy"} | tables <= names
    deployed = {path.name for path in (folder / "plan" / "deploy").iterdir()}
    # No model has a file; the class web uses two models.
    assert deployed == {"README.md", "kserve", "kubernetes", "prometheus", "triton"}
    page = (folder / "plan" / "report.html").read_text()
    assert "Buying dream would save" in page
    assert "<script src" not in page


@pytest.mark.slow
def test_plan_is_deterministic(folder: Path) -> None:
    other = hwnas.plan(folder / "service.yaml", folder / "fleet.yaml", run__dir="again")
    for name in ("plan.yaml", "classes.csv", "pools.csv", "serving.svg", "report.html"):
        assert (other.path / name).read_bytes() == (folder / "plan" / name).read_bytes(), name


def test_simulation_reports_effect_of_failures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = f"plan={folder / 'plan'}"
    assert run(["simulate", plan, "kill=cpu", "n_seeds=2", "run.dir=a"]) == 0
    assert "0 requests are lost" in capsys.readouterr().out
    simulated = hwnas.simulate(folder / "plan", kill=["cpu"], n_seeds=2, run__dir="b")
    assert Path("a/classes.csv").read_bytes() == Path("b/classes.csv").read_bytes()
    rows = simulated.table().to_pylist()
    assert {row["class"] for row in rows} == {"web"}
    assert all(row["late_low"] <= row["late"] <= row["late_high"] for row in rows)
    throttled = hwnas.simulate(folder / "plan", throttle="cpu:0.05", n_seeds=2, run__dir="c")
    late = max(row["late"] for row in throttled.table().to_pylist())
    assert late > 0.75, "only requests after the slowdown count, two thirds of all"


def test_repeated_kills_fail_further_machines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = next(hour for hour in read_plan(folder / "plan").hours if 1 in hour.hours).machines
    device, n_machines = max(machines.items(), key=lambda item: item[1])
    failed = []
    for n in (1, n_machines, n_machines + 1):
        kills = ",".join([device] * n)
        options = [f"kill=[{kills}]", "hours=1", "n_seeds=1", f"run.dir=k{n}"]
        assert run(["simulate", f"plan={folder / 'plan'}", *options]) == 0
        (row,) = csv.DictReader(Path(f"k{n}/hours.csv").read_text().splitlines())
        failed.append(int(row["replicas_failed"]))
        output = " ".join(capsys.readouterr().out.split())
        assert "late after" in output
        assert f"failed ({failed[-1]} replicas): in the minute after it" in output
        assert (f"kill={device} had no effect in hour 1" in output) == (n > n_machines)
    assert failed[0] < failed[1] == failed[2]


@pytest.mark.parametrize("option", ["hours=1", "hours=[1]", "hours=[0,1]"])
def test_simulation_uses_requested_hours(folder: Path, option: str) -> None:
    assert run(["simulate", f"plan={folder / 'plan'}", option, "n_seeds=1", "run.dir=h"]) == 0
    lines = Path("h/classes.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == (["0", "1"] if "0" in option else ["1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "plan needs service=FILE"),
        (["plan", "service=no.yaml", "fleet=no.yaml"], "service=no.yaml: file not found. Correct"),
        (["plan", "service=a", "fleet=b", "objective=money"], "Unknown objective 'money'"),
        (["simulate"], "simulate needs the folder of a plan"),
        (["simulate", "plan=no"], "has no plan.yaml"),
        (["simulate", "plan=PLAN", "kill=gpu"], "Unknown device 'gpu'"),
        (["simulate", "plan=PLAN", "hours=9"], "9 is not an hour of the plan. Allowed: 0 to 1"),
        (
            ["simulate", "plan=PLAN", "spike=true"],
            "spike=true: the plan has no load spike in these hours",
        ),
        (["simulate", "plan=PLAN", "throttle=cpu"], "must be DEVICE:SPEED"),
        (["simulate", "plan=PLAN", "throttle=cpu:1e-300"], "a relative speed in [0.001, 1]"),
        (
            ["simulate", "plan=PLAN", "hours=[1,1]"],
            "must be one or more different hours",
        ),
        (["simulate", "plan=PLAN", "hours=[]"], "hours=[] must be one or more different hours"),
        (["simulate", "plan=PLAN", "trace=no.csv"], "file not found"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([a.replace("PLAN", str(folder / "plan")) for a in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("replicas", 900_000_000, "replicas; a simulation holds at most 1,048,575"),
        ("demand", 1e9, "reduce the demand in the service file"),
        ("latency", 1e300, "must be from 1e-06 to 1e+09"),
        ("latency", 1e-300, "must be from 1e-06 to 1e+09"),
        ("upper", 1e300, "is 5 with the upper end 1e+300; the upper end must be from 5 to 1e+09"),
        ("upper", 0.0, "is 5 with the upper end 0; the upper end must be from 5 to 1e+09"),
        ("batch", "x", "latency_ms has the batch size 'x'; allowed: a positive integer"),
        ("route", "other", "leads to 'other', which is no pool of the hour"),
        ("class", "other", "a route has the class 'other', which is not in 'classes'"),
    ],
)
def test_extreme_plans_are_reported_before_simulation(
    folder: Path, key: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load((folder / "plan" / "plan.yaml").read_text())
    if key == "replicas":
        content["hours"][0]["pools"][0]["replicas"] = value
    elif key == "demand":
        for requirements in content["classes"].values():
            requirements["demand"] = [value] * len(requirements["demand"])
    elif key in ("route", "class"):
        content["hours"][0]["routes"][0]["first" if key == "route" else "klass"] = value
    else:
        kind = content["kinds"][content["hours"][0]["pools"][0]["kind"]]
        row = [5.0, "measured", None, value] if key == "upper" else [value, "measured", None, None]
        kind["latency_ms"] = dict.fromkeys(kind["latency_ms"], row)
        if key == "batch":
            kind["latency_ms"] = {value: [5.0, "measured", None, None]}
    Path("large").mkdir()
    Path("large/plan.yaml").write_text(yaml.safe_dump(content))
    assert run(["simulate", "plan=large"]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("objective", "budgets", "message"),
    [
        ("carbon", {}, "objective=carbon needs carbon.site, devices.box.busy_w: give busy_w in W"),
        ("energy", {}, "objective=energy needs devices.box.busy_w: "),
        ("cost", {"carbon_kg_per_day": 1.0}, "budgets.carbon_kg_per_day needs carbon.site, "),
        ("cost", {"power_w": {"site": 900}}, "budgets.power_w needs devices.box.busy_w: "),
        ("cost", {}, None),
    ],
)
def test_missing_values_count_as_zero_unless_required(
    objective: str, budgets: dict[str, Any], message: str | None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fleet = examples.fleet()
    del fleet["devices"]["box"]["busy_w"]
    examples.write(tmp_path, examples.service(budgets=budgets), fleet)
    files = [f"{name}={tmp_path / name}.yaml" for name in ("service", "fleet")]
    code = run(["plan", *files, f"objective={objective}", "front=3", "run.dir=p"])
    captured = capsys.readouterr()
    if message is None:
        assert code == 0
        assert "counted as 0: carbon.site, devices.box.busy_w (as idle_w)." in captured.out
        assert "emits less" not in captured.out
    else:
        assert code == 2
        assert message in captured.err
        assert not Path("p").exists()


def test_missing_packages_name_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert run(["plan", "service=a", "fleet=b"]) == 2
    error = capsys.readouterr().err
    assert "plan needs highspy and numba: pip install 'hwnas[plan]'" in error


def test_trace_path_is_relative_to_service(tmp_path: Path) -> None:
    service = examples.service()
    service["classes"]["web"]["demand"]["trace"] = "arrivals.csv"
    examples.write(tmp_path / "asked", service, examples.fleet())
    times = "\n".join(str(i / 10) for i in range(600))
    (tmp_path / "asked" / "arrivals.csv").write_text(f"time\n{times}\n")
    folder = tmp_path / "asked"
    files = folder / "service.yaml", folder / "fleet.yaml"
    plan = hwnas.plan(*files, front=0, begin="2026-01-31T00:30+02:00", run__dir="p")
    assert read_plan(plan.path).begin_min == 30  # its two hours repeat
    assert hwnas.simulate(plan, n_seeds=1, run__dir="s").table().num_rows == 2


@pytest.mark.slow
def test_spike_needs_same_pools_as_equal_demand(tmp_path: Path) -> None:
    pools = []
    for name, demand in (
        ("spike", {"hours": [1000.0] * 4, "spike": 5.0}),
        ("steady", {"hours": [5000.0] * 4}),
    ):
        service, fleet = examples.service(), examples.fleet()
        service["classes"]["web"]["demand"] = demand
        fleet["devices"]["cpu"]["quota"] = 900
        (tmp_path / name).mkdir()
        examples.write(tmp_path / name, service, fleet)
        files = [f"{key}={tmp_path / name / key}.yaml" for key in ("service", "fleet")]
        assert run(["plan", *files, "front=0", f"run.dir={name}/plan"]) == 0
        hours = read_plan(Path(name, "plan")).hours
        pools.append([[(pool.kind, pool.replicas) for pool in hour.pools] for hour in hours])
    assert pools[0] == pools[1]
    alerts, others = (Path(name, "plan/deploy/prometheus/rules.yaml").read_text()
                      for name in ("spike", "steady"))  # fmt: skip
    assert alerts == others  # a planned spike raises no alert
    with Path("spike", "plan", "spikes.csv").open() as file:
        rows = [
            *csv.DictReader(file),
            *hwnas.simulate("spike/plan", spike=True).table().to_pylist(),
        ]
    assert [float(row["demand_per_s"]) for row in rows] == [5000, 5000]
    assert [row["spike"] for row in rows] == ["yes", "yes"]
    assert max(float(row["late"]) for row in rows) <= 0.01
    figures = [Path(name, "plan/margins.svg").read_bytes() for name in ("spike", "steady")]
    assert figures[0] == figures[1]
    assert not Path("steady", "plan", "spikes.csv").exists()
    (row,) = hwnas.simulate("spike/plan", n_seeds=1, run__dir="u").table().to_pylist()
    assert (row["demand_per_s"], row["spike"]) == (1000, None)
