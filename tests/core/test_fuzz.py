"""A mutated file is read, or refused with a `HwnasError`."""

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
from tests.core.test_old_run import OLD_RUN_ZIP

ROOT = Path(__file__).parents[2]
JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just(10**18),
    st.just([]), st.just({}), st.just([[]]), st.just({"a": {}}), st.sampled_from([0, -1, 1e9, "1"]),
)  # fmt: skip
FUZZ_SETTINGS = settings(
    derandomize=True, max_examples=40, deadline=5000, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture(scope="module")
def old_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old_files")
    shutil.unpack_archive(OLD_RUN_ZIP, folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a latency table with few rows."""
    folder = ROOT / "latency_tables" / "cpu" / "onnxruntime-float32-1t-b1"
    full_table = latency_table.load_table(folder)
    entries = dict(list(full_table.entries.items())[:4])
    path = tmp_path_factory.mktemp("table")
    LatencyTable(
        path, entries, full_table.networks[:4], full_table.calibration, full_table.provenance
    ).save()
    return path


def _value_paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in JSON content."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _value_paths(value, (*path, key))


def _mutate_json(data: st.DataObject, content: Any) -> Any:
    """Return JSON content with one value replaced, removed or added."""
    *path, key = data.draw(st.sampled_from(sorted(_value_paths(content), key=str)))
    result = copy.deepcopy(content)
    parent = result
    for step in path:
        parent = parent[step]
    mutation = data.draw(st.sampled_from(["put", "put", "drop", "more"]))
    if mutation == "drop":
        del parent[key]
    elif mutation == "more" and isinstance(parent, dict):
        parent[data.draw(st.text(max_size=5))] = data.draw(JSON_VALUES)
    else:
        parent[key] = data.draw(JSON_VALUES)
    return result


def _mutate_text(data: st.DataObject, text: str) -> str:
    """Return a text with a part removed, doubled or replaced."""
    i, n = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 40))
    part = data.draw(st.sampled_from(["", text[i : i + n] * 2, "\x00", "9" * 30, "-1", ",", "{"]))
    return text[:i] + part + text[i + n :]


READERS: dict[str, Callable[[Path], object]] = {
    "run/manifest.json": lambda old_files: read_manifest(old_files / "run"),
    "run/front.json": lambda old_files: read_front(old_files / "run"),
    "run/models/805385a6b93a.json": lambda old_files: read_model(old_files / "run", "805385a6b93a"),
    "export/proof.json": lambda old_files: proof_file.read_proof(old_files / "export"),
}


@pytest.mark.parametrize("name", READERS)
@FUZZ_SETTINGS
@given(data=st.data())
def test_records(old_files: Path, name: str, data: st.DataObject) -> None:
    path = old_files / name
    original = path.read_text()
    try:
        content = _mutate_json(data, json.loads(original))
        path.write_text(
            data.draw(st.sampled_from([json.dumps(content), _mutate_text(data, original)]))
        )
        with contextlib.suppress(HwnasError):
            READERS[name](old_files)
    finally:
        path.write_text(original)


@FUZZ_SETTINGS
@given(data=st.data())
def test_spaces(old_files: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["tiny", "resnet_small", "vit_small"]))
    original = (ROOT / "search_spaces" / f"{name}.yaml").read_text()
    mutated = yaml.safe_dump(_mutate_json(data, yaml.safe_load(original)))
    path = old_files / "space.yaml"
    path.write_text(
        data.draw(st.sampled_from([mutated, _mutate_text(data, original)])), errors="replace"
    )
    with contextlib.suppress(HwnasError):
        space = spaces.load_space(path)
        family = families.get(space.family)
        family.check(space)
        family.resolution(space, space.largest())
        space.sample(random.Random(0))


@FUZZ_SETTINGS
@given(data=st.data())
def test_latency_tables(old_files: Path, table: Path, data: st.DataObject) -> None:
    shutil.copytree(table, old_files / "table", dirs_exist_ok=True)
    name = data.draw(st.sampled_from(["operators.csv", "networks.csv", "calibration.json"]))
    path = old_files / "table" / name
    mutated = _mutate_text(data, path.read_text())
    path.write_text(mutated)
    provenance = json.loads((old_files / "table" / "provenance.json").read_text())
    provenance["digests"][name] = [latency_table.text_digest(mutated)]
    if data.draw(st.booleans()):
        provenance = _mutate_json(data, provenance)
    (old_files / "table" / "provenance.json").write_text(json.dumps(provenance))
    with contextlib.suppress(HwnasError):
        latency_table.load_table(old_files / "table")


@FUZZ_SETTINGS
@given(data=st.data())
def test_csv(old_files: Path, data: st.DataObject) -> None:
    rows = ["a,b,accuracy,latency_ms", "0,0,0.5,1", "0,1,0.6,2", "1,0,0.7,3", "1,1,0.8,4", ""]
    path = old_files / "table.csv"
    path.write_text(_mutate_text(data, "\n".join(rows)))
    with contextlib.suppress(HwnasError):
        reading.read_foreign_csv(
            path, [Objective("accuracy", True), Objective("latency_ms", False)]
        )
    costs = {"latency_ms": "latency_ms"}
    with contextlib.suppress(HwnasError):
        benchmark_table.load_benchmark(BenchmarkConfig(str(path), ["a", "b"], "accuracy", costs))


SIZES = st.sampled_from([0, 1, 2, 3, -1, 7, 10**6, 10**9, 2**62])


@FUZZ_SETTINGS
@given(data=st.data())
def test_onnx(data: st.DataObject) -> None:
    def draw_sizes(n: int) -> list[int]:
        return data.draw(st.lists(SIZES, min_size=1, max_size=n))

    attributes: dict[str, Any] = {
        "kernel_shape": [3, 3],
        "strides": [1, 1],
        "pads": [1, 1, 1, 1],
        "group": 1,
    }
    for name in data.draw(st.sets(st.sampled_from(sorted(attributes)), max_size=2)):
        attributes[name] = data.draw(SIZES) if name == "group" else draw_sizes(4)
    shape = data.draw(st.sampled_from([[1, 1, 8, 8], draw_sizes(4), draw_sizes(5)]))
    conv = helper.make_node("Conv", ["x", "w"], ["c"], **attributes)
    second_op = data.draw(
        st.sampled_from(["Relu", "Expand", "Reshape", "Tile", "Gather", "MaxPool"])
    )
    sizes = helper.make_tensor("s", TensorProto.INT64, [2], [data.draw(SIZES) for _ in range(2)])
    inputs = ["c"] if second_op in ("Relu", "MaxPool") else ["c", "s"]
    second_attributes: dict[str, Any] = (
        {"kernel_shape": draw_sizes(2)} if second_op == "MaxPool" else {}
    )
    graph = helper.make_graph(
        [conv, helper.make_node(second_op, inputs, ["y"], **second_attributes)], "g",
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
