"""The verb ``why`` on the command line."""

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
    """Return a table of 512 networks with three choices."""
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
    """Search in the table and return the candidates."""
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
    """Return a function that runs ``why`` and returns its output without line breaks."""
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
def test_why_explains_front_member(table: Path, tmp_path: Path, why: Why) -> None:
    rows = _search(table, tmp_path / "r", "sampler=pareto", "n_trials=40", "seed=1")
    front_text = why(tmp_path / "r", "front")
    members = [row for row in rows if row["id"] in front_text]
    assert f"Front of {len(members)} as searched (40 trials, finished)" in front_text
    last_member = max(members, key=lambda row: int(row["trial"]))
    text = why(tmp_path / "r", last_member["id"][:6])
    assert (
        f"{last_member['id']}: on the front (trial {last_member['trial']}; 40 trials, finished)"
        in text
    )
    assert f"a={last_member['a']} b={last_member['b']} c={last_member['c']}" in text
    assert "by pareto: the highest expected gain of" in text
    assert f"found {last_member['accuracy']:.4g}," in text
    assert "the interval. Of 30 such intervals of this search," in text
    assert "of the hypervolume of the front at that time." in text
    assert "Nothing beat it: it joined the front." in text
    dominated = [
        row
        for row in rows
        if row["accuracy"] <= last_member["accuracy"]
        and row["latency_ms"] >= last_member["latency_ms"]
    ]
    assert f"It beats {len(dominated) - 1} of 39 others that were scored." in text
    assert f"It is on the front of {len(members)}. Its neighbours there:" in text


def test_why_explains_dominated_candidate(table: Path, tmp_path: Path, why: Why) -> None:
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
def test_why_shows_records_of_other_samplers(
    table: Path, tmp_path: Path, why: Why, sampler: str, first: str, last: str
) -> None:
    rows = _search(table, tmp_path / "r", f"sampler={sampler}", "n_trials=12")
    assert first in why(tmp_path / "r", rows[0]["id"])
    assert last in why(tmp_path / "r", rows[-1]["id"])


def test_why_names_binding_limit(table: Path, tmp_path: Path, why: Why) -> None:
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


def test_why_explains_infeasible_run(table: Path, tmp_path: Path, why: Why) -> None:
    limit = ("sampler=pareto", "n_trials=5", "budget.latency_ms=0.5")
    rows = _search(table, tmp_path / "r", *limit, code=2)
    text = why(tmp_path / "r", rows[0]["id"])
    assert "5 trials, nothing fits the budget" in text
    assert "nothing else was known to fit the limits, so the smallest was tried" in text
    assert "Front of 0" in why(tmp_path / "r", "front")


def test_why_does_not_modify_running_search(table: Path, tmp_path: Path, why: Why) -> None:
    rows = _search(table, tmp_path / "r", "n_trials=12")
    folder = RunFolder(tmp_path / "r")
    manifest = folder.reopen()  # locked, as by a search
    folder.write_json("manifest.json", manifest | {"status": "running"})
    before = {p.name: p.read_bytes() for p in folder.path.iterdir()}
    assert "12 of 12 trials so far" in why(folder.path, rows[0]["id"])
    assert {p.name: p.read_bytes() for p in folder.path.iterdir()} == before
    folder.close()


def _record(figures: dict[str, Quantity]) -> Row:
    values = {name: figure.to_json() for name, figure in figures.items()}
    return {"genotype": {}, "figures": values, "details": {}, "files": {}}


def test_why_shows_verified_figures(table: Path, tmp_path: Path, why: Why) -> None:
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
    assert "It is verified, but not a member of the front." in why(folder.path, first)
    for stays, message_part in ((True, "it stays within the budget"), (False, "it left the front")):
        row = {"id": first, "verified_on_front": stays, "verified_fits_budget": True}
        row |= figures["latency_ms"].columns("verified_latency_ms")
        row |= Quantity(0.25, "measured").columns("accuracy")
        row |= figures["latency_ms"].columns("latency_ms")
        row |= figures["accuracy_int8"].columns("verified_accuracy_int8")
        objectives = {"accuracy": "max", "latency_ms": "min"}
        folder.write_json("front.json", {"objectives": objectives, "members": [row]})
        assert f"By its own files {message_part}" in why(folder.path, first)
    ratios = dict(zip(RATIOS, (0.95, 0.9, 1.1), strict=True))
    folder.write_json(f"models/{first}.json", record | {"details": ratios})
    message = (
        "it is not delivered: in int8 it takes 0.95 times (0.90 to 1.10) as long as in float32"
    )
    assert f"By its own files {message}" in why(folder.path, first)


def test_why_names_target_that_cannot_run_network() -> None:
    figures = {name: Quantity(0.5, "measured") for name in ("accuracy", "a.latency_ms")}
    candidate = Candidate(0, Genotype("s", ()), figures)
    objectives = ("accuracy", "a.latency_ms", "b.latency_ms")
    explanation = explain([candidate], candidate.id, objectives)
    message = f"{candidate.id}: on no front for all targets, as one of them cannot run it"
    assert _headline(explanation, "1 trials, finished", None).startswith(message)


def _error_line(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    capsys.readouterr()
    assert run(["why", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_invalid_arguments_are_reported_in_one_line(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    folder = tmp_path / "r"
    _search(table, folder, "n_trials=12")
    run_option = f"run={folder}"
    assert "folder not found" in _error_line(capsys, [f"run={tmp_path / 'x'}", "id=a"])
    assert "not a run" in _error_line(capsys, [f"run={tmp_path}", "id=a"])
    assert run(["why", run_option]) == 0  # lists the front
    assert "needs the folder of a search: write hwnas why RUN" in _error_line(capsys, ["id=a"])
    assert "none of 12 candidates has this id. Similar ids: " in _error_line(
        capsys, [run_option, "id=abc"]
    )
    assert "id=other is not an id: ids have hexa" in _error_line(capsys, [run_option, "id=other"])
    assert "select a network by its id." in _error_line(capsys, [run_option, "id=knee"])
    # Hydra would read an infinite number.
    assert "id=1e5000000000: none of 12" in _error_line(capsys, [run_option, "id=1e5000000000"])
    assert "Unknown option 'idd'. Did you mean 'id'?" in _error_line(capsys, [run_option, "idd=a"])
    (folder / "study.db").write_bytes(b"")
    assert "cannot be read or written, or holds nothing yet" in _error_line(
        capsys, [run_option, "id=a"]
    )
    (folder / "study.db").unlink()
    assert "study.db is missing" in _error_line(capsys, [run_option, "id=a"])
    (folder / "candidates.parquet").unlink()
    edit(folder, "status", "running")
    assert "no trial is finished yet" in _error_line(capsys, [run_option, "id=a"])
    RunFolder(folder).write_json("manifest.json", {"format": 2, "verb": "compare", "arguments": []})
    assert "is of 'hwnas compare'. Give the folder of a search." in _error_line(
        capsys, [run_option, "id=a"]
    )


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
def test_ids_are_quoted_for_hydra(argument: str, expected: str) -> None:
    assert for_hydra(argument) == expected


def test_why_help_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: hwnas why RUN [ID]")
    assert "target" not in text
    assert "search_space" not in text


def test_why_explains_supernet_search(
    tmp_path: Path, why: Why, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["search", *QUICK, "budget.sram_kib=1", "run.dir=r"]) == 2  # trains nothing
    rows = pq.read_table("r/candidates.parquet").to_pylist()
    text = why(Path("r"), rows[3]["id"])
    assert "stages.0 depth=" in text
    assert "It was not scored: budget.sram_kib binds most" in text
    assert "latency [ms]" in text
