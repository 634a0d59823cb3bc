"""Early exits, from search to export."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from hwnas.__main__ import run
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.study import study_in_file
from hwnas.tasks.predictions import EXITS_FILE, Predictions, pack_exit_predictions
from hwnas.workflows.search import cascades
from tests.conftest import last_of

SPACE = Path(__file__).parents[1] / "models" / "families" / "exits.yaml"
OPTIONS = (
    "+target=npu", "trained.fidelities=[1]", "train.epochs=2", "finish.min_candidates=2",
    "finish.epochs=2", "finish.max_int8_drop=100", "n_trials=4", "study.workers=1",
    "budget=none", "budget.latency_ms=10",
)  # fmt: skip
Row = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a search of networks with an exit in ``run``, and one export."""
    folder = tmp_path_factory.mktemp("exits")
    raw = yaml.safe_load(SPACE.read_text())
    del raw["choices"]["exits.0.active"]
    raw["fixed"]["exits.0.active"] = 1
    (folder / "leaving.yaml").write_text(yaml.safe_dump(raw))
    with pytest.MonkeyPatch.context() as patch, (folder / "printed").open("w") as printed:
        patch.setattr(sys, "argv", ["hwnas"])
        patch.setattr(sys, "stdout", printed)
        patch.setenv("COLUMNS", "1000")
        assert run(["search", *OPTIONS, *_path_options(folder)]) == 0
        options = [f"run={folder / 'run'}", f"dir={folder / 'out'}", "pick=most_accurate"]
        assert run(["export", *options, "max_exit_drop=2", "max_int8_drop=100"]) == 0
    return folder


