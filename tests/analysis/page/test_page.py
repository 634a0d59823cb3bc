import random
import struct
from dataclasses import replace

import pytest

from hwnas.analysis import search_page
from hwnas.analysis.figures import front_figure, front_png
from hwnas.analysis.page.data import (
    DecisionRow,
    FrontExplorer,
    Page,
    PagePoint,
    PageTable,
    RunData,
    SvgFigure,
    content,
)
from hwnas.analysis.page.html import render, with_section
from hwnas.analysis.search_page import FrontData
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import NEAR, Member, verified_names
from hwnas.tasks.metrics import Metric, metric_of
from hwnas.tasks.metrics.budget import Budget

OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")
EVIL = "</script><script>alert(1)</script>"


@pytest.fixture
def candidates(tiny: SearchSpace) -> list[Candidate]:
    rng = random.Random(0)
    costs = {"latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m"}
    return [
        Candidate(
            n,
            tiny.sample(rng),
            {
                "accuracy": Quantity(0.5 + n / 100, "measured", 0.4 + n / 100, 0.6 + n / 100),
                **{name: Quantity(1.0 + n, "modelled") for name in costs},
            },
        )
        for n in range(12)
    ]


@pytest.fixture
def members(candidates: list[Candidate]) -> list[Member]:
    figures = {
        name: Quantity(0.5, "measured", 0.4, 0.6)
        if name.startswith("accuracy")
        else Quantity(2.0, "compiler-estimate")
        for name in verified_names("accuracy")
    }
    first = Member(candidates[0], figures, {}, {f"{candidates[0].id}.tflite": "ab"})
    return [first, Member(candidates[5], figures, {"cycles": 5.0}, {}, ("latency_ms",), False)]


def test_front_picture_has_fixed_size(candidates: list[Candidate], members: list[Member]) -> None:
    budget = Budget({"latency_ms": 3.0})
    png = front_png(FrontData(candidates, members, OBJECTIVES, budget, title="title"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (1200, 750)


def test_picture_separates_left_and_near_members(
    candidates: list[Candidate], members: list[Member]
) -> None:
    near = replace(members[0], candidate=candidates[1], on_front=False, near_front=True)

    def drawn(*shown: Member, **limits: float) -> tuple[str, set[str]]:
        front = FrontData(candidates, shown, OBJECTIVES, Budget(limits), title="title")
        (axes,) = front_figure(front).axes
        assert axes.get_title() == "title"
        return axes.get_xscale(), set(axes.get_legend_handles_labels()[1])

    left_label, near_label = "verified: left the front or the budget", f"verified: {NEAR}"
    assert drawn(members[0], near)[1] >= {near_label}
    assert left_label not in drawn(members[0], near)[1]
    assert drawn(*members, near)[1] >= {near_label, left_label}
    assert drawn(members[0])[0] == "log", "costs from 1 to 12"
    del candidates[8:]
    assert drawn(members[0])[0] == "linear"
    assert drawn(members[0], latency_ms=500)[0] == "log"


def test_page_is_self_contained_and_lists_members(
    candidates: list[Candidate], members: list[Member]
) -> None:
    front = FrontData(candidates, members, OBJECTIVES, Budget({"latency_ms": 3.0}))
    page = render(search_page.single("run", front, [("target", "npu")]))
    assert "<script src" not in page
    assert "<link" not in page
    assert "default-src 'none'" in page
    assert "over budget.latency_ms" in page
    assert f"verified</b> {members[0].candidate.id} fits, on the front" in page
    assert '"name":"stages.0.depth"' in page  # the genotypes
    assert '"limit":3.0' in page
    assert "<th>target</th><td>npu</td>" in page
    assert len(page) < 200_000


def test_names_are_escaped(candidates: list[Candidate], members: list[Member]) -> None:
    genotype = Genotype("tiny", ((EVIL, EVIL),))
    candidate = Candidate(99, genotype, candidates[0].figures, reason="")
    member = Member(candidate, members[0].figures, {}, {})
    rejected = Candidate(100, Genotype("tiny", ((EVIL, 1),)), {}, reason=EVIL)
    front = FrontData([*candidates, candidate, rejected], [member], OBJECTIVES, Budget())
    page = render(search_page.single(EVIL, front, [(EVIL, EVIL)]))
    point = PagePoint(EVIL, {"a": Quantity(1, "measured"), "b": Quantity(2, "measured")})
    columns = {"a": Metric(EVIL, EVIL), "b": Metric(EVIL, "")}
    explorer = FrontExplorer(
        EVIL, ["a", "b"], columns, [RunData(EVIL, [point], EVIL)], notes=[EVIL], link=(EVIL, EVIL)
    )
    table, picture = PageTable(EVIL, [EVIL], [[EVIL]], EVIL), SvgFigure(EVIL, EVIL, EVIL)
    page += render(Page(EVIL, [explorer], [EVIL], [table], [picture]))
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert page.count("</script>") == 4  # data and scripts of both pages


def test_section_replaces_earlier_section() -> None:
    page = render(Page("title", [], facts=[("target", "npu")]))
    once = with_section(page, "audit", "<p>earlier</p>")
    assert once is not None
    twice = with_section(once, "audit", "<p>second</p>")
    assert twice is not None
    assert "earlier" not in twice
    assert twice.index("second") < twice.index("<h2>Run</h2>")
    assert with_section(twice, "audit", "<p>earlier</p>") == once
    assert with_section("<html></html>", "audit", "") is None


def test_long_log_keeps_last_lines() -> None:
    lines = [DecisionRow(f"trial {i}", "front", f"line {i} of the log") for i in range(3_001)]
    page = render(Page("title", [], log=lines))
    assert "The last 3,000 of 3,001 lines." in page
    assert "line 0 of" not in page
    assert "line 3000 of" in page


def test_empty_front_has_page() -> None:
    explorer = FrontExplorer("Front", OBJECTIVES, {}, [], notes=["Nothing fits."])
    assert "Nothing fits." in render(Page("title", [explorer]))


def test_member_row_has_searched_and_verified_columns(
    members: list[Member], tiny: SearchSpace
) -> None:
    row = members[1].row(tiny)
    for name in ("accuracy", "latency_ms", "verified_accuracy_int8", "verified_latency_ms"):
        assert {name, f"{name}_low", f"{name}_high", f"{name}_source"} <= set(row)
    assert row["verified_cycles"] == 5.0
    assert row["verified_fits_budget"] is False
    assert row["verified_on_front"] is False


def test_plot_of_target_cost_uses_accuracy_of_target() -> None:
    names = ("accuracy", "npu.accuracy", "npu.latency_ms", "latency_ms")
    columns = {name: metric_of(name) for name in names}
    point = PagePoint("a", {name: Quantity(1.0, "measured") for name in names})
    objectives = ("accuracy", "npu.latency_ms", "latency_ms")
    page_content = content(
        FrontExplorer("", objectives, columns, [RunData("run", [point])]), n_runs=1
    )
    assert [(p["x"], p["y"], p["verified"]) for p in page_content["plots"]] == [
        (2, 0, 1),
        (3, 0, 0),
    ]
