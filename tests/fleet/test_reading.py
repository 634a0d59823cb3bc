"""Services and fleets as files: what is read, and what is refused in which words."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.core.errors import ConfigError, HwnasError
from hwnas.core.quantity import Quantity
from hwnas.fleet import calendar, fleet_file, models, service_file
from hwnas.fleet.calendar import begin_minutes, parse_date
from hwnas.fleet.demand import Arrivals, read_gaps
from hwnas.fleet.fleet_file import Fleet, RegionLink, network_paths
from hwnas.fleet.placements import has_room
from hwnas.fleet.problem import PlanningProblem, missing_key_notes, read_problem
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from tests.fleet import made


def _read(folder: Path, asked: made.Content, there: made.Content) -> PlanningProblem:
    made.write(folder, asked, there)
    return read_problem(folder / "service.yaml", folder / "fleet.yaml")


def _changed(content: made.Content, path: str, value: Any) -> made.Content:
    *parts, last = path.split(".")
    at = content
    for part in parts:
        at = at.setdefault(part, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return content


@pytest.mark.parametrize(
    ("where", "path", "value", "words"),
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
            {**made.fleet()["devices"]["cpu"], "like": "box", "target": "bx"},
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
        ("service", "fronts", ["nothing"], "no such folder or file"),
        ("service", "profiles", ["empty.csv"], "file not found"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, where: str, path: str, value: Any, words: str | None
) -> None:
    asked, there = made.service(), made.fleet()
    _changed(asked if where == "service" else there, path, value)
    if words is None:
        _read(tmp_path, asked, there)
        return
    with pytest.raises(HwnasError) as refused:
        _read(tmp_path, asked, there)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_device_without_latencies_names_the_command_that_measures_them(tmp_path: Path) -> None:
    there = made.fleet()
    there["devices"]["tpu"] = {**there["devices"]["cpu"], "target": "tpu_v9"}
    with pytest.raises(HwnasError, match=r"hwnas search \+target=tpu_v9"):
        _read(tmp_path, made.service(), there)


def test_a_trace_says_bursts_and_an_empty_one_is_refused(tmp_path: Path) -> None:
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
    times = Arrivals(gaps).at(10.0, 50_000, np.random.default_rng(0))
    assert times[-1] == pytest.approx(5000, rel=0.01)
    path.write_text("time\n" + "\n".join(map(str, seconds[::-1])))
    with pytest.raises(HwnasError, match="must ascend, and not be all equal"):
        read_gaps(path)


def test_latencies_are_slower_by_heat_and_modelled_on_a_device_like_another(tmp_path: Path) -> None:
    there = made.fleet()
    there["devices"]["cpu"]["derate"] = 0.8
    there["devices"]["dream"] = {**there["devices"]["cpu"], "like": "cpu", "speed": 2.0,
                                 "derate": 1.0, "sketch": True}  # fmt: skip
    found = _read(tmp_path, made.service(), there)
    timed = found.catalogue.on(found.fleet, "cpu", "small-int8")
    assert timed == {1: Quantity(10.0, "modelled"), 4: Quantity(25.0, "modelled")}  # not said
    dreamt = found.catalogue.on(found.fleet, "dream", "small-int8")[1]
    assert dreamt.value == pytest.approx(4.0)
    assert dreamt.source == "modelled"


def test_a_target_that_is_named_says_latencies_though_another_has_the_device_s_name(
    tmp_path: Path,
) -> None:
    there = made.fleet()
    there["devices"]["cpu"]["target"] = "box"
    found = _read(tmp_path, made.service(), there)
    timed = found.catalogue.on(found.fleet, "cpu", "small-int8")
    assert [figure.value for figure in timed.values()] == [12.0, 40.0]


def _table(folder: Path, name: str, ms: float, **chosen: int) -> str:
    """Write a latency table of one network, which chose how it runs; return where it is."""
    place = f"cpu/onnxruntime-int8-{name}"
    ends = {f"measured_ms{end}": ms for end in ("", "_low", "_high")}
    row = {"search_space": "s", "id": "small", "network": "n", **ends, "n_repeats": 1,
           "n_passes": 1, "drifted": False, "genotype": json.dumps(chosen)}  # fmt: skip
    LatencyTable(folder / place, networks=[row]).save()
    return place


def test_tables_say_latencies_as_their_networks_ran_and_on_one_number_of_threads(
    tmp_path: Path,
) -> None:
    several = _table(tmp_path, "1+2t-b1+8", 3.0, batch=8, threads=2)
    found = _read(tmp_path, made.service(profiles=[several]), made.fleet()).catalogue
    assert found.latency_ms["cpu", "small-int8"][8] == Quantity(3.0, "measured", 3.0, 3.0)
    ran = found.ran["cpu", "small-int8"][8]
    assert (ran.runtime, ran.provider, ran.threads) == ("onnxruntime", "cpu", 2)
    assert ran.place.endswith(several)
    more = _table(tmp_path, "4t-b1", 1.0)
    words = "small-int8 on target 'cpu' with 4 threads, .*" + re.escape(f"{several} with 2:")
    with pytest.raises(HwnasError, match=words):
        _read(tmp_path, made.service(profiles=[several, more]), made.fleet())
    own = _table(tmp_path, "2t-b1-0123abcd", 4.0)  # beside one that ships
    found = _read(tmp_path, made.service(profiles=[own]), made.fleet()).catalogue
    assert found.ran["cpu", "small-int8"][1].threads == 2
    silent = _table(tmp_path, "1t-b1+4", 1.0)
    with pytest.raises(
        HwnasError, match=r"batch size of a network is 1\+4, its threads 1; plans need one"
    ):
        _read(tmp_path, made.service(profiles=[silent]), made.fleet())
    with pytest.raises(HwnasError, match="is 0, its threads 1; plans need one positive integer"):
        models.batch_and_threads({}, 0, 1, "x")


def test_a_cache_takes_requests_away_and_a_spike_adds_them(tmp_path: Path) -> None:
    asked = made.service()
    asked["classes"]["web"] |= {"cache_hit": 0.25, "demand": {"hours": [40], "spike": 2.0}}
    load = _read(tmp_path, asked, made.fleet()).load
    assert load.rates.tolist() == [[30.0]]
    assert load.provisioned_rates.tolist() == [[60.0]]


@pytest.mark.parametrize("begin", [None, "2026-02-04T00:00"])  # a Wednesday
def test_carbon_of_a_week_beside_a_plan_of_a_day_begins_on_any_day(begin: str | None) -> None:
    times = [{"time": f"2026-02-{4 + i // 24:02}T{i % 24:02}:00"} for i in range(calendar.WEEK)]
    begin_s = None if begin is None else calendar.parse_time(begin, "begin")
    # As a plan keeps it that is read again: the time of day alone.
    kept = calendar.begin_seconds(calendar.begin_minutes(begin_s, calendar.DAY), calendar.DAY)
    for at in (begin_s, kept):
        calendar.check_rows(times, Path("c.csv"), at, calendar.DAY)
    with pytest.raises(HwnasError, match=r"hour 0 of the plan is at Monday 00:00 UTC"):
        calendar.check_rows(times, Path("c.csv"), None, calendar.WEEK)


@pytest.mark.parametrize("hours", [1, 12, 168, None])
def test_constant_demand_fits_any_hours_and_alone_is_for_a_day(
    tmp_path: Path, hours: int | None
) -> None:
    asked = made.service()
    web = asked["classes"]["web"]
    asked["classes"]["flat"] = {**web, "demand": {"rate": 90}}
    web["demand"] = {"rate": 5} if hours is None else {"hours": [5.0] * hours}
    load = _read(tmp_path, asked, made.fleet()).load
    assert sorted(load.rates.tolist()) == [[5.0] * (hours or 24), [90.0] * (hours or 24)]


def test_of_ways_that_are_as_fast_the_cheapest_is_taken() -> None:
    links = {
        "field-a": RegionLink(5.0, usd_per_gb=0.2), "field-b": RegionLink(5.0, usd_per_gb=0.1),
        "a-cloud": RegionLink(20.0), "b-cloud": RegionLink(20.0), "cloud-b": RegionLink(20.0),
    }  # fmt: skip
    found = network_paths(Fleet({}, links), "field")
    assert found["cloud"].links == ("field-b", "b-cloud")
    assert {region: way.rtt_ms for region, way in found.items()} == {
        "field": 0.0, "a": 5.0, "b": 5.0, "cloud": 25.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["eu-west-1-us-east", "us-east - eu-west-1"])
def test_regions_that_have_hyphens_are_linked(tmp_path: Path, name: str) -> None:
    asked, there = made.service(), made.fleet(links={name: {"rtt_ms": 7.0}})
    asked["classes"]["web"] |= {"origin": "us-east", "regions": ["eu-west-1"]}
    for device in there["devices"].values():
        device["region"] = "eu-west-1"
    found = _read(tmp_path, asked, there)
    assert found.network_paths["us-east"]["eu-west-1"].rtt_ms == 7.0


def _dates(*hours: int) -> list[str]:
    return [f"2026-01-31T{hour:02}:00" for hour in hours]


@pytest.mark.parametrize(
    ("column", "said", "words"),
    [
        ("hour", [0, 1, 2, 3], None),
        ("hour", [6, 7, 8, 9], "row 0: column hour is '6', expected 0"),
        ("Hour", [0, 1, 3, 2], "row 2: column hour is '3', expected 2"),
        ("time", ["2026-01-31T02:00+02:00", *_dates(*range(1, 24))], None),
        ("time", _dates(0, 2, 1), "row 1: column time is '2026-01-31T02:00', which is not one"),
        ("time", _dates(*range(6, 14)), "begins at 2026-01-31T06:00, but hour 0 of the plan is at "
         "00:00 UTC: begin the rows at that time, or set begin=2026-01-31T06:00"),
        ("time", [f"2026-01-31 {hour:02}:00:30" for hour in range(8)], "rows at that time."),
        ("time", [f"2026-01-31 {hour:02}:00" for hour in range(6, 14)], "begin=2026-01-31T06:00"),
        ("time", ["0:00", "1:00"], "'0:00' is not a time"),
    ],
)  # fmt: skip
def test_rows_of_demand_are_hours_in_their_order(
    tmp_path: Path, column: str, said: list[Any], words: str | None
) -> None:
    asked = made.service()
    asked["classes"]["web"]["demand"] = {"csv": "load.csv"}
    rows = "\n".join(f"{one},9" for one in said)
    (tmp_path / "load.csv").write_text(f"{column},web\n{rows}\n")
    if words is None:
        assert _read(tmp_path, asked, made.fleet()).load.n_hours == len(said)
        return
    with pytest.raises(HwnasError) as refused:
        _read(tmp_path, asked, made.fleet())
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_rows_may_begin_when_one_says_and_a_class_may_be_called_time(tmp_path: Path) -> None:
    asked = made.service()
    asked["classes"] = {"time": asked["classes"]["web"] | {"demand": {"csv": "load.csv"}}}
    rows = "\n".join(f"2026-02-{9 + i // 24:02}T{i % 24:02}:00+02:00,9" for i in range(168))
    (tmp_path / "load.csv").write_text(f"Time,time\n{rows}\n")  # from a Monday on, in Athens
    made.write(tmp_path, asked, made.fleet())
    service, fleet = tmp_path / "service.yaml", tmp_path / "fleet.yaml"
    with pytest.raises(HwnasError, match="hour 0 of the plan is at Monday 00:00 UTC"):
        read_problem(service, fleet)
    load = read_problem(service, fleet, parse_date("2026-02-02T00:00+02:00", "begin")).load
    assert load.begin_min == 6 * 24 * 60 + 22 * 60  # Sunday, 22:00 UTC


def test_what_is_said_and_does_not_count_is_noted(tmp_path: Path) -> None:
    asked, there = made.service(), made.fleet(carbon={"site": [0.1, 0.2, 0.3, 0.4]})
    there["devices"]["far"] = {**there["devices"]["box"], "region": "cloud", "like": "box"}
    asked["classes"]["web"]["regions"] = ["site", "cloud", "clod"]
    found = _read(tmp_path, asked, there)
    assert found.carbon["site"].tolist() == [0.1, 0.2]
    assert found.notes == (
        "carbon.site has 4 hours; the plan uses the first 2.",
        "Class 'web' allows cloud, but no link leads there.",
        "Class 'web' allows clod, but no device is there.",
    )


def test_a_class_whose_only_devices_are_sketches_is_refused(tmp_path: Path) -> None:
    there = made.fleet()
    there["devices"]["next"] = {
        **there["devices"]["box"], "region": "cloud", "like": "box", "sketch": True,
    }  # fmt: skip
    asked = made.service()
    asked["classes"]["web"]["regions"] = ["cloud"]
    with pytest.raises(
        HwnasError, match=r"no device except sketches \(next\) is in a region of class"
    ):
        _read(tmp_path, asked, there)


def test_memory_that_nobody_said_is_noted_and_profiles_may_say_it(tmp_path: Path) -> None:
    there = made.fleet()
    there["devices"]["box"]["memory_mib"] = 64
    words = "counted as 0: carbon.site, memory_mib of large-int8, memory_mib of small-int8."
    assert words in missing_key_notes(_read(tmp_path, made.service(), there))[0]
    rows = "id,precision,target,batch,latency_ms,memory_mib\n"
    rows += "".join(f"{name},int8,box,1,9,70\n" for name in ("small", "large"))
    (tmp_path / "profile.csv").write_text(rows)
    found = _read(tmp_path, made.service(profiles=["profile.csv"]), there)
    assert missing_key_notes(found) == ["Missing values, counted as 0: carbon.site."]
    assert not has_room(found, found.fleet.devices["box"], "small-int8")
    assert has_room(found, found.fleet.devices["cpu"], "small-int8")  # says no limit


@pytest.mark.parametrize("said", ["nan", "1e300", "later", "2026-01-31T00:00:30"])
def test_a_begin_that_is_none_is_refused(said: str) -> None:
    with pytest.raises(HwnasError):
        begin_minutes(parse_date(said, "begin"), 24)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kg_per_kwh\n300\n", "kg_per_kwh '300' is not allowed: give a number from 0 to 10"),
        ("kg\n0.3\n", "Unknown column 'kg_per_kwh'"),
    ],
)
def test_a_file_of_carbon_without_kg_per_kwh_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "grid.csv").write_text(text)
    there = made.fleet() | {"carbon": {"site": "grid.csv"}}
    with pytest.raises(HwnasError, match=words):
        _read(tmp_path, made.service(), there)


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
def test_rows_of_a_network_agree(tmp_path: Path, rows: list[str], message: str) -> None:
    path = tmp_path / "front.csv"
    path.write_text("\n".join(["id,accuracy,target,batch,latency_ms", *rows]))
    catalogue = models.ModelCatalogue()
    if message:
        with pytest.raises(ConfigError, match=re.escape(message)):
            models._read_csv(catalogue, path)
    else:
        models._read_csv(catalogue, path)
        assert len(catalogue.models) == 2
