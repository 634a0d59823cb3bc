import random
import struct

import pytest

from hwnas.figure import Figure
from hwnas.report.page import RunStory, render
from hwnas.report.plot import Panel, front_png
from hwnas.results import Candidate
from hwnas.search.verify import VERIFIED, Member
from hwnas.space import Genotype, SearchSpace
from hwnas.target import Budget

OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")


@pytest.fixture
def candidates(tiny: SearchSpace) -> list[Candidate]:
    rng = random.Random(0)
    costs = {"latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m"}
    return [
        Candidate(
            n,
            tiny.sample(rng),
            {
                "accuracy": Figure(0.5 + n / 100, "measured", 0.4 + n / 100, 0.6 + n / 100),
                **{name: Figure(1.0 + n, "modelled") for name in costs},
            },
        )
        for n in range(12)
    ]


@pytest.fixture
def members(candidates: list[Candidate]) -> list[Member]:
    verified = {
        name: Figure(0.5, "measured", 0.4, 0.6)
        if name.startswith("accuracy")
        else Figure(2.0, "compiler-estimate")
        for name in VERIFIED
    }
    first = Member(candidates[0], verified, {}, {f"{candidates[0].id}.tflite": "ab"})
    return [first, Member(candidates[5], verified, {"cycles": 5.0}, {}, ("latency_ms",), False)]


def test_picture_is_a_png_of_readable_size(
    candidates: list[Candidate], members: list[Member]
) -> None:
    png = front_png(Panel(candidates, members, "latency_ms", Budget(latency_ms=3.0), "title"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (1200, 750)


def test_page_is_self_contained_and_tells_what_left(
    candidates: list[Candidate], members: list[Member]
) -> None:
    story = RunStory("run", [("target", "npu")], Budget(latency_ms=3.0), OBJECTIVES)
    page = render(story, candidates, members)
    assert '<script src="' not in page
    assert "<link" not in page
    assert members[0].candidate.id in page
    assert "over budget.latency_ms" in page
    assert "stages.0.depth = " in page  # the genotype on hover
    assert "budget 3 ms" in page


def test_names_are_escaped(candidates: list[Candidate], members: list[Member]) -> None:
    evil = "<script>alert(1)</script>"
    genotype = Genotype("tiny", ((evil, evil),))
    candidate = Candidate(99, genotype, candidates[0].figures)
    member = Member(candidate, members[0].figures, {}, {})
    story = RunStory(evil, [(evil, evil)], Budget(), OBJECTIVES)
    page = render(story, [*candidates, candidate], [member])
    assert evil not in page


def test_member_row_has_searched_and_verified_columns(
    members: list[Member], tiny: SearchSpace
) -> None:
    row = members[1].row(tiny)
    for name in ("accuracy", "latency_ms", "verified_accuracy_int8", "verified_latency_ms"):
        assert {name, f"{name}_low", f"{name}_high", f"{name}_source"} <= set(row)
    assert row["verified_cycles"] == 5.0
    assert row["verified_fits_budget"] is False
    assert row["verified_on_front"] is False
