"""The command ``profile genotype=MODEL.onnx``."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from hwnas.models.onnx.writer import write_fp32

NETWORK: Graph = Graph.of(
    (
        Node("stem", OpSpec("conv2d+silu", (3, 8, 8), (16, 8, 8), 3), (INPUT,)),
        Node("last", OpSpec("conv2d", (16, 8, 8), (16, 8, 8), 3), ("stem",)),
        Node("sum", OpSpec("add+relu", (16, 8, 8), (16, 8, 8)), ("stem", "last")),
        Node("pool", OpSpec("mean", (16, 8, 8), (16, 1, 1)), ("sum",)),
        Node("classifier", OpSpec("linear", (16, 1, 1), (10, 1, 1)), ("pool",)),
    )
)


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    Path("mine.onnx").write_bytes(write_fp32(NETWORK, random_weights(NETWORK, 0)))
    batch_of_eight = Graph.of(replace(node, op=replace(node.op, batch=8)) for node in NETWORK)
    Path("eight.onnx").write_bytes(write_fp32(batch_of_eight, random_weights(NETWORK, 0)))
    Path("text.onnx").write_text("no model")
    for name in ("model.tflite", "model.PT", "model"):
        Path(name).write_bytes(b"\x1c\x00\x00\x00TFL3")


def test_profile_shows_layers_of_onnx_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "+target=sketch", "target.dtype=float16", "genotype=mine.onnx"]) == 0
    assert "mine.onnx on sketch (modelled)" in capsys.readouterr().out
    (path,) = Path("runs", "profile").glob("*/layers.csv")
    with path.open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert [*rows] == ["stem", "last", "pool", "classifier"]
    assert rows["last"]["operator"].startswith("conv2d+add+relu 16x8x8->16x8x8 k3")
    assert all(float(row["latency_ms"]) > 0 for row in rows.values())


def test_target_batch_matches_model_batch() -> None:
    options = ["target.dtype=float16", "target.batch=2"]
    assert run(["profile", "+target=sketch", *options, "genotype=eight.onnx"]) == 0
    (path,) = Path("runs", "profile").glob("*/layers.csv")
    with path.open(newline="") as file:
        assert all(" b8" in row["operator"] for row in csv.DictReader(file))


@pytest.mark.parametrize(
    ("target", "model", "message"),
    [
        ("npu", "eight.onnx", "has the batch size 8, but target 'npu'"),
        ("sketch", "text.onnx", "This is not a valid ONNX model"),
        ("sketch", "missing.onnx", "file not found"),
        ("sketch", "model.tflite", "no JSON file (suffix .json). Allowed: RUN/models/ID"),
        ("sketch", "model.PT", "no JSON file (suffix .json)"),
        ("sketch", "model", "no JSON file (suffix .json)"),
        ("npu", "mine.onnx", "'stem' cannot be written for the NPU: conv2d+silu"),
    ],
)
def test_unsupported_model_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], target: str, model: str, message: str
) -> None:
    assert run(["profile", f"+target={target}", f"genotype={model}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
