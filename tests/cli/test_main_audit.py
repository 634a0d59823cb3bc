"""``audit`` as its users start it."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import Genotype
from hwnas.training.evaluation.rank_audit import AuditedNetwork, AuditFinding
from hwnas.workflows import audit
from tests.conftest import SHARED_WEIGHTS
from tests.core.unusable import CHANGES

QUICK = (
    "+target=npu",
    "search_space=tiny",
    "train.epochs=2",
    *SHARED_WEIGHTS,
    "n_trials=6",
    "budget=none",
)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a search in ``run`` and its supernet in ``supernets``."""
    folder = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        arguments = [*QUICK, f"run.dir={folder / 'run'}", f"run.supernets={folder / 'supernets'}"]
        assert run(["search", *arguments]) == 0
    return folder


@pytest.fixture
def again(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the run."""
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    return Path(shutil.copytree(searched / "run", tmp_path / "run"))


@pytest.mark.slow
def test_audit_says_how_well_the_supernet_ranks_and_goes_on_where_it_was(
    again: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["audit", f"run={again}", "n_networks=6", "n_repeated=1", "epochs=1"]
    assert run(options) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "6 networks in the supernet and trained alone (1 epochs each" in out
    assert "1 networks trained twice" in out
    first = (again / "audit" / "audit.json").read_text()
    found = json.loads(first)
    assert found["format"] == 1
    value, low, high = found["kendall_tau"]
    assert low <= value <= high
    with (again / "audit" / "networks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["group"] for row in rows].count("space") >= 3
    assert len({row["id"] for row in rows}) == 6
    assert sum(bool(row["accuracy_alone_second_seed"]) for row in rows) == 1
    for row in rows:
        assert row["accuracy_supernet_source"] == row["accuracy_alone_source"] == "measured"
    page = (again / "report.html").read_text()
    assert page.count("Audit of the supernet") == 1
    assert "<h2>Run</h2>" in page
    # Nothing is trained again, and everything is the same but for the place of the picture.
    (again / "audit" / "audit.json").unlink()
    assert run(options) == 0
    assert (again / "audit" / "audit.json").read_text() == first
    assert (again / "report.html").read_text() == page


@pytest.mark.slow
def test_networks_are_trained_by_several_processes(
    again: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["audit", f"run={again}", "n_networks=6", "n_repeated=1", "epochs=1", "seed=1"]
    assert run([*options, "workers=2"]) == 0
    first = (again / "audit" / "audit.json").read_text()
    assert "6 networks in the supernet" in " ".join(capfd.readouterr().out.split())
    # One process finds all of them trained.
    kept = {path: path.stat().st_mtime_ns for path in again.parents[1].rglob("network.safetensors")}
    assert len(kept) >= 7
    assert run(options) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert (again / "audit" / "audit.json").read_text() == first


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_run_that_cannot_be_audited_is_refused_in_one_line(
    again: Path, change: Callable[[Path], object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(again)
    assert run(["audit", f"run={again}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (again / "audit").exists()


def test_damaged_weights_are_refused_by_name(
    again: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = again.glob("weights/*/supernet.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 64
    weights.write_bytes(content)
    assert run(["audit", f"run={again}"]) == 2
    error = capsys.readouterr().err
    assert "supernet.safetensors does not have the digest" in error
    assert f"To make it again: hwnas search run.resume={again}" in error


def test_a_resume_refused_for_damaged_weights_changes_no_manifest(
    searched: Path, again: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = Path(shutil.copytree(searched / "supernets", tmp_path / "shared"))
    (weights,) = shared.glob("*/supernet.safetensors")
    content = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:start])
    name = next(name for name in tensors if name.startswith("model."))
    content[start + tensors[name]["data_offsets"][0]] ^= 1
    weights.write_bytes(content)
    before = (again / "manifest.json").read_text()
    assert run(["search", f"run.resume={again}", f"run.supernets={shared}", "n_trials=7"]) == 2
    assert "its weights are damaged: their checksum differs" in capsys.readouterr().err
    assert (again / "manifest.json").read_text() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "audit needs the folder of a finished search"),
        (["run=x", "n_networks=5"], "n_networks must be a whole number in [6, 10000]"),
        (["run=x", "n_repeated=13"], "n_repeated must be at most n_networks=12"),
        (["run=x", "epochs=0"], "epochs must be a whole number in"),
        (["run=x", "workers=0"], "workers must be a whole number in"),
        (["run=x", "epoch=1"], "Did you mean 'epochs'"),
    ],
)
def test_bad_options_are_refused(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run(["audit", *options]) == 2
    assert message in capsys.readouterr().err


def test_members_leave_for_what_is_better_in_the_costs_own_direction() -> None:
    findings, rows = [], {}
    for accuracy, ips in ((0.9, 100.0), (0.8, 1000.0), (0.7, 500.0)):
        genotype, figure = Genotype("s", (("ips", ips),)), Quantity(accuracy, "measured")
        findings.append(AuditFinding(AuditedNetwork("front", genotype), figure, (figure,)))
        rows[genotype.id] = {"throughput_ips": ips}
    members = audit._Members([*rows.values()], ["throughput_ips"], "accuracy")
    assert [*audit._leaving(findings, rows, members)] == [[*rows][2]]


def test_members_are_judged_by_verified_costs_where_all_have_them() -> None:
    findings, rows = [], {}
    costs = ({"energy_mj": 1.0, "latency_ms": ms, "verified_latency_ms": 3 - ms} for ms in (1, 2))
    for accuracy, own in zip((0.8, 0.9), costs, strict=True):
        genotype, figure = (
            Genotype("s", (("ms", own["latency_ms"]),)),
            Quantity(accuracy, "measured"),
        )
        findings.append(AuditFinding(AuditedNetwork("front", genotype), figure, (figure,)))
        rows[genotype.id] = own
    members = audit._Members([*rows.values()], ["latency_ms", "energy_mj"], "accuracy")
    leaving = audit._leaving(findings, rows, members)
    assert [*leaving] == [next(iter(rows))]  # the fast one as searched is the slow one as verified
    words = audit._leaving_words(findings, leaving, members)
    assert "1 of 2" in words
    assert words.endswith("(latency_ms as verified; energy_mj as searched).")


def test_what_verification_took_off_the_front_is_no_member(tmp_path: Path) -> None:
    rows = []
    for name, fits, stays in (("on", True, True), ("off", True, False), ("over", False, False)):
        row = {"id": name, "verified_fits_budget": fits, "verified_on_front": stays}
        for column in ("accuracy", "latency_ms", "verified_accuracy_int8"):
            row |= Quantity(0.5, "measured").columns(column)
        rows.append(row)
    content = {"objectives": {"accuracy": "max", "latency_ms": "min"}, "members": rows}
    RunFolder(tmp_path).write_json("front.json", content)
    assert [row["id"] for row in audit._members(RunFolder(tmp_path)).rows] == ["on"]
