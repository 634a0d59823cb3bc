"""Replanning: unchanged plans, limits on moves, in-place replacement and messages."""

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hwnas
from hwnas.__main__ import run
from hwnas.core.errors import BudgetError, RunError
from hwnas.fleet import plan_conversion, resolve
from hwnas.fleet.plan import DeploymentPlan, read_plan, to_yaml
from tests.conftest import few_of
from tests.fleet import checker, examples

pytestmark = pytest.mark.slow

HOURS = [60.0, 90.0, 120.0, 90.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a service of two classes, a fleet, and a plan for them."""
    path = tmp_path_factory.mktemp("replan")
    service, fleet = _two_classes(), examples.fleet()
    service["classes"]["web"]["accuracy_min"] = 0.68  # each class has a suitable model
    fleet["devices"]["cpu"] |= {"quota": 12}
    fleet["devices"]["fast"] = {**fleet["devices"]["cpu"], "price": 0.25, "quota": 6}
    models = [(n, a, {**t, "fast": tuple(v / 2 for v in t["cpu"])}) for n, a, t in examples.MODELS]
    examples.write(path, service, fleet, models)
    files = [f"service={path / 'service.yaml'}", f"fleet={path / 'fleet.yaml'}"]
    assert run(["plan", *files, "front=0", f"run.dir={path / 'plan'}"]) == 0
    return path


def _two_classes() -> dict[str, Any]:
    """Return a service with two classes."""
    service = examples.service()
    service["classes"]["web"]["demand"]["hours"] = HOURS
    service["classes"]["batch"] = {
        "p99_ms": 400.0, "accuracy_min": 0.75, "regions": ["site"],
        "demand": {"hours": [20.0, 20.0, 30.0, 20.0]},
    }  # fmt: skip
    return service


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _write_telemetry(
    plan: DeploymentPlan, factors: dict[str, float], hours: list[int] | None = None
) -> Path:
    """Write telemetry with the demands of a plan times a factor per class."""
    path = Path("seen.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hour", "class", "requests_per_s"])
        for name, requirements in plan.classes.items():
            for hour, rate in enumerate(requirements.demand):
                if hours is None or hour in hours:
                    writer.writerow([hour, name, rate * factors.get(name, 1.0)])
    return path


def _count_moves(before: DeploymentPlan, after: DeploymentPlan, hour: int) -> tuple[int, int, int]:
    """Return the number of running, started and stopped replicas in an hour."""
    replicas_before, replicas_after = (
        plan_conversion.running_replicas(p, p.by_hour()[hour]) for p in (before, after)
    )
    return sum(replicas_before.values()), *resolve.count_moves(replicas_before, replicas_after)


def _find_violations(folder: Path, plan: Path, demands: dict[str, list[float]]) -> list[str]:
    """Return the violations of a plan against a copy of the service with other demands."""
    content = yaml.safe_load((folder / "service.yaml").read_text())
    for name, hours in demands.items():
        content["classes"][name]["demand"]["hours"] = hours
    copy = Path("asked")
    copy.mkdir()
    (copy / "service.yaml").write_text(yaml.safe_dump(content))
    for name in ("fleet.yaml", "front.csv"):
        (copy / name).write_bytes((folder / name).read_bytes())
    return checker.find_violations(copy, plan)


def test_plan_without_carbon_of_region_is_refused(folder: Path, tmp_path: Path) -> None:
    content = yaml.safe_load((folder / "plan" / "plan.yaml").read_text())
    (region, values), *_ = content["carbon"].items()
    for carbon in ({}, {region: values[:-1]}):
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(content | {"carbon": carbon}))
        with pytest.raises(RunError, match=rf"'carbon' must have {len(values)} values, .*{region}"):
            read_plan(tmp_path)


@pytest.mark.parametrize("factor", few_of([1.04, 1.0, 0.96], 1))
def test_unchanged_demand_keeps_plan(folder: Path, factor: float) -> None:
    telemetry = _write_telemetry(read_plan(folder / "plan"), {"web": factor})
    replanned = hwnas.replan(folder / "plan", telemetry, run__dir="same")
    assert (replanned.path / "plan.yaml").read_bytes() == (
        folder / "plan" / "plan.yaml"
    ).read_bytes()
    assert "decisions" not in replanned.tables
    assert "Nothing changed" in replanned.messages[0]


def test_higher_demand_is_served_with_few_stops(folder: Path) -> None:
    old = read_plan(folder / "plan")
    replanned = hwnas.replan(
        folder / "plan", _write_telemetry(old, {"web": 1.5, "batch": 1.5}), run__dir="more"
    )
    new = read_plan(replanned.path)
    demands = {name: [rate * 1.5 for rate in c.demand] for name, c in old.classes.items()}
    assert _find_violations(folder, replanned.path, demands) == []
    for hour in range(len(HOURS)):
        n_replicas, _, stopped = _count_moves(old, new, hour)
        assert stopped <= 0.2 * n_replicas
    assert all(row["late"] <= 0.01 for row in replanned.table("classes").to_pylist())
    rows = replanned.table("decisions").to_pylist()
    assert rows
    assert all("demand of" in row["why"] and "+50%" in row["why"] for row in rows)
    moves = [tuple(row[key] for key in row if "hours" not in key) for row in rows]
    assert len({*moves}) == len(moves)  # equal decisions of several hours are merged
    spans = [part.split("-") for row in rows for part in str(row["hours"]).split()]
    n_hours = sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
    assert n_hours == sum(row["n_hours"] for row in rows)


@pytest.mark.slow
def test_unobserved_hours_are_extrapolated_or_kept(folder: Path) -> None:
    old = read_plan(folder / "plan")
    telemetry = _write_telemetry(old, {"web": 1.5}, hours=[2])
    extrapolated = read_plan(hwnas.replan(folder / "plan", telemetry, run__dir="follow").path)
    replanned = hwnas.replan(folder / "plan", telemetry, extrapolate=False, run__dir="stay")
    assert extrapolated.classes["web"].demand == pytest.approx([rate * 1.5 for rate in HOURS])
    unextrapolated = read_plan(replanned.path)
    assert unextrapolated.classes["web"].demand == pytest.approx([60.0, 90.0, 180.0, 90.0])
    before, after = old.by_hour(), unextrapolated.by_hour()
    assert all(before[h].pools == after[h].pools for h in (0, 1, 3))
    assert all(before[h].routes == after[h].routes for h in (0, 1, 3))
    assert {str(row["hours"]) for row in replanned.table("decisions").to_pylist()} == {"2"}


def test_plan_leaves_failed_device_and_stays_after_recovery(folder: Path) -> None:
    old = read_plan(folder / "plan")
    used = max(old.hours, key=lambda period: sum(period.machines.values())).machines
    device = max(used, key=lambda name: used[name])
    Path("down.csv").write_text(f"hour,device,machines_down\n1,{device},\n")
    replanned = hwnas.replan(folder / "plan", "down.csv", run__dir="off")
    new = read_plan(replanned.path)
    assert all(device not in period.machines for period in new.hours)
    assert _find_violations(folder, replanned.path, {}) == []
    whys = [row["why"] for row in replanned.table("decisions").to_pylist()]
    assert all(f"all {device} down" in why for why in whys)
    Path("up.csv").write_text(f"hour,device,machines_down\n1,{device},\n2,{device},0\n")
    # Recovery alone causes no move.
    second = hwnas.replan(replanned.path, "up.csv", run__dir="again")
    assert (second.path / "plan.yaml").read_bytes() == (replanned.path / "plan.yaml").read_bytes()


@pytest.mark.slow
def test_column_generation_extends_insufficient_placements(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The initial columns contain only placements in use, and their device is down."""
    monkeypatch.setattr(resolve, "MOST_COLUMNS", 0)
    monkeypatch.setattr(resolve, "initial_columns", lambda _: [np.zeros((1, 3), np.intp)])
    machines = read_plan(folder / "plan").hours[2].machines
    device = max(machines, key=lambda name: machines[name])
    Path("down.csv").write_text(f"hour,device,machines_down\n1,{device},\n")
    replanned = hwnas.replan(folder / "plan", "down.csv", run__dir="off")
    assert all(device not in period.machines for period in read_plan(replanned.path).hours)
    assert _find_violations(folder, replanned.path, {}) == []


@pytest.mark.slow
def test_failed_machine_suspends_redundancy_until_recovery(tmp_path: Path) -> None:
    service, fleet = examples.service(survive={"any_one": "device"}), examples.fleet()
    service["classes"]["web"] |= {"p99_ms": 300.0, "demand": {"hours": [40.0, 5.0]}}
    fleet["devices"] = {"box": {**fleet["devices"]["box"], "quota": 3}}
    examples.write(tmp_path, service, fleet)
    plan = hwnas.plan(tmp_path / "service.yaml", tmp_path / "fleet.yaml", front=0, run__dir="plan")
    (busy, quiet) = read_plan(plan.path).hours
    assert [(pool.replicas, pool.spread) for pool in busy.pools] == [(3, 1)]  # all machines
    Path("down.csv").write_text("hour,device,machines_down\n0,box,1\n")
    replanned = hwnas.replan(plan, "down.csv", run__dir="off")
    hours = read_plan(replanned.path).hours
    assert [(pool.replicas, pool.spread) for pool in hours[0].pools] == [(2, 0)]
    assert hours[1].pools == quiet.pools  # one spare as before
    message = "machines of box are down there is no redundancy in the hours 0:"
    assert any(message in line for line in replanned.messages)
    second = hwnas.replan(replanned, "down.csv", run__dir="again")
    assert (second.path / "plan.yaml").read_bytes() == (replanned.path / "plan.yaml").read_bytes()
    assert second.messages[1].startswith("1 of box down (measured): no hour needs more machines")
    Path("up.csv").write_text("hour,device,machines_down\n0,box,0\n")
    recovered = hwnas.replan(replanned, "up.csv", run__dir="whole")
    assert [hour.pools for hour in read_plan(recovered.path).hours] == [busy.pools, quiet.pools]
    whys = [row["why"] for row in recovered.table("decisions").to_pylist()]
    assert whys
    assert all("all box up again: redundancy restored" in why for why in whys)


def test_redundancy_added_later_is_a_service_change(tmp_path: Path) -> None:
    service, fleet = examples.service(), examples.fleet()
    service["classes"]["web"] |= {"p99_ms": 300.0, "demand": {"hours": [40.0]}}
    fleet["devices"] = {"box": {**fleet["devices"]["box"], "quota": 3}}
    examples.write(tmp_path, service, fleet)
    plan = hwnas.plan(tmp_path / "service.yaml", tmp_path / "fleet.yaml", front=0, run__dir="plan")
    examples.write(tmp_path, service | {"survive": {"any_one": "device"}}, fleet)
    Path("up.csv").write_text("hour,device,machines_down\n0,box,0\n")
    replanned = hwnas.replan(plan, "up.csv", run__dir="spared")
    assert [pool.spread for pool in read_plan(replanned.path).hours[0].pools] == [1]
    assert "the service file, the fleet file or files that they name" in replanned.messages[0]


def test_late_responses_at_planned_demand_enlarge_pools(folder: Path) -> None:
    Path("late.csv").write_text("hour,class,requests_per_s,late,p99_ms\n2,web,120,0.2,80\n")
    replanned = hwnas.replan(folder / "plan", "late.csv", run__dir="late")
    old, new = read_plan(folder / "plan"), read_plan(replanned.path)
    assert _count_moves(old, new, 2)[1] > 0
    assert all(_count_moves(old, new, hour)[1:] == (0, 0) for hour in (0, 1, 3))
    assert "20.0% of web late, p99 of web 80 ms (measured)" in replanned.messages[0]


@pytest.mark.slow
def test_equal_late_hours_need_no_more_than_one(tmp_path: Path) -> None:
    """Twelve hours, each 10 % slower than planned, are not combined into one large slowdown."""
    service, fleet = examples.service(), examples.fleet()
    service["classes"]["web"]["demand"]["hours"] = [100.0] * 12
    fleet["devices"]["cpu"] |= {"quota": 50}
    examples.write(tmp_path, service, fleet)
    files = [f"service={tmp_path / 'service.yaml'}", f"fleet={tmp_path / 'fleet.yaml'}"]
    assert run(["plan", *files, "front=0", "run.dir=plan"]) == 0
    rows = [f"{hour},web,100,0.2,40" for hour in range(12)]
    started = []
    for n in (1, 12):
        head = "hour,class,requests_per_s,late,p99_ms"
        Path("late.csv").write_text("\n".join([head, *rows[:n]]))
        replanned = hwnas.replan(Path("plan"), "late.csv", run__dir=f"late{n}")
        started.append(_count_moves(read_plan(Path("plan")), read_plan(replanned.path), 0)[1])
    assert started[1] == started[0]


@pytest.mark.slow
def test_move_cost_limits_stopped_replicas(folder: Path) -> None:
    old = read_plan(folder / "plan")
    telemetry = _write_telemetry(old, {"web": 0.4, "batch": 0.4})
    options: dict[str, Any] = {"max_moved_fraction": 1.0}
    dear = hwnas.replan(folder / "plan", telemetry, move_cost=50, run__dir="dear", **options)
    cheap = hwnas.replan(folder / "plan", telemetry, move_cost=0, run__dir="cheap", **options)
    stopped = [sum(_count_moves(old, read_plan(replanned.path), h)[2] for h in range(len(HOURS)))
               for replanned in (dear, cheap)]  # fmt: skip
    assert stopped[0] == 0 < stopped[1]
    values = [read_plan(replanned.path).value for replanned in (dear, cheap)]
    assert values[1] < values[0] <= old.value * (1 + 1e-9)


@pytest.mark.slow
def test_hourly_solve_serves_demand_beyond_move_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, fleet = _two_classes(), examples.fleet()
    fleet["devices"]["cpu"]["quota"], fleet["devices"]["box"]["quota"] = 2, 1
    examples.write(tmp_path, service, fleet)
    plan = hwnas.plan("service.yaml", "fleet.yaml", front=0, run__dir="plan")
    monkeypatch.setattr(resolve, "MOST_COLUMNS", 0)  # hours are solved one by one
    telemetry = _write_telemetry(read_plan(plan.path), {"web": 0.3, "batch": 4.0})
    replanned = hwnas.replan(plan, telemetry, max_moved_fraction=0, run__dir="new")
    demands = {"web": [rate * 0.3 for rate in HOURS], "batch": [80.0, 80.0, 120.0, 80.0]}
    assert _find_violations(tmp_path, replanned.path, demands) == []
    n_replicas, _, stopped = _count_moves(read_plan(plan.path), read_plan(replanned.path), 2)
    assert 0 < stopped < n_replicas


def test_changed_accuracy_is_a_service_change(folder: Path) -> None:
    content = yaml.safe_load((folder / "service.yaml").read_text())
    content["classes"]["web"]["accuracy_min"] = 0.77
    service = folder / "stricter.yaml"
    service.write_text(yaml.safe_dump(content))
    telemetry = _write_telemetry(read_plan(folder / "plan"), {})
    replanned = hwnas.replan(folder / "plan", telemetry, service=service, run__dir="files")
    assert "the service file, the fleet file or files" in replanned.messages[0]
    assert all(row["accuracy"] >= 0.77 - 1e-6 for row in replanned.table("classes").to_pylist()
               if row["class"] == "web")  # fmt: skip


def test_error_for_lower_budget_and_other_spike(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = read_plan(folder / "plan")
    changed = yaml.safe_load((folder / "service.yaml").read_text())
    telemetry, service = _write_telemetry(plan, {}), folder / "changed.yaml"
    files = [f"plan={folder / 'plan'}", f"telemetry={telemetry}", f"service={service}"]
    changed["budgets"] = {"cost_per_day": 4.7}
    service.write_text(yaml.safe_dump(changed))
    assert run(["replan", *files]) == 2
    assert (
        "The plan takes 4.8 $ a day, more than budgets.cost_per_day=4.7" in capsys.readouterr().err
    )
    del changed["budgets"]
    changed["classes"]["web"]["demand"]["spike"] = 2
    service.write_text(yaml.safe_dump(changed))
    assert run(["replan", *files]) == 2
    assert "demand.spike=2 for class 'web', the plan 1" in capsys.readouterr().err


def test_budget_below_cost_of_old_plan_limits_new_one(folder: Path) -> None:
    plan = read_plan(folder / "plan")
    more = hwnas.replan(folder / "plan", _write_telemetry(plan, {"web": 3.0}), run__dir="more")
    changed = yaml.safe_load((folder / "service.yaml").read_text())
    changed["budgets"] = {"cost_per_day": 5.0}
    service = folder / "cheaper.yaml"
    service.write_text(yaml.safe_dump(changed))
    with pytest.raises(BudgetError, match=r"budgets\.cost_per_day=5"):
        hwnas.replan(more, _write_telemetry(plan, {"web": 3.0}), service=service)
    less = _write_telemetry(plan, {})
    replanned = hwnas.replan(more, less, service=service, max_moved_fraction=1, run__dir="less")
    assert read_plan(replanned.path).value * 24 / len(HOURS) <= 5.0


def test_class_without_requests_can_be_planned_again(folder: Path) -> None:
    """Its spike is not known from the plan."""
    content = yaml.safe_load((folder / "service.yaml").read_text())
    content["classes"]["web"]["demand"]["spike"] = 1.5
    service = folder / "spike.yaml"
    service.write_text(yaml.safe_dump(content))
    plan = hwnas.plan(service, folder / "fleet.yaml", front=0, run__dir="spiked")
    telemetry = _write_telemetry(read_plan(plan.path), {"web": 0.0})
    empty = hwnas.replan(plan, telemetry, service=service, run__dir="empty")
    assert not any(read_plan(empty.path).classes["web"].demand)
    assert hwnas.replan(empty, telemetry, service=service, run__dir="again").messages


@pytest.mark.slow
def test_replan_output_can_be_simulated_and_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = read_plan(folder / "plan")
    telemetry = _write_telemetry(plan, {"web": 1.5})
    first = hwnas.replan(folder / "plan", telemetry, run__dir="first")
    simulated = hwnas.simulate(first, n_seeds=1, run__dir="simulated").table()
    double = hwnas.simulate(first, n_seeds=1, load=2.0, run__dir="double").table()
    demands = [table.column("demand_per_s").to_pylist() for table in (simulated, double)]
    assert demands[1] == pytest.approx([2 * rate for rate in demands[0]])
    placed = hwnas.replan(first, _write_telemetry(plan, {"web": 2.0}), in_place=True)
    assert placed.path == first.path
    assert read_plan(first.path).classes["web"].demand == pytest.approx([2 * r for r in HOURS])
    assert [path.name for path in Path().glob(".*")] == []
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv", "run.dir=first"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_in_place_replan_follows_links_and_recovers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "plan", "real")
    Path("linked").symlink_to("real")
    telemetry = Path(_write_telemetry(read_plan(Path("real")), {})).absolute()
    files = [f"{name}={folder / name}.yaml" for name in ("service", "fleet")]
    options = [f"telemetry={telemetry}", *files, "in_place=true", "n_seeds=1"]
    Path("real").rename(".real.former")  # as a process that was killed between two renames
    assert run(["replan", "plan=linked", *options]) == 0
    assert Path("linked").is_symlink()
    with monkeypatch.context() as inside:
        inside.chdir("real")
        assert run(["replan", "plan=.", *options]) == 0
    assert read_plan(Path("real")) == read_plan(folder / "plan")
    assert [path.name for path in Path().glob(".*")] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "class,requests_per_s\nweb,3\n",
            "must have a column time (dates) or a column hour",
        ),
        ("hour,class,requests_per_s\n0,wep,3\n", "Did you mean 'web'?"),
        ("hour,class,requests_per_s\n0,web,-3\n", "'row 0.requests_per_s' is -3"),
        ("hour,class,requests_per_s\n0,web,nan\n", "'row 0.requests_per_s' is nan"),
        ("hour,class\n0,web\n", "has no value for class 'web': give requests_per_s"),
        ("hour,class,requests_per_s\n0,,3\n", "names neither a class nor a device"),
        ("hour,device\n0,cpux\n", "Did you mean 'cpu'?"),
        ("hour,device,down\n0,cpu,1\n", "Unknown column 'down'. Allowed: class, device, hour"),
        ("time,class,requests_per_s\nyesterday,web,3\n", "'yesterday' is not a time"),
        ("time,class,requests_per_s\n,web,3\n", "'' is not a time"),
        ("hour\n", "has no rows"),
        ("hour,class,requests_per_s\n4,web,3\n", "row 0: hour is 4.0; allowed: at least 0"),
    ],
)
def test_invalid_telemetry_is_reported_in_one_line(
    folder: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("seen.csv").write_text(text)
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv"]) == 2
    message = capsys.readouterr().err.strip()
    assert expected in message
    assert "\n" not in message
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["replan"], "replan needs the folder of a plan"),
        (["replan", "plan=no", "telemetry=a.csv"], "has no plan.yaml"),
        (["replan", "plan=PLAN", "telemetry=no.csv"], "telemetry: no.csv: file not found"),
        (["replan", "plan=PLAN", "telemetry=seen.csv", "service=no.yaml"], "file not found"),
        (
            ["replan", "plan=PLAN", "telemetry=seen.csv", "in_place=true", "run.dir=x"],
            "leave one of them out",
        ),
        (
            ["replan", "plan=PLAN", "telemetry=seen.csv", "begin=2026-01-31"],
            "has hours of the plan",
        ),
        (
            ["replan", "plan=PLAN", "telemetry=seen.csv", "max_moved_fraction=2"],
            "max_moved_fraction must be",
        ),
        (["replan", "plan=PLAN", "telemetry=seen.csv", "query.step_s=0"], "query.step_s must be"),
    ],
)
def test_invalid_replan_options_are_reported_in_one_line(
    folder: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_telemetry(read_plan(folder / "plan"), {})
    assert run([a.replace("PLAN", str(folder / "plan")) for a in arguments]) == 2
    message = capsys.readouterr().err.strip()
    assert expected in message
    assert "\n" not in message


def test_infeasible_demand_names_binding_limit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_telemetry(read_plan(folder / "plan"), {"web": 500.0})
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv", "limit_s=5"]) == 2
    assert (
        "Quotas in the fleet file, without machines that are down, are too low"
        in capsys.readouterr().err
    )
    assert not Path("runs").exists()


def test_all_devices_down_names_sufficient_quota(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = yaml.safe_load((folder / "fleet.yaml").read_text())["devices"]
    rows = [
        f"{hour},{name},{device['quota']}" for hour in range(4) for name, device in devices.items()
    ]
    Path("seen.csv").write_text("\n".join(["hour,device,machines_down", *rows]))
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv"]) == 2
    pattern = r"machines that are down, are too low: (\d of \w+ \(quota 0\)(, )?)+ would suffice"
    assert re.search(pattern, capsys.readouterr().err)


def test_begin_is_kept_unless_given(folder: Path) -> None:
    Path("seen.csv").write_text("time,class,requests_per_s\n2026-01-31T02:10:00+02:00,web,120\n")
    shutil.copytree(folder / "plan", "plan")
    plan = replace(read_plan(folder / "plan"), begin_min=2 * 60)  # its four hours repeat
    Path("plan/plan.yaml").write_bytes(to_yaml(plan))
    unchanged = hwnas.replan("plan", "seen.csv", n_seeds=1, run__dir="kept")  # the third hour
    assert (unchanged.path / "plan.yaml").read_bytes() == to_yaml(plan)
    assert "byte for byte" in unchanged.messages[0]
    replanned = hwnas.replan(
        "plan", "seen.csv", begin="2026-01-30T23:00", n_seeds=1, run__dir="anew"
    )
    assert read_plan(replanned.path).begin_min == 3 * 60
    assert replanned.messages[0].startswith(
        "Planned again"
    )  # the second hour, which has a lower demand


def test_dates_are_mapped_to_hours_of_day(folder: Path) -> None:
    from hwnas.fleet.calendar import begin_or_midnight, parse_date
    from hwnas.fleet.telemetry import aggregate_samples, read_samples

    Path("seen.csv").write_text(
        "time,class,requests_per_s,late\n2026-01-31T01:10:00,web,10,0.5\n"
        "2026-01-31T02:50:00+01:00,web,20,\n1769824800,batch,7,\n"  # 02:00 UTC of the same day
    )
    samples, by_hour = read_samples(Path("seen.csv"), read_plan(folder / "plan"))
    aggregated = aggregate_samples(samples, 24, begin_or_midnight(None, 24))
    assert not by_hour
    assert aggregated.rates == {"web": {1: 15.0}, "batch": {2: 7.0}}
    assert aggregated.late == {"web": {1: 0.5}}
    later = parse_date("2026-01-31T01:00", "begin")
    assert aggregate_samples(samples, 24, begin_or_midnight(later, 24)).rates["web"] == {0: 15.0}
    with pytest.raises(hwnas.HwnasError, match="begin=DATE"):
        begin_or_midnight(None, 7)


def test_lower_quota_is_kept_although_more_replicas_stop(folder: Path) -> None:
    plan = read_plan(folder / "plan")
    used = {n: max(hour.machines.get(n, 0) for hour in plan.hours) for n in plan.devices}
    device = max(used, key=lambda name: used[name])
    content = yaml.safe_load((folder / "fleet.yaml").read_text())
    quota = max(1, used[device] // 2)
    content["devices"][device]["quota"] = quota
    fleet = folder / "smaller.yaml"
    fleet.write_text(yaml.safe_dump(content))
    telemetry = _write_telemetry(plan, {})
    replanned = hwnas.replan(folder / "plan", telemetry, fleet=fleet, run__dir="smaller")
    new = read_plan(replanned.path)
    assert all(hour.machines.get(device, 0) <= quota for hour in new.hours)


def test_lateness_from_before_a_changed_plan_is_not_used_again(folder: Path) -> None:
    plan = read_plan(folder / "plan")
    rows = [f"2026-01-31T0{hour}:00,web,{rate}," for hour, rate in
            enumerate(plan.classes["web"].demand)]  # fmt: skip
    rows[0] += "0.2"
    Path("seen.csv").write_text("\n".join(["time,class,requests_per_s,late", *rows]))
    first = hwnas.replan(folder / "plan", "seen.csv", n_seeds=1, run__dir="first")
    assert not any("older than the plan" in message for message in first.messages)
    second = hwnas.replan(first, "seen.csv", n_seeds=1, run__dir="second")
    assert "Late requests of 1 samples were not used: they are older than the plan." in (
        second.messages
    )
    assert "decisions" not in second.tables
