"""Any change of a file that is valid is read as valid, or refused by an error of ours."""

import contextlib
import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from hwnas.analysis import reading
from hwnas.analysis.fronts import Objective
from hwnas.core.errors import HwnasError
from hwnas.core.manifest import read_manifest
from hwnas.export import proof_file
from hwnas.hardware.latency_tables import latency_table
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.models import families, spaces
from hwnas.models.onnx import importer
from hwnas.nas import benchmark_table
from hwnas.nas.options import BenchmarkConfig
from hwnas.nas.verified_files import read_front, read_model
from tests.core.test_kept_run import KEPT

ROOT = Path(__file__).parents[2]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just(10**18),
    st.just([]), st.just({}), st.just([[]]), st.just({"a": {}}), st.sampled_from([0, -1, 1e9, "1"]),
)  # fmt: skip
FEW = settings(
    derandomize=True, max_examples=40, deadline=5000, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    shutil.unpack_archive(KEPT, folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a latency table with few rows."""
    folder = ROOT / "latency_tables" / "cpu" / "onnxruntime-float32-1t-b1"
    whole = latency_table.load_table(folder)
    few = dict(list(whole.entries.items())[:4])
    path = tmp_path_factory.mktemp("table")
    LatencyTable(path, few, whole.networks[:4], whole.calibration, whole.provenance).save()
    return path


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


def _changed(data: st.DataObject, content: Any) -> Any:
    """Return JSON with one value replaced, taken out, or put beside."""
    *path, key = data.draw(st.sampled_from(sorted(_places(content), key=str)))
    found = copy.deepcopy(content)
    inside = found
    for step in path:
        inside = inside[step]
    how = data.draw(st.sampled_from(["put", "put", "drop", "more"]))
    if how == "drop":
        del inside[key]
    elif how == "more" and isinstance(inside, dict):
        inside[data.draw(st.text(max_size=5))] = data.draw(ODD)
    else:
        inside[key] = data.draw(ODD)
    return found


def _cut(data: st.DataObject, text: str) -> str:
    """Return a text of which a part is taken out, doubled or replaced."""
    i, n = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 40))
    part = data.draw(st.sampled_from(["", text[i : i + n] * 2, "\x00", "9" * 30, "-1", ",", "{"]))
    return text[:i] + part + text[i + n :]


READERS: dict[str, Callable[[Path], object]] = {
    "run/manifest.json": lambda kept: read_manifest(kept / "run"),
    "run/front.json": lambda kept: read_front(kept / "run"),
    "run/models/805385a6b93a.json": lambda kept: read_model(kept / "run", "805385a6b93a"),
    "export/proof.json": lambda kept: proof_file.read_proof(kept / "export"),
}


@pytest.mark.parametrize("name", READERS)
@FEW
@given(data=st.data())
def test_records(kept: Path, name: str, data: st.DataObject) -> None:
    path = kept / name
    before = path.read_text()
    try:
        content = _changed(data, json.loads(before))
        path.write_text(data.draw(st.sampled_from([json.dumps(content), _cut(data, before)])))
        with contextlib.suppress(HwnasError):
            READERS[name](kept)
    finally:
        path.write_text(before)


@FEW
@given(data=st.data())
def test_spaces(kept: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["tiny", "resnet_small", "vit_small"]))
    said = (ROOT / "search_spaces" / f"{name}.yaml").read_text()
    changed = yaml.safe_dump(_changed(data, yaml.safe_load(said)))
    path = kept / "space.yaml"
    path.write_text(data.draw(st.sampled_from([changed, _cut(data, said)])), errors="replace")
    with contextlib.suppress(HwnasError):
        found = spaces.load_space(path)
        family = families.get(found.family)
        family.check(found)
        family.resolution(found, found.largest())
        found.sample(random.Random(0))


@FEW
@given(data=st.data())
def test_latency_tables(kept: Path, table: Path, data: st.DataObject) -> None:
    shutil.copytree(table, kept / "table", dirs_exist_ok=True)
    name = data.draw(st.sampled_from(["operators.csv", "networks.csv", "calibration.json"]))
    path = kept / "table" / name
    said = _cut(data, path.read_text())
    path.write_text(said)
    provenance = json.loads((kept / "table" / "provenance.json").read_text())
    provenance["digests"][name] = [latency_table.text_digest(said)]
    if data.draw(st.booleans()):
        provenance = _changed(data, provenance)
    (kept / "table" / "provenance.json").write_text(json.dumps(provenance))
    with contextlib.suppress(HwnasError):
        latency_table.load_table(kept / "table")


@FEW
@given(data=st.data())
def test_csv(kept: Path, data: st.DataObject) -> None:
    rows = ["a,b,accuracy,latency_ms", "0,0,0.5,1", "0,1,0.6,2", "1,0,0.7,3", "1,1,0.8,4", ""]
    path = kept / "table.csv"
    path.write_text(_cut(data, "\n".join(rows)))
    with contextlib.suppress(HwnasError):
        reading.read_foreign_csv(
            path, [Objective("accuracy", True), Objective("latency_ms", False)]
        )
    costs = {"latency_ms": "latency_ms"}
    with contextlib.suppress(HwnasError):
        benchmark_table.load_benchmark(BenchmarkConfig(str(path), ["a", "b"], "accuracy", costs))


SIZES = st.sampled_from([0, 1, 2, 3, -1, 7, 10**6, 10**9, 2**62])


@FEW
@given(data=st.data())
def test_onnx(data: st.DataObject) -> None:
    def few(n: int) -> list[int]:
        return data.draw(st.lists(SIZES, min_size=1, max_size=n))

    attributes: dict[str, Any] = {
        "kernel_shape": [3, 3],
        "strides": [1, 1],
        "pads": [1, 1, 1, 1],
        "group": 1,
    }
    for name in data.draw(st.sets(st.sampled_from(sorted(attributes)), max_size=2)):
        attributes[name] = data.draw(SIZES) if name == "group" else few(4)
    shape = data.draw(st.sampled_from([[1, 1, 8, 8], few(4), few(5)]))
    conv = helper.make_node("Conv", ["x", "w"], ["c"], **attributes)
    last = data.draw(st.sampled_from(["Relu", "Expand", "Reshape", "Tile", "Gather", "MaxPool"]))
    sizes = helper.make_tensor("s", TensorProto.INT64, [2], [data.draw(SIZES) for _ in range(2)])
    inputs = ["c"] if last in ("Relu", "MaxPool") else ["c", "s"]
    more: dict[str, Any] = {"kernel_shape": few(2)} if last == "MaxPool" else {}
    graph = helper.make_graph(
        [conv, helper.make_node(last, inputs, ["y"], **more)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [4, 1, 3, 3], [0.1] * 36), sizes],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    content = bytearray(model.SerializeToString())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(HwnasError):
        importer.import_onnx(bytes(content))
