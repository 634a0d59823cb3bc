"""Plans that go on: what stays, what moves at most, what is left alone, and what is said of it."""

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
from hwnas.fleet import plan_conversion, resolve
from hwnas.fleet.plan import DeploymentPlan, read_plan, to_yaml
from tests.conftest import few_of
from tests.fleet import checker, made

HOURS = [60.0, 90.0, 120.0, 90.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a service of two classes, a fleet, and a plan for them."""
    found = tmp_path_factory.mktemp("replan")
    asked, there = _two_classes(), made.fleet()
    asked["classes"]["web"]["accuracy_min"] = 0.68  # each class has a model that suits it
    there["devices"]["cpu"] |= {"quota": 12}
    there["devices"]["fast"] = {**there["devices"]["cpu"], "price": 0.25, "quota": 6}
    models = [(n, a, {**t, "fast": tuple(v / 2 for v in t["cpu"])}) for n, a, t in made.MODELS]
    made.write(found, asked, there, models)
    files = [f"service={found / 'service.yaml'}", f"fleet={found / 'fleet.yaml'}"]
    assert run(["plan", *files, "front=0", f"run.dir={found / 'plan'}"]) == 0
    return found


def _two_classes() -> dict[str, Any]:
    """Return what a service of two classes is asked for."""
    asked = made.service()
    asked["classes"]["web"]["demand"]["hours"] = HOURS
    asked["classes"]["batch"] = {
        "p99_ms": 400.0, "accuracy_min": 0.75, "regions": ["site"],
        "demand": {"hours": [20.0, 20.0, 30.0, 20.0]},
    }  # fmt: skip
    return asked


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _seen(plan: DeploymentPlan, factors: dict[str, float], hours: list[int] | None = None) -> Path:
    """Write telemetry of a plan whose demands are so many times what they were."""
    path = Path("seen.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hour", "class", "requests_per_s"])
        for name, asked in plan.classes.items():
            for hour, rate in enumerate(asked.demand):
                if hours is None or hour in hours:
                    writer.writerow([hour, name, rate * factors.get(name, 1.0)])
    return path


def _moved(before: DeploymentPlan, after: DeploymentPlan, hour: int) -> tuple[int, int, int]:
    """Return the replicas of an hour, and how many are started and stopped."""
    ran, runs = (plan_conversion.running_replicas(p, p.by_hour()[hour]) for p in (before, after))
    return sum(ran.values()), *resolve.count_moves(ran, runs)


def _broken(folder: Path, plan: Path, demands: dict[str, list[float]]) -> list[str]:
    """Return what a plan breaks of the service with other demands, by its files alone."""
    content = yaml.safe_load((folder / "service.yaml").read_text())
    for name, hours in demands.items():
        content["classes"][name]["demand"]["hours"] = hours
    here = Path("asked")
    here.mkdir()
    (here / "service.yaml").write_text(yaml.safe_dump(content))
    for name in ("fleet.yaml", "front.csv"):
        (here / name).write_bytes((folder / name).read_bytes())
    return checker.broken(here, plan)


@pytest.mark.parametrize("factor", few_of([1.04, 1.0, 0.96], 1))
def test_nothing_changes_where_nothing_changed(folder: Path, factor: float) -> None:
    seen = _seen(read_plan(folder / "plan"), {"web": factor})
    found = hwnas.replan(folder / "plan", seen, run__dir="same")
    assert (found.path / "plan.yaml").read_bytes() == (folder / "plan" / "plan.yaml").read_bytes()
    assert "decisions" not in found.tables
    assert "Nothing changed" in found.messages[0]


def test_half_more_is_served_and_next_to_nothing_is_stopped(folder: Path) -> None:
    old = read_plan(folder / "plan")
    found = hwnas.replan(folder / "plan", _seen(old, {"web": 1.5, "batch": 1.5}), run__dir="more")
    new = read_plan(found.path)
    demands = {name: [rate * 1.5 for rate in c.demand] for name, c in old.classes.items()}
    assert _broken(folder, found.path, demands) == []
    for hour in range(len(HOURS)):
        ran, _, stopped = _moved(old, new, hour)
        assert stopped <= 0.2 * ran
    assert all(row["late"] <= 0.01 for row in found.table("classes").to_pylist())
    rows = found.table("decisions").to_pylist()
    assert rows
    assert all("demand of" in row["why"] and "+50%" in row["why"] for row in rows)
    moves = [tuple(row[key] for key in row if "hours" not in key) for row in rows]
    assert len({*moves}) == len(moves)  # those of many hours are said once
    spans = [part.split("-") for row in rows for part in str(row["hours"]).split()]
    n_hours = sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
    assert n_hours == sum(row["n_hours"] for row in rows)


@pytest.mark.slow
def test_hours_that_nothing_was_seen_of_follow_or_stay(folder: Path) -> None:
    old = read_plan(folder / "plan")
    seen = _seen(old, {"web": 1.5}, hours=[2])
    follow = read_plan(hwnas.replan(folder / "plan", seen, run__dir="follow").path)
    stay = hwnas.replan(folder / "plan", seen, extrapolate=False, run__dir="stay")
    assert follow.classes["web"].demand == pytest.approx([rate * 1.5 for rate in HOURS])
    left = read_plan(stay.path)
    assert left.classes["web"].demand == pytest.approx([60.0, 90.0, 180.0, 90.0])
    before, after = old.by_hour(), left.by_hour()
    assert all(before[h].pools == after[h].pools for h in (0, 1, 3))
    assert all(before[h].routes == after[h].routes for h in (0, 1, 3))
    assert {str(row["hours"]) for row in stay.table("decisions").to_pylist()} == {"2"}


def test_a_plan_moves_off_what_is_down_and_back_where_it_is_not(folder: Path) -> None:
    old = read_plan(folder / "plan")
    used = max(old.hours, key=lambda of: sum(of.machines.values())).machines
    device = max(used, key=lambda name: used[name])
    Path("down.csv").write_text(f"hour,device,machines_down\n1,{device},\n")
    found = hwnas.replan(folder / "plan", "down.csv", run__dir="off")
    new = read_plan(found.path)
    assert all(device not in of.machines for of in new.hours)
    assert _broken(folder, found.path, {}) == []
    whys = [row["why"] for row in found.table("decisions").to_pylist()]
    assert all(f"all {device} down" in why for why in whys)
    Path("up.csv").write_text(f"hour,device,machines_down\n1,{device},\n2,{device},0\n")
    again = hwnas.replan(found.path, "up.csv", run__dir="again")  # being there moves nothing
    assert (again.path / "plan.yaml").read_bytes() == (found.path / "plan.yaml").read_bytes()


@pytest.mark.slow
def test_what_an_hour_chooses_from_grows_where_it_does_not_suffice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stations in use are all that hours choose from at first, and the device of theirs is down."""
    monkeypatch.setattr(resolve, "MOST_COLUMNS", 0)
    monkeypatch.setattr(resolve, "initial_columns", lambda _: [np.zeros((1, 3), np.intp)])
    used = read_plan(folder / "plan").hours[2].machines
    device = max(used, key=lambda name: used[name])
    Path("down.csv").write_text(f"hour,device,machines_down\n1,{device},\n")
    found = hwnas.replan(folder / "plan", "down.csv", run__dir="off")
    assert all(device not in of.machines for of in read_plan(found.path).hours)
    assert _broken(folder, found.path, {}) == []


@pytest.mark.slow
def test_what_failed_already_is_not_to_spare_until_it_is_back(tmp_path: Path) -> None:
    asked, there = made.service(survive={"any_one": "device"}), made.fleet()
    asked["classes"]["web"] |= {"p99_ms": 300.0, "demand": {"hours": [40.0, 5.0]}}
    there["devices"] = {"box": {**there["devices"]["box"], "quota": 3}}
    made.write(tmp_path, asked, there)
    plan = hwnas.plan(tmp_path / "service.yaml", tmp_path / "fleet.yaml", front=0, run__dir="plan")
    (busy, quiet) = read_plan(plan.path).hours
    assert [(pool.replicas, pool.spread) for pool in busy.pools] == [(3, 1)]  # all that there are
    Path("down.csv").write_text("hour,device,machines_down\n0,box,1\n")
    found = hwnas.replan(plan, "down.csv", run__dir="off")
    left = read_plan(found.path).hours
    assert [(pool.replicas, pool.spread) for pool in left[0].pools] == [(2, 0)]
    assert left[1].pools == quiet.pools  # of which there is one to spare as before
    words = "machines of box are down there is no redundancy in the hours 0:"
    assert any(words in said for said in found.messages)
    again = hwnas.replan(found, "down.csv", run__dir="again")
    assert (again.path / "plan.yaml").read_bytes() == (found.path / "plan.yaml").read_bytes()
    assert again.messages[1].startswith("1 of box down (measured): no hour needs more machines")
    Path("up.csv").write_text("hour,device,machines_down\n0,box,0\n")
    whole = hwnas.replan(found, "up.csv", run__dir="whole")
    assert [hour.pools for hour in read_plan(whole.path).hours] == [busy.pools, quiet.pools]
    whys = [row["why"] for row in whole.table("decisions").to_pylist()]
    assert whys
    assert all("all box up again: redundancy restored" in why for why in whys)


def test_spares_that_are_asked_for_later_are_a_change_of_the_service(tmp_path: Path) -> None:
    asked, there = made.service(), made.fleet()
    asked["classes"]["web"] |= {"p99_ms": 300.0, "demand": {"hours": [40.0]}}
    there["devices"] = {"box": {**there["devices"]["box"], "quota": 3}}
    made.write(tmp_path, asked, there)
    plan = hwnas.plan(tmp_path / "service.yaml", tmp_path / "fleet.yaml", front=0, run__dir="plan")
    made.write(tmp_path, asked | {"survive": {"any_one": "device"}}, there)
    Path("up.csv").write_text("hour,device,machines_down\n0,box,0\n")
    found = hwnas.replan(plan, "up.csv", run__dir="spared")
    assert [pool.spread for pool in read_plan(found.path).hours[0].pools] == [1]
    assert "service.yaml, fleet.yaml or files that they name" in found.messages[0]


def test_late_answers_at_the_planned_demand_make_pools_larger(folder: Path) -> None:
    Path("late.csv").write_text("hour,class,requests_per_s,late,p99_ms\n2,web,120,0.2,80\n")
    found = hwnas.replan(folder / "plan", "late.csv", run__dir="late")
    old, new = read_plan(folder / "plan"), read_plan(found.path)
    assert _moved(old, new, 2)[1] > 0
    assert all(_moved(old, new, hour)[1:] == (0, 0) for hour in (0, 1, 3))
    assert "20.0% of web late, p99 of web 80 ms (measured)" in found.messages[0]


@pytest.mark.slow
def test_hours_that_are_alike_are_as_late_as_one_of_them(tmp_path: Path) -> None:
    """Twelve of them, each ten per cent slower than planned: not a quarter as fast."""
    asked, there = made.service(), made.fleet()
    asked["classes"]["web"]["demand"]["hours"] = [100.0] * 12
    there["devices"]["cpu"] |= {"quota": 50}
    made.write(tmp_path, asked, there)
    files = [f"service={tmp_path / 'service.yaml'}", f"fleet={tmp_path / 'fleet.yaml'}"]
    assert run(["plan", *files, "front=0", "run.dir=plan"]) == 0
    rows = [f"{hour},web,100,0.2,40" for hour in range(12)]
    started = []
    for n in (1, 12):
        head = "hour,class,requests_per_s,late,p99_ms"
        Path("late.csv").write_text("\n".join([head, *rows[:n]]))
        found = hwnas.replan(Path("plan"), "late.csv", run__dir=f"late{n}")
        started.append(_moved(read_plan(Path("plan")), read_plan(found.path), 0)[1])
    assert started[1] == started[0]


@pytest.mark.slow
def test_moves_are_dear_or_cheap_as_one_says(folder: Path) -> None:
    old = read_plan(folder / "plan")
    seen = _seen(old, {"web": 0.4, "batch": 0.4})
    options: dict[str, Any] = {"max_moved_fraction": 1.0}
    dear = hwnas.replan(folder / "plan", seen, move_cost=50, run__dir="dear", **options)
    cheap = hwnas.replan(folder / "plan", seen, move_cost=0, run__dir="cheap", **options)
    stopped = [sum(_moved(old, read_plan(found.path), h)[2] for h in range(len(HOURS)))
               for found in (dear, cheap)]  # fmt: skip
    assert stopped[0] == 0 < stopped[1]
    values = [read_plan(found.path).value for found in (dear, cheap)]
    assert values[1] < values[0] <= old.value * (1 + 1e-9)


@pytest.mark.slow
def test_hours_in_which_more_must_be_stopped_stay_served_when_all_are_polished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, there = _two_classes(), made.fleet()
    there["devices"]["cpu"]["quota"], there["devices"]["box"]["quota"] = 2, 1
    made.write(tmp_path, asked, there)
    plan = hwnas.plan("service.yaml", "fleet.yaml", front=0, run__dir="plan")
    monkeypatch.setattr(resolve, "MOST_COLUMNS", 0)  # hours are solved one by one
    seen = _seen(read_plan(plan.path), {"web": 0.3, "batch": 4.0})
    found = hwnas.replan(plan, seen, max_moved_fraction=0, run__dir="new")
    demands = {"web": [rate * 0.3 for rate in HOURS], "batch": [80.0, 80.0, 120.0, 80.0]}
    assert _broken(tmp_path, found.path, demands) == []
    ran, _, stopped = _moved(read_plan(plan.path), read_plan(found.path), 2)
    assert 0 < stopped < ran


def test_another_accuracy_in_the_service_is_a_change_of_its_own(folder: Path) -> None:
    content = yaml.safe_load((folder / "service.yaml").read_text())
    content["classes"]["web"]["accuracy_min"] = 0.77
    service = folder / "stricter.yaml"
    service.write_text(yaml.safe_dump(content))
    seen = _seen(read_plan(folder / "plan"), {})
    found = hwnas.replan(folder / "plan", seen, service=service, run__dir="files")
    assert "service.yaml, fleet.yaml or files" in found.messages[0]
    assert all(row["accuracy"] >= 0.77 - 1e-6 for row in found.table("classes").to_pylist()
               if row["class"] == "web")  # fmt: skip


@pytest.mark.slow
def test_a_new_plan_is_simulated_and_replanned_and_may_take_the_place_of_the_old(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = read_plan(folder / "plan")
    seen = _seen(plan, {"web": 1.5})
    first = hwnas.replan(folder / "plan", seen, run__dir="first")
    assert hwnas.simulate(first, n_seeds=1, run__dir="simulated").table().num_rows > 0
    placed = hwnas.replan(first, _seen(plan, {"web": 2.0}), in_place=True)
    assert placed.path == first.path
    assert read_plan(first.path).classes["web"].demand == pytest.approx([2 * r for r in HOURS])
    assert [path.name for path in Path().glob(".*")] == []
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv", "run.dir=first"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_plan_is_replaced_in_place_by_whatever_path_and_taken_back_after_a_kill(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "plan", "real")
    Path("linked").symlink_to("real")
    seen = Path(_seen(read_plan(Path("real")), {})).absolute()
    files = [f"{of}={folder / of}.yaml" for of in ("service", "fleet")]
    told = [f"telemetry={seen}", *files, "in_place=true", "n_seeds=1"]
    Path("real").rename(".real.former")  # as a process that was killed between two renames
    assert run(["replan", "plan=linked", *told]) == 0
    assert Path("linked").is_symlink()
    with monkeypatch.context() as inside:
        inside.chdir("real")
        assert run(["replan", "plan=.", *told]) == 0
    assert read_plan(Path("real")) == read_plan(folder / "plan")
    assert [path.name for path in Path().glob(".*")] == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "class,requests_per_s\nweb,3\n",
            "must have either a column time (dates) or a column hour",
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
def test_what_is_wrong_with_telemetry_is_one_line(
    folder: Path, said: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("seen.csv").write_text(said)
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv"]) == 2
    told = capsys.readouterr().err.strip()
    assert words in told
    assert "\n" not in told
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
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
def test_what_is_wrong_with_options_is_one_line(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _seen(read_plan(folder / "plan"), {})
    assert run([a.replace("PLAN", str(folder / "plan")) for a in arguments]) == 2
    told = capsys.readouterr().err.strip()
    assert words in told
    assert "\n" not in told


def test_too_much_to_serve_is_refused_and_says_which_limit_binds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _seen(read_plan(folder / "plan"), {"web": 500.0})
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv", "limit_s=5"]) == 2
    assert (
        "Quotas in fleet.yaml, without machines that are down, are too low"
        in capsys.readouterr().err
    )
    assert not Path("runs").exists()


def test_where_all_is_down_it_says_how_many_of_what_would_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = yaml.safe_load((folder / "fleet.yaml").read_text())["devices"]
    rows = [f"{hour},{name},{at['quota']}" for hour in range(4) for name, at in devices.items()]
    Path("seen.csv").write_text("\n".join(["hour,device,machines_down", *rows]))
    assert run(["replan", f"plan={folder / 'plan'}", "telemetry=seen.csv"]) == 2
    said = r"machines that are down, are too low: (\d of \w+ \(quota 0\)(, )?)+ would suffice"
    assert re.search(said, capsys.readouterr().err)


def test_when_hour_0_begins_is_kept_and_said_anew(folder: Path) -> None:
    Path("seen.csv").write_text("time,class,requests_per_s\n2026-01-31T02:10:00+02:00,web,120\n")
    shutil.copytree(folder / "plan", "plan")
    plan = replace(read_plan(folder / "plan"), begin_min=2 * 60)  # its four hours come round
    Path("plan/plan.yaml").write_bytes(to_yaml(plan))
    kept = hwnas.replan("plan", "seen.csv", n_seeds=1, run__dir="kept")  # the third of them
    assert (kept.path / "plan.yaml").read_bytes() == to_yaml(plan)
    assert "byte for byte" in kept.messages[0]
    anew = hwnas.replan("plan", "seen.csv", begin="2026-01-30T23:00", n_seeds=1, run__dir="anew")
    assert read_plan(anew.path).begin_min == 3 * 60
    assert anew.messages[0].startswith("Planned again")  # the second, of which less was asked


def test_hours_of_dates_are_those_of_a_day(folder: Path) -> None:
    from hwnas.fleet.calendar import begin_or_midnight, parse_date
    from hwnas.fleet.telemetry import aggregate_samples, read_samples

    Path("seen.csv").write_text(
        "time,class,requests_per_s,late\n2026-01-31T01:10:00,web,10,0.5\n"
        "2026-01-31T02:50:00+01:00,web,20,\n1769824800,batch,7,\n"  # 02:00 of that day
    )
    samples, by_hour = read_samples(Path("seen.csv"), read_plan(folder / "plan"))
    found = aggregate_samples(samples, 24, begin_or_midnight(None, 24))
    assert not by_hour
    assert found.rates == {"web": {1: 15.0}, "batch": {2: 7.0}}
    assert found.late == {"web": {1: 0.5}}
    later = parse_date("2026-01-31T01:00", "begin")
    assert aggregate_samples(samples, 24, begin_or_midnight(later, 24)).rates["web"] == {0: 15.0}
    with pytest.raises(hwnas.HwnasError, match="begin=DATE"):
        begin_or_midnight(None, 7)
