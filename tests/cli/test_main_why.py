"""``why`` as its users start it."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hwnas.__main__ import run
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row, RunFolder
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.explanation import explain
from hwnas.workflows.config.arguments import for_hydra
from hwnas.workflows.why import _headline
from tests.conftest import SHARED_WEIGHTS
from tests.core.unusable import edit

Why = Callable[..., str]

QUICK = (
    "+target=npu",
    "search_space=tiny",
    "train.epochs=1",
    *SHARED_WEIGHTS,
    "n_trials=10",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 512 networks of three choices; the fourth makes no difference."""
    rows = [
        {"a": a, "b": b, "c": c, "acc": 40 + 5 * a + 2 * b - 0.1 * c * a, "ms": 1.0 + a + 0.3 * b}
        for a in range(8)
        for b in range(8)
        for c in range(8)
    ]
    path = tmp_path_factory.mktemp("table") / "cells.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _search(table: Path, folder: Path, *more: str, code: int = 0) -> list[Row]:
    """Search in the table; return the candidates."""
    arguments = [
        "search", "accuracy=table", "cost=table", f"benchmark.path={table}",
        "benchmark.genotype=[a,b,c]", "benchmark.accuracy=acc",
        "benchmark.costs={latency_ms: ms}", f"run.dir={folder}", *more,
    ]  # fmt: skip
    assert run(arguments) == code
    rows: list[Row] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return rows


