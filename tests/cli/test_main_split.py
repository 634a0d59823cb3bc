"""The verb ``split`` on the command line, and plans with split networks."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml

import hwnas
from hwnas.__main__ import run
from hwnas.core.errors import CompileError
from hwnas.export.proof_file import read_proof
from hwnas.export.reference_images import prepared, read_reference_images
from hwnas.fleet.deployment.pools import deployed_pools
from hwnas.fleet.network_splits import read_exported_network
from hwnas.fleet.plan import read_plan
from hwnas.hardware.backends import onnx_files
from tests.conftest import SHARED_WEIGHTS

pytestmark = pytest.mark.slow

_ON_CPU = ("cpu.target.dtype=int8", "cpu.target.runtime=onnxruntime", "timing.repeats=3",
           "timing.min_repeat_ms=2", "timing.drift=0.9")  # fmt: skip


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an export for an NPU."""
    folder = tmp_path_factory.mktemp("split")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        quick = ["+target=npu", "search_space=tiny", "train.epochs=1", "n_trials=4", "budget=none"]
        paths = [f"run.dir={folder / 'run'}", f"run.supernets={folder / 'supernets'}"]
        assert run(["search", *quick, *SHARED_WEIGHTS, *paths]) == 0
        pick = ["epochs=0", "pick=most_accurate", f"dir={folder / 'e'}"]
        assert run(["export", f"run={folder / 'run'}", *pick]) == 0
    (path,) = [path for path in (folder / "e").iterdir() if path.is_dir()]
    return path


@pytest.fixture(scope="module")
def split(exported: Path) -> Path:
    """Return the folder of the split networks."""
    folder = exported.parent / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        options = ["+target=[npu,cpu]", *_ON_CPU, "batches=[1,4]", f"dir={folder}"]
        assert run(["split", str(exported), *options]) == 0
    return folder


def _cuts(split: Path) -> list[dict[str, Any]]:
    cuts: list[dict[str, Any]] = json.loads((split / "split.json").read_text())["cuts"]
    return cuts


def test_chained_parts_equal_whole_network(exported: Path, split: Path) -> None:
    proof = read_proof(exported)
    normalisation = proof["dataset"]["normalisation"]
    images = prepared(
        read_reference_images(exported, proof).pixels[:9],
        normalisation["mean"],
        normalisation["std"],
    )
    name, providers = "model.int8.onnx", ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(exported / name, providers=providers)
    (expected,) = session.run(None, {"images": images})
    for cut in _cuts(split):
        head, tail = (
            onnxruntime.InferenceSession(split / cut["name"] / side / name, providers=providers)
            for side in ("head", "tail")
        )
        (activation,) = head.run(["activation"], {"images": images})
        assert activation.dtype == np.uint8
        assert activation.nbytes / 1024 / len(images) == cut["activation_kib"]
        (logits,) = tail.run(["logits"], {"activation": activation})
        np.testing.assert_array_equal(logits, expected)


def test_parts_are_timed_per_target_and_batch(split: Path) -> None:
    with (split / "profile.csv").open() as file:
        rows = [*csv.DictReader(file)]
    n = 1 + 2 * len(_cuts(split))
    for target, batch, source in (("npu", 1, "compiler-estimate"), ("cpu", 1, "measured"),
                                  ("cpu", 4, "measured")):  # fmt: skip
        selected = [r for r in rows if (r["target"], r["batch"]) == (target, str(batch))]
        assert len({row["id"] for row in selected}) == len(selected) == n
        assert {row["source"] for row in selected} == {source}
    assert len(rows) == 3 * n
    latencies = {(r["id"], r["target"], r["batch"]): float(r["latency_ms"]) for r in rows}
    network_id = next(row["id"] for row in rows if not row["place"])
    for cut in _cuts(split):
        parts = [
            latencies[cut[side].removesuffix("-int8"), "npu", "1"] for side in ("head", "tail")
        ]
        assert max(parts) < latencies[network_id, "npu", "1"] < 1.5 * sum(parts)
        files = {path.name for path in (split / cut["name"] / "head" / "npu").iterdir()}
        assert files == {"model.int8.tflite", "model.vela.tflite"}


def test_shorter_heads_send_larger_activations(split: Path) -> None:
    sent = [cut["activation_kib"] for cut in _cuts(split)]
    work = [cut["head_macs"] for cut in _cuts(split)]
    assert sent == sorted({*sent}, reverse=True)
    assert work == sorted({*work})


