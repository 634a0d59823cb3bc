"""HTML page in headless Chromium, opened as a file."""

import csv
import io
import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from hwnas.analysis.page.data import (
    DecisionRow,
    FrontExplorer,
    OverlaidFront,
    Page,
    PagePoint,
    PageTable,
    RunData,
    SvgFigure,
)
from hwnas.analysis.page.html import _asset as asset
from hwnas.analysis.page.html import render
from hwnas.core.quantity import Quantities, Quantity
from hwnas.models.spaces import Option
from hwnas.tasks import metrics
from tests.analysis.page.conftest import OpenedPage

EVIL = "</script><script>alert(1)</script>"
NONE = "\u2013"  # marks missing values
OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")
SHOWN = {name: metrics.all_metrics()[name] for name in OBJECTIVES}


def _figures(accuracy: float, ms: float) -> Quantities:
    return {
        "accuracy": Quantity(accuracy, "measured", accuracy - 0.01, accuracy + 0.01),
        "latency_ms": Quantity(ms, "modelled", 0.9 * ms, 1.1 * ms),
        "energy_mj": Quantity(ms / 10, "modelled"),
    }


def _member(i: int, note: str = "") -> PagePoint:
    figures = _figures(0.5 + i / 20, 1.0 + i)
    verified = _figures(0.49 + i / 20, 1.01 + i)
    options: list[tuple[str, Option]] = [("width", 8 * (i % 3 + 1)), ("kernel", "3x3")]
    return PagePoint(f"{i:012x}", figures, options, i, True, verified, note)


def _run(name: str = "run", group: str = "") -> RunData:
    """Return a run with 8 members at 1, 2, ... ms, one of which left, and 40 other networks."""
    rng = random.Random(0)
    others = [
        PagePoint(
            f"{100 + i:012x}", _figures(0.45, 1.5 + 7 * rng.random()), [("width", 8)], 100 + i
        )
        for i in range(40)
    ]
    members = [_member(i, "left the front" if i == 7 else "") for i in range(8)]
    return RunData(name, [*members, *others], group, 3)


@pytest.fixture
def single_page(open_page: Callable[[Page], OpenedPage]) -> OpenedPage:
    explorer = FrontExplorer("Front", OBJECTIVES, SHOWN, [_run()], {"latency_ms": 20.0})
    log = [
        DecisionRow("trial 0", "front", "a enters"),
        DecisionRow("trial 1", "refused", "b refused"),
    ]
    page = Page("run", [explorer], ["How to read it."], log=log, facts=[("target", "npu")])
    return open_page(page)


def test_page_makes_no_requests_and_has_no_errors(single_page: OpenedPage) -> None:
    assert [url.partition(":")[0] for url in single_page.requests] == ["file"]
    assert single_page.console == []
    assert "48 of 48 networks fit, 8 of 8 verified networks." in single_page.counts()
    assert "Highest accuracy of a member that fits: 84.00% (000000000007)" in single_page.counts()
    assert "rejected 3 more" in single_page.counts()
    assert single_page.tab.locator(".plot").count() == 2


@pytest.mark.slow
def test_baseline_is_drawn_with_known_figures(
    open_page: Callable[[Page], OpenedPage],
) -> None:
    figures = _figures(0.8, 30.0)
    overlay = OverlaidFront(
        "baseline b", [figures, {n: figures[n] for n in ("accuracy", "latency_ms")}]
    )
    page = open_page(
        Page("run", [FrontExplorer("Front", OBJECTIVES, SHOWN, [_run()], beside=overlay)])
    )
    assert page.console == []
    assert "baseline b" in page.tab.locator(".legend").inner_text()
    assert (
        "48 of 48 networks fit, 8 of 8 verified networks" in page.counts()
    )  # the baseline is not counted
    canvas = page.tab.locator(".plot canvas").first
    image = canvas.evaluate("canvas => canvas.toDataURL()")
    page.tab.get_by_label("baseline", exact=True).uncheck()
    page.tab.wait_for_timeout(200)
    assert canvas.evaluate("canvas => canvas.toDataURL()") != image


