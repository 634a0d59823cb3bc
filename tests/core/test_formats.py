"""Format numbers of files: missing, current and newer."""

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
from tests.core.test_old_run import OLD_RUN_ZIP

TABLE = Path(__file__).parents[2] / "latency_tables" / "cpu" / "onnxruntime-float32-1t-b1"
MEMBER = "805385a6b93a"
PAIR = [Objective("accuracy", True), Objective("latency_ms", False)]
FRAME = {"ideal": {"accuracy": 1, "latency_ms": 1}, "reference": {"accuracy": 0, "latency_ms": 9}}

#: By file: its reader, and the newest format that this version reads.
READERS: dict[str, tuple[Callable[[Path], object], int]] = {
    "run/manifest.json": (
        lambda old_files: manifest.read_manifest(old_files / "run"),
        manifest.FORMAT,
    ),
    "run/front.json": (lambda old_files: read_front(old_files / "run"), verified_files.FORMAT),
    f"run/models/{MEMBER}.json": (
        lambda old_files: read_model(old_files / "run", MEMBER),
        verified_files.FORMAT,
    ),
    "table/provenance.json": (
        lambda old_files: latency_table.load_table(old_files / "table").networks,
        latency_table.FORMAT,
    ),
    "comparison.json": (
        lambda old_files: str(fronts.read_frame(old_files / "comparison.json", PAIR)),
        fronts.FORMAT,
    ),
}


@pytest.fixture
def old_files(tmp_path: Path) -> Path:
    shutil.unpack_archive(OLD_RUN_ZIP, tmp_path)
    shutil.copytree(TABLE, tmp_path / "table")
    (tmp_path / "comparison.json").write_text(json.dumps(FRAME))
    return tmp_path


@pytest.mark.parametrize("name", [name for name, (_, newest) in READERS.items() if newest == 1])
def test_file_without_format_has_format_1(old_files: Path, name: str) -> None:
    read, _ = READERS[name]
    content = json.loads((old_files / name).read_text())
    (old_files / name).write_text(json.dumps(content | {"format": 1}))
    with_format: Any = read(old_files)
    content.pop("format", None)
    (old_files / name).write_text(json.dumps(content))
    without_format: Any = read(old_files)
    if isinstance(with_format, dict):
        assert with_format.pop("format") == 1
    assert with_format == without_format


def test_manifest_without_format_is_refused(old_files: Path) -> None:
    path = old_files / "run" / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key != "format"}))
    with pytest.raises(RunError, match="format 1 is from an earlier version of hwnas"):
        manifest.read_manifest(old_files / "run")


@pytest.mark.parametrize("name", READERS)
def test_newest_format_is_read_and_newer_refused(old_files: Path, name: str) -> None:
    read, newest = READERS[name]
    content = json.loads((old_files / name).read_text())
    (old_files / name).write_text(json.dumps(content | {"format": newest}))
    read(old_files)
    (old_files / name).write_text(
        json.dumps(content | {"format": newest + 1, "of": "that version"})
    )
    with pytest.raises(HwnasError) as error:
        read(old_files)
    message = str(error.value)
    assert f"{newest + 1} is from a newer version of hwnas; this version reads format" in message
    assert Path(name).name in message or "table" in message
    assert "\n" not in message


def test_genotype_in_newer_format_is_refused(old_files: Path, tiny: SearchSpace) -> None:
    path = old_files / "run" / "models" / f"{MEMBER}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format": verified_files.FORMAT + 1}))
    with pytest.raises(HwnasError, match=r"genotype=.*a newer version of hwnas"):
        profile_layers.find_genotype(tiny, str(path))


def test_saved_table_has_format(old_files: Path) -> None:
    table = latency_table.load_table(old_files / "table")
    table.save()
    provenance = json.loads((old_files / "table" / "provenance.json").read_text())
    assert provenance["format"] == latency_table.FORMAT
    assert latency_table.load_table(old_files / "table").provenance == table.provenance
