import csv
import json
import random
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hwnas.core.errors import RunError
from hwnas.core.manifest import read_manifest
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder, default_path
from hwnas.models.spaces import SearchSpace
from hwnas.nas.candidates import Candidate


def _candidate(tiny: SearchSpace) -> Candidate:
    figures = {
        "accuracy": Quantity(0.5, "measured", 0.4, 0.6),
        "latency_ms": Quantity(1.0, "modelled"),
    }
    return Candidate(3, tiny.sample(random.Random(0)), figures, {"cycles": 7.0}, "")


def test_candidate_round_trips_through_json(tiny: SearchSpace) -> None:
    candidate = _candidate(tiny)
    raw = json.loads(json.dumps(candidate.to_json()))
    assert Candidate.from_json(3, candidate.genotype, raw) == candidate


def test_parquet_has_typed_column_per_choice(tiny: SearchSpace, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    smallest = Candidate(0, tiny.smallest(), {}, {}, "too big")
    rows = [c.row(tiny, "accuracy") for c in (smallest, _candidate(tiny))]
    table = pq.read_table(folder.write_parquet("candidates.parquet", rows))
    assert table.column_names[:4] == ["trial", "id", "state", "reason"]
    assert set(tiny.choices) < set(table.column_names)
    first = table.to_pylist()[0]
    assert first["state"] == "infeasible"
    assert first["reason"] == "too big"
    assert first["accuracy"] is None
    assert first["stages.0.blocks.1.kernel"] is None  # inactive at depth 1
    second = table.to_pylist()[1]
    assert (second["accuracy"], second["accuracy_low"], second["accuracy_source"]) == (
        0.5,
        0.4,
        "measured",
    )


def test_csv_round_trips(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    path = folder.write_csv("front.csv", [{"id": "a,b", "x": 0.1}, {"id": 'q"', "x": None}])
    with path.open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"id": "a,b", "x": "0.1"}, {"id": 'q"', "x": ""}]


def test_failed_write_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    path = folder.write_json("a.json", 1)

    def raise_disk_full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        folder.write_json("a.json", 2)
    assert json.loads(path.read_text()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_second_process_in_same_folder_is_refused(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "r"), RunFolder(tmp_path / "r")
    first.create()
    with pytest.raises(RunError, match="Another process is working in"):
        second.create()
    first.close()
    second.create()
    second.close()


def test_folder_with_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create()
    folder.write_json("manifest.json", {"format": 2, "verb": "train", "arguments": []})
    folder.close()
    with pytest.raises(RunError, match=r"already contains a run.*hwnas resume .*another dir\."):
        RunFolder(tmp_path).create("dir")


def test_folder_with_other_result_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_json("manifest.json", {"format": 2, "verb": "plan", "arguments": []})
    with pytest.raises(RunError, match=r"a result of hwnas plan\. Choose another run\.dir\.$"):
        RunFolder(tmp_path).create()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "no such folder. Give the folder of a run."),
        ("", "is not a run: it has no manifest.json. Give the folder of a run."),
        ("net.onnx", "To time an ONNX model: hwnas profile +target=NAME genotype="),
        ("front.csv", "front.csv is a file. Give the folder of a run."),
        ("manifest.json", "manifest.json is a file. Give its folder: run="),
    ],
)
def test_error_for_path_without_run_names_the_reason(
    tmp_path: Path, name: str, message: str
) -> None:
    if "." in name:
        (tmp_path / name).touch()
    with pytest.raises(RunError, match=re.escape(message)):
        read_manifest(tmp_path / name, "run")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"arguments": 3}', '{"format": 3, "arguments": []}', "{}"]
)
def test_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RunError, match=r"manifest\.json cannot be read"):
        read_manifest(tmp_path)


def test_folder_with_damaged_manifest_is_unlocked(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    for _ in range(2):
        with pytest.raises(RunError, match="cannot be read"):
            RunFolder(tmp_path).create()
        with pytest.raises(RunError, match="cannot be read"):
            RunFolder(tmp_path).reopen()


def test_default_path_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = default_path("search")
    first.mkdir(parents=True)
    assert default_path("search") != first


def test_formulas_in_csv_are_escaped(tmp_path: Path) -> None:
    texts = ["=HYPERLINK(1)", "@a", "+cmd", "-cmd", "-1+1", "a=1", "-", "-1.5", "+3 %", "", "'=1"]
    rows = [{"name": text, "n": -1} for text in texts]
    RunFolder(tmp_path).write_csv("a.csv", rows)
    with (tmp_path / "a.csv").open(newline="") as file:
        written = [row["name"] for row in csv.DictReader(file)]
    assert written == [f"'{text}" for text in texts[:5]] + texts[5:]


def test_changed_byte_of_a_manifest_is_refused(tmp_path: Path) -> None:
    manifest = {"format": 2, "verb": "train", "arguments": ["+target=é"], "seed": 1, "versions": {}}
    path = RunFolder(tmp_path).write_json("manifest.json", manifest | {"elapsed_s": 1e-7})
    content, known = path.read_bytes(), read_manifest(tmp_path)
    for position in range(len(content)):
        for flipped in (1, 4, 32):
            changed = bytearray(content)
            changed[position] ^= flipped
            path.write_bytes(changed)
            try:
                assert read_manifest(tmp_path) == known, (position, bytes(changed))
            except RunError:
                continue
    path.write_bytes(content.replace(b'"seed": 1', b'"seed": 2'))
    with pytest.raises(RunError, match=r"was changed after hwnas wrote it: .* start a new run\.$"):
        read_manifest(tmp_path)


def test_manifest_without_a_checksum_is_read(tmp_path: Path) -> None:
    manifest = {"format": 2, "verb": "train", "arguments": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_manifest(tmp_path) == manifest