@pytest.mark.slow
def test_ticks_of_narrow_range_are_distinct(single_page: OpenedPage) -> None:
    script = "ticks(0.00524, 0.00526, false, 7).map((tick) => tickText(tick, {}))"
    ticks = single_page.tab.evaluate(
        f"(() => {{{asset('data.js')}{asset('elements.js')}return {script}}})()"
    )
    assert len({*ticks}) == len(ticks) > 2
    assert {"0.00524", "0.005245", "0.00525"} <= {*ticks}


@pytest.mark.slow
def test_hover_shows_figures_and_choices(single_page: OpenedPage) -> None:
    canvas = single_page.tab.locator(".plot .canvas").first
    single_page.tab.mouse.move(*single_page.position(canvas, 6))
    text = " ".join(single_page.tab.locator(".tooltip").inner_text().split())
    for expected in (
        "trial 6", "searched verified accuracy 80.00% (79.00% to 81.00%) [measured] 79.00% (78",
        "latency 7 ms (6.3 to 7.7) [modelled] 7.01 ms", "on the front", "width = 8", "kernel = 3x3",
    ):  # fmt: skip
        assert expected in text


def test_click_and_box_select_networks(single_page: OpenedPage) -> None:
    tab = single_page.tab
    canvas = tab.locator(".plot .canvas").first
    x, y = single_page.position(canvas, 6)
    tab.mouse.click(x, y)
    tab.wait_for_selector(".members tr.chosen")
    chosen = tab.locator(".members tr.chosen td:nth-child(2)")
    assert chosen.all_inner_texts() == [f"{6:012x}"]
    assert "1 network selected" in tab.locator(".picked").inner_text()
    box = canvas.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 64, box["y"] + 14)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 46, steps=4)
    tab.mouse.up()
    tab.wait_for_selector("text=48 networks selected")
    tab.get_by_label("show the selection instead").check()
    assert len(single_page.ids()) == 48
    tab.keyboard.press("Escape")
    tab.wait_for_selector("text=Hover over a point")
    assert len(single_page.ids()) == 8


@pytest.mark.slow
def test_table_row_selects_network(single_page: OpenedPage) -> None:
    single_page.tab.get_by_label(f"select {3:012x}").check()
    single_page.tab.wait_for_selector("text=1 network selected")
    single_page.tab.get_by_text("Clear selection").click()
    single_page.tab.wait_for_selector(".members tr.chosen", state="detached")


