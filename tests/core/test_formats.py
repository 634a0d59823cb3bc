"""Formats of files that are read again: none said, the present one, and a newer one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwnas.analysis import fronts
from hwnas.analysis.fronts import Objective
from hwnas.core import manifest
from hwnas.core.errors import HwnasError, RunError
from hwnas.hardware.latency_tables import latency_table
from hwnas.models.spaces import SearchSpace
from hwnas.nas import verified_files
from hwnas.nas.verified_files import read_front, read_model
from hwnas.workflows import profile_layers
from tests.core.test_kept_run import KEPT

TABLE = Path(__file__).parents[2] / "latency_tables" / "cpu" / "onnxruntime-float32-1t-b1"
MEMBER = "805385a6b93a"
PAIR = [Objective("accuracy", True), Objective("latency_ms", False)]
FRAME = {"ideal": {"accuracy": 1, "latency_ms": 1}, "reference": {"accuracy": 0, "latency_ms": 9}}

#: What reads a file, and the largest format that it reads.
READERS: dict[str, tuple[Callable[[Path], object], int]] = {
    "run/manifest.json": (lambda kept: manifest.read_manifest(kept / "run"), manifest.FORMAT),
    "run/front.json": (lambda kept: read_front(kept / "run"), verified_files.FORMAT),
    f"run/models/{MEMBER}.json": (
        lambda kept: read_model(kept / "run", MEMBER),
        verified_files.FORMAT,
    ),
    "table/provenance.json": (
        lambda kept: latency_table.load_table(kept / "table").networks,
        latency_table.FORMAT,
    ),
    "comparison.json": (
        lambda kept: str(fronts.read_frame(kept / "comparison.json", PAIR)),
        fronts.FORMAT,
    ),
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    shutil.unpack_archive(KEPT, tmp_path)
    shutil.copytree(TABLE, tmp_path / "table")
    (tmp_path / "comparison.json").write_text(json.dumps(FRAME))
    return tmp_path


@pytest.mark.parametrize("name", [name for name, (_, newest) in READERS.items() if newest == 1])
def test_file_without_a_format_is_of_format_1(kept: Path, name: str) -> None:
    read, _ = READERS[name]
    content = json.loads((kept / name).read_text())
    (kept / name).write_text(json.dumps(content | {"format": 1}))
    after: Any = read(kept)
    content.pop("format", None)
    (kept / name).write_text(json.dumps(content))
    before: Any = read(kept)
    if isinstance(after, dict):
        assert after.pop("format") == 1
    assert after == before


def test_manifest_of_an_earlier_version_is_refused(kept: Path) -> None:
    path = kept / "run" / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key != "format"}))
    with pytest.raises(RunError, match="format 1 is from an earlier version of hwnas"):
        manifest.read_manifest(kept / "run")


@pytest.mark.parametrize("name", READERS)
def test_newest_format_is_read_and_a_newer_one_is_refused(kept: Path, name: str) -> None:
    read, newest = READERS[name]
    content = json.loads((kept / name).read_text())
    (kept / name).write_text(json.dumps(content | {"format": newest}))
    read(kept)
    (kept / name).write_text(json.dumps(content | {"format": newest + 1, "of": "that version"}))
    with pytest.raises(HwnasError) as refused:
        read(kept)
    said = str(refused.value)
    assert f"{newest + 1} is from a newer version of hwnas; this version reads format" in said
    assert Path(name).name in said or "table" in said
    assert "\n" not in said


def test_genotype_of_a_newer_file_is_refused(kept: Path, tiny: SearchSpace) -> None:
    path = kept / "run" / "models" / f"{MEMBER}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format": verified_files.FORMAT + 1}))
    with pytest.raises(HwnasError, match=r"genotype=.*a newer version of hwnas"):
        profile_layers.find_genotype(tiny, str(path))


def test_table_says_its_format(kept: Path) -> None:
    table = latency_table.load_table(kept / "table")
    table.save()
    said = json.loads((kept / "table" / "provenance.json").read_text())
    assert said["format"] == latency_table.FORMAT
    assert latency_table.load_table(kept / "table").provenance == table.provenance
