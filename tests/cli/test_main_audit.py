"""The verb ``audit`` on the command line."""

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
def copied_run(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the run."""
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    return Path(shutil.copytree(searched / "run", tmp_path / "run"))


@pytest.mark.slow
def test_audit_reports_rank_correlation_and_resumes(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["audit", f"run={copied_run}", "n_networks=6", "n_repeated=1", "epochs=1"]
    assert run(options) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "6 networks in the supernet and trained alone (1 epochs each" in out
    assert "1 networks trained twice" in out
    first = (copied_run / "audit" / "audit.json").read_text()
    result = json.loads(first)
    assert result["format"] == 1
    value, low, high = result["kendall_tau"]
    assert low <= value <= high
    with (copied_run / "audit" / "networks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["group"] for row in rows].count("space") >= 3
    assert len({row["id"] for row in rows}) == 6
    assert sum(bool(row["accuracy_alone_second_seed"]) for row in rows) == 1
    for row in rows:
        assert row["accuracy_supernet_source"] == row["accuracy_alone_source"] == "measured"
    page = (copied_run / "report.html").read_text()
    assert page.count("Audit of the supernet") == 1
    assert "<h2>Run</h2>" in page
    # A second audit trains nothing and writes the same files.
    (copied_run / "audit" / "audit.json").unlink()
    assert run(options) == 0
    assert (copied_run / "audit" / "audit.json").read_text() == first
    assert (copied_run / "report.html").read_text() == page


@pytest.mark.slow
def test_audit_trains_networks_in_several_processes(
    copied_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["audit", f"run={copied_run}", "n_networks=6", "n_repeated=1", "epochs=1", "seed=1"]
    assert run([*options, "workers=2"]) == 0
    first = (copied_run / "audit" / "audit.json").read_text()
    assert "6 networks in the supernet" in " ".join(capfd.readouterr().out.split())
    # A single process reuses all trained networks.
    mtimes = {
        path: path.stat().st_mtime_ns for path in copied_run.parents[1].rglob("network.safetensors")
    }
    assert len(mtimes) >= 7
    assert run(options) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in mtimes.items())
    assert (copied_run / "audit" / "audit.json").read_text() == first


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_unusable_run_is_reported_in_one_line(
    copied_run: Path,
    change: Callable[[Path], object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(copied_run)
    assert run(["audit", f"run={copied_run}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (copied_run / "audit").exists()


def test_damaged_weights_are_reported_with_file_name(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = copied_run.glob("weights/*/supernet.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 64
    weights.write_bytes(content)
    assert run(["audit", f"run={copied_run}"]) == 2
    error = capsys.readouterr().err
    assert "supernet.safetensors does not have the digest" in error
    assert f"To make it again: hwnas resume {copied_run}" in error


def test_failed_resume_keeps_manifest(
    searched: Path, copied_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = Path(shutil.copytree(searched / "supernets", tmp_path / "shared"))
    (weights,) = shared.glob("*/supernet.safetensors")
    content = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:start])
    name = next(name for name in tensors if name.startswith("model."))
    content[start + tensors[name]["data_offsets"][0]] ^= 1
    weights.write_bytes(content)
    before = (copied_run / "manifest.json").read_text()
    assert run(["search", f"run.resume={copied_run}", f"run.supernets={shared}", "n_trials=7"]) == 2
    assert "its weights are damaged: their checksum differs" in capsys.readouterr().err
    assert (copied_run / "manifest.json").read_text() == before


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
def test_invalid_audit_options_are_reported(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run(["audit", *options]) == 2
    assert message in capsys.readouterr().err


def test_dominated_members_respect_cost_direction() -> None:
    findings, rows = [], {}
    for accuracy, ips in ((0.9, 100.0), (0.8, 1000.0), (0.7, 500.0)):
        genotype, figure = Genotype("s", (("ips", ips),)), Quantity(accuracy, "measured")
        findings.append(AuditFinding(AuditedNetwork("front", genotype), figure, (figure,)))
        rows[genotype.id] = {"throughput_ips": ips}
    members = audit._Members([*rows.values()], ["throughput_ips"], "accuracy")
    assert [*audit._leaving_members(findings, rows, members)] == [[*rows][2]]


def test_dominated_members_use_verified_costs_if_complete() -> None:
    findings, rows = [], {}
    costs = ({"energy_mj": 1.0, "latency_ms": ms, "verified_latency_ms": 3 - ms} for ms in (1, 2))
    for accuracy, member_costs in zip((0.8, 0.9), costs, strict=True):
        genotype, figure = (
            Genotype("s", (("ms", member_costs["latency_ms"]),)),
            Quantity(accuracy, "measured"),
        )
        findings.append(AuditFinding(AuditedNetwork("front", genotype), figure, (figure,)))
        rows[genotype.id] = member_costs
    members = audit._Members([*rows.values()], ["latency_ms", "energy_mj"], "accuracy")
    leaving = audit._leaving_members(findings, rows, members)
    assert [*leaving] == [
        next(iter(rows))
    ]  # the fastest searched network is the slowest verified one
    message = audit._leaving_words(findings, leaving, members)
    assert "1 of 2" in message
    assert message.endswith("(latency_ms as verified; energy_mj as searched).")


def test_members_exclude_networks_dropped_by_verification(tmp_path: Path) -> None:
    rows = []
    for name, fits, stays in (("on", True, True), ("off", True, False), ("over", False, False)):
        row = {"id": name, "verified_fits_budget": fits, "verified_on_front": stays}
        for column in ("accuracy", "latency_ms", "verified_accuracy_int8"):
            row |= Quantity(0.5, "measured").columns(column)
        rows.append(row)
    content = {"objectives": {"accuracy": "max", "latency_ms": "min"}, "members": rows}
    RunFolder(tmp_path).write_json("front.json", content)
    assert [row["id"] for row in audit._members(RunFolder(tmp_path)).rows] == ["on"]