@pytest.fixture
def why(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Why:
    """Return what ``why`` prints, without its line breaks."""
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    monkeypatch.setenv("COLUMNS", "90")

    def printed(folder: Path, genotype_id: str) -> str:
        capsys.readouterr()
        assert run(["why", f"run={folder}", f"id={genotype_id}"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 90
        assert "\x1b" not in out
        return " ".join(out.split())

    return printed


@pytest.mark.slow
def test_members_of_the_front_and_what_they_beat(table: Path, tmp_path: Path, why: Why) -> None:
    rows = _search(table, tmp_path / "r", "sampler=pareto", "n_trials=40", "seed=1")
    listed = why(tmp_path / "r", "front")
    members = [row for row in rows if row["id"] in listed]
    assert f"Front of {len(members)} as searched (40 trials, finished)" in listed
    late = max(members, key=lambda row: int(row["trial"]))
    text = why(tmp_path / "r", late["id"][:6])
    assert f"{late['id']}: on the front (trial {late['trial']}; 40 trials, finished)" in text
    assert f"a={late['a']} b={late['b']} c={late['c']}" in text
    assert "by pareto: the highest expected gain of" in text
    assert f"found {late['accuracy']:.4g}," in text
    assert "the interval. Of 30 such intervals of this search," in text
    assert "of the hypervolume of the front at that time." in text
    assert "Nothing beat it: it joined the front." in text
    beaten = [
        row
        for row in rows
        if row["accuracy"] <= late["accuracy"] and row["latency_ms"] >= late["latency_ms"]
    ]
    assert f"It beats {len(beaten) - 1} of 39 others that were scored." in text
    assert f"It is on the front of {len(members)}. Its neighbours there:" in text


def test_dominated_candidates_and_what_beats_them(table: Path, tmp_path: Path, why: Why) -> None:
    rows = _search(table, tmp_path / "r", "sampler=pareto", "n_trials=40", "seed=1")
    front = why(tmp_path / "r", "front")
    row = next(row for row in rows if row["id"] not in front)
    text = why(tmp_path / "r", row["id"])
    assert f"{row['id']}: dominated" in text
    assert "picked to spread the first trials over the range of costs" in text
    after = text.partition("Now")[2]
    assert "It is beaten by" in after
    assert any(other["id"] in after for other in rows if other["id"] in front)


@pytest.mark.parametrize(
    ("sampler", "first", "last"),
    [
        ("nsga2", "one of the fixed first trials", "by nsga2: its first generation, random"),
        ("tpe", "one of the fixed first trials", "by tpe, which records no reasons"),
    ],
)
def test_other_samplers_say_what_they_record(
    table: Path, tmp_path: Path, why: Why, sampler: str, first: str, last: str
) -> None:
    rows = _search(table, tmp_path / "r", f"sampler={sampler}", "n_trials=12")
    assert first in why(tmp_path / "r", rows[0]["id"])
    assert last in why(tmp_path / "r", rows[-1]["id"])


def test_infeasible_candidates_name_the_limit_that_binds(
    table: Path, tmp_path: Path, why: Why
) -> None:
    limit = ("sampler=random", "n_trials=12", "budget.latency_ms=4")
    rows = _search(table, tmp_path / "r", *limit)
    row = rows[1]  # the largest
    text = why(tmp_path / "r", row["id"])
    assert f"{row['id']}: infeasible" in text
    assert "budget.latency_ms 4: 10.1 breaks it by 152 %." in text
    assert "It was not scored: budget.latency_ms binds most, it would have to be 10.1." in text
    assert "When it came" not in text
    text = why(tmp_path / "r", rows[0]["id"])
    assert "budget.latency_ms 4: 1 leaves 75 %." in text


def test_run_in_which_nothing_fits(table: Path, tmp_path: Path, why: Why) -> None:
    limit = ("sampler=pareto", "n_trials=5", "budget.latency_ms=0.5")
    rows = _search(table, tmp_path / "r", *limit, code=2)
    text = why(tmp_path / "r", rows[0]["id"])
    assert "5 trials, nothing fits the budget" in text
    assert "nothing else was known to fit the limits, so the smallest was tried" in text
    assert "Front of 0" in why(tmp_path / "r", "front")


def test_run_that_goes_on_is_read_and_not_touched(table: Path, tmp_path: Path, why: Why) -> None:
    rows = _search(table, tmp_path / "r", "n_trials=12")
    folder = RunFolder(tmp_path / "r")
    manifest = folder.reopen()  # locked, as by a search
    folder.write_json("manifest.json", manifest | {"status": "running"})
    before = {p.name: p.read_bytes() for p in folder.path.iterdir()}
    assert "12 of 12 trials so far" in why(folder.path, rows[0]["id"])
    assert {p.name: p.read_bytes() for p in folder.path.iterdir()} == before
    folder.close()


def _record(figures: dict[str, Quantity]) -> Row:
    known = {name: figure.to_json() for name, figure in figures.items()}
    return {"genotype": {}, "figures": known, "details": {}, "files": {}}


def test_verified_figures_stand_beside_those_of_the_search(
    table: Path, tmp_path: Path, why: Why
) -> None:
    _search(table, tmp_path / "r", "n_trials=12", "budget.latency_ms=4")
    folder = RunFolder(tmp_path / "r")
    front = why(folder.path, "front")
    rows = pq.read_table(folder.path / "candidates.parquet").to_pylist()
    (first, *_) = [row["id"] for row in rows if row["id"] in front]
    figures = {
        "accuracy_int8": Quantity(0.25, "measured", 0.2, 0.3),
        "latency_ms": Quantity(3.9, "measured", 3.8, 4.2),
    }
    record = _record(figures)
    folder.write_json(f"models/{first}.json", record)
    text = why(folder.path, first)
    assert "verified int8 0.25 0.2 to 0.3 measured" in text
    assert "Verified, budget.latency_ms 4: upper end 4.2 breaks it by 5 %." in text
    assert "By its own files it leaves the budget." in text
    figures["latency_ms"] = Quantity(3.0, "measured")
    record = _record(figures)
    folder.write_json(f"models/{first}.json", record)
    assert "is known when the run has finished" in why(folder.path, first)
    for stays, words in ((True, "it stays within the budget"), (False, "it left the front")):
        row = {"id": first, "verified_on_front": stays, "verified_fits_budget": True}
        row |= figures["latency_ms"].columns("verified_latency_ms")
        row |= Quantity(0.25, "measured").columns("accuracy")
        row |= figures["latency_ms"].columns("latency_ms")
        row |= figures["accuracy_int8"].columns("verified_accuracy_int8")
        objectives = {"accuracy": "max", "latency_ms": "min"}
        folder.write_json("front.json", {"objectives": objectives, "members": [row]})
        assert f"By its own files {words}" in why(folder.path, first)
    ratios = dict(zip(RATIOS, (0.95, 0.9, 1.1), strict=True))
    folder.write_json(f"models/{first}.json", record | {"details": ratios})
    told = "it is not delivered: in int8 it takes 0.95 times (0.90 to 1.10) as long as in float32"
    assert f"By its own files {told}" in why(folder.path, first)


def test_what_a_target_cannot_run_is_told_so() -> None:
    figures = {name: Quantity(0.5, "measured") for name in ("accuracy", "a.latency_ms")}
    candidate = Candidate(0, Genotype("s", ()), figures)
    objectives = ("accuracy", "a.latency_ms", "b.latency_ms")
    explained = explain([candidate], candidate.id, objectives)
    told = f"{candidate.id}: on no front for all targets, as one of them cannot run it"
    assert _headline(explained, "1 trials, finished", None).startswith(told)


def _refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    capsys.readouterr()
    assert run(["why", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_one_line(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    folder = tmp_path / "r"
    _search(table, folder, "n_trials=12")
    here = f"run={folder}"
    assert "folder not found" in _refused(capsys, [f"run={tmp_path / 'x'}", "id=a"])
    assert "not a run" in _refused(capsys, [f"run={tmp_path}", "id=a"])
    assert run(["why", here]) == 0  # lists the front
    assert "needs the folder of a search: write hwnas why RUN" in _refused(capsys, ["id=a"])
    assert "none of 12 candidates has this id. Similar ids: " in _refused(capsys, [here, "id=xyz"])
    # Hydra would read a number, which is infinite.
    assert "id=1e5000000000: none of 12" in _refused(capsys, [here, "id=1e5000000000"])
    assert "Unknown option 'idd'. Did you mean 'id'?" in _refused(capsys, [here, "idd=a"])
    (folder / "study.db").write_bytes(b"")
    assert "cannot be read or written, or holds nothing yet" in _refused(capsys, [here, "id=a"])
    (folder / "study.db").unlink()
    assert "study.db is missing" in _refused(capsys, [here, "id=a"])
    (folder / "candidates.parquet").unlink()
    edit(folder, "status", "running")
    assert "no trial is finished yet" in _refused(capsys, [here, "id=a"])
    RunFolder(folder).write_json("manifest.json", {"format": 2, "verb": "compare", "arguments": []})
    assert "is of 'hwnas compare'. Give a search folder" in _refused(capsys, [here, "id=a"])


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("id=12e456789012", "id='12e456789012'"),
        ("run=it's here, (2)", "run='it\\'s here, (2)'"),
        ("id='12e4'", "id='12e4'"),
        ("seed=12e4", "seed=12e4"),
        ("benchmark.costs={a: b}", "++benchmark.costs={a: b}"),
    ],
)
def test_ids_reach_hydra_as_words(argument: str, expected: str) -> None:
    assert for_hydra(argument) == expected


def test_help_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: hwnas why RUN [ID]")
    assert "target" not in text
    assert "search_space" not in text


def test_search_with_a_supernet(tmp_path: Path, why: Why, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["search", *QUICK, "budget.sram_kib=1", "run.dir=r"]) == 2  # trains nothing
    rows = pq.read_table("r/candidates.parquet").to_pylist()
    text = why(Path("r"), rows[3]["id"])
    assert "stages.0 depth=" in text
    assert "It was not scored: budget.sram_kib binds most" in text
    assert "latency [ms]" in text
