"""Service and fleet files: values that are read, and errors for invalid ones."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwnas.core.errors import ConfigError, HwnasError
from hwnas.core.quantity import Quantity
from hwnas.fleet import calendar, fleet_file, model_sources, models, service_file
from hwnas.fleet.calendar import begin_minutes, parse_date
from hwnas.fleet.demand import Arrivals, read_gaps
from hwnas.fleet.fleet_file import Fleet, RegionLink, network_paths
from hwnas.fleet.models import resolve_path
from hwnas.fleet.placements import has_room
from hwnas.fleet.problem import PlanningProblem, missing_key_notes, read_problem
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from tests.fleet import examples


def _read(folder: Path, service: examples.Content, fleet: examples.Content) -> PlanningProblem:
    examples.write(folder, service, fleet)
    return read_problem(folder / "service.yaml", folder / "fleet.yaml")


def _changed(content: examples.Content, path: str, value: Any) -> examples.Content:
    *parts, last = path.split(".")
    section = content
    for part in parts:
        section = section.setdefault(part, {})
    if value is None:
        del section[last]
    else:
        section[last] = value
    return content


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("fleet", "devices.cpu.price", None, "devices.cpu.price in $ per machine-hour"),
        ("fleet", "devices.cpu.quota", 0, "'devices.cpu.quota' is 0; allowed: at least 1"),
        ("fleet", "devices.cpu.busy_w", 1, "busy_w=1 is below idle_w=60"),
        (
            "fleet",
            "devices.cpu.target",
            "gpu",
            "no model of fronts has a latency on target 'gpu'",
        ),
        ("fleet", "devices.cpu.target", "box", None),
        (
            "fleet",
            "devices.cpu",
            {**examples.fleet()["devices"]["cpu"], "like": "box", "target": "bx"},
            "no model of fronts has a latency on target 'bx' (targets with latencies: box, cpu)",
        ),
        ("fleet", "devices.cpu.like", "cpu", "leads back to 'cpu'"),
        ("fleet", "devices.cpu.like", "bix", "like of device 'cpu': Unknown device 'bix'"),
        ("fleet", "links", {"site-site": {"rtt_ms": 1}}, "leads from site to itself"),
        ("fleet", "links", {"a-b": {"rtt_ms": 1}, "b-a": {"rtt_ms": 1}}, "given twice"),
        ("fleet", "links", {"site": {"rtt_ms": 1}}, "must be named REGION-REGION"),
        ("fleet", "devices.cpu.speed", 1e-300, "1e-06"),
        ("fleet", "links", {"a-b-c": {"rtt_ms": 1}}, "a to b-c or a-b to c"),
        (
            "fleet",
            "links",
            {"eu-west - site": {"rtt_ms": 1}, "site-eu-west": {"rtt_ms": 1}},
            "link 'site - eu-west' is given twice",
        ),
        ("fleet", "carbon", {"sight": 0.3}, "Did you mean 'site'?"),
        ("fleet", "carbon", {"site": 300}, "at most 10"),  # grams
        ("fleet", "carbon", {"site": -0.1}, "at least 0"),
        (
            "service",
            "classes.web.origin",
            "field",
            "add links.field-site with rtt_ms; links so far: none.",
        ),
        ("service", "classes.web.regions", ["moon"], "no device is in a region of class 'web'"),
        ("service", "classes.web.demand", {}, "demand needs one of rate, hours and csv"),
        ("service", "classes.web.demand", {"hours": [0]}, "is 0 in every hour: set demand.rate"),
        ("service", "classes.web.demand", {"csv": "no.csv"}, "file not found"),
        ("service", "classes.web.degraded_accuracy", 0.9, "is above accuracy_min"),
        ("service", "classes.web.p99", 3, "Did you mean 'p99_ms'?"),
        ("fleet", "devices.cpu.speed", 3, "has speed=3 but no like"),
        ("fleet", "carbon", {"site": []}, "at least 1"),
        ("service", "fronts", ["nothing"], "no such folder or file"),
        ("service", "profiles", ["empty.csv"], "file not found"),
    ],
)
def test_invalid_file_is_reported_in_one_line(
    tmp_path: Path, file: str, path: str, value: Any, message: str | None
) -> None:
    service, fleet = examples.service(), examples.fleet()
    _changed(service if file == "service" else fleet, path, value)
    if message is None:
        _read(tmp_path, service, fleet)
        return
    with pytest.raises(HwnasError) as error:
        _read(tmp_path, service, fleet)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_entries_without_effect_are_noted(tmp_path: Path) -> None:
    service, fleet = examples.service(), examples.fleet()
    fleet["devices"]["gpu"] = {**fleet["devices"]["cpu"], "region": "clod", "target": "cpu"}
    service["classes"]["web"]["degraded_accuracy"] = 0.5
    (tmp_path / "more.csv").write_text("id,target,batch,latency_ms\nsmall,cpu,8,30\n")
    service["profiles"] = ["more.csv"]
    notes = " ".join(_read(tmp_path, service, fleet).notes)
    assert "Device 'gpu' is in clod, which no class allows: it is not used." in notes
    assert "degraded_accuracy of class 'web' counts only with survive: {all_of: [spot]}." in notes
    assert "Latencies of small-float32 are not used: no model of fronts has this id" in notes


def test_device_without_latencies_names_search_command(tmp_path: Path) -> None:
    fleet = examples.fleet()
    fleet["devices"]["tpu"] = {**fleet["devices"]["cpu"], "target": "tpu_v9"}
    with pytest.raises(HwnasError, match=r"hwnas search \+target=tpu_v9"):
        _read(tmp_path, examples.service(), fleet)


def test_trace_gives_gaps_and_short_trace_raises(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,x\n")
    with pytest.raises(HwnasError, match="has no rows"):
        read_gaps(path)
    path.write_text("TIMESTAMP\n2023-11-16 18:17:03.9799600\n")
    with pytest.raises(HwnasError, match="has 1 requests; a trace needs at least 500"):
        read_gaps(path)
    seconds = np.cumsum(np.tile([0.0, 0.0, 3.0], 300))
    path.write_text("time\n" + "\n".join(map(str, seconds)))
    gaps = read_gaps(path)
    assert gaps.mean() == pytest.approx(1.0)
    assert np.count_nonzero(gaps == 0) == 0, "whole seconds: their order is unknown"
    times = Arrivals(gaps).at(10.0, 50_000, np.random.default_rng(0))
    assert times[-1] == pytest.approx(5000, rel=0.01)
    path.write_text("time\n" + "\n".join(map(str, seconds[::-1])))
    with pytest.raises(HwnasError, match="must ascend: sort the rows"):
        read_gaps(path)


def test_derated_and_like_device_latencies_are_modelled(tmp_path: Path) -> None:
    fleet = examples.fleet()
    fleet["devices"]["cpu"]["derate"] = 0.8
    fleet["devices"]["dream"] = {**fleet["devices"]["cpu"], "like": "cpu", "speed": 2.0,
                                 "derate": 1.0, "sketch": True}  # fmt: skip
    problem = _read(tmp_path, examples.service(), fleet)
    latencies = problem.catalogue.on(problem.fleet, "cpu", "small-int8")
    assert latencies == {1: Quantity(10.0, "modelled"), 4: Quantity(25.0, "modelled")}
    modelled = problem.catalogue.on(problem.fleet, "dream", "small-int8")[1]
    assert modelled.value == pytest.approx(4.0)
    assert modelled.source == "modelled"


def test_device_target_takes_precedence_over_device_name(
    tmp_path: Path,
) -> None:
    fleet = examples.fleet()
    fleet["devices"]["cpu"]["target"] = "box"
    problem = _read(tmp_path, examples.service(), fleet)
    latencies = problem.catalogue.on(problem.fleet, "cpu", "small-int8")
    assert [figure.value for figure in latencies.values()] == [12.0, 40.0]


def _table(folder: Path, name: str, ms: float, **chosen: int) -> str:
    """Write a latency table of one network with runtime choices; return its path."""
    place = f"cpu/onnxruntime-int8-{name}"
    ends = {f"measured_ms{end}": ms for end in ("", "_low", "_high")}
    row = {"search_space": "s", "id": "small", "network": "n", **ends, "n_repeats": 1,
           "n_passes": 1, "drifted": False, "genotype": json.dumps(chosen)}  # fmt: skip
    LatencyTable(folder / place, networks=[row]).save()
    return place


def test_latency_tables_require_one_number_of_threads(
    tmp_path: Path,
) -> None:
    several = _table(tmp_path, "1+2t-b1+8", 3.0, batch=8, threads=2)
    catalogue = _read(tmp_path, examples.service(profiles=[several]), examples.fleet()).catalogue
    assert catalogue.latency_ms["cpu", "small-int8"][8] == Quantity(3.0, "measured", 3.0, 3.0)
    runtime = catalogue.ran["cpu", "small-int8"][8]
    assert (runtime.runtime, runtime.provider, runtime.threads) == ("onnxruntime", "cpu", 2)
    assert runtime.place.endswith(several)
    more = _table(tmp_path, "4t-b1", 1.0)
    message = "small-int8 on target 'cpu' with 4 threads, .*" + re.escape(f"{several} with 2:")
    with pytest.raises(HwnasError, match=message):
        _read(tmp_path, examples.service(profiles=[several, more]), examples.fleet())
    custom = _table(tmp_path, "2t-b1-0123abcd", 4.0)  # in addition to a shipped table
    catalogue = _read(tmp_path, examples.service(profiles=[custom]), examples.fleet()).catalogue
    assert catalogue.ran["cpu", "small-int8"][1].threads == 2
    ambiguous = _table(tmp_path, "1t-b1+4", 1.0)
    with pytest.raises(
        HwnasError, match=r"a network has batch size 1\+4 and threads 1; plans need one"
    ):
        _read(tmp_path, examples.service(profiles=[ambiguous]), examples.fleet())
    with pytest.raises(
        HwnasError, match="batch size 0 and threads 1; plans need one positive integer"
    ):
        models.batch_and_threads({}, 0, 1, "x")


def test_cache_hit_and_spike_scale_demand(tmp_path: Path) -> None:
    service = examples.service()
    service["classes"]["web"] |= {"cache_hit": 0.25, "demand": {"hours": [40], "spike": 2.0}}
    load = _read(tmp_path, service, examples.fleet()).load
    assert load.rates.tolist() == [[30.0]]
    assert load.provisioned_rates.tolist() == [[60.0]]


@pytest.mark.parametrize("begin", [None, "2026-02-04T00:00"])  # a Wednesday
def test_weekly_carbon_begins_on_any_day_for_daily_plan(begin: str | None) -> None:
    times = [{"time": f"2026-02-{4 + i // 24:02}T{i % 24:02}:00"} for i in range(calendar.WEEK)]
    begin_s = None if begin is None else calendar.parse_time(begin, "begin")
    # A stored plan has only the time of day.
    time_of_day_s = calendar.begin_seconds(
        calendar.begin_minutes(begin_s, calendar.DAY), calendar.DAY
    )
    for start_s in (begin_s, time_of_day_s):
        calendar.check_rows(times, Path("c.csv"), start_s, calendar.DAY)
    with pytest.raises(HwnasError, match=r"hour 0 of the plan is at Monday 00:00 UTC"):
        calendar.check_rows(times, Path("c.csv"), None, calendar.WEEK)


@pytest.mark.parametrize("hours", [1, 12, 168, None])
def test_constant_demand_defaults_to_one_day(tmp_path: Path, hours: int | None) -> None:
    service = examples.service()
    web = service["classes"]["web"]
    service["classes"]["flat"] = {**web, "demand": {"rate": 90}}
    web["demand"] = {"rate": 5} if hours is None else {"hours": [5.0] * hours}
    load = _read(tmp_path, service, examples.fleet()).load
    assert sorted(load.rates.tolist()) == [[5.0] * (hours or 24), [90.0] * (hours or 24)]


def test_equally_fast_paths_prefer_lower_cost() -> None:
    links = {
        "field-a": RegionLink(5.0, usd_per_gb=0.2), "field-b": RegionLink(5.0, usd_per_gb=0.1),
        "a-cloud": RegionLink(20.0), "b-cloud": RegionLink(20.0), "cloud-b": RegionLink(20.0),
    }  # fmt: skip
    paths = network_paths(Fleet({}, links), "field")
    assert paths["cloud"].links == ("field-b", "b-cloud")
    assert {region: way.rtt_ms for region, way in paths.items()} == {
        "field": 0.0, "a": 5.0, "b": 5.0, "cloud": 25.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["eu-west-1-us-east", "us-east - eu-west-1"])
def test_links_support_regions_with_hyphens(tmp_path: Path, name: str) -> None:
    service, fleet = examples.service(), examples.fleet(links={name: {"rtt_ms": 7.0}})
    service["classes"]["web"] |= {"origin": "us-east", "regions": ["eu-west-1"]}
    for device in fleet["devices"].values():
        device["region"] = "eu-west-1"
    problem = _read(tmp_path, service, fleet)
    assert problem.network_paths["us-east"]["eu-west-1"].rtt_ms == 7.0


def _dates(*hours: int) -> list[str]:
    return [f"2026-01-31T{hour:02}:00" for hour in hours]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("hour", [0, 1, 2, 3], None),
        ("hour", [6, 7, 8, 9], "row 0: column hour is '6', expected 0"),
        ("Hour", [0, 1, 3, 2], "row 2: column hour is '3', expected 2"),
        ("time", ["2026-01-31T02:00+02:00", *_dates(*range(1, 24))], None),
        ("time", _dates(0, 2, 1), "row 1: column time is '2026-01-31T02:00', which is not one"),
        ("timestamp", _dates(0, 2, 1), "row 1: column timestamp is '2026-01-31T02:00', which is"),
        ("time", _dates(*range(6, 14)), "begins at 2026-01-31T06:00, but hour 0 of the plan is at "
         "00:00 UTC: begin the rows at that time, or set begin=2026-01-31T06:00"),
        ("time", [f"2026-01-31 {hour:02}:00:30" for hour in range(8)], "rows at that time."),
        ("time", [f"2026-01-31 {hour:02}:00" for hour in range(6, 14)], "begin=2026-01-31T06:00"),
        ("time", ["0:00", "1:00"], "'0:00' is not a time"),
    ],
)  # fmt: skip
def test_demand_rows_must_be_consecutive_hours(
    tmp_path: Path, column: str, values: list[Any], message: str | None
) -> None:
    service = examples.service()
    service["classes"]["web"]["demand"] = {"csv": "load.csv"}
    rows = "\n".join(f"{value},9" for value in values)
    (tmp_path / "load.csv").write_text(f"{column},web\n{rows}\n")
    if message is None:
        assert _read(tmp_path, service, examples.fleet()).load.n_hours == len(values)
        return
    with pytest.raises(HwnasError) as error:
        _read(tmp_path, service, examples.fleet())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_demand_rows_start_at_begin_option(tmp_path: Path) -> None:
    service = examples.service()
    service["classes"] = {"time": service["classes"]["web"] | {"demand": {"csv": "load.csv"}}}
    rows = "\n".join(f"2026-02-{9 + i // 24:02}T{i % 24:02}:00+02:00,9" for i in range(168))
    (tmp_path / "load.csv").write_text(f"Time,time\n{rows}\n")  # from a Monday on, in Athens
    examples.write(tmp_path, service, examples.fleet())
    paths = tmp_path / "service.yaml", tmp_path / "fleet.yaml"
    with pytest.raises(HwnasError, match="hour 0 of the plan is at Monday 00:00 UTC"):
        read_problem(*paths)
    load = read_problem(*paths, parse_date("2026-02-02T00:00+02:00", "begin")).load
    assert load.begin_min == 6 * 24 * 60 + 22 * 60  # Sunday, 22:00 UTC


def test_unused_file_entries_are_noted(tmp_path: Path) -> None:
    service, fleet = examples.service(), examples.fleet(carbon={"site": [0.1, 0.2, 0.3, 0.4]})
    fleet["devices"]["far"] = {**fleet["devices"]["box"], "region": "cloud", "like": "box"}
    service["classes"]["web"]["regions"] = ["site", "cloud", "clod"]
    problem = _read(tmp_path, service, fleet)
    assert problem.carbon["site"].tolist() == [0.1, 0.2]
    assert problem.notes == (
        "carbon.site has 4 hours; the plan uses the first 2.",
        "Class 'web' allows cloud, but no link leads there.",
        "Class 'web' allows clod, but no device is there.",
    )


def test_class_with_only_sketch_devices_raises(tmp_path: Path) -> None:
    fleet = examples.fleet()
    fleet["devices"]["next"] = {
        **fleet["devices"]["box"], "region": "cloud", "like": "box", "sketch": True,
    }  # fmt: skip
    service = examples.service()
    service["classes"]["web"]["regions"] = ["cloud"]
    with pytest.raises(
        HwnasError, match=r"no device except sketches \(next\) is in a region of class"
    ):
        _read(tmp_path, service, fleet)


def test_missing_memory_is_noted_and_read_from_profiles(tmp_path: Path) -> None:
    fleet = examples.fleet()
    fleet["devices"]["box"]["memory_mib"] = 64
    message = "counted as 0: carbon.site, memory_mib of large-int8, memory_mib of small-int8."
    assert message in missing_key_notes(_read(tmp_path, examples.service(), fleet))[0]
    rows = "id,precision,target,batch,latency_ms,memory_mib\n"
    rows += "".join(f"{name},int8,box,1,9,70\n" for name in ("small", "large"))
    (tmp_path / "profile.csv").write_text(rows)
    problem = _read(tmp_path, examples.service(profiles=["profile.csv"]), fleet)
    assert missing_key_notes(problem) == ["Missing values, counted as 0: carbon.site."]
    assert not has_room(problem, problem.fleet.devices["box"], "small-int8")
    assert has_room(problem, problem.fleet.devices["cpu"], "small-int8")  # no memory limit


@pytest.mark.parametrize("value", ["nan", "1e300", "later", "2026-01-31T00:00:30"])
def test_invalid_begin_raises(value: str) -> None:
    with pytest.raises(HwnasError):
        begin_minutes(parse_date(value, "begin"), 24)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kg_per_kwh\n300\n", "kg_per_kwh '300' is not allowed: give a number from 0 to 10"),
        ("kg\n0.3\n", "Unknown column 'kg_per_kwh'"),
    ],
)
def test_invalid_carbon_file_raises(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "grid.csv").write_text(text)
    fleet = examples.fleet() | {"carbon": {"site": "grid.csv"}}
    with pytest.raises(HwnasError, match=message):
        _read(tmp_path, examples.service(), fleet)


def test_examples_in_messages_are_valid(tmp_path: Path) -> None:
    for name, example in (("s", service_file.EXAMPLE), ("f", fleet_file.EXAMPLE)):
        (tmp_path / name).write_text(example)
    service = service_file.read_service(tmp_path / "s")
    assert fleet_file.read_fleet(tmp_path / "f", service).regions == service.regions


def test_time_in_milliseconds_is_refused() -> None:
    with pytest.raises(HwnasError, match=r"begin: time is 17.* or seconds \(not milli"):
        parse_date("1.7e12", "begin")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,0.9,,,", "a,0.1,,,"], "row 1: accuracy of 'a' is 0.1, and 0.9 in an earlier row"),
        (["a,0.9,cpu,1,2", "a,0.9,cpu,1,200"], "row 1: latency_ms of 'a' is 200, and 2"),
        (["a,0.9,cpu,1,2", "a,0.9,cpu,2,3", "a,0.9,npu,1,4", "b,0.8,cpu,1,2", "a,0.9,,,"], ""),
    ],
)
def test_inconsistent_rows_of_a_network_raise(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    path = tmp_path / "front.csv"
    path.write_text("\n".join(["id,accuracy,target,batch,latency_ms", *rows]))
    catalogue = models.ModelCatalogue()
    if message:
        with pytest.raises(ConfigError, match=re.escape(message)):
            models._read_csv(catalogue, path)
    else:
        models._read_csv(catalogue, path)
        assert len(catalogue.models) == 2


def test_longer_file_begins_at_hour_0_of_a_part_of_a_day() -> None:
    path, begin_s = Path("carbon.csv"), parse_date("2026-01-31T08:00", "begin")
    for first, is_refused in ((8, False), (0, True)):
        times = [begin_s + 3600 * (first - 8 + i) for i in range(24)]
        rows = [{"time": str(time), "kg_per_kwh": "0.1"} for time in times]
        if not is_refused:
            calendar.check_rows(rows, path, begin_s, 8)
            continue
        with pytest.raises(ConfigError, match="but hour 0 of the plan is at"):
            calendar.check_rows(rows, path, begin_s, 8)


def test_searches_of_other_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a": ["cat", "dog"], "b": ["cat", "dog"], "c": ["0", "1", "2"]}
    monkeypatch.setattr(model_sources, "_classes", lambda path: [(path, known[path.name])])
    service: Any = SimpleNamespace(fronts=["a", "b"])
    model_sources.check_classes(service, Path())
    service.fronts.append("c")
    with pytest.raises(ConfigError, match=r"classes of c .0, 1, 2. are not those of a .cat, dog"):
        model_sources.check_classes(service, Path())


def test_week_of_a_plan_begins_at_its_weekday_in_longer_files() -> None:
    times = [{"time": f"2026-02-{2 + i // 24:02}T{i % 24:02}:00"} for i in range(2 * calendar.WEEK)]
    calendar.check_rows(times, Path("c.csv"), None, calendar.WEEK)  # from a Monday
    with pytest.raises(HwnasError, match=r"hour 0 of the plan is at Monday 00:00 UTC"):
        calendar.check_rows(times[48:-120], Path("c.csv"), None, calendar.WEEK)


def test_hours_of_several_days_need_a_date() -> None:
    for n_hours in (12, 24, calendar.WEEK):
        assert calendar.begin_or_midnight(None, n_hours) >= 0
    with pytest.raises(HwnasError, match="neither a week nor a divisor of 24"):
        calendar.begin_or_midnight(None, 48)
    assert calendar.begin_or_midnight(3600.0, 48) == 3600.0


def test_file_beside_the_service_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "load.csv").write_text(name)
    monkeypatch.chdir(tmp_path / "a")
    assert resolve_path("load.csv", tmp_path / "b").read_text() == "b"
    (tmp_path / "b" / "load.csv").unlink()
    assert resolve_path("load.csv", tmp_path / "b").read_text() == "a"
    assert resolve_path("none.csv", tmp_path / "b") == tmp_path / "b" / "none.csv"