@pytest.mark.slow
def test_axis_brush_selects_networks(single_page: OpenedPage) -> None:
    tab = single_page.tab
    canvas = tab.locator(".part .canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    x = box["x"] + 30 + (box["width"] - 110) / 4  # the second axis of five: width, from below
    bottom = box["y"] + box["height"] - 26
    tab.mouse.move(x, bottom - 250)
    tab.mouse.down()
    tab.mouse.move(x, bottom - 260 * 2 / 3, steps=3)
    tab.mouse.up()
    tab.wait_for_selector("text=2 networks selected")  # of width 24: members 2 and 5
    assert tab.locator(".members tr.chosen").count() == 2


def test_limit_greys_out_infeasible_networks(single_page: OpenedPage) -> None:
    canvas = single_page.tab.locator(".plot canvas").first
    before = canvas.screenshot()
    single_page.limit(0, "4.5")  # upper ends: 1.111, 2.211, 3.311, 4.411, 5.511 ms
    single_page.tab.wait_for_selector("text=4 of 8 verified networks")
    assert single_page.ids() == [f"{i:012x}" for i in range(4)]
    assert "Highest accuracy of a member that fits: 64.00%" in single_page.counts()
    assert canvas.screenshot() != before
    slider = single_page.tab.locator(".slider input[type=range]").first
    slider.fill("0")
    single_page.tab.wait_for_selector("text=1 of 8 verified networks")
    single_page.tab.get_by_text("Reset limits").click()
    single_page.tab.wait_for_selector("text=48 of 48 networks fit")
    assert single_page.tab.locator(".slider input[type=number]").first.input_value() == "20"


@pytest.mark.slow
def test_page_without_limits_has_no_sliders(open_page: Callable[[Page], OpenedPage]) -> None:
    page = open_page(Page("run", [FrontExplorer("Front", OBJECTIVES, SHOWN, [_run()])]))
    assert page.console == []
    assert page.tab.locator(".slider").count() == 0
    assert "Reset limits" not in page.counts()


@pytest.mark.slow
def test_limit_equal_to_figure_is_met(open_page: Callable[[Page], OpenedPage]) -> None:
    limits = {"latency_ms": 20.0, "energy_mj": 2.0}
    page = open_page(Page("run", [FrontExplorer("Front", OBJECTIVES, SHOWN, [_run()], limits)]))
    page.limit(1, "0.301")  # not exact as a 32-bit float
    page.tab.wait_for_selector("text=3 of 8 verified networks")


def test_table_sorts_by_any_column(single_page: OpenedPage) -> None:
    rising = [f"{i:012x}" for i in range(8)]
    assert single_page.ids() == rising  # by latency
    head = single_page.tab.get_by_role("button", name="accuracy verified")
    head.click()
    assert single_page.ids() == rising
    head.click()
    assert single_page.ids() == rising[::-1]
    sort = single_page.tab.locator("th[aria-sort=descending]").all_inner_texts()
    assert [text.split("\n")[0] for text in sort] == ["accuracy verified ▼"]


@pytest.mark.slow
def test_download_has_feasible_rows_in_table_order(single_page: OpenedPage) -> None:
    single_page.limit(0, "4.5")
    single_page.tab.get_by_role("button", name="energy [mJ] verified").click()
    single_page.tab.get_by_role("button", name="energy [mJ] verified").click()
    with single_page.tab.expect_download() as download:
        single_page.tab.get_by_text("Download these 4 rows as CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert [row["id"] for row in rows] == [f"{i:012x}" for i in (3, 2, 1, 0)]
    assert rows[0]["run"] == "run"
    assert rows[0]["trial"] == "3"
    assert float(rows[0]["accuracy"]) == 0.65
    assert float(rows[0]["verified_latency_ms"]) == 4.01
    assert float(rows[0]["verified_latency_ms_high"]) == 4.411
    assert rows[0]["energy_mj_low"] == ""
    assert rows[0]["width"] == "8"
    assert rows[0]["kernel"] == "3x3"


def _wide_run(n_members: int) -> RunData:
    """Return a run with many members, and the 40 other networks of ``_run``."""
    members = [
        PagePoint(
            f"{i:012x}", _figures(0.5 + i / 100, 1.0 + i), [("width", 8 * (i % 3 + 1))], i, True,
            _figures(0.49 + i / 100, 1.01 + i),
        )
        for i in range(n_members)
    ]  # fmt: skip
    return RunData("run", [*members, *_run().points[8:]], "", 3)


@pytest.mark.slow
def test_preferences_show_fractions(open_page: Callable[[Page], OpenedPage]) -> None:
    explorer = FrontExplorer("Front", OBJECTIVES, SHOWN, [_wide_run(21)])
    page = open_page(Page("run", [explorer]))
    card = page.tab.locator(".card", has_text="width")
    texts = ["".join(text.split()) for text in card.locator("tr").all_inner_texts()]
    assert texts == ["833%of77%", "1633%of11%", "2433%of11%"]  # 21 members; 61 in all
    page.tab.mouse.click(*page.position(page.tab.locator(".plot .canvas").first, 6))
    page.tab.wait_for_selector(".members tr.chosen")
    assert "fraction of the 1 network of the selection" in page.tab.content()


@pytest.mark.slow
def test_preferences_need_many_members(single_page: OpenedPage) -> None:
    assert single_page.tab.locator(".card").count() == 0


@pytest.mark.slow
def test_log_lines_are_hidden_by_kind(single_page: OpenedPage) -> None:
    lines = single_page.tab.locator(".lines li")
    assert [line.is_visible() for line in lines.all()] == [True, True]
    single_page.tab.locator(".log").get_by_label("refused").uncheck()
    assert [line.is_visible() for line in lines.all()] == [True, False]


def test_names_are_escaped(open_page: Callable[[Page], OpenedPage]) -> None:
    figures = _figures(0.5, 1.0)
    evil = [
        PagePoint(EVIL, figures, [(EVIL, EVIL)], 0, True, figures, EVIL),
        PagePoint("2", figures, [(EVIL, 2)]),
        *(PagePoint(f"x{i}", figures, [(EVIL, EVIL)], i, True, figures) for i in range(20)),
    ]
    runs = [RunData(EVIL, evil, EVIL), _run("other", "b")]
    explorer = FrontExplorer(EVIL, OBJECTIVES, SHOWN, runs, notes=[EVIL], link=(EVIL, EVIL))
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    page = Page(
        EVIL, [explorer], [EVIL], [PageTable(EVIL, [EVIL], [[EVIL]], EVIL)],
        [SvgFigure(EVIL, svg, EVIL)], [DecisionRow(EVIL, EVIL, EVIL)], [(EVIL, EVIL)],
    )  # fmt: skip
    opened_page = open_page(page)
    opened_page.tab.get_by_label(f"select {EVIL}").check()
    assert EVIL in opened_page.ids()
    canvas = opened_page.tab.locator(".plot .canvas").first
    opened_page.tab.mouse.move(*opened_page.position(canvas, 0))
    assert opened_page.tab.locator(".tooltip b").inner_text() == EVIL
    assert opened_page.tab.locator(".card h4", has_text="alert(1)").count() == 1
    assert opened_page.tab.locator(".groups", has_text=EVIL).count() == 1
    assert opened_page.tab.locator("script").count() == 1
    with opened_page.tab.expect_download() as download:
        opened_page.tab.get_by_text(re.compile("Download these .* rows")).click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert EVIL in [row["id"] for row in rows]
    assert opened_page.dialogs == []
    assert opened_page.console == []


def test_groups_are_hidden_and_shown(open_page: Callable[[Page], OpenedPage]) -> None:
    runs = [_run("a1", "a"), _run("a2", "a"), _run("b1", "b")]
    page = open_page(Page("runs", [FrontExplorer("Fronts", OBJECTIVES, SHOWN, runs)]))
    assert len(page.ids()) == 24
    page.tab.get_by_label("a (2 runs)").uncheck()
    page.tab.wait_for_selector("text=48 of 48 networks fit")
    assert len(page.ids()) == 8
    assert {*page.tab.locator(".members td:nth-child(3)").all_inner_texts()} == {"b1"}


@pytest.mark.slow
def test_selection_is_shared_by_sections(open_page: Callable[[Page], OpenedPage]) -> None:
    sections = [FrontExplorer(name, OBJECTIVES, SHOWN, [_run()]) for name in ("npu", "cpu")]
    page = open_page(Page("joint", sections))
    first, second = page.tab.locator("section.explorer").all()
    first.get_by_label(f"select {3:012x}").check()
    page.tab.locator("tr.chosen").nth(1).wait_for()
    assert second.locator("tr.chosen td:nth-child(2)").inner_text() == f"{3:012x}"
    second.get_by_text("Clear selection").click()
    page.tab.wait_for_selector("tr.chosen", state="detached")
    assert page.console == []


@pytest.mark.slow
def test_foreign_fronts_need_only_ids_and_objectives(
    open_page: Callable[[Page], OpenedPage],
) -> None:
    columns = {
        "error": metrics.all_metrics()["latency_ms"],
        "speed": metrics.all_metrics()["accuracy"],
    }
    points = [
        PagePoint(str(i), {"error": Quantity(i, "measured"), "speed": Quantity(i * i, "measured")},
              on_front=True)
        for i in range(5)
    ]  # fmt: skip
    runs, limits = [RunData("t", points)], {"speed": 1.0}
    page = open_page(Page("csv", [FrontExplorer("Fronts", list(columns), columns, runs, limits)]))
    assert page.console == []
    assert page.ids() == list("1234")
    page.limit(0, "4")  # a lower limit, as the metric is maximised
    page.tab.wait_for_selector("text=3 of 5 networks fit")
    assert page.tab.locator(".part").count() == 1  # there are no choices


@pytest.mark.slow
def test_errors_have_intervals_and_rows_are_sorted_by_cost(
    open_page: Callable[[Page], OpenedPage],
) -> None:
    def figures(mae: float, ms: float) -> Quantities:
        return {
            "mae": Quantity(mae, "measured", mae - 1, mae + 1),
            "latency_ms": Quantity(ms, "modelled"),
        }  # fmt: skip

    points = [
        PagePoint(str(i), figures(9.0 - i, 1.0 + i), (), i, True, figures(9.5 - i, 1.0 + i))
        for i in range(3)
    ]
    names = ("mae", "latency_ms")
    shown = {name: metrics.all_metrics()[name] for name in names}
    page = open_page(Page("run", [FrontExplorer("Front", names, shown, [RunData("run", points)])]))
    assert page.ids() == ["0", "1", "2"]
    cells = page.tab.locator("tr", has=page.tab.get_by_label("select 0")).locator("td")
    assert {"9 8 to 10", "9.5 8.5 to 10.5"} <= {*cells.all_inner_texts()}


@pytest.mark.slow
def test_unverified_members_are_marked(
    open_page: Callable[[Page], OpenedPage],
) -> None:
    unverified = [
        PagePoint("a", _figures(0.5, 1.0), on_front=True),
        PagePoint("b", _figures(0.4, 1.0)),
    ]
    runs = [_run("ours"), RunData("theirs", unverified)]
    page = open_page(Page("both", [FrontExplorer("Fronts", OBJECTIVES, SHOWN, runs)]))
    row = page.tab.locator("tr", has=page.tab.get_by_label("select a"))
    cells = row.locator("td").all_inner_texts()
    assert cells[1:5] == ["a", "theirs", NONE, "not verified"]
    assert cells[7] == "1 0.9 to 1.1"  # searched latency
    assert cells[8] == NONE
    assert page.console == []


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.slow
def test_page_fits_window_width(single_page: OpenedPage, width: int) -> None:
    single_page.tab.set_viewport_size({"width": width, "height": 800})
    wide = single_page.tab.locator(".plot .canvas").first
    for _ in range(100):  # it is redrawn in the next frame
        if wide.evaluate("canvas => canvas.clientWidth") <= width:
            break
        single_page.tab.wait_for_timeout(50)
    assert single_page.tab.evaluate("document.documentElement.scrollWidth") <= width


def _many_runs(n_runs: int, n: int) -> list[RunData]:
    rng = np.random.default_rng(0)
    pairs = [[(f"stages.{j}.width", option) for option in range(4)] for j in range(27)]
    runs = []
    for r in range(n_runs):
        codes = rng.integers(0, 4, (n, 27)).tolist()
        values = np.stack([rng.random(n), 1 + rng.random(n)], axis=1).tolist()
        points = []
        for i, ((accuracy, ms), code) in enumerate(zip(values, codes, strict=True)):
            figures = dict(_figures(accuracy, ms))
            for name in metrics.all_metrics().keys() - figures.keys():
                figures[name] = figures["latency_ms"]
            options = [pairs[j][k] for j, k in enumerate(code)]
            on_front = i < 200
            points.append(
                PagePoint(f"{rng.integers(1 << 48):012x}", figures, options, i, on_front,
                      figures if on_front else {})
            )  # fmt: skip
        runs.append(RunData(f"run {r}", points, f"group {r % 4}"))
    return runs


@pytest.mark.slow
def test_page_with_100000_points_opens_quickly(open_page: Callable[[Page], OpenedPage]) -> None:
    page = Page(
        "many", [FrontExplorer("Fronts", OBJECTIVES, metrics.all_metrics(), _many_runs(20, 5_000))]
    )
    opened_page = open_page(page)
    size = len(render(page).encode()) / 1e6
    seconds = float(opened_page.tab.evaluate("document.documentElement.dataset.ready")) / 1000
    print(f"{size:.1f} MB, opened in {seconds:.2f} s")
    assert opened_page.console == []
    assert "100,000 of 100,000 networks fit, 4,000 of 4,000" in opened_page.counts()
    assert size < 18  # with all metrics
    assert seconds < 20  # 3 s on an idle machine
