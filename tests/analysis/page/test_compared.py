"""HTML page of ``compare`` in headless Chromium."""

import csv
import io
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import SearchSpace
from hwnas.nas.candidates import Candidate, read_candidates
from hwnas.nas.front import pareto_front
from hwnas.nas.member import Member, verified_names
from hwnas.tasks import metrics
from hwnas.tasks.intervals import proportion
from hwnas.tasks.metrics.budget import Budget
from tests.analysis.page.conftest import OpenedPage
from tests.core.unusable import edit

OBJECTIVES = ("accuracy", "latency_ms")
EVIL = "<img src=x onerror=alert(1)>"
OpenFile = Callable[[Path], OpenedPage]


def _candidate(space: SearchSpace, trial: int, rng: random.Random) -> Candidate:
    ms = rng.uniform(1, 9)
    accuracy = proportion(round(1000 * (0.95 - 0.4 / ms - 0.1 * rng.random())), 1000)
    costs = {name: Quantity(ms, "modelled", 0.9 * ms, 1.1 * ms) for name in metrics.BASE_COSTS}
    return Candidate(trial, space.sample(rng), {"accuracy": accuracy, **costs})


def _member(candidate: Candidate) -> Member:
    figures = {"accuracy_int8": candidate.figures["accuracy"]}
    figures |= {name: candidate.figures[name] for name in metrics.BASE_COSTS}
    verified = {name: figures[name] for name in verified_names("accuracy") if name in figures}
    return Member(candidate, verified, {}, {})


def _write_search(folder: RunFolder, space: SearchSpace, seed: int, sampler: str) -> None:
    """Write the files of a finished search, without its study."""
    folder.path.mkdir()
    rng = random.Random(seed)
    candidates = [_candidate(space, trial, rng) for trial in range(40)]
    folder.write_parquet("candidates.parquet", [c.row(space, "accuracy") for c in candidates])
    members = [_member(c) for c in pareto_front(candidates, OBJECTIVES)]
    objectives = {name: "max" if name == "accuracy" else "min" for name in OBJECTIVES}
    rows = [member.row(space) for member in members]
    folder.write_json("front.json", {"objectives": objectives, "members": rows})
    config = {
        "search_space": space.name, "objectives": OBJECTIVES,
        "budget": Budget({"latency_ms": 10.0}).digested(),
        "target": {"name": "npu"}, "sampler": {"name": sampler}, "seed": seed, "n_trials": 40,
        "dataset": {"name": "digits"}, "cost": "vela",
    }  # fmt: skip
    manifest = {
        "format": 2,
        "verb": "search",
        "status": "finished",
        "arguments": [],
        "config": config,
    }
    folder.write_json("manifest.json", manifest)


def _compare(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        assert run(["compare", *arguments]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: SearchSpace) -> Path:
    """Return the comparison of two searches, one with HTML as its name."""
    runs = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("plain", EVIL)):
        _write_search(RunFolder(runs / name), tiny, seed, f"sampler {EVIL}")
    out = tmp_path_factory.mktemp("compared") / "out"
    _compare(f"runs={runs}/*", "n_bootstrap=100", f"run.dir={out}")
    return out


@pytest.fixture
def page(folder: Path, open_file: OpenFile) -> OpenedPage:
    return open_file(folder / "report.html")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_page_has_all_sections_without_requests(page: OpenedPage) -> None:
    assert {url.partition(":")[0] for url in page.requests} <= {"file", "data"}
    assert page.console == []
    heads = page.tab.locator("h2").all_inner_texts()
    for head in (
        "Findings", "Fronts", "Indicators", "Highest accuracy for latency [ms] at most",
        "Lowest latency [ms] for accuracy at least", "Hypervolume share after evaluations",
        "Coverage", "Searched against verified", "Convergence",
    ):  # fmt: skip
        assert head in heads
    best = page.tab.locator(".result .best").inner_text()
    assert re.search(r" is better |significant difference|significantly larger", best)
    assert heads[0] == "Verdict"
    assert page.tab.locator(".result tbody tr").count() == 2
    widths = "images => images.map(image => image.naturalWidth)"
    assert all(page.tab.locator("section > img").evaluate_all(widths))
    assert page.tab.locator(".part h3").all_inner_texts() == [
        "Members of the fronts", "What the fronts prefer", "Choices of each network",
    ]  # fmt: skip


def test_names_are_escaped(page: OpenedPage) -> None:
    assert page.tab.locator(".groups", has_text=EVIL).count() == 1
    page.tab.get_by_role("button", name="run", exact=True).first.click()
    assert page.tab.locator(".members tbody tr", has_text=EVIL).count() > 0
    sources = "images => images.filter(image => !image.src.startsWith('data:')).length"
    assert page.tab.locator("img").evaluate_all(sources) == 0
    assert page.dialogs == []


def test_hover_shows_run_figures_and_probability(page: OpenedPage, folder: Path) -> None:
    canvas = page.tab.locator(".plot .canvas").first
    first = page.tab.locator("tr[data-point]").first
    run_, id_ = (first.locator(f"td:nth-child({k})").inner_text() for k in (3, 2))
    page.tab.mouse.move(*page.position(canvas, int(first.get_attribute("data-point") or -1)))
    text = " ".join(page.tab.locator(".tooltip").inner_text().split())
    rows = _rows(folder / "points.csv")
    (point,) = (row for row in rows if (row["run"], row["id"]) == (run_, id_))
    assert id_ in text
    assert point["run"] in text
    probability = f"{100 * float(point['p_on_front_of_all']):.2f}%"
    assert f"P(on the front of all) {probability}" in text


