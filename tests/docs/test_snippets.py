"""Snippets of the how-to guides for Python and C reproduce the export's proof."""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "use-in-python.md").read_text()
NORMALISE, PHOTO, ONNX, LITERT, TORCH, _ = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
C_PAGE = (ROOT / "docs" / "how-to" / "use-in-c.md").read_text()
EXPORT = "exports/4dd8db3b2a67/"


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of an export as the working directory."""
    tmp_path = tmp_path / "export"
    tmp_path.mkdir()
    with zipfile.ZipFile(ROOT / "tests" / "frozen" / "made.zip") as archive:
        for name in archive.namelist():
            if name.startswith(EXPORT) and not name.endswith("/"):
                (tmp_path / name.removeprefix(EXPORT)).write_bytes(archive.read(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    return tmp_path


def _predictions(code: str, capsys: pytest.CaptureFixture[str]) -> list[int]:
    variables: dict[str, Any] = {}
    exec(NORMALISE + code, variables)
    return [int(number) for number in re.findall(r"\d+", capsys.readouterr().out)]


def test_snippets_of_all_runtimes_agree(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = _predictions(ONNX, capsys)
    assert len(onnx) == 256
    assert _predictions(LITERT, capsys) == onnx
    float_predictions = _predictions(TORCH, capsys)
    assert np.mean(np.equal(float_predictions, onnx)) > 0.8


def test_photo_snippet_gives_network_input(export: Path) -> None:
    spec = json.loads((export / "preprocessing.json").read_text())
    (export / "preprocessing.json").write_text(json.dumps({**spec, "decoded_side": 8}))
    Image.new("RGB", (40, 30), "white").save("photo.jpg")
    variables: dict[str, Any] = {}
    exec(NORMALISE + PHOTO, variables)
    assert variables["images"].shape[1:] == tuple(variables["spec"]["shape"])
    assert variables["images"].min() > 250


def test_int8_reference_snippet_has_error_of_proof(export: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", C_PAGE, re.M | re.S)
    exec(code, {})
    proof = json.loads((export / "proof.json").read_text())
    agreement = proof["artefacts"]["model.int8.tflite"]["agreement"]
    with np.load(export / "images.npz") as images:
        errors = np.abs(np.load(export.parent / "references.npy") - images["expected"])
    assert errors.max() == pytest.approx(agreement["max_error"], rel=1e-4)
    assert errors.mean() == pytest.approx(agreement["mean_error"], rel=1e-4)