def _path_options(folder: Path) -> list[str]:
    return [
        f"search_space={folder / 'leaving.yaml'}", f"run.dir={folder / 'run'}",
        f"run.supernets={folder / 'networks'}",
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _patch_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _exported(root: Path) -> Path:
    (proof,) = (root / "out").rglob("proof.json")
    return proof.parent


def _proof(folder: Path) -> Row:
    proof: Row = json.loads((folder / "proof.json").read_text())
    return proof


def test_search_reports_expected_cost_of_exits(root: Path) -> None:
    members = {row["id"]: row for row in _rows(root / "run" / "front.csv")}
    rows = _rows(root / "run" / "exits.csv")
    assert {row["id"] for row in rows} == {*members}
    for row in rows:
        member = members[row["id"]]
        assert float(row["latency_ms"]) == float(member["verified_latency_ms"])
        full_ms, expected = float(row["latency_ms"]), float(row["verified_expected_latency_ms"])
        assert 0 < expected <= full_ms
        assert row["verified_expected_latency_ms_source"] == "compiler-estimate"
        low, high = (row[f"verified_expected_latency_ms_{end}"] for end in ("low", "high"))
        assert float(low) <= expected <= float(high)
        assert float(row["verified_accuracy_at_end"]) == float(member["verified_accuracy_int8"])
        # The network without exits takes about as long as all its segments.
        assert float(member["latency_ms"]) == pytest.approx(full_ms, rel=0.1)
    printed, page = (root / "printed").read_text(), (root / "run" / "report.html").read_text()
    assert "with exits: leaving early takes" in printed
    assert "exits.csv" in printed
    assert "Early exits" in page
    assert "With and without early exits" in page


def test_members_have_files_per_segment(root: Path) -> None:
    for row in _rows(root / "run" / "front.csv"):
        model = _model_record(root, row["id"])
        assert {".tflite", ".segment0.tflite", ".segment1_vela.tflite"} <= {*model["files"]}
        parts = [figures["latency_ms"][0] for figures in model["segments"]]
        assert len(parts) == 2
        assert model["figures"]["latency_ms"][0] == pytest.approx(sum(parts))


def _model_record(root: Path, genotype_id: str) -> Row:
    record: Row = json.loads((root / "run" / "models" / f"{genotype_id}.json").read_text())
    return record


def test_resume_of_finished_search_repeats_exits(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(root / "run", copy)
    (copy / "exits.csv").unlink()
    paths = [place for place in _path_options(root) if not place.startswith("run.dir")]
    assert run(["search", *OPTIONS, *paths, f"run.resume={copy}"]) == 0
    assert (copy / "exits.csv").read_bytes() == (root / "run" / "exits.csv").read_bytes()


@pytest.mark.slow
def test_expected_cost_is_objective_and_limit(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def searched(name: str, limit: float) -> tuple[int, list[Row]]:
        paths = [place for place in _path_options(root) if not place.startswith("run.dir")]
        options = [f"run.dir={root / name}", f"budget.expected_latency_ms={limit}"]
        objectives = "objectives=[accuracy,expected_latency_ms]"
        code = run(["search", *OPTIONS, *paths, *options, objectives])
        candidates = pq.read_table(root / name / "candidates.parquet").to_pylist()
        return code, sorted(candidates, key=lambda row: float(row["expected_latency_ms"]))

    code, rows = searched("expected", 10)
    assert code == 0
    for row in rows:
        low, value, high = (row[f"expected_latency_ms{end}"] for end in ("_low", "", "_high"))
        assert 0 < low <= value <= high <= row["latency_ms"] * (1 + 1e-9)
        assert row["expected_latency_ms_source"] == "compiler-estimate"
    assert any(row["expected_latency_ms"] < 0.999 * row["latency_ms"] for row in rows)
    expected_costs = {
        (r["id"], r["verified_expected_latency_ms"]) for r in _rows(root / "expected/exits.csv")
    }
    for member in _rows(root / "expected" / "front.csv"):
        assert (member["id"], member["verified_expected_latency_ms"]) in expected_costs
    assert "mean latency" in capsys.readouterr().out
    limit = (rows[0]["expected_latency_ms_high"] + rows[-1]["expected_latency_ms_high"]) / 2
    code, rows = searched("limited", limit)
    assert code == 0
    for row in rows:
        is_over_limit = row["expected_latency_ms_high"] > limit
        assert (row["state"] == "infeasible") == is_over_limit
        assert ("expected_latency_ms" in row["reason"]) == is_over_limit
    assert {row["state"] for row in rows} == {"complete", "infeasible"}


@pytest.mark.slow
def test_expected_costs_are_predicted_before_training(root: Path, tmp_path: Path) -> None:
    """After a feasible network, no infeasible one is proposed, as with exact costs."""
    paths = [
        f"search_space={root / 'leaving.yaml'}", f"run.dir={tmp_path / 'run'}",
        f"run.supernets={root / 'networks'}",
    ]  # fmt: skip
    candidates = pq.read_table(root / "run" / "candidates.parquet").to_pylist()
    limit = sorted(row["latency_ms"] for row in candidates)[2] * 1.001
    options = [f"budget.latency_ms={limit}", "objectives=[accuracy,expected_latency_ms]"]
    sampler = "sampler.n_startup_trials=3"
    assert run(["search", *last_of(*OPTIONS, *paths, *options, sampler, "n_trials=5")]) == 0
    rows = pq.read_table(tmp_path / "run" / "candidates.parquet").to_pylist()
    assert {row["state"] for row in rows} == {"complete"}
    proposals = [study_in_file(tmp_path / "run" / "study.db").read().proposals[i] for i in range(5)]
    assert all(p.n_costed for p in proposals)
    assert all(p.costs for p in proposals if p.phase == "gain")


def test_exported_segments_match_proof(root: Path) -> None:
    proof = _proof(_exported(root))
    checks = {check["name"]: check for check in proof["checks"]}
    names = {"exits.whole", "exits.0.error", "exits.expected_latency_ms", "exits.budget.latency_ms"}
    assert names <= {*checks}
    assert all(check["holds"] for check in checks.values())
    assert checks["exits.whole"]["found"] == 0
    exits = proof["exits"]
    total = sum(cost["latency_ms"][0] for cost in exits["costs"])
    assert checks["exits.budget.latency_ms"]["found"] == pytest.approx(total)
    assert total > proof["figures"]["latency_ms"][0]  # of the whole network, without exits
    record = _model_record(root, proof["model"]["id"])
    assert exits["worst"]["latency_ms"][0] == record["figures"]["latency_ms"][0]
    card = (_exported(root) / "MODEL_CARD.md").read_text()
    assert "## Early exits" in card
    assert "`segment1.vela.tflite` | of segment 1, as `model.vela.tflite`" in card


def test_runner_stops_at_exits(root: Path, tmp_path: Path) -> None:
    folder = _exported(root)
    pixels = np.load(folder / "images.npz")["pixels"]
    np.save(tmp_path / "images.npy", pixels)
    predictions: dict[float, list[str]] = {}
    content = json.loads((folder / "exits.json").read_text())
    for threshold in (content["thresholds"][0], 0.0, 2.0):
        copy = tmp_path / f"at {threshold}"
        shutil.copytree(folder, copy)
        (copy / "exits.json").write_text(json.dumps(content | {"thresholds": [threshold]}))
        completed = subprocess.run(
            [sys.executable, copy / "run_exits.py", tmp_path / "images.npy"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        predictions[threshold] = completed.stdout.split()
        exit_counts = [*map(int, completed.stderr.splitlines()[-1].split(": ")[1].split())]
        assert sum(exit_counts) == len(pixels)
        if threshold in (0.0, 2.0):
            assert exit_counts == ([len(pixels), 0] if threshold == 0 else [0, len(pixels)])
        else:
            share = _proof(folder)["exits"]["found"]["left"][0][0]
            assert exit_counts[0] / len(pixels) == pytest.approx(share, abs=0.1)
    full_run = subprocess.run(
        [sys.executable, folder / "run_tflite.py", tmp_path / "images.npy"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert predictions[2.0] == full_run.stdout.split()
    assert predictions[0.0] != predictions[2.0]


def test_verify_repeats_exits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _exported(root)
    assert run(["verify", str(folder), "+target=npu"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 segments one after another on 256 images: exits.whole 0," in printed
    assert "Leaving early:" in printed
    assert "All segments on npu" in printed
    assert printed.count("The compiler gave the same file.") == 2


def test_verify_detects_modified_exits(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "changed"
    shutil.copytree(_exported(root), copy)
    proof = _proof(copy)
    proof["exits"]["found"]["left"][0][0] *= 0.5
    (copy / "proof.json").write_text(json.dumps(proof))
    assert run(["verify", str(copy)]) == 1
    assert "exits.left" in capsys.readouterr().err
    proof["exits"]["outputs"] = ["exits.0.classifier", "stem"]
    (copy / "proof.json").write_text(json.dumps(proof))
    assert run(["verify", str(copy)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be read" in line


INVALID_OPTIONS = [
    (
        ["+target=npu", "search_space=tiny", "objectives=[accuracy,expected_latency_ms]"],
        "for networks with early exits, which this search space does not have. Use latency_ms",
    ),
    (
        ["+target=[npu,ethos_u85_256]", "objectives=[accuracy,expected_energy_mj]"],
        "expected_energy_mj is only supported for one target",
    ),
    (["+target=cpu"], "has early exits, which target 'cpu' (tvm) does not support"),
    (["+target=npu", "accuracy=supernet"], "accuracy=supernet: this search space has early exits"),
    (
        ["+target=npu", "dataset=digit_angles", "task=regression"],
        "Early exits need task=classification with the objective accuracy",
    ),
]


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS, ids=lambda value: str(value)[:40])
def test_incompatible_exit_options_are_reported(
    root: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [place for place in _path_options(root) if not place.startswith("run.dir")]
    assert run(["search", *last_of(*paths, f"run.dir={root / 'refused'}", *options)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (root / "refused").exists()


@pytest.mark.slow
def test_compress_exits_to_lower_budget(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = max(_rows(root / "run" / "front.csv"), key=lambda row: float(row["latency_ms"]))
    options = [f"run={root / 'run'}", f"id={member['id']}", f"dir={tmp_path}"]
    options += ["max_int8_drop=100", "max_exit_drop=3"]
    assert run(["compress", *options, "budget.expected_energy_mj=10"]) == 2
    match = re.search(
        r"meets the budget without compression: expected_energy_mj (\S+) of",
        capsys.readouterr().err,
    )
    assert match is not None
    limit = 0.95 * float(match[1])
    assert run(["compress", *options, f"budget.expected_energy_mj={limit}"]) == 0
    assert "expected energy [mJ]" in capsys.readouterr().out
    (folder,) = (path.parent for path in tmp_path.rglob("proof.json"))
    proof = _proof(folder)
    checks = {check["name"]: check for check in proof["checks"]}
    assert checks["exits.budget.expected_energy_mj"]["found"] <= limit
    assert proof["budget"]["expected_energy_mj"]["margin"] >= 0
    assert any(row.get("weight_bits", 8) < 8 for row in proof["model"]["operators"])
    assert run(["verify", str(folder), "+target=npu"]) == 0
    options[2] = f"dir={tmp_path / 'none'}"
    assert run(["compress", *options, "budget.expected_energy_mj=1e-6"]) == 2
    assert "points lost at exits (max_exit_drop) do not suffice" in capsys.readouterr().err


def test_pruning_rejects_networks_with_exits(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"run={root / 'run'}", f"dir={root / 'pruned'}", "prune=0.3"]
    assert run(["export", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "networks with exits are not pruned. Omit prune" in line


def test_supernet_rejects_exits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [*_path_options(root)[:1], f"run.supernets={root / 'networks'}"]
    assert run(["train", "dataset=digits", *paths, f"run.dir={root / 'supernet'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has exits, which supernets do not have" in line


@pytest.mark.slow
def test_cpu_runs_segments_with_onnxruntime(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target_options = ["+target=cpu", "target.runtime=onnxruntime", "target.threads=1"]
    options = last_of(*OPTIONS[1:-1], "cost=measured", "n_trials=2", "timing.repeats=3")
    paths = [f"run.dir={tmp_path / 'run'}", f"table.dir={tmp_path}", *_path_options(root)[::2]]
    assert run(["search", *target_options, *options, *paths]) == 0
    rows = _rows(tmp_path / "run" / "exits.csv")
    assert {row["verified_expected_latency_ms_source"] for row in rows} == {"measured"}
    assert run(["export", f"run={tmp_path / 'run'}", f"dir={tmp_path}", "max_exit_drop=100"]) == 0
    (folder,) = (path.parent for path in tmp_path.rglob("proof.json"))
    assert (folder / "segment1.fp32.onnx").is_file()
    np.save(tmp_path / "images.npy", np.load(folder / "images.npz")["pixels"])
    completed = subprocess.run(
        [sys.executable, folder / "run_exits.py", tmp_path / "images.npy"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(completed.stdout.split()) == 256
    capsys.readouterr()
    assert run(["verify", str(folder)]) == 0
    assert "2 segments one after another on 256 images" in capsys.readouterr().out


def test_exits_exclude_undelivered_networks(tmp_path: Path) -> None:
    candidate = Candidate(0, Genotype("s", ()), {})
    predictions = Predictions(np.ones(8, np.bool_), np.ones(8))
    packed = pack_exit_predictions(
        ["exit", "end"], {split: [predictions] * 2 for split in ("validation", "test")}
    )
    (tmp_path / EXITS_FILE.format(candidate.id)).parent.mkdir(parents=True)
    RunFolder(tmp_path).write_bytes(EXITS_FILE.format(candidate.id), packed)
    costs = {name: Quantity(1.0, "measured") for name in ("latency_ms", "energy_mj")}
    for high, n in ((0.9, 1), (1.1, 0)):
        details = {RATIOS[-1]: high}
        member = Member(candidate, costs, details, {}, segments=[costs] * 2)
        assert len(cascades.exits_of_target(RunFolder(tmp_path), [member]).networks) == n