def test_limit_keeps_feasible_members(page: OpenedPage, folder: Path) -> None:
    points = [row for row in _rows(folder / "points.csv") if row["on_own_front"] == "True"]
    assert sorted(page.ids()) == sorted(row["id"] for row in points)
    fitting = [row["id"] for row in points if float(row["latency_ms_high"]) <= 4]
    assert 0 < len(fitting) < len(points)
    page.limit(0, "4")
    page.tab.wait_for_selector(f"text={len(fitting)} of {len(points)} verified networks")
    assert sorted(page.ids()) == sorted(fitting)


def test_tables_sort_by_column(page: OpenedPage, folder: Path) -> None:
    page.tab.get_by_role("button", name="accuracy verified").click()
    cells = page.tab.locator(".members tbody td:nth-child(7)").all_inner_texts()
    values = [float(text.partition("%")[0]) / 100 for text in cells]
    points = [row for row in _rows(folder / "points.csv") if row["on_own_front"] == "True"]
    assert values == pytest.approx(sorted(float(row["accuracy"]) for row in points), abs=1e-4)
    section = page.tab.locator("section", has=page.tab.locator("h2", has_text="at most"))
    column = section.locator("tbody td:first-child")
    limits = [float(text) for text in column.all_inner_texts()]
    for is_descending in (True, False):
        section.get_by_role("button", name="latency [ms]").click()
        values = [float(text) for text in column.all_inner_texts()]
        assert values == sorted(limits, reverse=is_descending)


def test_download_has_compared_points(page: OpenedPage, folder: Path) -> None:
    with page.tab.expect_download() as download:
        page.tab.get_by_text(re.compile("Download these .* rows")).click()
    downloaded = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    rows = {(row["run"], row["id"]): row for row in downloaded}
    points = [row for row in _rows(folder / "points.csv") if row["on_own_front"] == "True"]
    assert rows.keys() == {(row["run"], row["id"]) for row in points}
    for point in points:
        row = rows[point["run"], point["id"]]
        for name in ("accuracy", "accuracy_low", "latency_ms", "latency_ms_high"):
            assert float(row[f"verified_{name}"]) == pytest.approx(float(point[name]), rel=1e-6)
        probability = float(row["verified_p_on_front_of_all"])
        assert probability == pytest.approx(float(point["p_on_front_of_all"]), abs=1e-6)


def test_selection_is_linked_and_preferences_are_per_front(page: OpenedPage) -> None:
    bars = page.tab.locator(".card").first.locator("tr").first.locator(".bar")
    assert bars.count() == 3  # two fronts and all candidates
    page.tab.get_by_label("plain", exact=True).uncheck()
    bars.nth(2).wait_for(state="detached")
    page.tab.get_by_role("checkbox", name=re.compile("^select ")).first.check()
    page.tab.wait_for_selector("text=1 network selected")
    assert "fraction of the 1 network of the selection" in page.tab.content()


def test_front_uses_compared_objectives(
    tiny: SearchSpace, tmp_path: Path, open_file: OpenFile
) -> None:
    _write_search(RunFolder(tmp_path / "ours"), tiny, 0, "random")
    config = json.loads((tmp_path / "ours" / "manifest.json").read_text())["config"]
    objectives = ["accuracy", "latency_ms", "energy_mj"]
    edit(tmp_path / "ours", "config", config | {"objectives": objectives})
    front = tmp_path / "ours" / "front.json"
    content = json.loads(front.read_text())
    members = content["members"]
    worst = min(members, key=lambda row: float(row["verified_accuracy_int8"]))
    worst["verified_latency_ms"] = worst["verified_latency_ms_high"] = 99.0
    front.write_text(json.dumps(content | {"members": members}))
    options = "objectives={accuracy: max, latency_ms: min}", "n_bootstrap=0"
    _compare(f"runs={tmp_path / 'ours'}", *options, f"run.dir={tmp_path / 'out'}")
    ids = open_file(tmp_path / "out" / "report.html").ids()
    assert sorted(ids) == sorted(row["id"] for row in members if row is not worst)


@pytest.mark.slow
def test_csv_runs_without_choices_are_noted(
    tiny: SearchSpace, tmp_path: Path, open_file: OpenFile
) -> None:
    _write_search(RunFolder(tmp_path / "ours"), tiny, 0, "random")
    other = tmp_path / "theirs.csv"
    other.write_text("id,accuracy,latency_ms\nx,0.9,4\ny,0.8,2\nz,0.7,3\n")
    options = "objectives={accuracy: max, latency_ms: min}", "n_bootstrap=0"
    _compare(f"runs=[{tmp_path / 'ours'},{other}]", *options, f"run.dir={tmp_path / 'both'}")
    page = open_file(tmp_path / "both" / "report.html")
    assert "Choices are of runs only: CSV files have none." in page.tab.content()
    assert {"x", "y"} < {*page.ids()}
    assert "z" not in page.ids()
    candidates = read_candidates(tmp_path / "ours", [tiny.name])
    n_distinct = len({candidate.id for candidate in candidates or ()})
    assert f"fraction of all {n_distinct} evaluated candidates" in page.tab.content()
    assert page.tab.locator(".card").first.locator("tr").first.locator(".bar").count() == 2
    _compare(f"runs={other}", *options, f"run.dir={tmp_path / 'alone'}")
    page = open_file(tmp_path / "alone" / "report.html")
    assert page.tab.locator(".part h3").all_inner_texts() == ["Members of the front"]
    assert page.console == []
