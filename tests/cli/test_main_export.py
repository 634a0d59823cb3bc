"""The verbs ``export`` and ``verify`` on the command line."""

import ast
import contextlib
import hashlib
import importlib.util
import io
import json
import math
import os
import py_compile
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import onnx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from PIL import ExifTags, Image

import hwnas
from hwnas.__main__ import run
from hwnas.core.errors import ConfigError
from hwnas.export import c_source
from hwnas.export import folder as signing
from hwnas.export.artefacts import pixels_of
from hwnas.export.checks import Check
from hwnas.export.folder import BUILDING
from hwnas.export.reference_images import prepared
from hwnas.export.runtimes import load_module
from hwnas.training.data.encoded import ImageShape, decode
from tests.conftest import SHARED_WEIGHTS, few_of
from tests.core.unusable import CHANGES, edit
from tests.export.blocked import LARGE, run_file, run_hwnas, run_snippet
from tests.models.int8.networks import calibrate_coarsely

QUICK = (
    "+target=npu",
    "search_space=tiny",
    "train.epochs=2",
    *SHARED_WEIGHTS,
    "n_trials=10",
    "budget=none",
)
_LIMIT_S = 300.0


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        arguments = [*QUICK, f"run.dir={folder / 'run'}", f"run.supernets={folder / 'supernets'}"]
        assert run(["search", *arguments]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def exported(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an export."""
    root = tmp_path_factory.mktemp("exports") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        assert (
            run(["export", "epochs=0", f"run={searched}", "pick=most_accurate", f"dir={root}"]) == 0
        )
    (folder,) = [path for path in root.iterdir() if path.is_dir()]
    return folder


@pytest.fixture(autouse=True)
def _patch_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def members(searched: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads((searched / "front.json").read_text())["members"]
    return rows


def test_export_equals_verified_member(searched: Path, exported: Path) -> None:
    proof = json.loads((exported / "proof.json").read_text())
    row = next(row for row in members(searched) if row["id"] == exported.name)
    accuracies = [m["verified_accuracy_int8"] for m in members(searched) if m["verified_on_front"]]
    assert row["verified_accuracy_int8"] == max(accuracies)  # type: ignore[type-var]
    tflite = proof["artefacts"]["model.int8.tflite"]
    assert tflite["accuracy"][0] == row["verified_accuracy_int8"]
    assert proof["figures"]["latency_ms"][0] == row["verified_latency_ms"]
    assert proof["files"]["model.int8.tflite"] == row["tflite_sha256"]
    assert proof["files"]["model.vela.tflite"] == row["tflite_vela_sha256"]
    assert all(check["holds"] for check in proof["checks"])
    for name in ("model.py", "model.fp32.onnx", "model.int8.onnx", "model.int8.tflite"):
        assert proof["artefacts"][name]["agreement"]["n_images"] == 256
    assert "Ethos-U" in proof["artefacts"]["model.vela.tflite"]["not_run"]


def test_second_export_is_identical_except_dates(
    searched: Path, exported: Path, tmp_path: Path
) -> None:
    assert (
        run(["export", "epochs=0", f"run={searched}", f"id={exported.name}", f"dir={tmp_path}"])
        == 0
    )
    second = tmp_path / exported.name
    assert {path.name for path in second.iterdir()} == {path.name for path in exported.iterdir()}
    for path in exported.iterdir():
        if path.name not in ("proof.json", "MODEL_CARD.md"):
            assert (second / path.name).read_bytes() == path.read_bytes(), path.name

    def undated(folder: Path) -> object:
        proof = json.loads((folder / "proof.json").read_text())
        for name in ("made", "commands", "source"):  # contain dates or folders
            del proof[name]
        del proof["files"]["MODEL_CARD.md"]
        return proof

    assert undated(second) == undated(exported)
    assert (
        run(["export", "epochs=0", f"run={searched}", f"id={exported.name}", f"dir={tmp_path}"])
        == 2
    )


@pytest.mark.slow
def test_export_finetunes_and_prunes(searched: Path, exported: Path, tmp_path: Path) -> None:
    options = [f"id={exported.name}", "epochs=1", "prune=0.3", f"dir={tmp_path}"]
    assert run(["export", f"run={searched}", *options]) == 0
    proofs = [
        json.loads((folder / "proof.json").read_text())
        for folder in (exported, tmp_path / exported.name)
    ]
    inherited, finished = (proof["finishing"] for proof in proofs)
    assert [step["step"] for step in inherited["steps"]] == ["inherited", "int8"]
    names = [step["step"] for step in finished["steps"]]
    assert names[:5] == ["inherited", "fine-tuned", "narrowed", "pruned", "int8"]
    for name in ("latency_ms", "flash_kib", "macs_m", "params_m"):  # compiled again
        assert proofs[1]["figures"][name][0] < proofs[0]["figures"][name][0]
    card = (tmp_path / exported.name / "MODEL_CARD.md").read_text()
    assert "30% of the channels pruned" in card
    assert "| pruned | 1 | 0." in card


@pytest.mark.slow
def test_int8_trained_export_is_checked_against_simulated_int8(
    searched: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hwnas.training.finetuning.pipeline.calibrate", partial(calibrate_coarsely, times=12)
    )
    options = [f"id={exported.name}", "epochs=6", "max_int8_drop=0", f"dir={tmp_path}"]
    assert run(["export", f"run={searched}", *options]) == 0
    folder = tmp_path / exported.name
    artefacts = json.loads((folder / "proof.json").read_text())["artefacts"]
    references = {
        name: row.get("agreement", {}).get("reference") for name, row in artefacts.items()
    }
    assert references == {
        "model.py": "float32",
        "model.fp32.onnx": "float32",
        "model.int8.onnx": "simulated int8",
        "model.int8.tflite": "simulated int8",
        "model.vela.tflite": None,
    }
    assert "(simulated int8)" in (folder / "MODEL_CARD.md").read_text()
    assert run_hwnas("verify", str(folder), blocked=LARGE).returncode == 0


def test_model_card_is_valid_for_hugging_face(exported: Path) -> None:
    card = huggingface_hub.ModelCard.load(exported / "MODEL_CARD.md")
    proof = json.loads((exported / "proof.json").read_text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("hwnas", "image-classification")
    results = {result.metric_name: result for result in card.data.eval_results}
    result = results["accuracy, model.int8.tflite"]
    assert result.dataset_split == "test"
    expected = proof["artefacts"]["model.int8.tflite"]["accuracy"][0]
    assert result.metric_value == pytest.approx(expected, abs=1e-6)
    headings = re.findall(r"^## (.*)$", card.text, re.MULTILINE)
    assert headings == [
        "Use", "Intended use and limits", "Data", "Training", "Evaluation", "Costs on npu",
        "Checks", "Files", "Provenance",
    ]  # fmt: skip
    for name in proof["files"]:
        assert f"`{name}`" in card.text or name == "MODEL_CARD.md"


@pytest.mark.slow
def test_verify_works_without_torch(exported: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in exported.iterdir()}
    assert run(["verify", str(exported), "+target=npu"]) == 0
    out = capfd.readouterr().out
    assert "model.py: largest error 0, mean 0" in out
    assert "model.int8.tflite: " in out
    assert "The compiler gave the same file." in out
    assert "All repeated checks passed." in out
    completed = run_hwnas("verify", str(exported), blocked=LARGE)
    assert completed.returncode == 0, completed.stderr
    assert "model.py: not run, torch is not installed" in completed.stdout
    assert "model.int8.onnx: largest error" in completed.stdout
    assert "The test split was not read" in completed.stdout
    completed = run_hwnas("verify", str(exported), "+target=npu", blocked=LARGE)
    assert completed.returncode == 2
    assert "Costs on target 'npu' are unknown: ethos-u-vela is not installed" in completed.stderr
    assert completed.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in exported.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model.vela.tflite").write_bytes(b"x"), "model.vela.tflite was changed"),
        (lambda f: (f / "labels.txt").unlink(), "labels.txt is missing"),
        (lambda f: (f / "note.txt").touch(), "note.txt is not part of the export"),
        (lambda f: _flip_last_bit(f / "model.safetensors"), "model.safetensors was changed"),
        (lambda f: (f / "MODEL_CARD.md").write_text("best model"), "MODEL_CARD.md was changed"),
    ],
)
def test_verify_names_changed_file(
    exported: Path,
    change: Callable[[Path], object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    change(copy)
    _check_failure(copy, message, capsys)


def _check_failure(folder: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(folder)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


_EXECUTED = b"""
def load(path=None):
    import pathlib
    pathlib.Path(__file__).with_name("executed").touch()
load()
"""


def _read_model(folder: Path) -> bytes:
    return (folder / "model.py").read_bytes()


def _edit_preprocessing(folder: Path, **values: object) -> None:
    content = json.loads((folder / "preprocessing.json").read_text())
    _replace_with_digest(folder, "preprocessing.json", json.dumps(content | values).encode())


def _flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _replace_with_digest(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and its digest in the proof."""
    (folder / name).write_bytes(content)
    proof = json.loads((folder / "proof.json").read_text())
    proof["files"][name] = hashlib.sha256(content).hexdigest()
    (folder / "proof.json").write_text(json.dumps(proof))


def _change_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    _replace_with_digest(folder, "model.safetensors", content[:-400] + bytes(400))


def _change_opset(folder: Path) -> None:
    model = onnx.load(folder / "model.int8.onnx")
    model.opset_import[0].version = 999
    _replace_with_digest(folder, "model.int8.onnx", model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change_weights, "these checks failed: model.py.error"),
        (_change_opset, "model.int8.onnx: onnxruntime cannot run the model"),
        pytest.param(
            lambda f: _replace_with_digest(f, "model.int8.tflite", b"nothing"),
            "model.int8.tflite: ",
            marks=pytest.mark.slow,
        ),
        (
            lambda f: _replace_with_digest(f, "model.py", b"def load(:"),
            "model.py is not the network",
        ),
        (
            lambda f: _replace_with_digest(f, "model.py", _EXECUTED + _read_model(f)),
            "model.py is not the network",
        ),
        (
            lambda f: _replace_with_digest(f, "model.py", _read_model(f).replace(b"relu", b"silu")),
            "model.py is not the network of the proof",
        ),
        (
            lambda f: _replace_with_digest(
                f, "labels.txt", (f / "labels.txt").read_bytes()[2:] + b"0\n"
            ),
            "labels.txt is not that of the task in the proof",
        ),
        (
            lambda f: _edit_preprocessing(f, mean=[0.5]),
            "preprocessing.json: 'mean' is not that of the proof",
        ),
        (lambda f: _edit_preprocessing(f, shape=[9, 9, 1]), "'shape' is not that of the proof"),
        (lambda f: _replace_with_digest(f, "images.npz", b"nothing"), "images.npz"),
    ],
)
def test_verify_detects_changes_with_updated_digest(
    exported: Path, change: Callable[[Path], object], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    change(copy)
    _check_failure(copy, message, capsys)
    assert not (copy / "executed").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda proof: proof["model"].update(macs_m=1.0), "'model.macs_m' is 1.0, computed "),
        (
            lambda proof: proof["artefacts"]["model.int8.onnx"]["agreement"].update(
                largest_output=1e6
            ),
            "'artefacts.model.int8.onnx.agreement.largest_output' is 1000000.0",
        ),
        (
            lambda proof: proof["artefacts"]["model.int8.onnx"]["agreement"].update(mean_error=0),
            "'checks.model.int8.onnx.error'",
        ),
        (lambda proof: proof["dataset"]["images"].update(train=9), "'dataset.images' is not that"),
        (lambda proof: proof["reference"].update(accuracy=[0.99, "measured", 0.9, 1]), "reference"),
    ],
)
def test_verify_detects_changed_numbers_of_proof(
    exported: Path, change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    _edit_proof(copy, change)
    _check_failure(copy, message, capsys)


def test_verify_compares_class_names_with_data_set(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    names = json.loads((copy / "proof.json").read_text())["task"]["classes"]
    names = [*names[1:], names[0]]
    _edit_proof(copy, lambda proof: proof["task"].update(classes=names))
    _replace_with_digest(copy, "labels.txt", "".join(f"{name}\n" for name in names).encode())
    _check_failure(copy, "proof.json: 'task' is not that of the data set", capsys)


def _edit_proof(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    proof = json.loads((folder / "proof.json").read_text())
    change(proof)
    (folder / "proof.json").write_text(json.dumps(proof))


@pytest.mark.parametrize(
    "change",
    few_of(
        [
            lambda proof: proof.pop("checks"),
            lambda proof: proof["model"]["operators"][0].update(inputs=["nowhere"]),
            lambda proof: proof["artefacts"]["model.py"].update(accuracy=[float("nan")]),
            lambda proof: proof.update(more=1),
            lambda proof: proof["checks"][0].update(found=1e9),
            lambda proof: proof["target"].update(colour="red"),
            lambda proof: proof.pop("dataset"),
            lambda proof: proof.update(files=[]),
            lambda proof: proof.update(artefacts={}),
            lambda proof: proof["artefacts"]["model.py"].update(accuracy=["x"]),
            lambda proof: proof["artefacts"]["model.py"].pop("accuracy"),
            lambda proof: proof.update(budget={"latency_ms": {"limit": "1"}}),
            lambda proof: proof["checks"][0].update(holds="maybe"),
            lambda proof: proof["checks"].pop(0),
            lambda proof: proof["model"].update(input=[1, -8, 8]),
            lambda proof: proof["model"].update(operators=[]),
            lambda proof: proof["model"]["operators"][0]["op"].update(stride=0),
            lambda proof: (proof.pop("task"), proof["model"].update(n_classes=0)),
            lambda proof: proof["task"].update(classes=[]),
            lambda proof: proof["task"].update(name=["x"]),
            lambda proof: proof["dataset"]["normalisation"].update(std=[0]),
            lambda proof: proof["dataset"].update(max_resolution=10**9),
        ],
        6,
    ),
)
def test_damaged_proof_is_reported_in_one_line(
    exported: Path, change: Callable[[dict[str, Any]], object], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    _edit_proof(copy, change)
    assert run(["verify", str(copy), "+target=npu"]) == 2
    error = capsys.readouterr().err
    assert f"{copy / 'proof.json'} cannot be read" in error
    assert error.count("\n") == 1


def test_signature_is_checked_with_public_key(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    for name in ("ours", "theirs"):
        key = Ed25519PrivateKey.generate()
        private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / f"{name}.pem").write_bytes(key.private_bytes(*private))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / f"{name}.pub").write_bytes(public)
    assert run(["verify", str(copy), f"key={tmp_path / 'ours.pub'}"]) == 1
    assert "is not signed" in capsys.readouterr().err
    signing.sign(copy, signing.private_key(str(tmp_path / "ours.pem")))
    assert "by key=FILE" in signing.check_signature(copy, None)
    assert "signed by the owner" in signing.check_signature(copy, str(tmp_path / "ours.pub"))
    for name in ("theirs", "ours"):
        if name == "ours":
            (copy / "proof.sig").write_text("00" * 64)
        assert run(["verify", str(copy), f"key={tmp_path / name}.pub"]) == 1
        assert "does not match proof.json and the key" in capsys.readouterr().err
    for name in ("ours.pem", "gone", "."):
        assert run(["verify", str(copy), f"key={tmp_path / name}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigError, match="is not a private Ed25519 key"):
        signing.private_key(str(tmp_path / "ours.pub"))


def test_failing_artefact_does_not_hide_others(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    model = onnx.load(copy / "model.fp32.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value += 1
    _replace_with_digest(copy, "model.fp32.onnx", model.SerializeToString())
    _replace_with_digest(copy, "model.safetensors", b"nothing")
    assert run(["verify", str(copy)]) == 1
    captured = capsys.readouterr()
    assert re.search(r"model\.py: .*model\.fp32\.onnx: onnxruntime cannot run", captured.err)
    assert "model.int8.tflite: largest error" in captured.out


def test_cached_bytecode_is_not_executed(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    (tmp_path / "other.py").write_text("raise SystemExit('run')")
    cache = importlib.util.cache_from_source(str(copy / "model.py"))
    py_compile.compile(
        str(tmp_path / "other.py"), cache,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip
    assert load_module(copy / "model.py").load() is not None
    assert run(["verify", str(copy)]) == 1
    assert "model.cpython-311.pyc is not part of the export" in capsys.readouterr().err


@pytest.mark.slow
def test_verify_fails_for_different_costs(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))
    _replace_with_digest(copy, "model.vela.tflite", (copy / "model.int8.tflite").read_bytes())
    _edit_proof(copy, lambda proof: proof["figures"]["latency_ms"].__setitem__(0, 1e-4))
    assert run(["verify", str(copy), "+target=npu"]) == 1
    captured = capsys.readouterr()
    assert "latency_ms, model.vela.tflite." in captured.err
    assert "; the proof says 0.0001" in captured.out
    _edit_proof(copy, lambda proof: proof["made"]["versions"].update({"ethos-u-vela": "0"}))
    assert run(["verify", str(copy), "+target=npu"]) == 0, "of another version it may differ"


@pytest.mark.slow
def test_verify_repeats_limits_of_derived_metrics(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "copy"))

    def limit(proof: dict[str, Any], ips: float) -> None:
        latency, *rest = proof["figures"]["latency_ms"]
        rate = 1e3 / latency
        proof["figures"]["throughput_ips"] = [rate, *rest]
        limits = {"throughput_ips": ips, "co2_g": 1e-12}
        proof["budget"] = {name: {"limit": n, "margin": rate / n - 1} for name, n in limits.items()}
        check = Check("budget.throughput_ips", rate, ips, "", True).to_json()
        proof["checks"] = [c for c in proof["checks"] if c["name"] != check["name"]] + [check]

    for ips, code in ((1.0, 0), (1e9, 1)):
        _edit_proof(copy, partial(limit, ips=ips))
        assert run(["verify", str(copy), "+target=npu"]) == code
        captured = capsys.readouterr()
        assert "budget.co2_g was not checked: co2_g is not measured on this target." in captured.out
        assert ("these checks failed: budget.throughput_ips." in captured.err) is (code == 1)
    assert run(["verify", str(copy), "+target=npu", "target.facts.grid_g_per_kwh=1000"]) == 1
    assert "budget.throughput_ips, budget.co2_g." in capsys.readouterr().err


def test_verify_reports_that_nothing_can_run(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = (*LARGE, "onnxruntime", "ai_edge_litert", "tvm")
    completed = run_hwnas("verify", str(exported), blocked=blocked)
    assert completed.returncode == 2
    assert "none of its files can run on this machine" in completed.stderr
    assert run(["verify", str(exported), f"data={tmp_path}"]) == 2, "was named"
    assert run(["verify", str(exported), str(tmp_path)]) == 2
    assert "without the name of an option: write OPTION=VALUE" in capsys.readouterr().err


@pytest.mark.slow
def test_export_continues_after_interruption(
    searched: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["export", "epochs=0", f"run={searched}", "pick=all", f"dir={tmp_path / 'a=b'}"]
    assert run(command) == 0
    folders = sorted(path for path in (tmp_path / "a=b").iterdir() if path.is_dir())
    assert len(folders) > 1
    shutil.rmtree(folders[0])
    existing = folders[1] / "proof.json"
    before = existing.stat().st_mtime_ns
    capfd.readouterr()
    assert run(command) == 0
    assert f"{folders[1]} is there already." in capfd.readouterr().out
    assert folders[0].is_dir()
    assert existing.stat().st_mtime_ns == before
    assert run(["verify", str(folders[0])]) == 0
    assert run(command) == 2
    assert "already exists: remove it" in capfd.readouterr().err
    shutil.rmtree(folders[0])
    proof = json.loads(existing.read_text())
    reported = proof["source"]["reported"]
    reported["files"] = dict.fromkeys(reported["files"], "0" * 64)  # of other weights
    existing.write_text(json.dumps(proof))
    assert run(command) == 2
    assert f"{folders[1]} already exists: remove it" in capfd.readouterr().err
    assert not folders[0].exists()


@pytest.mark.slow
def test_api_export_returns_existing_exports(searched: Path, tmp_path: Path) -> None:
    loaded = hwnas.load(searched)
    options: dict[str, Any] = {"pick": "all", "epochs": 0, "dir": tmp_path / "models"}
    paths = [export.path for export in loaded.export(**options)]
    assert len(paths) > 1
    shutil.rmtree(paths[0])
    second = loaded.export(**options)
    assert [export.path for export in second] == paths
    assert [export.proof["model"]["id"] for export in second] == [path.name for path in paths]


@pytest.mark.parametrize(
    ("runner", "arguments", "blocked"),
    [
        ("run_onnx.py", (), (*LARGE, "hwnas", "ai_edge_litert", "tvm")),
        pytest.param(
            "run_onnx.py",
            ("model.fp32.onnx",),
            (*LARGE, "hwnas", "ai_edge_litert", "tvm"),
            marks=pytest.mark.slow,
        ),
        ("run_tflite.py", (), (*LARGE, "hwnas", "onnxruntime", "tvm")),
        pytest.param(
            "model.py",
            (),
            (*LARGE[1:], "hwnas", "onnxruntime", "tvm", "ai_edge_litert"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_runner_needs_only_its_runtime(
    exported: Path,
    runner: str,
    arguments: tuple[str, ...],
    blocked: tuple[str, ...],
    tmp_path: Path,
) -> None:
    with np.load(exported / "images.npz") as content:
        pixels, expected = content["pixels"], content["expected"].argmax(axis=1)
    np.save(tmp_path / "images.npy", pixels)
    script = str(exported / runner)
    completed = run_file(script, str(tmp_path / "images.npy"), *arguments, blocked=blocked)
    assert completed.returncode == 0, completed.stderr
    predictions = np.array(completed.stdout.split(), int)
    assert len(predictions) == len(expected)
    proof = json.loads((exported / "proof.json").read_text())
    names = {"run_onnx.py": "model.int8.onnx", "run_tflite.py": "model.int8.tflite"}
    name = arguments[0] if arguments else names.get(runner, runner)
    agreement = proof["artefacts"][name]["agreement"]["same"]
    assert np.mean(predictions == expected) == pytest.approx(agreement)
    for invalid in (pixels[:, :4], pixels.astype(np.float32)):
        np.save(tmp_path / "wrong.npy", invalid)
        completed = run_file(script, str(tmp_path / "wrong.npy"), *arguments, blocked=blocked)
        assert completed.returncode == 1
        assert "Expected uint8 (N, *[" in completed.stderr
        assert "Traceback" not in completed.stderr


def test_run_py_prints_class_and_confidence_of_photos(exported: Path, tmp_path: Path) -> None:
    """Requires only Pillow and the runtime; images of digits are grey with 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    images = np.round(load_digits().images[:4] * (255 / 16)).astype(np.uint8)
    rotated = Image.fromarray(np.rot90(images[0]))  # rotated, corrected by EXIF
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    rotated.save(tmp_path / "0.png", exif=exif)
    for i in (1, 2):
        Image.fromarray(images[i]).convert("RGB").save(tmp_path / f"{i}.png")
    transparent = np.dstack([images[3]] * 3 + [np.where(images[3] == 255, 0, 255)]).astype(np.uint8)
    Image.fromarray(transparent, "RGBA").save(tmp_path / "3.png")  # transparent pixels are white
    photos = [str(tmp_path / f"{i}.png") for i in range(4)]
    unavailable = (*LARGE, "hwnas", "onnxruntime", "tvm")  # the artefact for the target is TFLite
    completed = run_file(str(exported / "run.py"), *photos, blocked=unavailable)
    assert completed.stderr == "Photos need Pillow: pip install pillow\n"
    blocked = [name for name in unavailable if name != "PIL"]
    completed = run_file(str(exported / "run.py"), *photos, blocked=blocked)
    assert (completed.returncode, completed.stderr) == (0, "")
    network = load_module(exported / "model.py").load()
    spec = json.loads((exported / "preprocessing.json").read_text())
    pixels = pixels_of(torch.from_numpy(images)[..., None], spec["shape"][0])
    with torch.inference_mode():
        probabilities = network(
            torch.from_numpy(prepared(pixels, spec["mean"], spec["std"]))
        ).softmax(1)
    for photo, line, row in zip(
        photos, completed.stdout.splitlines(), probabilities.numpy(), strict=True
    ):
        match = re.fullmatch(r"(.*): (\d) ([\d.]+)%", line)
        assert match is not None
        name, label, confidence = match.groups()
        assert name == photo
        assert float(confidence) / 100 == pytest.approx(row[int(label)], abs=0.05)
        assert row[int(label)] >= row.max() - 0.05
    for invalid, message in (
        ("missing.png", "missing.png: No such file or directory\n"),
        ("missing.npy", "missing.npy: No such file or directory\n"),
        (exported / "run.py", "cannot identify"),
    ):
        completed = run_file(str(exported / "run.py"), str(invalid), blocked=blocked)
        assert completed.returncode == 1
        assert message in completed.stderr
        assert "Traceback" not in completed.stderr
    assert "python run.py photo.png" in run_file(str(exported / "run.py"), blocked=blocked).stderr


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", [(640, 427), (500, 375), (333, 500)])
def test_run_py_reads_photos_like_training_images(
    exported: Path, size: tuple[int, int], orientation: int
) -> None:
    source = ast.parse((exported / "run.py").read_text())
    (function,) = (n for n in source.body if getattr(n, "name", "") == "read_photo")
    spec = {"decoded_side": 28, "channels": "rgb", "shape": [16, 16, 3]}
    modules = {"np": np, "math": math, "sys": sys, "contextlib": contextlib, "struct": struct}
    namespace: dict[str, Any] = {"spec": spec, **modules}
    exec(compile(ast.Module([function], []), "run.py", "exec"), namespace)
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    photo = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    content = io.BytesIO()
    photo.save(content, "JPEG", exif=exif)
    decoded = decode(content.getvalue(), ImageShape(28, "RGB"))
    expected = pixels_of(torch.from_numpy(decoded.copy())[None], 16)[0]
    result = namespace["read_photo"](content)
    assert np.abs(result.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "artefact", "blocked"),
    [
        ("onnxruntime", "model.int8.onnx", (*LARGE, "hwnas", "ai_edge_litert", "tvm")),
        ("torch", "model.py", (*LARGE[1:], "hwnas", "onnxruntime", "tvm", "ai_edge_litert")),
        ("ai_edge_litert", "model.int8.tflite", (*LARGE, "hwnas", "onnxruntime", "tvm")),
    ],
)
def test_readme_snippets_run(
    exported: Path, module: str, artefact: str, blocked: tuple[str, ...], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "copy"))
    with np.load(folder / "images.npz") as content:
        np.save(folder / "images.npy", content["pixels"])
        expected = content["expected"].argmax(axis=1)
    completed = run_snippet(module, folder, blocked=blocked)
    assert completed.returncode == 0, completed.stderr
    predictions = np.array(completed.stdout.replace("[", " ").replace("]", " ").split(), int)
    artefact_facts = json.loads((exported / "proof.json").read_text())["artefacts"][artefact]
    assert np.mean(predictions == expected) == pytest.approx(artefact_facts["agreement"]["same"])


def test_model_py_raises_for_wrong_images(exported: Path) -> None:
    network = load_module(exported / "model.py").load()
    with pytest.raises(ValueError, match=r"Expected floats \(1, .*, got torch.uint8"):
        network(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"got torch.float32 torch.Size\(\[2, 3, 8, 8\]\)"):
        network(torch.zeros(2, 3, 8, 8))


def test_failed_check_keeps_folder_as_failed(
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hwnas.export.checks.INT8_ERROR", 1e-9)
    assert run(["export", "epochs=0", f"run={searched}", "pick=fastest", f"dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert folder.name.endswith(".failed")
    assert f"{folder.name}: model.int8.tflite.error" in error
    card = (folder / "MODEL_CARD.md").read_text()
    assert "**Failed checks: `model.int8.onnx.error`, `model.int8.tflite.error`.**" in card
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run(["verify", str(folder)]) == 1
    assert "model.int8.tflite.error" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_export_leaves_no_partial_folder(searched: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    process = subprocess.Popen(
        [sys.executable, "-m", "hwnas", "export", "epochs=0", f"run={searched}", "pick=all",
         f"dir={first}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + _LIMIT_S
    while process.poll() is None and not (  # one is complete, and another is being written
        any(first.glob("*/proof.json")) and any(first.glob(f"{BUILDING}/*/model.int8.onnx"))
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert process.wait(timeout=_LIMIT_S) == -signal.SIGKILL
    folders = [f for f in first.iterdir() if f.is_dir() and f.name != BUILDING]
    assert folders
    assert all((folder / "proof.json").is_file() for folder in folders)
    assert run(["export", "epochs=0", f"run={searched}", "pick=most_accurate", f"dir={first}"]) == 0
    assert not (first / BUILDING).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["pick=fastst"], "Unknown pick 'fastst'. Did you mean 'fastest'"),
        (["pick=accuracy max where latency_ms < 0"], "meets the limits of pick="),
        (["id=123456789012"], "none of 10 candidates has this id. Similar ids"),
        (["pick=fastest", "id=1"], "give one of them"),
        (["target_name=cpu"], "Unknown target 'cpu'. Did you mean 'npu'? Allowed: npu."),
        (["max_int8_drop=-1"], "must be a number in"),
        (["picks=knee"], "Did you mean 'pick'"),
        (["max_int8_drop=nan"], "must be a number in"),
    ],
)
def test_invalid_export_is_reported_in_one_line(
    searched: Path, options: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(["export", f"run={searched}", f"dir={tmp_path / 'out'}", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_joint_search_is_exported_for_each_target(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, out = tmp_path / "run", tmp_path / "out"
    shared = f"run.supernets={searched.parent / 'supernets'}"
    arguments = ["+target=[npu,sketch]", *QUICK[1:-2], "n_trials=8", "budget=none", shared]
    assert run(["search", *arguments, f"run.dir={both}"]) == 0
    pick = "pick=accuracy max where npu.latency_ms < 10 and sketch.latency_ms < 10"
    assert run(["export", "epochs=0", f"run={both}", pick, f"dir={out}"]) == 0
    (npu,), (sketch,) = (list((out / target).iterdir()) for target in ("npu", "sketch"))
    assert npu.name == sketch.name
    assert (npu / "model.vela.tflite").is_file()
    assert not (sketch / "model.vela.tflite").exists()
    for folder in (npu, sketch):
        proof = json.loads((folder / "proof.json").read_text())
        assert proof["target"]["name"] == folder.parent.name
        assert run(["verify", str(folder)]) == 0
    capsys.readouterr()
    assert run(["verify", str(npu), "+target=sketch"]) == 2
    assert "nothing can be measured on it" in capsys.readouterr().err
    parent = tmp_path / "one"
    assert (
        run(
            [
                "export",
                "epochs=0",
                f"run={both}",
                "target_name=sketch",
                "pick=fastest",
                f"dir={parent}",
            ]
        )
        == 0
    )
    (folder,) = [path for path in parent.iterdir() if path.is_dir()]
    assert json.loads((folder / "proof.json").read_text())["target"]["name"] == "sketch"
    capsys.readouterr()
    assert run(["export", f"run={both / 'npu'}", f"dir={tmp_path / 'two'}"]) == 2
    assert f"Write run={both} target_name=npu" in capsys.readouterr().err


def test_invalid_pick_expression_names_allowed_form(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pick = "pick=accuracy max where latency_ms <= 0.8 und flash_kib <= 300"
    assert run(["export", f"run={searched}", f"dir={tmp_path / 'out'}", pick]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "flash_kib <= 300': expected [COLUMN max|min] [where COLUMN <= NUMBER and" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *CHANGES,
        (
            lambda run: edit(run, "part_of", ".."),
            "is the folder of one target of a search. Write run=",
        ),
        (lambda run: edit(run, "status", "running"), "is not finished. Resume it: hwnas"),
    ],
)
def test_unusable_run_is_not_exported(
    searched: Path, change: Callable[[Path], object], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copy = Path(shutil.copytree(searched, tmp_path / "run"))
    change(copy)
    assert run(["export", f"run={copy}", f"dir={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export"], "export needs the folder of a finished search"),
        (["export", "-m", "run=a,b"], "-m (several runs) is not supported by 'hwnas export'"),
        (["verify"], "verify needs the folder of an export"),
        (["verify", "/nowhere"], "is not an export: it has no proof.json"),
        (["verify", "/nowhere", "limit=1"], "Did you mean 'limit_s'"),
    ],
)
def test_missing_folders_are_reported(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_cpu_export_is_measured_and_verified(tmp_path: Path) -> None:
    network = [
        "search_space=mbconv_small",  # has a shipped table
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "n_trials=4",
        "budget=none",
        f"run.dir={tmp_path / 'run'}",
    ]
    shared = f"run.supernets={tmp_path / 'supernets'}"
    foreign = "table.allow_other_machine=true"  # the shipped table may come from another machine
    assert run(["search", "+target=cpu", foreign, *network, shared]) == 0
    out = tmp_path / "out"
    assert run(["export", f"run={tmp_path / 'run'}", "pick=fastest", "epochs=0", f"dir={out}"]) == 0
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    proof = json.loads((folder / "proof.json").read_text())
    assert proof["own_artefact"] == "model.so"
    assert proof["figures"]["latency_ms"][1] == "measured"
    assert proof["artefacts"]["model.tar"]["accuracy"] == proof["artefacts"]["model.so"]["accuracy"]
    blocked = [name for name in LARGE if name != "safetensors"]  # with the weights of the library
    completed = run_hwnas("verify", str(folder), "+target=cpu", blocked=blocked)
    assert completed.returncode == 0, completed.stderr
    assert re.search(r"model\.so: largest error .*same class as torch on 100\.0%", completed.stdout)
    assert re.search(r"latency_ms \d.*, measured", completed.stdout)


def test_format_c_writes_c_files(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["epochs=0", f"run={searched}", "pick=fastest", f"dir={tmp_path / 'models'}"]
    assert run(["export", *options, "format=c++"]) == 2
    assert "Unknown format 'c++'. Allowed: c, c_cpu" in capsys.readouterr().err
    assert run(["export", *options, "format=c"]) == 0
    (folder,) = (path for path in (tmp_path / "models").iterdir() if path.is_dir())
    names = {f"c/{path.name}" for path in (folder / "c").iterdir()}
    assert names == {*c_source.ABOUT}
    assert names <= json.loads((folder / "proof.json").read_text())["files"].keys()
    assert "| `c/network.c` | preprocessing in C" in (folder / "MODEL_CARD.md").read_text()
    array = (folder / "c" / "model.c").read_text()
    _replace_with_digest(folder, "c/model.c", array.replace(" 0,", " 1,", 1).encode())
    _check_failure(
        folder, "c/model.c has other bytes than model.int8.tflite and model.vela", capsys
    )