@pytest.fixture
def folder(split: Path, exported: Path, tmp_path: Path) -> Path:
    """Return the folder of a service and a fleet with a slow device at the edge."""
    service = {
        "fronts": [str(exported)], "splits": [str(split)],
        "classes": {"web": {
            "p99_ms": 200.0, "regions": ["edge", "cloud"], "origin": "edge", "payload_kib": 2000.0,
            "demand": {"rate": 20.0},
        }},
    }  # fmt: skip
    device = {"price": 0.1, "idle_w": 5, "busy_w": 9, "target": "cpu"}
    fleet = {
        "devices": {
            "phone": device | {"region": "edge", "buy": "bought", "quota": 1, "slots": 1},
            "server": device | {"region": "cloud", "buy": "on_demand", "quota": 2, "slots": 4},
        },
        "links": {"edge-cloud": {"rtt_ms": 1, "mbit_s": 20}},
    }
    heads = {cut["head"] for cut in _cuts(split)}
    # Heads are fast, all other networks are too slow for one phone.
    folder, path = tmp_path, tmp_path / "split" / "profile.csv"
    shutil.copytree(split, path.parent)
    with path.open() as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        is_head = f"{row['id']}-int8" in heads
        row |= dict.fromkeys(("latency_ms_low", "latency_ms_high"), "")
        row["latency_ms"] = "1" if is_head else "60"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(row for row in rows if row["target"] == "cpu" and row["batch"] == "1")
    service["splits"] = ["split"]
    (folder / "service.yaml").write_text(yaml.safe_dump(service))
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    return folder


def test_plan_uses_split_if_nothing_else_fits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"{name}={folder / name}.yaml" for name in ("service", "fleet")]
    assert run(["plan", *files, "front=0", "run.dir=p"]) == 0
    assert "0 requests are lost" in capsys.readouterr().out
    plan = read_plan(Path("p"))
    (route,) = plan.hours[0].routes
    assert plan.is_split(route.first, route.second)
    assert (route.share, plan.kinds[route.first].device) == (1.0, "phone")
    readme = Path("p/deploy/README.md").read_text()
    assert "always: it reads the first part's activation" in readme
    assert "Class `web`" not in readme
    assert not Path("p/deploy/kserve").exists()
    pools, unserved = deployed_pools(plan, {})
    assert not unserved
    models = {pool.of: pool.model for pool in pools}
    head, tail = models[route.first], models[str(route.second)]
    assert head is not None
    assert tail is not None
    assert (head.answer, head.answered, head.types) == ("activation", tail.shape, ("FP32", "UINT8"))
    assert (tail.image, tail.types, tail.answered) == ("activation", ("UINT8", "FP32"), (10,))
    config = Path(f"p/deploy/triton/models/{pools[0].name}/config.pbtxt").read_text()
    assert 'name: "activation" data_type: TYPE_UINT8' in config
    assert '"split": True' in Path("p/deploy/ray_app.py").read_text().replace("'", '"')


def test_api_splits_export_for_its_target(exported: Path) -> None:
    result = hwnas.split(exported, cuts=1)
    assert result.table().num_rows == 1
    assert [name for name in result.table().column_names if "_ms." in name] == [
        "head_ms.npu", "tail_ms.npu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "split needs the folder of an export"),
        (["no"], "no is not an export"),
        (
            ["EXPORT", "+target=cpu"],
            "computes in float32, but the export in int8. Set target.dtype=",
        ),
        (
            ["EXPORT", "+target=cpu", "target.dtype=int8"],
            "target.runtime=tvm cannot run parts of networks: "
            "add +target=cpu target.runtime=onnxruntime.",
        ),
        (["EXPORT", "batches=[0]"], "batches"),
        (["EXPORT", "batches=[]"], "batches=[] is empty"),
        (["EXPORT", "cuts=0"], "cuts must be"),
        (["EXPORT", "dir=EXPORT"], "dir="),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    exported: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["split", *(a.replace("EXPORT", str(exported)) for a in arguments)]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "split.json",
            None,
            "has no split.json: create a folder of split networks with hwnas split",
        ),
        ("split.json", "{", "split.json cannot be read"),
        ("split.json", '{"format": 99, "export": "", "cuts": []}', "format 99 is from a newer"),
        ("profile.csv", None, "file not found"),
        ("profile.csv", "id,precision,target\na,int8,cpu\n", "'row 0.engine' is missing"),
    ],
)
def test_damaged_split_is_reported_in_one_line(
    file: str, content: str | None, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "split" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    files = [f"{name}={folder / name}.yaml" for name in ("service", "fleet")]
    assert run(["plan", *files, "front=0", "run.dir=p"]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_changed_export_is_not_split(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(exported, tmp_path / "e")
    (tmp_path / "e" / "labels.txt").write_text("other")
    assert run(["split", str(tmp_path / "e")]) == 1
    assert "labels.txt was changed" in capsys.readouterr().err


def test_damaged_onnx_file_is_named(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "e")
    path = tmp_path / "e" / onnx_files.FLOAT32
    path.write_bytes(b"nothing")
    with pytest.raises(CompileError, match=f"{re.escape(str(path))}: This is not valid ONNX"):
        read_exported_network(tmp_path / "e", read_proof(tmp_path / "e"))
